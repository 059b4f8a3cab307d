"""Many runs of one recipe: sweeps over its keys, and the range test of learning rates."""
