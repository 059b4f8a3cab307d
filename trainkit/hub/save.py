"""Writing a model as a checkpoint that `transformers` loads without remote code: weights and config.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import ml_dtypes
import numpy as np
from jaxtyping import PyTree

from trainkit.hub import safetensors
from trainkit.hub.config import Config, config_of, family_of_spec
from trainkit.hub.safetensors import TensorEntry
from trainkit.models.build import leaf_names
from trainkit.recipe.families.hugging_face import TensorName
from trainkit.recipe.families.transformer import Pretrained

#: Largest size of a file, as the hub recommends.
SHARD_BYTES = 5_000_000_000
DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def save(
    directory: Path,
    model: PyTree,
    spec: Pretrained,
    *,
    dtype: str,
    sequence_length: int,
    tokens: dict[str, int] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> list[Path]:
    """Write weights and config.json into an existing directory; return the files.

    Args:
        model: the model, or its arrays in its structure.
        dtype: of the weights: "float32" or "bfloat16".
        sequence_length: the context length if the spec has none.
        tokens: further keys of config.json, such as `eos_token_id`.

    Raises OSError, and TrainkitError as `config_of`.
    """
    names = family_of_spec(spec).names_of(spec.head.kind)
    arrays = eqx.filter(model, eqx.is_array)
    leaves = dict(zip(jax.tree.leaves(leaf_names(arrays)), jax.tree.leaves(arrays), strict=True))
    fetch = _Fetched()
    entries = [
        _entry(tensor, names[leaf], at, array, DTYPES[dtype], fetch)
        for leaf, array in leaves.items()
        for at, tensor in names[leaf].places(array.shape)
    ]
    vocab_size = leaves["token_embedding"].shape[0]
    # before the weights, which take long, because it may be refused
    config = config_of(spec, vocab_size=vocab_size, sequence_length=sequence_length, dtype=dtype)
    files = safetensors.write(directory, entries, shard_bytes=shard_bytes)
    written = directory / "config.json"
    # keys of the table that name a token depend on shapes
    parts = {key for part in family_of_spec(spec).parts for key in part.keys}
    others = {key: value for key, value in (tokens or {}).items() if key not in parts}
    written.write_text(as_json({**config, **others}), encoding="utf-8")
    return [*files, written]


def as_json(config: Config) -> str:
    """Return a config as the text of its file."""
    return json.dumps(config, indent=2, sort_keys=True) + "\n"


class _Fetched:
    """Returns leaves on the host and keeps the last one, whose tensors are being written."""

    def __init__(self) -> None:
        self._array: Any = None
        self._numbers = np.empty(0)

    def __call__(self, array: Any) -> np.ndarray:
        if self._array is not array:
            self._numbers = np.empty(0)  # free the last leaf before the next is fetched
            self._array, self._numbers = array, _on_host(array)
        return self._numbers


def _on_host(array: Any) -> np.ndarray:
    """Return the numbers of an array on the host. An array caches them, so this asks a temporary copy of it."""
    if not isinstance(array, jax.Array):
        return np.asarray(array)
    parts = [shard.data for shard in array.addressable_shards]
    return np.asarray(jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts))


def _entry(
    tensor: str,
    name: TensorName,
    at: tuple[int, ...],
    array: Any,
    dtype: np.dtype,
    fetch: Callable[[Any], np.ndarray],
) -> TensorEntry:
    def numbers() -> np.ndarray:
        part = fetch(array)[at]
        return (part.T if name.transposed else part).astype(dtype, copy=False)

    return TensorEntry(tensor, name.tensor_shape(array.shape), dtype, numbers)
