"""Using a model: generation with a cache of keys and values."""
