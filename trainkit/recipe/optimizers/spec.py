"""What every optimizer has, and what the rest of trainkit asks of it: its state, its groups, its weight decay.

The mathematics of a rule is in the module that its spec names as `implementation`; nothing outside that module and its
spec knows a rule by name.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, model_validator

from trainkit.recipe.optimizers.parameters import Shape, is_exempt_from_decay
from trainkit.recipe.optimizers.schedulable import WithSchedules
from trainkit.recipe.optimizers.wrapper_spec import Wrapper, WrapperSpec
from trainkit.recipe.spec import LearningRate, Ratio, Spec, WeightDecay
from trainkit.recipe.union import OneOf

Decay = Annotated[float, Field(ge=0, lt=1)]
WidthScaling = Literal["entrywise", "gradient"]
DecayType = Literal["decoupled", "coupled", "independent", "cautious"]


class Group(Spec):
    """Options for the parameters whose path matches; a later group overrides an earlier one."""

    match: str
    """A glob over parameter paths, such as `*.bias` or `blocks.*`. A glob that matches no parameter is an error."""
    optimizer: Optimizer | None = None
    """Another update rule for these parameters, such as `{ type = "adamw", learning_rate = 3e-4 }`; it has no groups of
    its own."""
    weight_decay: WeightDecay | None = None
    """Overrides the optimizer's weight decay; this is how norms, biases or embeddings are decayed."""
    learning_rate_factor: Ratio = 1.0
    """Multiplies the learning rate; 0 freezes these parameters."""

    @model_validator(mode="after")
    def _has_nothing_inside(self) -> Group:
        for key in ("groups", "wrappers"):
            if self.optimizer is not None and getattr(self.optimizer, key):
                raise ValueError(f"the optimizer of a group cannot have {key}: list them all in [[optimizer.{key}]]")
        return self


class OptimizerSpec(WithSchedules):
    """What every optimizer has, and what the rest of trainkit asks of it."""

    type: str
    learning_rate: LearningRate
    """The peak; the schedule scales it at each step."""
    weight_decay: WeightDecay = 0.0
    """Each step subtracts learning rate x weight decay x parameter, unless `decay_type` says otherwise. Norms, biases
    and embeddings are not decayed unless a group gives them a weight decay."""
    decay_type: DecayType = "decoupled"
    """How parameters decay. `decoupled` subtracts learning rate x weight decay x parameter (Loshchilov & Hutter 2019);
    `independent` does so with the schedule's share of the peak in place of the learning rate, so that neither the peak
    nor the factors of groups have an influence (section 3 of the same paper); `cautious` is decoupled, but only where
    the update moves the parameter towards zero (Chen et al. 2025); `coupled` adds weight decay x parameter to the
    gradient (L2)."""
    groups: tuple[Group, ...] = ()
    """Parameters with their own options: one `[[optimizer.groups]]` each."""
    wrappers: tuple[Wrapper, ...] = ()
    """What changes the updates of any optimizer, from the inside out: one `[[optimizer.wrappers]]` each."""

    implementation: ClassVar[str]
    """The module, or `module:function`, whose `build(spec)` returns the gradient transformation."""
    finish: ClassVar[str | None] = None
    """The `module:function` that returns, from the spec, the transformation after weight decay, if there is one: for
    rules that scale, or average, what they and the weight decay do together."""
    own_average: ClassVar[str | None] = None
    """The `module:function(rules, state, params)` that returns the model, if that is an average which the rule computes
    and the parameters are only where gradients are taken. `rules` lists the parameters' rules, None for frozen ones."""
    decays_itself: ClassVar[bool] = False
    """Whether the rule applies weight decay itself, of every kind alike. Its `build` then takes `decays` as well, the
    weight decay of each parameter, and no group can choose another rule."""
    owns_rate: ClassVar[bool] = False
    """Whether the rule's own formulas contain the learning rate, so that groups cannot scale it."""
    depends_on_shapes: ClassVar[bool] = False
    """Whether its options have to fit the shapes of parameters (`check_parameter`)."""
    scaled_by_width: ClassVar[WidthScaling | None] = None
    """How [mup] scales its learning rates: as for rules whose updates of each number do not depend on the gradient's
    scale (Adam), as for gradient descent, or not at all."""
    state_keys: ClassVar[frozenset[str]] = frozenset({"type"})
    """Keys whose change makes a saved optimizer state useless."""

    @model_validator(mode="after")
    def _one_rule_estimates_one_rate(self) -> OptimizerSpec:
        for number, group in enumerate(self.groups):
            alone = next((rule.type for rule in (self, group.optimizer) if rule and rule.decays_itself), None)
            if group.optimizer is not None and alone:
                raise ValueError(
                    f'optimizer.groups.{number}.optimizer: "{alone}" estimates one learning rate for all parameters,'
                    " so it cannot be beside another optimizer"
                )
        if self.decays_itself and self.decay_type != "decoupled":
            raise ValueError(f'optimizer.decay_type = "{self.decay_type}": "{self.type}" has "decoupled" alone')
        return self

    @property
    def by_layer(self) -> bool:
        """Whether the rule computes one number, such as a norm, for each layer's parameter.

        Its `build` and `finish` then take `stacked` as well: whether the first axis of the parameters that they are
        given is that of layers.
        """
        return False

    @property
    def compares_gradients(self) -> bool:
        """Return whether the rule compares gradients at parameters so near to one another that 16 bits may be too few
        to tell them apart."""
        return False

    @property
    def needs_exact_gradients(self) -> str | None:
        """Return the type of the rule or wrapper for which `grad_fn` has to compute in float32; None for none."""
        rules = (self, *(group.optimizer for group in self.groups if group.optimizer is not None))
        parts: tuple[OptimizerSpec | WrapperSpec, ...] = (*rules, *self.wrappers)
        return next((part.type for part in parts if part.compares_gradients), None)

    @abstractmethod
    def state_bytes(self, shape: Shape) -> int:
        """Return the bytes of state kept for one parameter of this shape."""

    @model_validator(mode="after")
    def _an_average_of_its_own_stays_true(self) -> OptimizerSpec:
        for number, group in enumerate(self.groups):
            rule = group.optimizer
            if rule and rule.owns_rate and rule.learning_rate != self.learning_rate:
                raise ValueError(
                    f"optimizer.groups.{number}.optimizer.learning_rate = {rule.learning_rate:g}:"
                    f' "{rule.type}" computes with the learning rate of the step, so it must be'
                    f" {self.learning_rate:g}, as optimizer.learning_rate"
                )
        for number, wrapper in enumerate(self.wrappers):
            if wrapper.changes_steps and self.averages_itself:
                raise ValueError(
                    f'optimizer.wrappers.{number}: "{wrapper.type}" changes the steps that the average of'
                    ' "schedule-free" is computed from: leave one of them out'
                )
        return self

    @property
    def averages_itself(self) -> str | None:
        """Return the `own_average` of the rule, or of that of a group; None if there is none."""
        rules = (self, *(group.optimizer for group in self.groups if group.optimizer is not None))
        return next((rule.own_average for rule in rules if rule.own_average), None)

    def rule_of(self, name: str, shape: Shape) -> OptimizerSpec:
        """Return the rule that updates a parameter where no group chooses one."""
        return self

    def owner(self, name: str, shape: Shape) -> OptimizerSpec:
        """Return the rule that updates the parameter `name`: that of the last group that chooses one, or its own."""
        return (self._rule_of_groups(name) or self).rule_of(name, shape)

    def _rule_of_groups(self, name: str) -> OptimizerSpec | None:
        """Return the optimizer of the last group that chooses one for a parameter; None if no group does."""
        return next((group.optimizer for group in reversed(self.groups_of(name)) if group.optimizer is not None), None)

    def groups_of(self, name: str) -> list[Group]:
        """Return the groups that match a parameter, in their order."""
        return [group for group in self.groups if fnmatchcase(name, group.match)]

    def decay_of(self, name: str, shape: Shape) -> float:
        """Return the weight decay of a parameter."""
        decay = 0.0 if is_exempt_from_decay(name) else self.owner(name, shape).weight_decay
        for group in self.groups_of(name):
            decay = decay if group.weight_decay is None else group.weight_decay
        return decay

    def rate_factor_of(self, name: str, shape: Shape) -> float:
        """Return the learning rate of a parameter as a multiple of `learning_rate`; the last matching group decides."""
        factors = [group.learning_rate_factor for group in self.groups_of(name)]
        own = self.owner(name, shape).learning_rate / self.learning_rate
        return (factors[-1] if factors else 1.0) * own

    def total_state_bytes(self, leaves: Mapping[str, Shape]) -> int:
        """Return the bytes of state of parameters with these names and shapes."""
        wrapped = sum(wrapper.state_bytes(shape) for wrapper in self.wrappers for shape in leaves.values())
        return wrapped + sum(self.owner(name, shape).state_bytes(shape) for name, shape in leaves.items())

    def smaller(self) -> Iterator[dict[str, Any]]:
        """Yield changes of keys that make the state smaller, the mildest first."""
        return iter(())

    def check_parameter(self, name: str, shape: Shape) -> None:
        """Raise ValueError if the rule cannot update a parameter of this name and shape; most can update all."""

    def check_parameters(self, shapes: Mapping[str, Shape]) -> None:
        """Raise ValueError if the groups do not fit the trained parameters, or a rule cannot update one of its own."""
        self.check_groups(shapes)
        for name, shape in shapes.items():
            (self._rule_of_groups(name) or self).check_parameter(name, shape)

    def check_groups(self, names: Iterable[str]) -> None:
        """Check the groups against the names of the trained parameters.

        Raises ValueError where a group matches none, two groups choose different optimizers for one parameter, or a
        group scales the learning rate of an optimizer that has one for all parameters.
        """
        names = list(names)
        for number, group in enumerate(self.groups):
            if not any(fnmatchcase(name, group.match) for name in names):
                raise ValueError(
                    f"optimizer.groups.{number}: match = {group.match!r} matches no parameter;"
                    f" the parameters are {', '.join(names)}"
                )
        for number, group in enumerate(self.groups):
            rules = (self._rule_of_groups(name) or self for name in names if fnmatchcase(name, group.match))
            rule = next((rule for rule in rules if rule.owns_rate), None)
            if rule is not None and group.learning_rate_factor not in (0, 1):
                raise ValueError(
                    f"optimizer.groups.{number}: learning_rate_factor = {group.learning_rate_factor:g} cannot scale"
                    f' "{rule.type}", which has one learning rate for all parameters; only 0 (frozen) and 1 are'
                    " possible"
                )
        for name in names:
            choosing = [group for group in self.groups_of(name) if group.optimizer is not None]
            if any(group.optimizer != choosing[0].optimizer for group in choosing):
                matches = " and ".join(repr(group.match) for group in choosing)
                raise ValueError(
                    f"optimizer.groups: {matches} choose different optimizers for {name};"
                    " make the globs disjoint or give both the same optimizer"
                )

    def parts(self) -> dict[str, OptimizerSpec]:
        """Return the rules that it consists of without its groups, by dotted key; its own key is empty."""
        return {"": self}

    def all_parts(self) -> dict[str, OptimizerSpec]:
        """Return the rules that it consists of, with those of its groups, by dotted key; its own key is empty."""
        rules = dict(self.parts())
        for number, group in enumerate(self.groups):
            if group.optimizer is not None:
                key = f"groups.{number}.optimizer"
                rules |= {f"{key}.{inner}".rstrip("."): rule for inner, rule in group.optimizer.parts().items()}
        return rules

    def scheduled_values(self, name: str) -> dict[str, float]:
        """Return what `[schedules]` scales by this name, in all rules and groups, by dotted key within [optimizer]."""
        values: dict[str, float] = {}
        for at, rule in self.all_parts().items():
            if (key := rule.schedulable_key(name)) is not None:
                values[f"{at}.{key}".lstrip(".")] = rule.value_at(key)
        if name == "weight_decay":
            decays = {f"groups.{number}.{name}": group.weight_decay for number, group in enumerate(self.groups)}
            values |= {key: decay for key, decay in decays.items() if decay is not None}
        return values

    def scheduled_metrics(self, name: str) -> dict[str, float]:
        """Return the values above 0 that `[schedules]` scales by this name, by the names of their metrics."""
        values = self.scheduled_values(name)
        return {f"optimizer/{key.replace('.', '/')}": value for key, value in values.items() if value}

    def state_key_values(self) -> dict[str, Any]:
        """Return the values that determine the structure of the state, by dotted key within [optimizer]."""
        values = {key: getattr(self, key) for key in sorted(self.state_keys)}
        rules = self.all_parts()
        for number, group in enumerate(self.groups):
            if group.optimizer is not None:
                key = f"groups.{number}.optimizer"
                values[f"groups.{number}.match"] = group.match
                values |= {f"{key}.{inner}": value for inner, value in group.optimizer.state_key_values().items()}
        for key, rule in rules.items():
            # equal rules have one state
            first = next(first for first, other in rules.items() if other == rule)
            if first != key:
                values[key] = f"as optimizer.{first}"
        with_state = [wrapper for wrapper in self.wrappers if wrapper.has_state]
        kept = [w.kind_of_state for around in ("rule", "update") for w in with_state if w.around == around]
        return values | ({"wrappers with state": ", ".join(kept)} if kept else {})


#: Any optimizer of the recipe language.
Optimizer: TypeAlias = Annotated[
    OptimizerSpec,
    OneOf(
        "adamw",
        "trainkit.recipe.optimizers.adam:OPTIMIZERS",
        "trainkit.recipe.optimizers.first_order:OPTIMIZERS",
        "trainkit.recipe.optimizers.mango:OPTIMIZERS",
        "trainkit.recipe.optimizers.matrix:OPTIMIZERS",
        "trainkit.recipe.optimizers.online:OPTIMIZERS",
        "trainkit.recipe.optimizers.parameter_free:OPTIMIZERS",
        "trainkit.recipe.optimizers.preconditioned:OPTIMIZERS",
    ),
]
