"""Values that [model] or [adapter] takes from its pretrained checkpoint, below those of the recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from trainkit.errors import TrainkitError
from trainkit.recipe.families.transformer import CHANGEABLE
from trainkit.recipe.toml.layers import Layer, all_keys, table_at
from trainkit.recipe.toml.paths import check_path
from trainkit.recipe.toml.positions import Key, Origin, dotted_key
from trainkit.recipe.toml.values import toml_value


@dataclass(frozen=True)
class PretrainedCheckpoint:
    """The checkpoint that a model or an adapter begins with."""

    values: dict[str, Any]
    """Values for its section, by key; for `[model]`, `type` included."""
    pretrained: str
    """Its directory, or its hub id."""
    revision: str | None
    """Its commit if it is from the hub."""
    config: str
    """The file that the values were read from."""
    changeable: frozenset[str] = CHANGEABLE
    """Keys that a recipe may give another value."""
    section: Literal["model", "adapter"] = "model"
    """The section that names the checkpoint."""

    def values_for(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the values to put below what is `given` in the section of the recipe.

        Raises TrainkitError if the two contradict each other.
        """
        wrong = [
            key
            for key, value in self.values.items()
            if key in given and key not in self.changeable and given[key] != value
        ]
        if wrong:
            lines = [f"  {k} = {toml_value(given[k])}: the checkpoint has {toml_value(self.values[k])}" for k in wrong]
            may = f"; these may differ: {', '.join(sorted(self.changeable))}" if self.changeable else ""
            raise TrainkitError(
                f"[{self.section}] contradicts its checkpoint:\n" + "\n".join(lines),
                hint=f"leave them out{may}",
            )
        values = dict(self.values)
        if given.get("resize_vocabulary") is True:
            values.pop("vocab_size", None)
        return values


#: Returns the checkpoint of `model.pretrained` and `model.revision`. Raises TrainkitError.
LookUp = Callable[[str, str | None], PretrainedCheckpoint]


class LookUpAdapter(Protocol):
    """Finds the checkpoint of `adapter.pretrained` and `adapter.revision`."""

    def __call__(
        self, pretrained: str, revision: str | None, *, tables: Mapping[str, Any]
    ) -> PretrainedCheckpoint | None:
        """Return the checkpoint, or None if the model is invalid; `tables` is the recipe. Raises TrainkitError."""


def put_below(layer: Layer, section: str, look_up: Callable[[str, str | None], PretrainedCheckpoint | None]) -> Layer:
    """Return the layer over the values of the checkpoint that its [model] or [adapter] names, if it names one.

    Raises:
        TrainkitError: the checkpoint cannot be found or used, or the recipe contradicts it.
    """
    given = table_at(layer.table, section)
    if not isinstance(given.get("pretrained"), str):
        return layer
    check_path((section, "pretrained"), given["pretrained"], layer)
    revision, key = given.get("revision"), (section, "pretrained")
    try:
        found = look_up(given["pretrained"], revision if isinstance(revision, str) else None)
    except TrainkitError as error:
        named = [] if dotted_key(key) in str(error) else [dotted_key(key)]
        at = ": ".join([str(layer.origin(key)), *named, *filter(None, [error.where])])
        raise TrainkitError(error.problem, where=at, hint=error.hint) from error
    if found is None:
        return layer
    if revision is not None and found.revision is None:
        raise hub_only((section, "revision"), found.pretrained, layer)
    try:
        values = found.values_for(given)
    except TrainkitError as error:
        raise TrainkitError(error.problem, where=str(layer.origin((section,))), hint=error.hint) from None
    base: dict[str, Any] = {section: values}
    if section == "model" and not {"path", "train"} & set(table_at(layer.table, "tokenizer")):
        base["tokenizer"] = {"path": found.pretrained, "revision": found.revision}
    origin = Origin(found.config)
    below = Layer(base, {key: origin for key in all_keys(base, ())}, layer.fallback)
    below.put(layer)
    below.table[section] |= {"pretrained": found.pretrained, "revision": found.revision}
    return below


def hub_only(key: Key, path: str | None, layer: Layer) -> TrainkitError:
    """Return the error of a key that only repositories on the hub have, beside a `path` on this machine."""
    return TrainkitError(
        f"{dotted_key(key)} is for hub ids, but {path} is on this machine",
        where=str(layer.origin(key)),
        hint="leave it out: local files are used as they are",
    )
