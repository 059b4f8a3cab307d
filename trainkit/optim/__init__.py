"""Optimisers: what optax has is taken from it; what it lacks is one file each."""

from trainkit.optim.build import build
from trainkit.optim.metrics import metrics
from trainkit.optim.scheduled import LearningRate, ScheduledValue, learning_rate

__all__ = ["LearningRate", "ScheduledValue", "build", "learning_rate", "metrics"]
