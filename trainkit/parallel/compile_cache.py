"""Where compiled programs are kept."""

from __future__ import annotations

import os
from pathlib import Path

import jax


def use_compile_cache() -> None:
    """Keep compiled programs across processes, the small ones too (`scripts/bench/start.py`: what it is worth)."""
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(base / "trainkit" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
