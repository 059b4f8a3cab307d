"""The kinds of faults that `scripts/faults.py` tries."""
