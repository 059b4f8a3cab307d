"""config.json ↔ the spec of a family. What trainkit does not support is refused by name.

A family is a table (`recipe/families/NAME.py`; `recipe/families/hugging_face.py` says what one is made of). A key that
no part of the table knows is refused too, since it may change what is computed; `HARMLESS` are those that do not. Noise
in training that trainkit does not add is in the table too: `untrained` lists what a config asks for, and an export
writes it as 0.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainkit.data.hub_files import read_object
from trainkit.errors import TrainkitError
from trainkit.recipe.families import families
from trainkit.recipe.families.hugging_face import Config, Family, Unsupported, means_nothing
from trainkit.recipe.families.model import TOKENS, Head
from trainkit.recipe.families.transformer import Pretrained
from trainkit.recipe.spec import type_of, with_tuples

#: Keys that are never supported, and why, unless the table of a family allows a value.
NEVER = {
    "auto_map": "it comes with its own code (trust_remote_code), which trainkit never runs",
    "quantization_config": "its weights are quantised",
}


def read_config(directory: Path) -> Config:
    """Return the config.json in a checkpoint's directory. Raises TrainkitError."""
    return read_object(
        directory / "config.json",
        hint="a checkpoint is a directory with config.json and model.safetensors, as transformers saves it",
    )


def family_of(config: Config, *, where: str) -> Family:
    """Return the family of a config.json. Raises TrainkitError, which lists the supported families, if it is another
    one."""
    architectures = _architectures(config, where)
    for family in families():
        if config.get("model_type") == family.model_type:
            _check_architecture(architectures, family, where)
            return family
    named = ", ".join(architectures) or "not named"
    supported = ", ".join(f"{family.model_type} ({family.architecture})" for family in families())
    raise TrainkitError(
        f"model_type = {json.dumps(config.get('model_type'))} (architecture {named}) is not supported",
        where=where,
        hint=f"supported: {supported}",
    )


def spec_values(config: Config, family: Family, *, where: str) -> dict[str, Any]:
    """Return the keys of `[model]` that a config.json gives, `type` and `vocab_size` included.

    Raises:
        TrainkitError: it asks for unsupported features or has unknown keys; names all of them.
    """
    wrong = [
        f"{key} = {json.dumps(config[key])}: {why}"
        for key, why in NEVER.items()
        if config.get(key) is not None and key not in family.fixed
    ]
    for key, possible in family.fixed.items():
        if key in config and config[key] not in possible:
            can = " or ".join(map(json.dumps, possible))
            wrong.append(f"{key} = {json.dumps(config[key])}: only {can} is supported")
    known = known_keys(family)
    wrong += [
        f"{key} = {json.dumps(value)}: unknown, and it may change the results"
        for key, value in config.items()
        if not (key in known or means_nothing(key, value))
    ]
    stated = {**family.defaults, **config}
    values: dict[str, Any] = {"type": family.type}
    for theirs, ours in family.keys.items():
        values[ours] = stated.get(theirs)
        if values[ours] is None and (problem := _without(theirs, ours, stated, family)):
            wrong.append(problem)
    for part in family.parts:
        try:
            values |= part.read(stated)
        except Unsupported as error:
            wrong.append(str(error))
    if wrong:
        raise TrainkitError(
            "the checkpoint needs features that trainkit does not support:\n"
            + "\n".join(f"  {line}" for line in wrong),
            where=where,
            hint="use another checkpoint; you may remove keys that do not affect the logits from its config.json",
        )
    return {key: value for key, value in values.items() if value is not None}


def known_keys(family: Family) -> set[str]:
    """Return the keys in the table of a family: each is read, refused, or listed by `untrained`."""
    return {*NEVER, *family.keys, *family.fixed, *family.noise, *(key for part in family.parts for key in part.keys)}


def untrained_noise(config: Config, family: Family) -> list[str]:
    """Return the noise that transformers would add in training, and trainkit would not, each as `key = value`."""

    def value(key: str) -> Any:
        *tables, last = key.split(".")
        table: Any = config
        for name in tables:
            table = table.get(name) or {}
        return table.get(last, family.noise[key])

    return [f"{key} = {json.dumps(value(key))}" for key in family.noise if value(key)]


def spec_of(config: Config, family: Family, *, where: str) -> Pretrained:
    """Return the spec of the model that a config.json describes. Raises TrainkitError as `spec_values`, or if it is
    invalid."""
    values = spec_values(config, family, where=where)
    try:
        return family.spec.model_validate(with_tuples(values))
    except ValidationError as error:
        lines = [
            f"  {'.'.join(map(str, problem['loc'])) or family.type}: {problem['msg']}" for problem in error.errors()
        ]
        raise TrainkitError(
            "the values of the checkpoint make no valid model:\n" + "\n".join(lines), where=where
        ) from error


def _without(theirs: str, ours: str, stated: Config, family: Family) -> str | None:
    """Return what is wrong with a key that is null or missing, or None."""
    field = family.spec.model_fields[ours]
    # the model of a checkpoint must have these two, which a recipe may omit
    if field.is_required() or ours in ("vocab_size", "context_length"):
        return f"{theirs} is missing"
    return f"{theirs} = null: it must have a value" if theirs in stated and field.default is not None else None


def config_of(model: Pretrained, *, vocab_size: int, sequence_length: int, dtype: str) -> Config:
    """Return the config.json from which transformers builds the same model; `dtype` is that of its weights.

    Raises TrainkitError as `check_loads`.
    """
    check_loads(model)
    family = family_of_spec(model)
    values = {**model.model_dump(), "vocab_size": vocab_size}
    values["context_length"] = values["context_length"] or sequence_length
    architecture = family.architecture_of(model.head.kind)
    config: Config = {"architectures": [architecture], "model_type": family.model_type, "torch_dtype": dtype}
    config |= {theirs: values[ours] for theirs, ours in family.keys.items()}
    config |= {theirs: possible[0] for theirs, possible in family.fixed.items()}
    # as in training; some libraries use 0.1 if it is absent
    config |= {key: 0.0 for key in family.noise if "." not in key}
    for part in family.parts:
        config |= part.write(values)
    config |= _classes_of(model.head)
    # transformers does not accept null for every absent key
    return {key: value for key, value in config.items() if value is not None or key in _WRITTEN_NULL}


def _classes_of(head: Head) -> Config:
    """Return the keys of a head with classes. Classes without names are named by their numbers."""
    if head.kind in ("tokens", "span"):
        return {}
    names = head.names or tuple(f"LABEL_{number}" for number in range(head.width))
    said = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
    return said | ({"problem_type": head.problem} if head.problem else {})


def head_of(config: Config, family: Family) -> Head:
    """Return the head of a config.json's checkpoint: one that predicts tokens if the config does not say."""
    architectures = {name.lower() for name in config.get("architectures") or []}
    for kind, table in family.heads.items():
        if table.architecture.lower() in architectures:
            names = _class_names(config)
            # transformers leaves as many classes without names out as a family usually has
            width = len(names) or int(config.get("num_labels", family.defaults.get("num_labels", 2)))
            return Head(kind, width, names, problem=config.get("problem_type"))
    return TOKENS


def _class_names(config: Config) -> tuple[str, ...]:
    """Return the names of a head's classes in the order of their numbers; none if the config has none."""
    names = config.get("id2label") or {}
    if not (isinstance(names, dict) and {str(key) for key in names} == set(map(str, range(len(names))))):
        raise TrainkitError(
            f"id2label = {json.dumps(names)[:80]} is not a table of names by number",
            where="config.json of the checkpoint",
            hint='restore it: {"0": "first class", "1": "second class"}',
        )
    return tuple(str(names[key]) for key in sorted(names, key=int))


def moved_class(head: Head, wanted: Head, where: str) -> TrainkitError | None:
    """Return the error for a head that has a class of the task under another number; None if there is no such class."""
    exact = {name: number for number, name in enumerate(head.names)}
    in_any_case = {name.casefold(): number for name, number in exact.items()}
    for number, name in enumerate(wanted.names):
        found = exact.get(name, in_any_case.get(name.casefold(), number))
        if found != number:
            return TrainkitError(
                f'the head of the checkpoint has the class "{name}" as number {found}, and the task as {number}:'
                f" id2label names {_listed(head.names)}, and the recipe {_listed(wanted.names)}",
                where=where,
                hint="name the classes in the order of the checkpoint, or begin with a new last layer,"
                " [task] new_head = true",
            )
    return None


def _listed(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def other_width(classes: int, wanted: int, where: str) -> TrainkitError:
    """Return the error for a head whose number of classes differs from the task's."""
    return TrainkitError(
        f"the head of the checkpoint has {classes} classes, and the task has {wanted}",
        where=where,
        hint="begin with a new last layer, [task] new_head = true, or give the classes that the checkpoint has",
    )


#: Keys that would have other defaults in transformers if they were absent.
_WRITTEN_NULL = ("sliding_window", "attn_logit_softcapping", "final_logit_softcapping", "n_inner", "pad_token_id")


def check_loads(model: Pretrained) -> None:
    """Raise TrainkitError if transformers cannot load such a model."""
    if model.not_in_transformers:
        raise TrainkitError(
            f"transformers loads no such model: {model.not_in_transformers}",
            where="model",
            hint="it can be used with trainkit, but not exported",
        )


def family_of_spec(model: Pretrained) -> Family:
    """Return the family of a spec. Raises TrainkitError if it has no Hugging Face table, as some plugins have none."""
    for family in families():
        # a plugin's spec may derive from one of these and compute something else
        if type_of(type(model)) == family.type:
            return family
    raise TrainkitError(
        f"models of this type have no Hugging Face format: {type(model).__name__}",
        where="model.type",
        hint=f"types that have one: {', '.join(family.type for family in families())}",
    )


def _architectures(config: Config, where: str) -> list[str]:
    architectures = config.get("architectures") or []
    if not (isinstance(architectures, list) and all(isinstance(name, str) for name in architectures)):
        raise TrainkitError(f"architectures = {json.dumps(architectures)} are not names", where=where)
    return architectures


def _check_architecture(architectures: list[str], family: Family, where: str) -> None:
    tables = family.heads.values()
    known = {family.architecture, family.base_architecture, *(table.architecture for table in tables)}
    # MPT's own files write it in capitals
    if architectures and not {name.lower() for name in known} & {name.lower() for name in architectures}:
        raise TrainkitError(
            f"its architecture is {', '.join(architectures)}; it is not supported",
            where=where,
            hint=f"a head of another kind cannot be read; supported are {', '.join(sorted(known))}",
        )
