from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

from trainkit import optim
from trainkit.errors import TrainkitError
from trainkit.events.commands import Command
from trainkit.parallel.mesh import batch_sharding, make_mesh, partition, replicated_sharding, state_shardings
from trainkit.recipe.optimizers.adam import AdamW
from trainkit.recipe.optimizers.spec import Group
from trainkit.recipe.sections.schedule import Constant, Cosine, LinearDecay, Wsd
from trainkit.recipe.sections.schedule_spec import NEVER
from trainkit.train.control import LiveSchedule
from trainkit.train.state import Live, init, initial_live


@pytest.mark.parametrize("accumulation", [2, 4, 8])
def test_accumulated_equals_full_batch(accumulation: int) -> None:
    full, expected = small.jitted()(small.state(), small.batch(0))
    parts, metrics = small.jitted()(small.state(), small.batch(0, accumulation=accumulation))
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=2e-5, err_msg=name)
    # the first moment is the gradient, scaled; the parameters themselves hang on the sign of gradients near zero
    small.trees_close(full.optimizer[0].mu, parts.optimizer[0].mu, atol=2e-8)


def test_tokens_of_weight_zero_change_nothing() -> None:
    batch = small.batch(0)
    other = dict(batch, targets=np.where(batch["weights"] == 0, 5, batch["targets"]))
    assert (other["targets"] != batch["targets"]).any()
    step = small.jitted()
    left, right = step(small.state(), batch), step(small.state(), other)
    np.testing.assert_array_equal(left[1]["train/loss"], right[1]["train/loss"])
    for a, b in zip(jax.tree.leaves(left[0].params), jax.tree.leaves(right[0].params), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("data", [1, 4])
def test_a_batch_in_which_nothing_is_learned_changes_neither_parameters_nor_moments(
    accumulation: int, data: int
) -> None:
    mesh = make_mesh(data=data, fsdp=1)
    shardings = state_shardings(mesh, jax.eval_shape(small.state))
    step = jax.jit(small.step(), out_shardings=(shardings, replicated_sharding(mesh)))
    batch = small.batch(0, sequences=16, accumulation=accumulation)
    learned, _ = step(jax.device_put(small.state(), shardings), jax.device_put(batch, batch_sharding(mesh)))
    empty = dict(batch, weights=np.zeros_like(batch["weights"]))
    after, metrics = step(learned, jax.device_put(empty, batch_sharding(mesh)))
    kept, found = ((state.params, state.optimizer) for state in (learned, after))
    for a, b in zip(jax.tree.leaves(kept), jax.tree.leaves(found), strict=True):
        np.testing.assert_array_equal(a, b)
    assert after.step == learned.step + 1
    assert metrics["updates/norm"] == metrics["train/weight"] == 0 and metrics["parameters/norm"] > 0


def test_no_step_shares_a_random_key_with_the_first_state_or_with_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, ...]] = []
    fold_in = jax.random.fold_in

    def noted(key: jax.Array, data: int) -> jax.Array:
        folded = fold_in(key, data)
        drawn.append(tuple(np.asarray(jax.random.key_data(folded)).tolist()))
        return folded

    monkeypatch.setattr(jax.random, "fold_in", noted)
    init(jax.random.key(0), model=small.model, optimizer=small.optimizer(), compute=jnp.dtype(jnp.float32))
    initial, state = set(drawn), small.state()
    drawn.clear()
    for _ in range(2):
        state, _ = small.step()(state, small.batch(0))
    assert len(initial) == 1 and not initial & set(drawn)
    # the two steps share the key of each of three purposes, and nothing that is made of it
    assert len(set(drawn)) == len(drawn) - 3


@pytest.mark.parametrize(("data", "fsdp"), [(8, 1), (1, 8), (2, 4)])
def test_sharded_equals_single(data: int, fsdp: int) -> None:
    single, sharded = small.state(), small.state()
    mesh = make_mesh(data=data, fsdp=fsdp)
    shardings = state_shardings(mesh, jax.eval_shape(small.state))
    sharded = jax.device_put(sharded, shardings)
    one = small.jitted()
    many = jax.jit(small.step(), donate_argnums=0, out_shardings=(shardings, replicated_sharding(mesh)))
    for seed in range(4):
        batch = small.batch(seed)
        single, expected = one(single, batch)
        sharded, metrics = many(sharded, jax.device_put(batch, batch_sharding(mesh)))
        np.testing.assert_allclose(metrics["train/loss"], expected["train/loss"], rtol=1e-5)
    small.trees_close(single.params, sharded.params, atol=2e-3)
    embedding = sharded.params.token_embedding
    assert embedding.addressable_shards[0].data.size == embedding.size // fsdp
    assert sharded.optimizer[0].mu.token_embedding.sharding == embedding.sharding


def test_only_large_arrays_are_sharded_along_a_dimension_that_divides() -> None:
    assert partition((97, 32), 8) == PartitionSpec(None, "fsdp")
    assert partition((4, 128, 384), 8) == PartitionSpec(None, None, "fsdp")
    assert partition((97, 31), 8) == partition((32,), 8) == partition((97, 32), 1) == PartitionSpec()


def test_the_gradient_is_clipped_to_the_given_norm_and_reported_unclipped() -> None:
    step, loose = small.jitted(max_grad_norm=1e-3), small.jitted(max_grad_norm=0)
    clipped, metrics = step(small.state(), small.batch(0))
    free, expected = loose(small.state(), small.batch(0))
    assert metrics["gradients/norm"] == expected["gradients/norm"] > 0.1
    moment = jnp.sqrt(sum(jnp.square(m).sum() for m in jax.tree.leaves(clipped.optimizer[0].mu)))
    np.testing.assert_allclose(moment, 0.1 * 1e-3, rtol=1e-4)  # the first moment is (1 - beta1) x the gradient
    ratio = free.optimizer[0].mu.final_norm.bias / clipped.optimizer[0].mu.final_norm.bias
    np.testing.assert_allclose(ratio, float(metrics["gradients/norm"]) / 1e-3, rtol=1e-3)


def test_a_step_donates_the_state_and_compiles_once() -> None:
    step = jax.jit(small.step(), donate_argnums=0)
    state = small.state()
    first = state.params.token_embedding
    for seed in range(3):
        state, _ = step(state, small.batch(seed))
    assert first.is_deleted()
    assert step._cache_size() == 1


def test_norms_biases_and_embeddings_are_not_decayed() -> None:
    spec = AdamW(learning_rate=1.0, weight_decay=0.3)
    shapes = small.SPEC.leaf_shapes(vocab_size=small.VOCAB, sequence_length=small.LENGTH)
    assert {name for name, shape in shapes.items() if spec.decay_of(name, shape)} == {
        f"blocks.{part}.weight" for part in ("attention.qkv", "attention.output", "mlp_in", "mlp_out")
    }


def test_groups_decay_what_is_asked_and_the_last_one_decides() -> None:
    spec = AdamW(
        learning_rate=1.0,
        groups=(
            Group(match="*embedding", weight_decay=0.5),
            Group(match="*.bias", learning_rate_factor=0.0),
            Group(match="position*", weight_decay=0.25),
        ),
    )
    assert spec.decay_of("token_embedding", (97, 32)) == 0.5
    assert spec.decay_of("position_embedding", (16, 32)) == 0.25
    before = small.state(spec=spec)
    after, _ = jax.jit(small.step(spec))(before, small.batch(0))
    np.testing.assert_array_equal(after.params.final_norm.bias, before.params.final_norm.bias)
    assert (after.params.final_norm.weight != before.params.final_norm.weight).any()


@pytest.mark.parametrize("schedule", [Cosine(min_ratio=0.1), LinearDecay(type="linear", min_ratio=0.1)])
def test_the_rate_rises_to_the_peak_and_falls_to_the_ratio(schedule: Cosine | LinearDecay) -> None:
    rate = optim.learning_rate(schedule, peak=2.0, steps=1000)
    rates = np.array([rate(step) for step in (0, 19, 20, 1000)])
    np.testing.assert_allclose(rates, [0.1, 2.0, 2.0, 0.2], rtol=1e-5)


def test_warmup_is_steps_where_it_is_an_integer() -> None:
    rate = optim.learning_rate(Constant(type="constant", warmup=4), peak=1.0, steps=10)
    assert [float(rate(step)) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


SHAPES = {
    "linear": lambda x: 1 - x,
    "1-sqrt": lambda x: 1 - math.sqrt(x),
    "cosine": lambda x: math.cos(x * math.pi / 2) ** 2,
}


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=25, deadline=None)
@given(
    warmup=st.integers(0, 20),
    stable=st.integers(0, 40),
    decay=st.integers(1, 40),
    ratio=st.floats(0, 1),
    data=st.data(),
)
def test_wsd_rises_stays_and_falls_in_closed_form_wherever_the_decay_begins(
    shape: str, warmup: int, stable: int, decay: int, ratio: float, data: st.DataObject
) -> None:
    spec = Wsd(type="wsd", warmup=warmup, decay=decay, shape=shape, min_ratio=ratio)
    steps = warmup + stable + decay
    ordered = data.draw(st.sampled_from([NEVER, *range(warmup, steps)]))
    start = min(ordered, steps - decay)
    assert spec.last_step(steps, decay_start=ordered) == start + decay <= steps
    rate = optim.learning_rate(spec, peak=3.0, steps=steps)

    def expected(step: int) -> float:
        if step < warmup:
            return 3.0 * (step + 1) / warmup
        return 3.0 * (ratio + (1 - ratio) * SHAPES[shape](min(max(0, step - start) / decay, 1)))

    every = np.arange(102)
    found = np.asarray(rate(every, ordered))
    np.testing.assert_allclose(found, [expected(step) for step in every], rtol=1e-4, atol=1e-5)
    assert found[start] == 3.0, "it begins from the peak"
    np.testing.assert_allclose(found[start + decay], 3.0 * ratio, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("warmup", "decay", "steps", "phases"),
    [
        (0.02, 0.2, 1000, (20, 200)),
        (100, 0.2, 2, (2, 0)),  # as in a try of two steps
        (0, 0.001, 10, (0, 1)),
        (5, 500, 20, (5, 15)),
    ],
)
def test_phases_fit_any_length_of_run(warmup: float, decay: float, steps: int, phases: tuple[int, int]) -> None:
    spec = Wsd(type="wsd", warmup=warmup, decay=decay)
    assert (spec.warmup_steps(steps), spec.decay_steps(steps)) == phases
    assert spec.last_step(steps, decay_start=NEVER) == steps
    rates = [optim.learning_rate(spec, peak=1.0, steps=steps)(step) for step in range(steps)]
    assert all(0 < float(rate) <= 1 for rate in rates)


def test_the_rate_is_the_schedules_times_the_factor_and_a_new_factor_or_decay_traces_nothing() -> None:
    spec, traced = Wsd(type="wsd", warmup=0, decay=4, shape="linear"), []
    rate = optim.learning_rate(spec, peak=1e-2, steps=100)
    inner = small.step(learning_rate=rate)

    def counted(state, batch):
        traced.append(1)
        return inner(state, batch)

    step, state = jax.jit(counted, donate_argnums=0), small.state()
    course = LiveSchedule(spec, steps=100, live=state.live)
    rates, norms = [], []
    for i in range(8):
        if i == 2:
            course.change_rate(0.5, step=i)
        if i == 4:
            course.begin_decay(step=i)
        state, metrics = step(course.put_into(state), small.batch(0))
        rates.append(float(metrics["optimizer/learning_rate"]))
        norms.append(float(metrics["updates/norm"]))
    np.testing.assert_allclose(rates, [0.01, 0.01, 0.005, 0.005, 0.005, 0.00375, 0.0025, 0.00125], rtol=1e-6)
    assert norms[2] < 0.7 * norms[1], "what is reported is what is done"
    assert len(traced) == 1 and course.total_steps == 8


def test_a_factor_is_put_into_the_state_where_it_lay_whatever_the_mesh() -> None:
    mesh = make_mesh(data=2, fsdp=4)
    shardings = state_shardings(mesh, jax.eval_shape(small.state))
    state = jax.device_put(small.state(), shardings)
    course = LiveSchedule(Cosine(), steps=20, live=state.live)
    course.change_rate(0.25, step=3)
    changed = course.put_into(state)
    assert changed.live.rate_factor == 0.25 and changed.live.decay_start == NEVER
    assert eqx.tree_equal(jax.tree.map(lambda leaf: leaf.sharding, changed), shardings)
    assert course.put_into(changed) is changed


@pytest.mark.parametrize("spec", [Cosine(), LinearDecay(type="linear"), Constant(type="constant")])
def test_a_schedule_without_a_decay_phase_refuses_to_begin_one(spec: Cosine | LinearDecay | Constant) -> None:
    course = LiveSchedule(spec, steps=100, live=initial_live())
    with pytest.raises(TrainkitError, match=f"'{spec.type}'"):
        course.begin_decay(step=50)
    assert course.total_steps == 100


def test_a_decay_begins_once_after_the_warm_up_and_before_the_planned_one() -> None:
    spec = Wsd(type="wsd", warmup=10, decay=20)
    course = LiveSchedule(spec, steps=100, live=initial_live())
    with pytest.raises(TrainkitError, match="warming up: the decay can begin after step 10"):
        course.begin_decay(step=9)
    with pytest.raises(TrainkitError, match="begun already, after step 80"):
        course.begin_decay(step=80)
    assert course.total_steps == 100
    assert course.begin_decay(step=40).endswith("at step 60") and course.total_steps == 60
    with pytest.raises(TrainkitError, match="begun already, after step 40; it ends at 60"):
        course.begin_decay(step=45)
    assert course.holds(Command("decay"), step=40) and not course.holds(Command("decay"), step=41)


def test_a_schedule_depends_only_on_the_recipe_and_the_state() -> None:
    live = Live(jnp.float32(0.1), jnp.int32(40))
    course = LiveSchedule(Wsd(type="wsd", warmup=10, decay=0.2), steps=100, live=live)
    assert course.total_steps == 60
    assert course.holds(Command("rate", 0.1), step=40) and course.holds(Command("decay"), step=40)
