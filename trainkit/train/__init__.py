"""Training: the pure step, the loop around it, and what stands ready beside it."""
