"""Checkpoints: one pytree, a TensorStore array for each leaf, committed whole or not at all.

`runs/NAME/checkpoints/STEP/` holds `arrays/LEAF/` (zarr3, crc32c in every chunk) and `manifest.json`, which is written
last. A checkpoint is written under another name and renamed into place, so that a directory named by a step is whole
whenever the process dies. `saver` writes, `restore` reads; `store` lists, verifies and removes, without jax.
"""
