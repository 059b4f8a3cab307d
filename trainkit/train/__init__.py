"""Training: the pure step, the loop around it, and the threads beside it."""
