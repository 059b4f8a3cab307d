"""Statistics of a step: each equals its formula in float64 numpy, and a step without them is as if there were none."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small

from trainkit.checkpoint.provenance import Provenance
from trainkit.checkpoint.restore import restore
from trainkit.checkpoint.saver import Saver
from trainkit.data.batches.layout import longest_layout
from trainkit.errors import TrainkitError
from trainkit.models import leaf_names
from trainkit.models.probe import collect_reports
from trainkit.plan import Devices, make_plan
from trainkit.recipe import Recipe
from trainkit.recipe.sections.outputs import Statistics
from trainkit.recipe.sections.task import CausalLM
from trainkit.tasks import Loss
from trainkit.tasks import build as build_task
from trainkit.tasks.causal_lm import CausalLMTask
from trainkit.train.build import build, state_shapes
from trainkit.train.spectrum import hessian
from trainkit.train.state import State, without_frozen
from trainkit.train.statistics import LAYERS, MicroBatch, SeenStep, first_history, measure, noise_scale
from trainkit.train.step import make_step

SPEC = Statistics(every=1, compute=("norms", "cosines", "last-parameters", "noise-scale", "activations", "attention"))
STEPS, PARTS, KEY = 4, 2, jax.random.key(3)
#: Further passes of a step that no statistic asks for.
PASSES = (lambda params: params, lambda params: params)
Arrays = dict[str, np.ndarray]


class Measured(NamedTuple):
    """One step: the parameters before and after it, its gradients in float64, and what it reported."""

    params: Arrays
    after: Arrays
    loss: float
    gradients: Arrays
    last: tuple[float, Arrays]
    """Loss and gradients of the same batch at the parameters before the step before."""
    micro_batches: list[tuple[float, Arrays]]
    """Weight and mean gradient of each."""
    metrics: dict[str, Any]


def first_state() -> State:
    state = small.state()
    return replace(state, history=first_history(SPEC, state.params))


def named(tree: Any) -> Arrays:
    names = jax.tree.leaves(leaf_names(tree))
    return {name: np.asarray(leaf, np.float64) for name, leaf in zip(names, jax.tree.leaves(tree), strict=True)}


@cache
def gradients_of():
    def mean_loss(params: Any, frozen: Any, batch: Any) -> tuple[jax.Array, jax.Array]:
        loss = build_task(CausalLM()).loss(eqx.combine(params, frozen), batch, key=jax.random.key(0))
        return loss.sum / loss.weight, loss.weight

    return jax.jit(jax.value_and_grad(mean_loss, has_aux=True))


def mean_over(params: Any, frozen: Any, batch: Any) -> tuple[float, Arrays, list[tuple[float, Arrays]]]:
    """The loss and gradient of a batch, from those of its micro-batches."""
    parts, total = [], 0.0
    for i in range(PARTS):
        (loss, weight), grads = gradients_of()(params, frozen, {name: array[i] for name, array in batch.items()})
        parts.append((float(weight), named(grads)))
        total += float(loss) * float(weight)
    weight = sum(w for w, _ in parts)
    return total / weight, {n: sum(w * g[n] for w, g in parts) / weight for n in parts[0][1]}, parts


@cache
def steps() -> tuple[list[Measured], State]:
    """Four steps that measure everything, and the last state."""
    step, state, last, found = jax.jit(small.step(statistics=SPEC)), first_state(), None, []
    for number in range(STEPS):
        batch, before = small.batch(number, accumulation=PARTS), state.params
        loss, gradients, parts = mean_over(before, state.frozen, batch)
        at_last = mean_over(last if last is not None else before, state.frozen, batch)[:2]
        state, metrics = step(state, batch)
        found.append(
            Measured(named(before), named(state.params), loss, gradients, at_last, parts, jax.device_get(metrics))
        )
        last = before
    return found, state


def flat(arrays: Arrays) -> np.ndarray:
    return np.concatenate([arrays[name].ravel() for name in sorted(arrays)])


def minus(left: Arrays, right: Arrays) -> Arrays:
    return {name: left[name] - right[name] for name in left}


def cosine(left: np.ndarray, right: np.ndarray) -> float:
    sizes = np.linalg.norm(left) * np.linalg.norm(right)
    return float(left.ravel() @ right.ravel() / sizes) if sizes else 0.0


def by_layer(name: str, array: np.ndarray) -> np.ndarray:
    return array.reshape(array.shape[0] if name.startswith("blocks.") else 1, -1)


def test_norms_are_those_of_numpy_for_all_parameters_and_each_layer() -> None:
    for seen in steps()[0]:
        moved = minus(seen.after, seen.params)
        for name, tree in (("gradients", seen.gradients), ("parameters", seen.params), ("updates", moved)):
            close = {"rtol": 1e-4, "atol": 1e-7}
            for order, path in ((1, "l1"), (2, "l2"), (np.inf, "linf")):
                if order != 2:
                    found = seen.metrics[f"{name}/{path}"]
                    np.testing.assert_allclose(found, np.linalg.norm(flat(tree), order), **close)
                for leaf, array in tree.items():
                    expected = np.linalg.norm(by_layer(leaf, array), order, axis=1)
                    np.testing.assert_allclose(seen.metrics[LAYERS][f"{name}/{path}/{leaf}"], expected, **close)
        share = np.linalg.norm(flat(moved)) / np.linalg.norm(flat(seen.params))
        np.testing.assert_allclose(seen.metrics["updates/ratio"], share, rtol=1e-4)
        assert seen.metrics[LAYERS]["updates/ratio/blocks.mlp_in.weight"].shape == (small.SPEC.layers,)


def test_products_and_cosines_with_earlier_steps_are_those_of_numpy() -> None:
    total, products = np.zeros(1), 0.0
    last = None
    for seen in steps()[0]:
        now, params = flat(seen.gradients), flat(seen.params)
        before = flat(last.gradients) if last else np.zeros_like(now)
        change = params - flat(last.params) if last else np.zeros_like(now)
        products += now @ change
        for name, other in (("last_gradient", before), ("gradient_sum", total + 0 * now), ("last_change", change)):
            for kind, value in (("inner", now @ other), ("cosine", cosine(now, other))):
                found = seen.metrics[f"gradients/{kind}/{name}"]
                np.testing.assert_allclose(found, value, rtol=1e-3, atol=1e-6, err_msg=f"{kind} {name}")
        np.testing.assert_allclose(seen.metrics["gradients/inner_sum/last_change"], products, rtol=1e-3, atol=1e-6)
        same = cosine(params, flat(last.params)) if last else 1.0
        np.testing.assert_allclose(seen.metrics["parameters/cosine/last_parameters"], same, rtol=1e-6)
        if last:
            leaf = "blocks.mlp_in.weight"
            expected = [cosine(a, b) for a, b in zip(seen.gradients[leaf], last.gradients[leaf], strict=True)]
            found = seen.metrics[LAYERS][f"gradients/cosine/last_gradient/{leaf}"]
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)
        total, last = total + now, seen


def test_the_same_batch_at_the_last_parameters_is_that_of_another_pass() -> None:
    last = None
    for seen in steps()[0]:
        loss, gradients = seen.last
        now, before = flat(seen.gradients), flat(gradients)
        change = flat(seen.params) - flat((last or seen).params)
        expected = {
            "train/loss_change": seen.loss - loss,
            "last_parameters/gradients/norm": np.linalg.norm(before),
            "last_parameters/gradients/cosine": cosine(now, before),
            "last_parameters/gradients/inner/last_change": before @ change,
            "last_parameters/smoothness": np.linalg.norm(now - before) / np.linalg.norm(change) if last else 0,
        }
        for name, value in expected.items():
            np.testing.assert_allclose(seen.metrics[name], value, rtol=1e-3, atol=2e-6, err_msg=name)
        assert not last or abs(seen.metrics["train/loss_change"]) > 1e-4
        last = seen


def test_the_noise_scale_follows_from_the_norms_of_micro_batches() -> None:
    for seen in steps()[0]:
        weight = sum(w for w, _ in seen.micro_batches)
        mean = sum(w * (flat(g) @ flat(g)) for w, g in seen.micro_batches) / weight
        whole = flat(seen.gradients) @ flat(seen.gradients)
        noise = (mean - whole) / (PARTS - 1)
        np.testing.assert_allclose(seen.metrics["gradients/noise"], noise, rtol=1e-3)
        np.testing.assert_allclose(seen.metrics["gradients/signal"], whole - noise, rtol=1e-3)
        np.testing.assert_allclose(seen.metrics["gradients/noise_scale"], noise / (whole - noise), rtol=1e-3)


def test_the_noise_scale_is_right_on_average_for_parts_of_any_weight() -> None:
    """Gradients of tokens with covariance 4 x identity around a mean of squared length 3, in parts of 1, 2 and 5."""
    chance, weights = np.random.default_rng(0), np.array([1.0, 2.0, 5.0])

    def found(draw: jax.Array) -> tuple[jax.Array, jax.Array]:
        sums = weights[:, None] + 2.0 * np.sqrt(weights)[:, None] * draw
        parts = MicroBatch(jnp.square(sums).sum(1), jnp.asarray(weights))
        seen = SeenStep({}, {"g": sums.sum(0) / weights.sum()}, {}, jnp.float32(0), *PASSES, KEY, parts, None)
        values, _ = noise_scale(seen)
        return values["gradients/noise"], values["gradients/signal"]

    noise, signal = jax.jit(jax.vmap(found))(chance.normal(size=(20_000, 3, 3)))
    np.testing.assert_allclose(np.mean(noise), 3 * 4.0 / 8, rtol=0.02)
    np.testing.assert_allclose(np.mean(signal), 3.0, rtol=0.02)


def test_norms_of_matrices_are_those_of_numpy() -> None:
    params = small.state().params
    updates = jax.tree.map(lambda p: 0.01 * p, params)
    seen = SeenStep(params, params, updates, jnp.float32(0), *PASSES, KEY, None, None)
    found = jax.jit(lambda: measure(Statistics(every=1, compute=("matrices",)), seen))()
    largest = 0.0
    for name, matrix in named(params).items():
        stacked = name.startswith("blocks.")
        if matrix.ndim != 2 + stacked:
            assert f"parameters/operator_norm/{name}" not in found[LAYERS]
            continue
        values = np.linalg.svd(matrix, compute_uv=False)
        expected = values.max(-1).reshape(-1)
        largest = max(largest, expected.max())
        operator = found[LAYERS][f"parameters/operator_norm/{name}"]
        np.testing.assert_allclose(operator, expected, rtol=0.01)
        assert (operator <= expected * (1 + 1e-5)).all(), "power iteration finds them from below"
        np.testing.assert_allclose(found[LAYERS][f"updates/operator_norm/{name}"], 0.01 * operator, rtol=1e-4)
        size = np.sqrt(np.square(values).sum(-1)).reshape(-1)
        np.testing.assert_allclose(found[LAYERS][f"parameters/frobenius_norm/{name}"], size, rtol=1e-4)
        for part, axis in (("row_norm", 1), ("column_norm", 0)):
            norms = None if stacked else np.linalg.norm(matrix, axis=axis)
            for kind in ("min", "mean", "max"):
                path = f"parameters/{part}/{kind}/{name}"
                assert (path in found[LAYERS]) == (norms is not None)
                if norms is not None:
                    np.testing.assert_allclose(found[LAYERS][path][0], getattr(norms, kind)(), rtol=1e-4)
    np.testing.assert_allclose(found["parameters/operator_norm"], largest, rtol=0.01)


def test_what_layers_report_is_that_of_the_first_micro_batch() -> None:
    state, batch = first_state(), small.batch(0, accumulation=PARTS)

    @jax.jit
    def reports(params: Any) -> Any:
        with collect_reports() as found:
            first = {name: array[0] for name, array in batch.items()}
            build_task(CausalLM()).loss(eqx.combine(params, state.frozen), first)
        return found

    expected, found = reports(state.params), steps()[0][0].metrics
    for path, of_layers in (("activations/max", np.max), ("attention/entropy", np.mean)):
        ((part, values),) = expected[path].items()
        np.testing.assert_allclose(found[LAYERS][f"{path}/{part}"], values, rtol=1e-5)
        np.testing.assert_allclose(found[path], of_layers(values), rtol=1e-5)
    rms = np.asarray(expected["activations/rms"]["blocks.hidden"])
    np.testing.assert_allclose(found["activations/rms"], np.sqrt(np.square(rms).mean()), rtol=1e-5)
    np.testing.assert_allclose(found["logits/max"], expected["logits/max"][""], rtol=1e-5)


def test_a_model_whose_layers_report_nothing_is_refused_before_the_first_step() -> None:
    step = make_step(
        task=Silent(),
        optimizer=small.optimizer(),
        learning_rate=lambda *_: jnp.float32(1e-3),
        compute=jnp.dtype(jnp.float32),
        max_grad_norm=1.0,
        statistics=Statistics(every=1, compute=("attention",)),
    )
    with pytest.raises(TrainkitError, match="report nothing") as caught:
        jax.eval_shape(step, small.state(), small.batch(0))
    assert caught.value.where == "statistics.compute"


class Silent(CausalLMTask):
    """A loss of the embedding alone, as a model without layers has it."""

    def loss(self, model: Any, batch: Any, *, key: Any = None) -> Loss:
        return Loss(jnp.square(model.token_embedding).sum(), jnp.float32(1))


def test_curvature_is_that_of_a_known_hessian() -> None:
    chance = np.random.default_rng(0)
    basis, _ = np.linalg.qr(chance.normal(size=(12, 12)))
    matrix = basis @ np.diag([-5.0, 3.0, *chance.uniform(-1, 1, size=10)]) @ basis.T
    curved = {"a": chance.normal(size=(3, 4)), "b": np.ones(6)}

    def gradient(params: Any) -> Any:
        return {"a": (jnp.asarray(matrix) @ params["a"].ravel()).reshape(3, 4), "b": 2.0 * params["b"]}

    as_float32 = jax.tree.map(jnp.float32, curved)
    top, _ = jax.jit(lambda: hessian(gradient, as_float32, KEY))()
    np.testing.assert_allclose(top, -5.0, rtol=0.01)
    # random signs give the trace of a diagonal exactly
    _, trace = jax.jit(lambda: hessian(lambda p: {"a": p["a"] * curved["a"], "b": -p["b"]}, as_float32, KEY))()
    np.testing.assert_allclose(trace, curved["a"].sum() - 6, rtol=1e-3)


def test_steps_between_those_that_measure_remember_the_same(tmp_path: Path) -> None:
    measured, (state, resumed) = steps()[1], steps_that_remember(tmp_path)
    # the parameters depend on the sign of gradients near zero, and the gradients do not depend on those parameters
    small.trees_close(measured.params, state.params, atol=2e-3)
    small.trees_close(measured.history.gradient_sum, state.history.gradient_sum, atol=1e-5)
    np.testing.assert_allclose(measured.history.product_sum, state.history.product_sum, rtol=1e-3)
    for left, right in zip(jax.tree.leaves(state.history), jax.tree.leaves(resumed.history), strict=True):
        np.testing.assert_array_equal(left, right)


def steps_that_remember(directory: Path) -> tuple[State, State]:
    """The last state without measuring, and that of a run that resumed from a checkpoint in between."""
    provenance = Provenance(recipe="", data="", attempt=1)
    plain, state, resumed = jax.jit(small.step()), first_state(), first_state()
    for number in range(STEPS):
        batch = small.batch(number, accumulation=PARTS)
        state, metrics = plain(state, batch)
        assert LAYERS not in metrics and "gradients/l1" not in metrics
        if number == STEPS // 2:
            saver = Saver(directory, on_saved=lambda saved: None)
            saver.save(without_frozen(resumed), step=number, kind="final", provenance=provenance)
            saver.close()
            template = without_frozen(jax.eval_shape(lambda state: state, resumed))
            resumed = replace(restore(directory / f"checkpoints/{number}", template), frozen=resumed.frozen)
        resumed, _ = plain(resumed, batch)
    return state, resumed


def test_steps_without_statistics_are_the_same_program_as_if_there_were_none() -> None:
    def program(**statistics: Any) -> str:
        recipe = Recipe.model_validate(
            {
                "schema": 1,
                "model": {"layers": 1, "hidden": 32, "heads": 4},
                "tokenizer": {"train": {"vocab_size": 300}},
                "data": {"sequence_length": 16, "train": ({"type": "python-stdlib"},)},
                "train": {"steps": 10, "batch_size": 4, "micro_batch_size": 2},
                "optimizer": {"learning_rate": 1e-3},
                "statistics": statistics,
            }
        )
        built = build(recipe, make_plan(recipe, devices=Devices(count=1), vocab_size=300, data=None))
        layout = longest_layout(recipe.data, batch_size=4, vocab_size=300)
        batch = {name: jax.ShapeDtypeStruct((2, 2, *of[1:]), dtype) for name, (of, dtype) in layout.items()}
        with jax.set_mesh(built.mesh):
            return jax.jit(built.step).lower(state_shapes(built), batch).as_text()

    remembering_nothing = ("norms", "noise-scale", "matrices", "hessian", "activations", "attention")
    assert program(every=10, compute=remembering_nothing) == program()
