"""Checks of the data before and during training, and the display of a batch."""
