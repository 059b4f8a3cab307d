"""Adapters as the library PEFT keeps them: `adapter_model.safetensors` and `adapter_config.json`, in and out.

Of each linear layer and each of our layers' adapters PEFT has `lora_A`, (rank, in), and `lora_B`, (out, rank), as torch
keeps matrices, under the layer's name in the checkpoint that the adapter is for (https://github.com/huggingface/peft,
"Checkpoint format").
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from trainkit.errors import TrainkitError
from trainkit.hub.config import family_of_spec
from trainkit.hub.names import Name, compare
from trainkit.hub.safetensors import Entry, Tensors, read_header, write_file
from trainkit.models.adapters import Adapted, adapted_layers, with_adapted
from trainkit.models.exact import Exact
from trainkit.recipe.adapter import Lora
from trainkit.recipe.pretrained import Pretrained

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."
#: What PEFT calls the leaves of an `Adapted`.
_CALLED = {"a": "lora_A.weight", "b": "lora_B.weight", "magnitude": "lora_magnitude_vector"}
#: Keys of its config with the values that mean nothing beyond what there is here; other values are refused.
_NOTHING: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "modules_to_save": (None, []),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "layer_replication": (None,),
    "lora_bias": (False, None),
    "trainable_token_indices": (None,),
    "target_parameters": (None, []),
    "alora_invocation_tokens": (None,),
    "use_qalora": (False, None),
}


def save(directory: Path, model: PyTree, spec: Pretrained, adapter: Lora) -> list[Path]:
    """Write the adapter of an adapted model into an existing directory, in float32; the files. Raises OSError."""
    entries = [
        Entry(_key(tensor, leaf), numbers[at].T.shape, np.dtype(np.float32), partial(np.transpose, numbers[at]))
        for name, layer in adapted_layers(model).items()
        for leaf, numbers in _leaves(layer)
        for at, tensor in _name(spec, name).places(numbers.shape)
    ]
    write_file(directory / WEIGHTS, entries)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": spec.pretrained,
        "revision": spec.revision,
        "r": adapter.rank,
        "lora_alpha": int(adapter.alpha) if adapter.alpha.is_integer() else adapter.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": adapter.variant == "rslora",
        "use_dora": adapter.variant == "dora",
        "fan_in_fan_out": not all(_name(spec, name).transposed for name in adapted_layers(model)),
        "target_modules": sorted(_modules(spec, list(adapted_layers(model)))),
        "inference_mode": True,
    }
    (directory / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return [directory / WEIGHTS, directory / CONFIG]


def read_adapter(directory: Path, spec: Pretrained) -> Lora:
    """What the adapter in a directory is, in our words.

    Raises:
        TrainkitError: it is none, or has something that there is not here; names all of it.
    """
    config, where = _config(directory), str(directory / CONFIG)
    wrong = [
        f"{key} = {json.dumps(config[key])}"
        for key, harmless in _NOTHING.items()
        if key in config and config[key] not in harmless
    ]
    if config.get("use_rslora") and config.get("use_dora"):
        wrong.append("use_rslora and use_dora together")
    if wrong:
        raise TrainkitError(f"the adapter has what there is not here: {'; '.join(wrong)}", where=where)
    variant: Literal["lora", "rslora", "dora"]
    variant = "dora" if config.get("use_dora") else "rslora" if config.get("use_rslora") else "lora"
    tensors = _tensors(directory)
    targets = tuple(name for name, theirs in _linears(spec).items() if _key(theirs.at((0,)), "a") in tensors)
    if not targets:
        raise TrainkitError(
            f"it has no tensor of this model ({family_of_spec(spec).type}), such as"
            f" {_key(next(iter(_linears(spec).values())).at((0,)), 'a')}",
            where=str(directory / WEIGHTS),
            hint=f"it is for {config.get('base_model_name_or_path') or 'another model'}",
        )
    try:
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
    except (KeyError, TypeError, ValueError) as error:
        raise TrainkitError("it says neither r nor lora_alpha as numbers", where=where) from error
    return Lora(rank=rank, alpha=alpha, targets=targets, variant=variant)


def load(directory: Path, model: PyTree, spec: Pretrained) -> PyTree:
    """`model`, adapted as `read_adapter` says, with the numbers of the adapter in a directory.

    Raises:
        TrainkitError: tensors are missing, not known, or of another shape; lists them.
    """
    tensors, layers = _tensors(directory), adapted_layers(model)
    wanted = {
        _key(tensor, leaf): numbers[at].T.shape
        for name, layer in layers.items()
        for leaf, numbers in _leaves(layer)
        for at, tensor in _name(spec, name).places(numbers.shape)
    }
    compare(wanted, {name: tensor.shape for name, tensor in tensors.items()}, where=str(directory / WEIGHTS))

    def filled(name: str, leaf: str, like: np.ndarray) -> Any:
        parts = [tensors.view(_key(tensor, leaf)).T for _, tensor in _name(spec, name).places(like.shape)]
        return jnp.asarray(np.stack(parts).astype(np.float32).reshape(like.shape))

    for name, layer in layers.items():
        found = {leaf: filled(name, leaf, numbers) for leaf, numbers in _leaves(layer)}
        if "magnitude" in found:
            found["magnitude"] = Exact(found["magnitude"])
        layers[name] = replace(layer, **found)
    return with_adapted(model, layers)


def _leaves(layer: Adapted) -> Iterator[tuple[str, np.ndarray]]:
    yield "a", np.asarray(layer.a, np.float32)
    yield "b", np.asarray(layer.b, np.float32)
    if layer.magnitude is not None:
        yield "magnitude", np.asarray(layer.magnitude.value, np.float32)


def _key(tensor: str, leaf: str) -> str:
    return f"{PREFIX}{tensor.removesuffix('.weight')}.{_CALLED[leaf]}"


def _linears(spec: Pretrained) -> Mapping[str, Name]:
    """The matrices of the blocks that are linear layers in the checkpoint, by our name of the layer."""
    from trainkit.recipe.linears import linears

    theirs = {name.ours: name for name in family_of_spec(spec).names}
    return {name: theirs[f"blocks.{name}.weight"] for name in linears(spec)}  # type: ignore[arg-type]


def _name(spec: Pretrained, layer: str) -> Name:
    return _linears(spec)[layer]


def _modules(spec: Pretrained, layers: list[str]) -> set[str]:
    """What PEFT is told to adapt: the shortest ends of names that mean these layers and no others."""
    ends = {name: theirs.theirs.removesuffix(".weight").split(".") for name, theirs in _linears(spec).items()}
    others = [end for name, end in ends.items() if name not in layers]

    def shortest(end: list[str]) -> str:
        length = next(n for n in range(1, len(end)) if all(end[-n:] != other[-n:] for other in others))
        return ".".join(end[-length:])

    return {shortest(ends[name]) for name in layers}


def _tensors(directory: Path) -> Tensors:
    file = directory / WEIGHTS
    if not file.is_file():
        pickled = (directory / "adapter_model.bin").is_file()
        why = "its weights are pickled: such a file may run any code when it is read" if pickled else "there are none"
        raise TrainkitError(f"no {WEIGHTS} to be read: {why}", where=str(directory))
    found = read_header(file)
    # PEFT has written both
    return Tensors({name.replace("magnitude_vector.weight", "magnitude_vector"): t for name, t in found.items()})


def _config(directory: Path) -> dict[str, Any]:
    path = directory / CONFIG
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise TrainkitError(f"no adapter_config.json to be read: {error.strerror}", where=str(directory)) from error
    except (ValueError, RecursionError) as error:
        raise TrainkitError(f"it is no JSON: {error}", where=str(path)) from error
    if not isinstance(config, dict):
        raise TrainkitError("it is no JSON object", where=str(path))
    return config
