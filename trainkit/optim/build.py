"""From [optimizer] to a gradient transformation over all trained parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from inspect import isfunction
from typing import Any, NamedTuple

import jax
import optax
from jaxtyping import Array, PyTree

from trainkit.optim.decay import with_decay
from trainkit.optim.scheduled import with_schedules
from trainkit.recipe.optimizers.parameters import is_stacked
from trainkit.recipe.optimizers.spec import OptimizerSpec
from trainkit.recipe.optimizers.wrapper_spec import Around, WrapperSpec
from trainkit.recipe.sections.adapter import Adapter
from trainkit.recipe.sections.mup import rate_factor
from trainkit.recipe.spec import implementation_of, import_named


def build(
    spec: OptimizerSpec,
    names: PyTree[str],
    shapes: PyTree[Any],
    *,
    adapter: Adapter | None = None,
    wider: float = 1.0,
    scheduled: Collection[str] = (),
) -> optax.GradientTransformationExtraArgs:
    """Return gradients → descent directions; the step multiplies them by the negative learning rate.

    An update is given, as extra arguments: a fresh `key`; the mean loss as `value`; the `learning_rate` of this step;
    and `grad_fn(params) -> (value, gradients)`, which evaluates the step's whole batch at other parameters; with
    `scheduled`, also `shares`, what each of these values is multiplied by at this step.

    Args:
        names: the trained parameters with every leaf replaced by its path.
        shapes: the same with anything that has a `shape`.
        adapter: whose parameters these are, where the model itself is frozen. Its second matrices learn faster by
            `learning_rate_ratio` (LoRA+, Hayou et al. 2024).
        wider: how many times as wide as the base of [mup] the model is; 1 leaves learning rates as they are.
        scheduled: the values that [schedules] scales, such as `momentum`.
    """
    rules = jax.tree.map(lambda name, leaf: spec.owner(name, leaf.shape), names, shapes)

    def factor(name: str, leaf: Any) -> float:
        ratio = adapter.learning_rate_ratio if adapter and name.endswith(".b") else 1.0
        ratio *= rate_factor(spec.owner(name, leaf.shape), name, leaf.shape, wider=wider)
        return spec.rate_factor_of(name, leaf.shape) * ratio

    def decay(name: str, leaf: Any, rule: OptimizerSpec, factor: float) -> float:
        weight = spec.decay_of(name, leaf.shape)
        # factors of rates multiply the whole update, and no rate has an influence on independent decay
        own = rule.learning_rate / spec.learning_rate
        return weight * own / factor if rule.decay_type == "independent" and factor else weight

    factors = jax.tree.map(factor, names, shapes)
    decays = jax.tree.map(decay, names, shapes, rules, factors)
    stacked = jax.tree.map(is_stacked, names)
    parts = jax.tree.map(lambda layers, rule: _Part(rule, rule.by_layer and layers), stacked, rules)
    if spec.decays_itself:
        rule = with_schedules(spec, lambda spec: _build_of(spec)(spec, decays=decays), scheduled)
    else:
        rule = _by_rule(parts, partial(_transformation, scheduled=scheduled))
    rule = _wrap(rule, spec, "rule", stacked)
    if any(jax.tree.leaves(decays)) and not spec.decays_itself:
        rule = with_decay(rule, rules, decays)
    transforms = [rule]
    if any(rule.finish for rule in jax.tree.leaves(rules)):
        transforms.append(_by_rule(parts, _finish))
    if any(factor != 1.0 for factor in jax.tree.leaves(factors)):
        transforms.append(optax.stateless(lambda u, _: jax.tree.map(lambda u, f: u * f, u, factors)))
    return _wrap(optax.chain(*transforms), spec, "update", stacked)


def _wrap(
    inner: optax.GradientTransformation, spec: OptimizerSpec, around: Around, stacked: PyTree[bool]
) -> optax.GradientTransformationExtraArgs:
    wrapped = optax.with_extra_args_support(inner)
    for wrapper in spec.wrappers:
        if wrapper.around == around:
            options = {"stacked": stacked} if wrapper.by_layer else {}
            wrapped = _build_of(wrapper)(wrapper, wrapped, **options)
    return wrapped


class _Part(NamedTuple):
    """Parameters that one transformation updates."""

    rule: OptimizerSpec
    stacked: bool
    """Whether they are stacks of layers; False where the rule need not know."""


def _by_rule(
    parts: PyTree[_Part], transformation: Callable[[_Part], optax.GradientTransformation]
) -> optax.GradientTransformation:
    """Return one transformation in which every parameter has the `transformation` of its own part.

    Where all are of one part the state is that transformation's alone, so that its leaves have the same paths as ever.
    """
    distinct: list[_Part] = []
    for part in jax.tree.leaves(parts, is_leaf=_is_part):
        if part not in distinct:
            distinct.append(part)
    if len(distinct) == 1:
        return transformation(distinct[0])
    labels = [f"{number}-{part.rule.type}" for number, part in enumerate(distinct)]
    transforms = {label: transformation(part) for label, part in zip(labels, distinct, strict=True)}
    divided = optax.partition(
        transforms, jax.tree.map(lambda part: labels[distinct.index(part)], parts, is_leaf=_is_part)
    )
    return _with_gradients_of_parts(divided)


def _with_gradients_of_parts(divided: optax.GradientTransformationExtraArgs) -> optax.GradientTransformationExtraArgs:
    """Return a partition whose parts may give `grad_fn` parameters with the others masked, as they are given them."""

    def update(grads: PyTree, state: Any, params: PyTree | None = None, **extras: Any) -> tuple[PyTree, Any]:
        grad_fn: Any = extras.get("grad_fn")

        def of_part(own: PyTree) -> tuple[Array, PyTree]:
            def filled(other: Any, leaf: Any) -> Any:
                return leaf if _is_masked(other) else other

            value, found = grad_fn(jax.tree.map(filled, own, params, is_leaf=_is_masked))
            return value, jax.tree.map(lambda o, g: o if _is_masked(o) else g, own, found, is_leaf=_is_masked)

        return divided.update(grads, state, params, **(extras | {"grad_fn": of_part} if grad_fn else extras))

    return optax.GradientTransformationExtraArgs(divided.init, update)


def _is_masked(node: Any) -> bool:
    return isinstance(node, optax.MaskedNode)


def _build_of(spec: OptimizerSpec | WrapperSpec) -> Callable[..., Any]:
    found = implementation_of(spec)
    return found if isfunction(found) else found.build  # type: ignore[no-any-return]


def _is_part(node: Any) -> bool:
    return isinstance(node, _Part)


def _transformation(part: _Part, *, scheduled: Collection[str]) -> optax.GradientTransformation:
    return with_schedules(part.rule, lambda rule: _call(_build_of(rule), part._replace(rule=rule)), scheduled)


def _finish(part: _Part) -> optax.GradientTransformation:
    return _call(import_named(part.rule.finish), part) if part.rule.finish else optax.identity()


def _call(build: Callable[..., optax.GradientTransformation], part: _Part) -> optax.GradientTransformation:
    return build(part.rule, stacked=part.stacked) if part.rule.by_layer else build(part.rule)
