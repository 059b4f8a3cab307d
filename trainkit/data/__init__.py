"""Data: sources to documents, tokens, shards, examples and batches, on the host alone. No jax."""
