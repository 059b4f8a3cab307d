"""The Hugging Face hub's checkpoints, in and out: tensors, names, configs. What reads configs imports no jax."""
