"""What prepares data: the doctor, splits, generated scenes."""
