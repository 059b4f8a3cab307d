"""The parts of `scripts/gpu.py`."""
