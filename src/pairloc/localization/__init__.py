"""The engine: what the source teaches, and the boxes of the target's tags."""
