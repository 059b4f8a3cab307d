"""Models: layers, and the stacks of blocks that the families are (`gpt.py`, `decoder.py`).

A model turns tokens into hidden states and knows no task.
"""

from trainkit.models.build import build, leaf_names, scale
from trainkit.models.casting import cast

__all__ = ["build", "cast", "leaf_names", "scale"]
