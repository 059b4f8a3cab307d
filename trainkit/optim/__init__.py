"""Optimisers: what optax has is taken from it; what it lacks is one file each."""

from trainkit.optim.build import LearningRate, build, learning_rate
from trainkit.optim.metrics import metrics

__all__ = ["LearningRate", "build", "learning_rate", "metrics"]
