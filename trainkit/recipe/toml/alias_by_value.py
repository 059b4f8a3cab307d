"""What to write instead of another trainer's key where that depends on its value, or on other keys of the recipe."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from trainkit.recipe.toml.schema import keys_of, root
from trainkit.recipe.toml.values import toml_value

#: Returns what to write instead of a key, from its value and all values of the recipe; empty if they do not decide it.
_Rule = Callable[[Any, dict[str, Any]], str]


def hint_by_value(name: str, value: Any, values: dict[str, Any], note: str) -> str:
    """Return what to write instead of a key of another trainer; empty if its value makes no difference.

    Args:
        values: of the whole recipe.
        note: what is written about the key whatever its value is.
    """
    if rule := _RULES.get(name.strip().lower().replace("-", "_")):
        return rule(value, values)
    is_off = value is False and note.startswith("write ") and name not in _OFF_MEANS_MORE
    return "leave it out: it is off unless a recipe asks for it" if is_off else ""


def _betas(value: Any, values: dict[str, Any]) -> str:
    found = values.get("optimizer")
    kind = found.get("type", "adamw") if isinstance(found, dict) else "adamw"
    keys = keys_of(keys_of(root())["optimizer"], {"type": kind})
    section, first, second = "optimizer", _number(values, _BETA1), _number(values, _BETA2)
    if "betas" not in keys and "adamw" in keys:
        section, keys = "optimizer.adamw", keys_of(keys["adamw"])
    if "betas" not in keys:
        plain = [name for name in ("momentum", "decay") if name in keys]
        return f"type = {toml_value(kind)} has {' and '.join(plain)} instead" if plain and isinstance(kind, str) else ""
    default = keys["betas"].get("default", [])
    betas = [*(given if given is not None else usual for given, usual in zip((first, second), default, strict=False))]
    return f"write both in one list: betas = {toml_value([*betas, *default[2:]])} in [{section}]" if default else ""


def _min_ratio(value: Any, values: dict[str, Any]) -> str:
    rate = _number(values, ("learning_rate", "lr", "max_lr", "peak_lr"))
    if not _is_number(value) or rate is None or not 0 < value <= rate:
        return ""
    return f"it is called schedule.min_ratio here, a share of the learning rate: min_ratio = {_rounded(value / rate)}"


def _rounded(number: float) -> str:
    return toml_value(float(f"{number:.3g}"))


def _accumulation(value: Any, values: dict[str, Any]) -> str:
    per_pass = _number(values, _PER_PASS)
    if type(value) is not int or type(per_pass) is not int:
        return ""
    return (
        "it is no key: it follows from batch_size / (micro_batch_size x devices); for one device write "
        f"micro_batch_size = {per_pass} and batch_size = {per_pass * value} in [train]"
    )


def _per_device(value: Any, values: dict[str, Any]) -> str:
    accumulated = _number(values, ("gradient_accumulation_steps",)) or 1
    if type(value) is not int or type(accumulated) is not int:
        return ""
    return (
        f"it is called train.micro_batch_size here; train.batch_size is that of a whole step: {value * accumulated} "
        "with one device, and as much again for each further one"
    )


def _recomputing(value: Any, values: dict[str, Any]) -> str:
    return "leave it out: by default the plan recomputes only what does not fit" if value is False else ""


def _decay(value: Any, values: dict[str, Any]) -> str:
    kind = "cosine" if value else "constant"
    return f'it is called schedule.type here; write type = "{kind}"' if isinstance(value, bool) else ""


def _evaluations(value: Any, values: dict[str, Any]) -> str:
    every = _number(values, ("eval_steps", "eval_interval"))
    if value in ("no", False):
        return "leave it out: a recipe without [[data.validation]] and data.held_out is not evaluated"
    if value == "epoch":
        return "write every in [evaluate]: the steps of an epoch, which trainkit plan RECIPE counts"
    return f"leave it out, and write every = {every} in [evaluate]" if value == "steps" and every is not None else ""


def _in_table(header: str, key: str) -> _Rule:
    """Return the rule that the value belongs to a key of a table."""

    def rule(value: Any, values: dict[str, Any]) -> str:
        return f"write {header} with {key} = {toml_value(value)}" if _is_short(value) else ""

    return rule


def _source(header: str) -> _Rule:
    """Return the rule that the value names the documents of a table: files, or a data set of the Hugging Face Hub."""

    def rule(value: Any, values: dict[str, Any]) -> str:
        if not _is_short(value):
            return ""
        is_file = value.startswith((".", "/", "~")) or re.search(
            r"[.](jsonl?|txt|csv|parquet|arrow)([.]\w+)?$|[*]", value
        )
        said = f"path = {toml_value(value)}" if is_file else f'type = "huggingface" and id = {toml_value(value)}'
        return f"write {header} with {said}"

    return rule


def _is_short(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) < 100


def _number(values: Any, names: tuple[str, ...]) -> Any:
    """Return the first number that has one of some names, at any depth of a recipe; None if there is none."""
    return next((value for name, value in _leaves(values) if name in names and _is_number(value)), None)


def _leaves(value: Any) -> Iterator[tuple[str, Any]]:
    for name, inner in value.items() if isinstance(value, dict) else ():
        yield name, inner
        yield from _leaves(inner)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_BETA1, _BETA2 = ("adam_beta1", "beta1"), ("adam_beta2", "beta2")
_PER_PASS = ("micro_batch_size", "per_device_train_batch_size", "per_gpu_train_batch_size")
_NAMES: dict[str, _Rule] = {
    "adam_beta1 adam_beta2 beta1 beta2": _betas,
    "min_lr lr_min min_learning_rate": _min_ratio,
    "gradient_accumulation_steps grad_accumulation_steps grad_accum_steps": _accumulation,
    "per_device_train_batch_size per_gpu_train_batch_size": _per_device,
    "gradient_checkpointing enable_activation_checkpointing activation_checkpointing": _recomputing,
    "decay_lr": _decay,
    "wandb_project": _in_table("[track.wandb]", "project"),
    "wandb_entity": _in_table("[track.wandb]", "entity"),
    "dataset datasets dataset_name pretraining_dataset train_file train_urls": _source("[[data.train]]"),
    "eval_dataset test_datasets validation_file validation_urls": _source("[[data.validation]]"),
    "eval_strategy evaluation_strategy": _evaluations,
}
#: Options whose `false` is more than leaving them out.
_OFF_MEANS_MORE = ("enable_thinking", "tf32")
_RULES = {name: rule for names, rule in _NAMES.items() for name in names.split()}
