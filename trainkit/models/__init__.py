"""Models: `layers.py` and one file a family. A model turns tokens into hidden states and knows no task."""

from trainkit.models.build import build, cast, leaf_names

__all__ = ["build", "cast", "leaf_names"]
