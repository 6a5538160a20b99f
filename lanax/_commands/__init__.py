"""What `python -m lanax` does, one file for each command. Holds no library code."""
