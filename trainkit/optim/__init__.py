"""Optimisers: what optax has is taken from it; what it lacks is one file each."""

from trainkit.optim.build import build
from trainkit.optim.schedules import learning_rate

__all__ = ["build", "learning_rate"]
