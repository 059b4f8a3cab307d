"""What a run directory contains, read without jax or textual: list, summarise, follow, compare, replay, manifest."""
