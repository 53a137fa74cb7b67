"""Run the command line with `python -m pairloc`."""

from pairloc.cli import main

if __name__ == "__main__":
    main()
