"""Writes a run's model for other programs: Hugging Face and PEFT, on demand or in the background."""
