"""What to write instead of another trainer's key where that depends on its value, or on other keys of the recipe."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from trainkit.recipe.toml.nested import named_values
from trainkit.recipe.toml.positions import Key
from trainkit.recipe.toml.schema import keys_of, root
from trainkit.recipe.toml.value_aliases import LAYERS, VALUES, pattern_of
from trainkit.recipe.toml.values import toml_value

#: Returns what to write instead of a key, from its value and all values of the recipe; empty if they do not decide it.
_Rule = Callable[[Any, dict[str, Any]], str]


def hint_by_value(key: Key, value: Any, values: dict[str, Any], note: str) -> str:
    """Return what to write instead of a key of another trainer; empty if its value makes no difference.

    Args:
        values: of the whole recipe.
        note: what is written about the key whatever its value is.
    """
    name = str(key[-1]).strip().lower().replace("-", "_")
    rule = RULES.get(pattern_of((*key[:-1], name))) or RULES.get(name)
    if rule and (hint := rule(value, values)):
        return hint
    is_off = value is False and note.startswith("write ") and name not in ("enable_thinking", "tf32")
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
    ratio = toml_value(float(f"{value / rate:.3g}"))
    return f"it is called schedule.min_ratio here, a share of the learning rate: min_ratio = {ratio}"


def _accumulation(value: Any, values: dict[str, Any]) -> str:
    per_pass, whole = _number(values, _PER_PASS), _number(values, ("batch_size",))
    rule = "leave it out: it follows from train.batch_size / (train.micro_batch_size x devices)"
    if not _is_count(value):
        return ""
    if _is_count(per_pass):
        return f"{rule}; with one device these are batch_size = {per_pass * value} and micro_batch_size = {per_pass}"
    if not _is_count(whole):
        return ""
    said = f"{rule}; if {whole} is for one pass: batch_size = {whole * value} and micro_batch_size = {whole}"
    return said + (f"; if it is for a step: micro_batch_size = {whole // value}" if whole % value == 0 else "")


def _per_device(value: Any, values: dict[str, Any]) -> str:
    accumulated = _number(values, ("gradient_accumulation_steps",)) or 1
    if not _is_count(value) or not _is_count(accumulated):
        return ""
    return (
        "it is called train.micro_batch_size here; train.batch_size is global, that of a whole step: "
        f"{value * accumulated} with one device, and as much again for each further one"
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
    if value == "steps" and every is not None:
        return f"leave it out, and write every = {every} in [evaluate]"
    is_given = isinstance(found := values.get("evaluate"), dict) and "every" in found
    return "leave it out: evaluate.every says it" if value == "steps" and is_given else ""


def _kept(value: Any, values: dict[str, Any]) -> str:
    """Levanter keeps checkpoints by a list of intervals."""
    every = [entry.get("every") for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
    return f"it is called keep_every here: keep_every = {every[-1]}" if every and _is_count(every[-1]) else ""


def _best(value: Any, values: dict[str, Any]) -> str:
    metric = value.removeprefix("eval_") if _is_short(value) else "loss"
    mode = "min" if re.search("loss|perplexity|error|wer", metric) else "max"
    chosen = _validation_set(values)
    name = f"validation/{chosen or 'held-out'}/{metric}"
    needed = "" if chosen else "; it needs data.held_out or [[data.validation]]"
    written = f"write [checkpoint.best] with metric = {toml_value(name)} and mode = {toml_value(mode)}"
    return f"{written}: RUN/best names it{needed}"


def _validation_set(values: dict[str, Any]) -> str:
    """Return the name of the first validation set; empty if there is none."""
    data = values.get("data")
    data = data if isinstance(data, dict) else {}
    sets = data.get("validation")
    if not isinstance(sets, list) or not sets:
        return "held-out" if data.get("held_out") else ""
    name = sets[0].get("name") if isinstance(sets[0], dict) else None
    return str(name) if _is_short(name) else "validation" if len(sets) == 1 else "validation-0"


def _tracker(value: Any, values: dict[str, Any]) -> str:
    words = " ".join(map(str, value if isinstance(value, list) else [value])).lower()
    if words in ("none", "", "no", "false"):
        return _wandb(False, values)
    if "disk" in words or "stdout" in words:
        return "leave it out: every run is logged in its directory"
    if "wandb" in words:
        return _wandb(True, values)
    name = next((name for name in ("tensorboard", "aim") if name in words), "")
    return f"write [track] with {name} = true" if name else ""


def _kept_always(value: Any, values: dict[str, Any]) -> str:
    if value is not False:
        return "leave it out: the newest are always saved, by checkpoint.every_minutes"
    return (
        f"the newest are always saved, by checkpoint.every_minutes; to keep the best one, too, {_best(value, values)}"
    )


def _divided(value: Any, values: dict[str, Any]) -> str:
    if not _is_count(value):
        return ""
    return (
        f"write parallel.fsdp: fsdp = {value} divides parameters and optimizer over {value} devices; no matrix is split"
    )


def _bfloat16(value: Any, values: dict[str, Any]) -> str:
    return 'it is called precision.compute here; write compute = "auto", or leave it out' if value == "auto" else ""


def _times(key: str) -> _Rule:
    """Return the rule that the value counts how often something is done in an epoch."""

    def rule(value: Any, values: dict[str, Any]) -> str:
        share = f", divided by {value}" if type(value) is int and value > 1 else ""
        return f"write {key}, which counts steps: those of an epoch, which trainkit plan RECIPE counts{share}"

    return rule


def _begun_with(value: Any, values: dict[str, Any]) -> str:
    if value == "scratch":
        return "leave it out: without model.pretrained a run starts from random weights"
    if value == "resume":
        return "leave it out: resuming is a command, trainkit resume RUN"
    return f"write [model] with pretrained = {toml_value(value)}" if _is_short(value) else ""


def _on_mlp(value: Any, values: dict[str, Any]) -> str:
    return (
        'leave it out: by default every linear layer of a block has one, as with targets = "all-linear"'
        if value
        else ""
    )


def _wandb(value: Any, values: dict[str, Any]) -> str:
    if value is False:
        return "leave it out: a run is written to no tracker that [track] does not name"
    project = next((inner for name, inner in named_values(values) if name in ("project", "wandb_project")), None)
    written = (
        f"[track.wandb] with project = {toml_value(project)}" if _is_short(project) else "[track] with wandb = true"
    )
    return f"write {written}"


def _platform(value: Any, values: dict[str, Any]) -> str:
    kind = VALUES["parallel.platform"].get(value, value) if isinstance(value, str) else ""
    known = kind in ("cpu", "gpu", "tpu")
    return f"it is called parallel.platform here; write platform = {toml_value(kind)}" if known else ""


def _targets(value: Any, values: dict[str, Any]) -> str:
    names = value if isinstance(value, list) else [value]
    layers = [LAYERS.get(name, "") if isinstance(name, str) else "" for name in names]
    return (
        f"write adapter.targets: targets = {toml_value(list(dict.fromkeys(layers)))}" if layers and all(layers) else ""
    )


def _adapted(value: Any, values: dict[str, Any]) -> str:
    if value == "lora":
        has_adapter = isinstance(values.get("adapter"), dict)
        return "leave it out: a recipe with [adapter] trains LoRA" if has_adapter else "write [adapter] with rank = 16"
    both = ", and [adapter] too" if isinstance(values.get("adapter"), dict) else ""
    return f"leave it out{both}: a recipe without [adapter] trains the whole model" if value == "full" else ""


def _hub_data(value: Any, values: dict[str, Any]) -> str:
    if value in ("json", "csv", "text", "parquet", "arrow"):
        return "leave it out, and write path with the name of the file: its ending says what it is"
    return f'write type = "huggingface" and id = {toml_value(value)}' if _is_short(value) else ""


def _in_table(header: str, key: str) -> _Rule:
    """Return the rule that the value belongs to a key of a table."""

    def rule(value: Any, values: dict[str, Any]) -> str:
        return f"write {header} with {key} = {toml_value(value)}" if _is_short(value) else ""

    return rule


def _source(header: str, *, is_id: bool = False) -> _Rule:
    """Return the rule that the value names the documents of a table: files, or a data set of the Hugging Face Hub.

    Args:
        is_id: whether a name without an owner is that of a data set, too.
    """

    def rule(value: Any, values: dict[str, Any]) -> str:
        first = value[0] if isinstance(value, list) and value else value
        if not _is_short(first) or len(toml_value(value)) > 200:
            return ""
        is_file = first.startswith((".", "/", "~")) or _FILE.search(first)
        if not is_file and not is_id and "/" not in first:
            return ""
        said = f"path = {toml_value(value)}" if is_file else f'type = "huggingface" and id = {toml_value(first)}'
        return f"write {header} with {said}"

    return rule


def _is_short(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) < 100


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < _LARGEST


def _number(values: Any, names: tuple[str, ...]) -> Any:
    """Return the first number that has one of some names, at any depth of a recipe; None if there is none."""
    return next((value for name, value in named_values(values) if name in names and _is_number(value)), None)


def _is_number(value: Any) -> bool:
    """Return whether a value is a number with which can be calculated."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST


#: Numbers from here on are nothing that a recipe allows.
_LARGEST = 1e18
_BETA1, _BETA2 = ("adam_beta1", "beta1"), ("adam_beta2", "beta2")
_PER_PASS = ("micro_batch_size", "per_device_train_batch_size", "per_gpu_train_batch_size")
_NAMES: dict[str, _Rule] = {
    "adam_beta1 adam_beta2 beta1 beta2": _betas,
    "min_lr lr_min min_learning_rate": _min_ratio,
    "gradient_accumulation_steps grad_accumulation_steps grad_accum_steps": _accumulation,
    "per_device_train_batch_size per_gpu_train_batch_size": _per_device,
    "gradient_checkpointing enable_activation_checkpointing activation_checkpointing": _recomputing,
    "decay_lr": _decay,
    "keep": _kept,
    "always_save_checkpoint": _kept_always,
    "load_best_model_at_end metric_for_best_model greater_is_better": _best,
    "report_to log_with track.type track.backend track._component_": _tracker,
    "wandb_log use_wandb": _wandb,
    "device": _platform,
    "model_axis_size": _divided,
    "bf16 fp16 mixed_precision": _bfloat16,
    "evals_per_epoch": _times("evaluate.every"),
    "saves_per_epoch": _times("checkpoint.keep_every"),
    "init_from": _begun_with,
    "apply_lora_to_mlp": _on_mlp,
    "target_modules lora_target_modules lora_target lora_attn_modules": _targets,
    "finetuning_type": _adapted,
    "data.train.*.source": _hub_data,
    "wandb_project": _in_table("[track.wandb]", "project"),
    "wandb_entity": _in_table("[track.wandb]", "entity"),
    "dataset datasets pretraining_dataset train_file train_urls": _source("[[data.train]]"),
    "dataset_name": _source("[[data.train]]", is_id=True),
    "eval_dataset test_datasets validation_file validation_urls": _source("[[data.validation]]"),
    "eval_strategy evaluation_strategy": _evaluations,
}
_FILE = re.compile(r"[.](jsonl?|txt|csv|parquet|arrow)([.]\w+)?$|[*]|^\w+://")
#: The rules by the name of the key, or by its place and name.
RULES = {name: rule for names, rule in _NAMES.items() for name in names.split()}
