"""Which values of an optimizer, beside its learning rate, `[schedules]` can scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from trainkit.recipe.spec import Spec

#: The keys of a rule with two decays that `[schedules]` can scale, by their names there.
BETAS = {"momentum": "betas.0", "beta2": "betas.1"}


class WithSchedules(Spec):
    """A rule with values that `[schedules]` can scale."""

    schedulable: ClassVar[Mapping[str, str]] = {}
    """The keys that `[schedules]` can scale beside the weight decay, such as `betas.0`, by their names there."""

    unscheduled: ClassVar[Mapping[str, str]] = {}
    """Why `[schedules]` cannot scale a value of this rule, by its name there."""

    def schedulable_key(self, name: str) -> str | None:
        """Return the key of this rule that `[schedules]` scales by a name; None where the rule has none."""
        return "weight_decay" if name == "weight_decay" else self.schedulable.get(name)

    def value_at(self, key: str) -> Any:
        """Return the value of one of the rule's keys, such as `momentum` or `betas.0`."""
        name, _, place = key.partition(".")
        return getattr(self, name)[int(place)] if place else getattr(self, name)

    def scale_values(self, shares: Mapping[str, Any]) -> Self:
        """Return the rule with its values multiplied by the `shares` of their names in `[schedules]`; zeros stay.

        A share may be a traced number. The weight decay, which is applied outside the rule, stays too.
        """
        changed: dict[str, Any] = {}
        for name, share in shares.items():
            key = self.schedulable.get(name)
            if key is None or not self.value_at(key):
                continue
            field, _, place = key.partition(".")
            value = share * self.value_at(key)
            before = changed.get(field, getattr(self, field))
            changed[field] = tuple(value if str(i) == place else b for i, b in enumerate(before)) if place else value
        return self.model_copy(update=changed)
