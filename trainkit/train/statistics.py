"""What [statistics] computes inside a step, on the steps that ask for it.

Norms, products and cosines are those of all trained parameters together and, by leaf, of each parameter: an array (L,)
with a value for each layer of a stack, or (1,) for a parameter outside the layers. Cosines with zeros are 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from trainkit.models.probe import Reports
from trainkit.recipe.sections.outputs import Statistics
from trainkit.train import spectrum
from trainkit.train.leafwise import Leaves, cosine, difference, inner, ratio, reduce_leaves, roots, total

#: The metric of a step with statistics that holds those of single parameters: arrays by path.
LAYERS = "layers"
#: Values by path, such as `gradients/l2`.
Values = dict[str, Array]


class History(eqx.Module):
    """What statistics remember of earlier steps. A field is None if no statistic of the recipe needs it."""

    steps: Int[Array, ""]
    """Steps since this began: before the first, nothing is remembered."""
    params: PyTree | None
    """The parameters before the last step."""
    gradients: PyTree | None
    """The last gradient, before clipping."""
    gradient_sum: PyTree | None
    product_sum: Float[Array, ""] | None
    """The sum of the inner products of gradients with the changes of the parameters that came before them."""


class MicroBatch(NamedTuple):
    """One micro-batch of a step, or an array of each for all of them."""

    squared_norm: Float[Array, "*A"]
    """Of the sum of the gradients of its tokens."""
    weight: Float[Array, "*A"]


class SeenStep(NamedTuple):
    """A step as statistics see it. Gradients are means, before clipping."""

    params: PyTree
    """Before the update."""
    gradients: PyTree
    updates: PyTree
    loss: Array
    grad_fn: Callable[[PyTree], tuple[Array, PyTree]]
    """Returns the loss and the gradient of the step's batch at other parameters, in the precision of the step."""
    exact_grad_fn: Callable[[PyTree], tuple[Array, PyTree]]
    """The same for parameters that differ too little for 16 bits."""
    key: PRNGKeyArray
    """Of the statistics of this step."""
    micro_batches: MicroBatch | None
    history: History | None
    reports: Reports | None = None
    """What the layers report of the first micro-batch; None if no statistic needs it."""

    def last_params(self) -> PyTree:
        """Return the parameters before the last step; in the first step, those of this one."""
        assert self.history is not None
        begun = self.history.steps > 0
        return jax.tree.map(lambda last, p: jnp.where(begun, last, p), self.history.params, self.params)

    def last_change(self) -> PyTree:
        """Return how the last step changed the parameters, in float32."""
        return jax.tree.map(difference, self.params, self.last_params())


def first_history(spec: Statistics, params: PyTree) -> History | None:
    """Return the history before the first step; None if the statistics need none."""
    if not spec.keeps_parameters:
        return None
    last = jax.tree.map(jnp.zeros_like, params)
    if "cosines" not in spec.in_step:
        return History(jnp.int32(0), last, None, None, None)

    def zeros() -> PyTree:  # arrays of their own each time, because a step donates them
        return jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)

    return History(jnp.int32(0), last, zeros(), zeros(), jnp.float32(0))


def next_history(seen: SeenStep) -> History | None:
    """Return the history after a step."""
    before = seen.history
    if before is None:
        return None
    after = History(before.steps + 1, seen.params, None, None, None)
    if before.gradient_sum is None or before.product_sum is None:
        return after
    return History(
        after.steps,
        after.params,
        seen.gradients,
        jax.tree.map(jnp.add, before.gradient_sum, seen.gradients),
        before.product_sum + total(inner(seen.gradients, seen.last_change())),
    )


def measure(spec: Statistics, seen: SeenStep) -> dict[str, Array | Values]:
    """Return the metrics that a step with statistics has besides the usual ones."""
    metrics: dict[str, Array | Values] = {}
    layers: Values = {}
    for name in spec.in_step:
        values, by_leaf = GROUPS[name](seen)
        metrics |= values
        layers |= {f"{path}/{leaf}": value for path, leaves in by_leaf.items() for leaf, value in leaves.items()}
    return {**metrics, LAYERS: layers} if spec.per_layer and layers else metrics


def norms(seen: SeenStep) -> tuple[Values, dict[str, Leaves]]:
    """Return norms of gradients, parameters (before the update) and updates, and updates relative to parameters.

    The global l2 norms are metrics of every step: `gradients/norm`, `parameters/norm`, `updates/norm`.
    """
    by_leaf: dict[str, Leaves] = {}
    values: Values = {}
    for name, tree in (("gradients", seen.gradients), ("parameters", seen.params), ("updates", seen.updates)):
        sizes = jax.tree.map(lambda x: jnp.abs(x.astype(jnp.float32)), tree)
        l1, linf, squares = reduce_leaves(sizes, jnp.sum), reduce_leaves(sizes, jnp.max), inner(tree, tree)
        by_leaf |= {f"{name}/l1": l1, f"{name}/l2": roots(squares), f"{name}/linf": linf}
        values |= {f"{name}/l1": total(l1), f"{name}/linf": jnp.stack([x.max() for x in linf.values()]).max()}
        values[f"{name}/l2"] = jnp.sqrt(total(squares))
    of_updates, of_params = by_leaf["updates/l2"], by_leaf["parameters/l2"]
    by_leaf["updates/ratio"] = {leaf: ratio(size, of_params[leaf]) for leaf, size in of_updates.items()}
    values["updates/ratio"] = ratio(values.pop("updates/l2"), values.pop("parameters/l2"))
    del values["gradients/l2"]
    return values, by_leaf


def cosines(seen: SeenStep) -> tuple[Values, dict[str, Leaves]]:
    """Return products of the gradient with what came before it, and the cosine of parameters and last parameters."""
    history, values, by_leaf = seen.history, dict[str, Array](), dict[str, Leaves]()
    assert history is not None

    def add(path: str, left: PyTree, right: PyTree) -> None:
        whole, by_leaf[path] = cosine(left, right)
        values[path] = whole

    change = seen.last_change()
    for name, other in (
        ("last_gradient", history.gradients),
        ("gradient_sum", history.gradient_sum),
        ("last_change", change),
    ):
        values[f"gradients/inner/{name}"] = total(inner(seen.gradients, other))
        add(f"gradients/cosine/{name}", seen.gradients, other)
    assert history.product_sum is not None
    values["gradients/inner_sum/last_change"] = history.product_sum + values["gradients/inner/last_change"]
    add("parameters/cosine/last_parameters", seen.params, seen.last_params())
    return values, by_leaf


def at_last_parameters(seen: SeenStep) -> tuple[Values, dict[str, Leaves]]:
    """Return how loss and gradient of this step's batch differ from those at the parameters before the last step."""
    loss, gradients = seen.grad_fn(seen.last_params())
    apart = jax.tree.map(difference, seen.gradients, gradients)
    whole, by_leaf = cosine(seen.gradients, gradients)
    change = seen.last_change()
    values = {
        "train/loss_change": seen.loss - loss,
        "last_parameters/gradients/norm": jnp.sqrt(total(inner(gradients, gradients))),
        "last_parameters/gradients/cosine": whole,
        "last_parameters/gradients/inner/last_change": total(inner(gradients, change)),
        # how much the gradient changes with the parameters: a lower bound of its Lipschitz constant
        "last_parameters/smoothness": ratio(
            jnp.sqrt(total(inner(apart, apart))), jnp.sqrt(total(inner(change, change)))
        ),
    }
    return values, {"last_parameters/gradients/cosine": by_leaf}


def noise_scale(seen: SeenStep) -> tuple[Values, dict[str, Leaves]]:
    """Return the gradient noise scale, in batches of a step (McCandlish et al. 2018, appendix A.1).

    Micro-batch i, of weight w_i, has the mean gradient g_i. For gradients of tokens with covariance S around G,
    E|g_i|² = |G|² + S/w_i; the batch, of weight W, has |G|² + S/W. Weighted by w_i / W, the A micro-batches give two
    equations for |G|² and S/W, the noise of the batch. Their ratio is the noise scale. Both are noisy: average them
    over steps before dividing.
    """
    parts = seen.micro_batches
    assert parts is not None
    used = parts.weight > 0
    weight, count = parts.weight.sum(), used.sum()
    mean = jnp.where(used, parts.squared_norm / jnp.where(used, parts.weight, 1), 0).sum() / jnp.maximum(weight, 1e-30)
    whole = total(inner(seen.gradients, seen.gradients))
    noise = (mean - whole) / jnp.maximum(count - 1, 1)
    signal = whole - noise
    values = {"gradients/noise": noise, "gradients/signal": signal, "gradients/noise_scale": ratio(noise, signal)}
    return values, {}


def matrices(seen: SeenStep) -> tuple[Values, dict[str, Leaves]]:
    """Return operator and Frobenius norms of matrices, and norms of rows and columns of those outside the layers."""
    by_leaf = spectrum.vector_norms(seen.params)
    for path, tree in (("parameters", seen.params), ("updates", seen.updates)):
        by_leaf[f"{path}/operator_norm"] = spectrum.operator_norms(tree, seen.key)
        by_leaf[f"{path}/frobenius_norm"] = roots(inner(*[spectrum.only_matrices(tree)] * 2))
    values = {
        path: jnp.stack([x.max() for x in leaves.values()]).max()
        for path, leaves in by_leaf.items()
        if path.endswith("operator_norm")
    }
    return values, by_leaf


def hessian(seen: SeenStep) -> tuple[Values, dict[str, Leaves]]:
    """Return the Hessian's eigenvalue of the largest magnitude, and an estimate of its trace, on the step's batch."""
    top, trace = spectrum.hessian(lambda params: seen.exact_grad_fn(params)[1], seen.params, seen.key)
    return {"hessian/top_eigenvalue": top, "hessian/trace": trace}, {}


def activations(seen: SeenStep) -> tuple[Values, dict[str, Leaves]]:
    """Return mean, root mean square and largest magnitude of the hidden states that leave each layer, the share of dead
    units of its MLP, and the largest logit of the vocabulary, if there are logits."""
    assert seen.reports is not None
    values, by_leaf = _reported(seen.reports, "activations/")
    if "logits/max" in seen.reports:
        (values["logits/max"],) = seen.reports["logits/max"].values()
    return values, by_leaf


def attention(seen: SeenStep) -> tuple[Values, dict[str, Leaves]]:
    """Return the mean entropy of attention, in nats, and its largest logit, of each layer."""
    assert seen.reports is not None
    return _reported(seen.reports, "attention/")


#: How the values of all layers become one.
OF_LAYERS: dict[str, Callable[[Array], Array]] = {
    "activations/mean": jnp.mean,
    "activations/rms": lambda rms: jnp.sqrt(jnp.square(rms).mean()),
    "activations/max": jnp.max,
    "activations/dead": jnp.mean,
    "attention/entropy": jnp.mean,
    "attention/max_logit": jnp.max,
}


def _reported(reports: Reports, prefix: str) -> tuple[Values, dict[str, Leaves]]:
    by_leaf = {path: leaves for path, leaves in reports.items() if path.startswith(prefix)}
    values = {path: OF_LAYERS[path](jnp.concatenate(list(leaves.values()))) for path, leaves in by_leaf.items()}
    return values, by_leaf


#: The function of each group.
GROUPS: dict[str, Callable[[SeenStep], tuple[Values, dict[str, Leaves]]]] = {
    "norms": norms,
    "cosines": cosines,
    "last-parameters": at_last_parameters,
    "noise-scale": noise_scale,
    "matrices": matrices,
    "hessian": hessian,
    "activations": activations,
    "attention": attention,
}
