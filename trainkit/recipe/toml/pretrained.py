"""What a checkpoint says of the `[model]`, or the `[adapter]`, that begins with it; the recipe goes before that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from trainkit.errors import TrainkitError
from trainkit.recipe.families.pretrained import CHANGEABLE
from trainkit.recipe.toml.values import toml_value


@dataclass(frozen=True)
class PretrainedCheckpoint:
    """What a checkpoint that a model, or an adapter, begins with says of it."""

    values: dict[str, Any]
    """Keys of its section; of `[model]`, `type` among them."""
    pretrained: str
    """Its directory, or its hub id."""
    revision: str | None
    """Its commit where it is from the hub."""
    config: str
    """Where the values were read."""
    changeable: frozenset[str] = CHANGEABLE
    """Keys that a recipe may give another value."""
    section: Literal["model", "adapter"] = "model"
    """Of the recipe, which begins with it."""

    def values_for(self, given: dict[str, Any]) -> dict[str, Any]:
        """Those that count below what is `given` in its section of the recipe.

        Raises TrainkitError where that contradicts them.
        """
        wrong = [
            key
            for key, value in self.values.items()
            if key in given and key not in self.changeable and given[key] != value
        ]
        if wrong:
            lines = [f"  {k} = {toml_value(given[k])}: the checkpoint has {toml_value(self.values[k])}" for k in wrong]
            may = f"; what may differ: {', '.join(sorted(self.changeable))}" if self.changeable else ""
            raise TrainkitError(
                f"[{self.section}] says otherwise than its checkpoint:\n" + "\n".join(lines),
                hint=f"leave them out{may}",
            )
        values = dict(self.values)
        if given.get("resize_vocabulary") is True:
            values.pop("vocab_size", None)
        return values


#: Finds the checkpoint of `model.pretrained` and `model.revision`. Raises TrainkitError.
LookUp = Callable[[str, str | None], PretrainedCheckpoint]


class LookUpAdapter(Protocol):
    """Finds the checkpoint of `adapter.pretrained` and `adapter.revision`."""

    def __call__(
        self, pretrained: str, revision: str | None, *, tables: Mapping[str, Any]
    ) -> PretrainedCheckpoint | None:
        """`tables` is the recipe, whose model the adapter is for; None where that is wrong. Raises TrainkitError."""
