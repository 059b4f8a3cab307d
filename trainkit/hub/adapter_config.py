"""adapter_config.json, in which the library PEFT describes an adapter, read as and written from `[adapter]`.

PEFT names the layers of an adapter by the ends of their names in the base, or by a pattern for whole names
(https://github.com/huggingface/peft, `LoraConfig`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any, Literal, cast

from pydantic import TypeAdapter, ValidationError

from trainkit.data.hub_files import read_object
from trainkit.errors import TrainkitError
from trainkit.hub import find
from trainkit.hub.config import family_of_spec
from trainkit.recipe.families.hugging_face import TensorName
from trainkit.recipe.families.transformer import Transformer
from trainkit.recipe.sections.adapter import Lora, linear_shapes, targeted_layers
from trainkit.recipe.sections.model import Model
from trainkit.recipe.spec import with_tuples
from trainkit.recipe.toml.pretrained import PretrainedCheckpoint

FILE = find.ADAPTER.config
#: Keys that do not change what the adapter computes: names, versions, and how it was trained.
_HARMLESS = frozenset({
    "peft_version", "auto_mapping", "task_type", "base_model_name_or_path", "revision", "inference_mode",
    "fan_in_fan_out", "megatron_core", "qalora_group_size", "runtime_config", "eva_config", "layers_pattern",
})  # fmt: skip
#: Our own key, which PEFT ignores with a warning: how the base was quantised while the adapter was trained.
QUANTISED = "base_quantization"
#: Its value for a base in 4 bit: the options of transformers' `BitsAndBytesConfig` that load the same.
NF4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
#: Keys that are read.
_READ = frozenset({"r", "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "use_rslora", "use_dora"})
#: Keys with the values that are supported. Other initialisations than these change the base.
_POSSIBLE: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian", "orthogonal", "eva"),
    QUANTISED: (None, NF4),
}
#: Values of any other key by which PEFT says that something is not used.
_UNUSED: tuple[Any, ...] = (None, False, {}, [], "")
#: What to do with an adapter that is not supported.
_MERGE = (
    'merge it into its model with PEFT (merge_and_unload), and begin with the merged model: [model] pretrained = "…"'
)
_LAYERS = 'such as ["q_proj", "v_proj"], ends of names; or a pattern for whole names: ".*[qv]_proj"; or "all-linear"'


def read(directory: Path, spec: Transformer) -> Lora:
    """Return the `[adapter]` that describes the adapter in a directory.

    Raises:
        TrainkitError: there is none, it uses features that are not supported (lists them all), or it is for another
            model.
    """
    config, where = read_object(directory / FILE), str(directory / FILE)
    wrong = [f"{key} = {json.dumps(value)}" for key, value in config.items() if not _is_known(key, value)]
    if config.get("use_rslora") and config.get("use_dora"):
        wrong.append("use_rslora and use_dora together")
    if wrong:
        raise TrainkitError(
            f"the adapter uses features that are not supported: {'; '.join(wrong)}", where=where, hint=_MERGE
        )
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not (type(rank) is int and rank > 0 and type(alpha) in (int, float) and cast(float, alpha) > 0):
        raise TrainkitError(
            f"r and lora_alpha are numbers above 0, found {json.dumps(rank)} and {json.dumps(alpha)}",
            where=where,
            hint="restore the file that PEFT wrote: r is the rows of every lora_A, lora_alpha the value in training",
        )
    variant: Literal["lora", "rslora", "dora"]
    variant = "dora" if config.get("use_dora") else "rslora" if config.get("use_rslora") else "lora"
    return Lora(
        rank=rank,
        alpha=float(cast(float, alpha)),
        targets=_targets(config, spec, where),
        variant=variant,
        dropout=_dropout(config, where),
        base=_base_storage(config),
    )


def _dropout(config: Mapping[str, Any], where: str) -> float:
    """Return the dropout with which the adapter was trained. Raises TrainkitError if it is not a probability."""
    rate = config.get("lora_dropout") or 0.0
    if not (isinstance(rate, int | float) and 0 <= rate < 1):
        raise TrainkitError(
            f"lora_dropout = {json.dumps(rate)}", where=where, hint="it must be at least 0 and less than 1"
        )
    return float(rate)


def trained_on(directory: Path) -> Literal["none", "nf4"]:
    """Return how the base was stored while the adapter in a directory was trained, as far as the adapter records it."""
    return _base_storage(read_object(directory / FILE))


def _base_storage(config: Mapping[str, Any]) -> Literal["none", "nf4"]:
    return "nf4" if config.get(QUANTISED) else "none"


def base_of(directory: Path) -> tuple[str, str | None]:
    """Return (directory or hub id, revision) of the model that the adapter in a directory is for. Raises
    TrainkitError."""
    config = read_object(directory / FILE)
    name, revision = config.get("base_model_name_or_path"), config.get("revision")
    if not (isinstance(name, str) and name):
        raise TrainkitError(
            "the adapter does not say which model it is for",
            where=str(directory / FILE),
            hint='set "base_model_name_or_path" in this file to a directory or a hub id',
        )
    return name, revision if isinstance(revision, str) else None


def write(directory: Path, layers: Iterable[str], spec: Transformer, adapter: Lora) -> Path:
    """Write adapter_config.json of an adapter on these layers of a model, and return its path. Raises OSError."""
    layers, theirs = list(layers), names(spec)
    config = {
        "peft_type": "LORA",
        # PEFT has no type for masked-LM, and requires methods of a type that an encoder lacks
        "task_type": {"encoder-decoder": "SEQ_2_SEQ_LM", "causal": "CAUSAL_LM"}.get(spec.kind),
        "base_model_name_or_path": spec.pretrained,
        "revision": spec.revision,
        "r": adapter.rank,
        "lora_alpha": int(adapter.alpha) if adapter.alpha.is_integer() else adapter.alpha,
        "lora_dropout": adapter.dropout,
        "bias": "none",
        "use_rslora": adapter.variant == "rslora",
        "use_dora": adapter.variant == "dora",
        "fan_in_fan_out": not all(theirs[layer].transposed for layer in layers),
        "target_modules": _target_modules(theirs, layers, besides=_not_adapted(spec)),
        "inference_mode": True,
        **({QUANTISED: NF4} if adapter.base == "nf4" else {}),
    }
    file = directory / FILE
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return file


def look_up(pretrained: str, revision: str | None, *, tables: Mapping[str, Any]) -> PretrainedCheckpoint | None:
    """Return the `[adapter]` values of the adapter that a recipe begins with; None if `[model]` is wrong, which has its
    own error.

    Targets are in the recipe's words where they mean the same layers.

    Raises:
        TrainkitError: the adapter cannot be found, is not available, or the model begins with nothing.
    """
    try:
        spec: Model = TypeAdapter(Model).validate_python(with_tuples(tables.get("model")))
    except ValidationError:
        return None
    directory, commit = find.config(pretrained, revision, kind=find.ADAPTER)
    if not isinstance(spec, Transformer):
        return None
    if spec.pretrained is None:
        raise TrainkitError(
            "a trained adapter needs the model that it was trained on, but [model] begins at random",
            hint=f'[model] pretrained = "{read_object(directory / FILE).get("base_model_name_or_path") or "…"}"',
        )
    settings = read(directory, spec)
    values = settings.model_dump(include={"rank", "alpha", "variant", "dropout"}) | {"targets": list(settings.targets)}
    targets = tables["adapter"].get("targets")
    if targets is not None and _layers(targets, spec) == list(settings.targets):
        values["targets"] = targets
    if settings.base != "none":
        values["base"] = settings.base
    here = find.local(pretrained, kind=find.ADAPTER) is not None
    return PretrainedCheckpoint(
        values=values,
        pretrained=str(directory) if here else pretrained,
        revision=commit,
        config=str(directory / FILE) if here else f"{pretrained}/{FILE}",
        changeable=frozenset({"base", "dropout"}) if settings.base != "none" else frozenset({"dropout"}),
        section="adapter",
    )


def other_base(directory: Path, spec: Transformer) -> str | None:
    """Return the model that the adapter in a directory names, if it has another name than the base of `spec`; else
    None.

    Only the last part of a path or hub id is compared.
    """
    theirs, ours = read_object(directory / FILE).get("base_model_name_or_path"), spec.pretrained
    if not (isinstance(theirs, str) and theirs and ours):
        return None
    return theirs if PurePath(theirs).name != PurePath(ours).name else None


def names(spec: Transformer) -> dict[str, TensorName]:
    """Return the names of the linear layers' tensors in checkpoints of the model, by our name of the layer."""
    theirs = {name.ours: name for name in family_of_spec(spec).names}
    return {layer: theirs[f"blocks.{layer}.weight"] for layer in linear_shapes(spec)}


def _is_known(key: str, value: Any) -> bool:
    return key in _HARMLESS or key in _READ or value in _POSSIBLE.get(key, _UNUSED)


def _targets(config: Mapping[str, Any], spec: Transformer, where: str) -> tuple[str, ...]:
    """Return our names of the layers that a config targets."""
    chosen = _matcher(config.get("target_modules"), "target_modules", where)
    left_out = _matcher(config.get("exclude_modules") or [], "exclude_modules", where)
    beyond = [path for path in _not_adapted(spec) if chosen(path) and not left_out(path)]
    if beyond and str(config["target_modules"]).lower() != "all-linear":
        raise TrainkitError(
            f"the adapter has layers that trainkit does not adapt: {', '.join(beyond)}", where=where, hint=_MERGE
        )
    layers: list[str] = []
    for layer, name in names(spec).items():
        blocks = linear_shapes(spec)[layer][0]
        paths = [name.at((i,)).removesuffix(".weight") for i in range(blocks)]
        meant = sum(chosen(path) and not left_out(path) for path in paths)
        if 0 < meant < blocks:
            raise TrainkitError(
                f"the adapter has {layer} in {meant} of the {blocks} blocks only, which trainkit does not support",
                where=where,
                hint=_MERGE,
            )
        layers += [layer] if meant else []
    if not layers:
        first = next(iter(names(spec).values())).at((0,)).removesuffix(".weight")
        raise TrainkitError(
            f"the adapter has no layer of this model ({family_of_spec(spec).type}), such as {first}:"
            f" target_modules = {json.dumps(config['target_modules'])}",
            where=where,
            hint=f"it is for {config.get('base_model_name_or_path') or 'another model'}",
        )
    return tuple(layers)


def _not_adapted(spec: Transformer) -> list[str]:
    """Return what PEFT could adapt besides the linear layers of blocks: the embedding, the output, routers and
    experts."""
    ours = {f"blocks.{layer}.weight" for layer in linear_shapes(spec)}
    there = {*spec.leaf_shapes(vocab_size=1, sequence_length=1), "output"}
    others = (
        name
        for name in family_of_spec(spec).names
        if name.theirs.endswith(".weight") and name.ours in there and name.ours not in ours
    )
    return [name.at((0, 0)[: name.stacked]).removesuffix(".weight") for name in others if "norm" not in name.ours]


def _matcher(value: Any, key: str, where: str) -> Callable[[str], bool]:
    """Return a function that decides, as PEFT does, whether a layer's whole name is matched."""
    if isinstance(value, str):
        if value.lower() == "all-linear":
            return lambda path: True
        try:
            pattern = re.compile(value)
        except re.error as error:
            raise TrainkitError(
                f"{key} = {json.dumps(value)} is not a pattern: {error}", where=where, hint=_LAYERS
            ) from error
        return lambda path: pattern.fullmatch(path) is not None
    if not (isinstance(value, list) and all(isinstance(end, str) for end in value)):
        raise TrainkitError(f"{key} names no layers: {json.dumps(value)}", where=where, hint=_LAYERS)
    return lambda path: any(path == end or path.endswith(f".{end}") for end in value)


def _layers(targets: Any, spec: Transformer) -> list[str] | None:
    """Return the layers that a recipe's targets match; None if a target matches none."""
    try:
        return targeted_layers(Lora(targets=with_tuples(targets)), list(linear_shapes(spec)))
    except (ValidationError, TrainkitError):
        return None


def _target_modules(theirs: Mapping[str, TensorName], layers: list[str], besides: list[str]) -> list[str] | str:
    """Return the ends of the names of these layers or, where others end the same, a pattern for whole names.

    `besides` are the names of layers outside the blocks.
    """
    ends = sorted(_shortest_ends(theirs, layers, besides))
    if not any("{" in end for end in ends):
        return ends
    whole = (re.escape(theirs[layer].theirs.removesuffix(".weight")) for layer in layers)
    return "|".join(name.replace(re.escape("{layer}"), r"\d+") for name in whole)


def _shortest_ends(theirs: Mapping[str, TensorName], layers: list[str], besides: list[str]) -> set[str]:
    """Return what PEFT has to adapt: the shortest ends of names that mean these layers and no others."""
    ends = {layer: name.theirs.removesuffix(".weight").split(".") for layer, name in theirs.items()}
    others = [*(end for layer, end in ends.items() if layer not in layers), *(name.split(".") for name in besides)]

    def shortest(end: list[str]) -> str:
        length = next(n for n in range(1, len(end) + 1) if all(end[-n:] != other[-n:] for other in others))
        return ".".join(end[-length:])

    return {shortest(ends[layer]) for layer in layers}
