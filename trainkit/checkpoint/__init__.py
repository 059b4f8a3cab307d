"""Checkpoints: one pytree, one TensorStore array a leaf, committed whole or not at all.

`runs/NAME/checkpoints/STEP/` holds `arrays/LEAF/` (zarr3, crc32c in every chunk) and `manifest.json`, which is written
last. All of it is written under another name and renamed into place, so that a directory with a number for a name is
a whole checkpoint whenever the process dies. `saver` writes, `restore` reads, `store` lists, verifies and keeps house;
`store` needs no jax.
"""
