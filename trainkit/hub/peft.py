"""Adapters in the format of the library PEFT: `adapter_model.safetensors` and `adapter_config.json`, read and written.

For each adapted linear layer of a block PEFT has `lora_A`, (rank, in), and `lora_B`, (out, rank), as torch
keeps matrices, under the layer's name in the checkpoint that the adapter is for (https://github.com/huggingface/peft,
"Checkpoint format").
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import PyTree

from trainkit.data.hub_files import read_object
from trainkit.errors import TrainkitError
from trainkit.hub import adapter_config, find
from trainkit.hub.safetensors import TensorEntry, Tensors, read_header, write_file
from trainkit.hub.source import compare
from trainkit.models.adapters import Adapted, Numbers, adapted_layers
from trainkit.recipe.families.transformer import Transformer
from trainkit.recipe.sections.adapter import Lora

WEIGHTS = find.ADAPTER.weights
PREFIX = "base_model.model."
#: PEFT's names of the leaves of an `Adapted`.
_CALLED = {"a": "lora_A.weight", "b": "lora_B.weight", "magnitude": "lora_magnitude_vector"}


def save(directory: Path, model: PyTree, spec: Transformer, adapter: Lora) -> list[Path]:
    """Write the adapter of an adapted model into an existing directory, in float32; return the files. Raises
    OSError."""
    layers, names = adapted_layers(model), adapter_config.names(spec)
    entries = [
        TensorEntry(_key(tensor, leaf), numbers[at].T.shape, np.dtype(np.float32), partial(np.transpose, numbers[at]))
        for name, layer in layers.items()
        for leaf, array in _leaves(layer)
        for numbers in [np.asarray(array, np.float32)]
        for at, tensor in names[name].places(numbers.shape)
    ]
    write_file(directory / WEIGHTS, entries)
    return [directory / WEIGHTS, adapter_config.write(directory, layers, spec, adapter)]


def read(directory: Path, shapes: PyTree, spec: Transformer) -> Numbers:
    """Return the numbers of the adapter in a directory, on the host, for `models.adapters.with_numbers`.

    `shapes` is a model, or its shapes, with the adapter that `adapter_config.read` describes.

    Raises:
        TrainkitError: tensors are missing, unknown or of another shape; lists them.
    """
    tensors, names = _tensors(directory), adapter_config.names(spec)
    leaves = [(name, leaf, like) for name, layer in adapted_layers(shapes).items() for leaf, like in _leaves(layer)]

    def keys(name: str, leaf: str, shape: tuple[int, ...]) -> list[str]:
        return [_key(tensor, leaf) for _, tensor in names[name].places(shape)]

    # all axes but that of the blocks are reversed
    wanted = {key: like.shape[1:][::-1] for name, leaf, like in leaves for key in keys(name, leaf, like.shape)}
    try:
        compare(wanted, {name: tensor.shape for name, tensor in tensors.items()}, where=str(directory / WEIGHTS))
    except TrainkitError as error:
        named = read_object(directory / adapter_config.FILE).get("base_model_name_or_path")
        hint = f"the adapter says that it is for {named}" if named else "it is for another model"
        raise TrainkitError(error.problem, where=error.where, hint=hint) from None
    by_layer: dict[str, dict[str, np.ndarray]] = {}
    for name, leaf, like in leaves:
        parts = [tensors.view(key).T.astype(np.float32) for key in keys(name, leaf, like.shape)]
        by_layer.setdefault(name, {})[leaf] = np.stack(parts)
    return by_layer


def _leaves(layer: Adapted) -> Iterator[tuple[str, Any]]:
    yield "a", layer.a
    yield "b", layer.b
    if layer.magnitude is not None:
        yield "magnitude", layer.magnitude.value


def _key(tensor: str, leaf: str) -> str:
    return f"{PREFIX}{tensor.removesuffix('.weight')}.{_CALLED[leaf]}"


def _tensors(directory: Path) -> Tensors:
    file = directory / WEIGHTS
    if not file.is_file():
        pickled = (directory / "adapter_model.bin").is_file()
        why = (
            "its weights are pickled: such a file may run any code when it is read" if pickled else "it does not exist"
        )
        raise TrainkitError(f"cannot read {WEIGHTS}: {why}", where=str(directory))
    leaves = read_header(file)
    # PEFT has written both names
    return Tensors({name.replace("magnitude_vector.weight", "magnitude_vector"): t for name, t in leaves.items()})
