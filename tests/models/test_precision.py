"""Numbers of few bits: what is rounded is right on average, what is kept is small, what overflows is passed over."""

from __future__ import annotations

import math
from functools import cache, partial
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small
from hypothesis import given, settings
from hypothesis import strategies as st

from trainkit import models, optim
from trainkit.checkpoint.leaves import named_leaves
from trainkit.checkpoint.provenance import Provenance
from trainkit.checkpoint.restore import restore
from trainkit.checkpoint.saver import Saver
from trainkit.errors import TrainkitError
from trainkit.events.alerts import Watch
from trainkit.optim.adamw import scale_by_adam
from trainkit.parallel import precision
from trainkit.recipe.optimizers.adam import AdamW
from trainkit.recipe.optimizers.moments import SMALLEST_COMPRESSED
from trainkit.recipe.sections.schedule import Constant
from trainkit.recipe.sections.task import CausalLM
from trainkit.tasks import build as build_task
from trainkit.train.metrics import check_finite
from trainkit.train.state import SCALE_PATIENCE, LossScale, State, init
from trainkit.train.step import make_step

COUNT = 1 << 14
MODERATE = settings(max_examples=50, deadline=None)
KEYS = st.integers(0, 2**32 - 1).map(jax.random.key)


def magnitudes(least: int, greatest: int) -> st.SearchStrategy[np.float32]:
    """Positive float32, all powers of two alike."""
    return st.builds(
        lambda mantissa, exponent: np.float32(math.ldexp(mantissa, exponent)),
        st.floats(1, 2, exclude_max=True, width=32),
        st.integers(least, greatest),
    )


def bits(key: jax.Array, shape: tuple[int, ...] = (COUNT,)) -> jax.Array:
    return precision.random_bits(key, shape)


to_bfloat16 = jax.jit(lambda x, key: precision.to_bfloat16(x, bits(key, x.shape)))


@partial(jax.jit, static_argnames="signed")
def to_blocks(x: jax.Array, key: jax.Array, *, signed: bool) -> precision.Blocks:
    return precision.to_blocks(x, bits(key, x.shape), precision.greatest_in(x), signed=signed)


to_signed, to_unsigned = partial(to_blocks, signed=True), partial(to_blocks, signed=False)
from_blocks = jax.jit(precision.from_blocks)


@MODERATE
@given(x=magnitudes(-120, 120), sign=st.sampled_from([-1, 1]), key=KEYS)
def test_bfloat16_is_one_of_the_two_neighbours_and_right_on_average(x: np.float32, sign: int, key: jax.Array) -> None:
    rounded = np.asarray(to_bfloat16(jnp.full(COUNT, sign * x), key), np.float64)
    step = 2.0 ** (math.frexp(x)[1] - 8)
    low = math.floor(x / step) * step
    assert set(np.abs(rounded)) <= {low, low + step}
    assert abs(rounded.mean() - sign * float(x)) <= 5 * step / 2 / math.sqrt(COUNT)


def test_what_is_bfloat16_already_or_not_finite_stays() -> None:
    every = jax.lax.bitcast_convert_type(jnp.arange(1 << 16, dtype=jnp.uint16), jnp.bfloat16)
    rounded = np.asarray(to_bfloat16(every.astype(jnp.float32), jax.random.key(0)), np.float32)
    np.testing.assert_array_equal(rounded, np.asarray(every, np.float32))


def test_random_bits_are_even_and_differ_by_key_and_by_place() -> None:
    drawn = [np.asarray(bits(jax.random.key(seed), (64, 32, 32))) for seed in range(4)]
    assert len(np.unique(np.concatenate(drawn))) > 0.9999 * 4 * drawn[0].size
    ones = np.unpackbits(np.stack(drawn).view(np.uint8)).reshape(-1, 32)
    assert abs(ones.mean(0) - 0.5).max() < 5 * 0.5 / math.sqrt(len(ones))
    # neither neighbours nor keys have anything to do with each other
    for left, right in ((drawn[0][1:], drawn[0][:-1]), (drawn[0][..., 1:], drawn[0][..., :-1]), (drawn[0], drawn[1])):
        together = np.corrcoef(left.ravel() & 0xFFFF, right.ravel() & 0xFFFF)[0, 1]
        assert abs(together) < 5 / math.sqrt(left.size)


@MODERATE
@given(share=magnitudes(-14, -1), greatest=magnitudes(-60, 30), sign=st.sampled_from([-1, 1]), key=KEYS)
def test_signed_blocks_are_right_on_average_and_off_by_less_than_a_level(share, greatest, sign, key) -> None:
    x = np.full((COUNT // 32, 32), sign * share * greatest, np.float32)
    x[:, 0] = greatest
    found = np.asarray(from_blocks(to_signed(x, key)), np.float64)[:, 1:]
    level = 2.0 ** (math.frexp(share * greatest)[1] - 4)
    assert np.abs(found - x[:, 1:]).max() <= level
    assert abs(found.mean() - x[0, 1]) <= 5 * level / 2 / math.sqrt(found.size) + 1e-4 * level


@MODERATE
@given(share=magnitudes(-30, -1), greatest=magnitudes(-60, 30), key=KEYS)
def test_unsigned_blocks_are_right_on_average_and_off_by_less_than_a_level(share, greatest, key) -> None:
    x = np.full((COUNT // 32, 32), share * greatest, np.float32)
    x[:, 0] = greatest
    found = np.asarray(from_blocks(to_unsigned(x, key)), np.float64)[:, 1:]
    level = 2.0 ** (math.frexp(share * greatest)[1] - 4)
    assert np.abs(found - x[:, 1:]).max() <= level
    assert abs(found.mean() - x[0, 1]) <= 5 * level / 2 / math.sqrt(found.size) + 1e-4 * level


def test_a_block_of_zeros_is_zero_and_no_second_moment_beside_a_greater_one_becomes_zero() -> None:
    x = np.zeros((4, 50), np.float32)  # two blocks a row, the second one short
    x[1, 3], x[2, 40] = 1e-3, 7.0
    key = jax.random.key(1)
    np.testing.assert_array_equal(np.asarray(from_blocks(to_signed(x, key))) == 0, x == 0)
    found = np.asarray(from_blocks(to_unsigned(x, key)))
    assert max(found[[0, 3]].max(), found[1, 32:].max(), found[2, :32].max()) < 1e-38
    assert (found[1, :32] > 0).all() and (found[2, 32:] > 0).all() and found[1, 4] < 1e-9 * found[1, 3]
    assert to_signed(x, key).scales.shape == (4, 2) and to_signed(x, key).codes.shape == x.shape


@pytest.mark.parametrize("signed", [True, False])
def test_what_lies_on_a_level_is_not_rounded_again(signed: bool) -> None:
    store = to_signed if signed else to_unsigned
    x = jax.random.normal(jax.random.key(0), (64, 96))
    once = store(x if signed else jnp.square(x), jax.random.key(1))
    again = store(from_blocks(once), jax.random.key(2))
    left, right = from_blocks(once), from_blocks(again)
    assert jnp.isclose(left, right, rtol=1e-5, atol=0).mean() > 0.999  # a level is missed by rounding in float32 alone
    np.testing.assert_allclose(precision.greatest_in(once), precision.greatest_in(left), rtol=1e-6)


MATRIX = (64, 96)
assert math.prod(MATRIX) > SMALLEST_COMPRESSED


@pytest.mark.parametrize("moments", ["bfloat16", "int8"])
def test_a_second_moment_that_falls_slowly_does_not_stand_still(moments: str) -> None:
    # the gradient is gone, and each update takes 0.1% off: to the nearest, none would
    start = jnp.bfloat16(1.0)
    assert jnp.bfloat16(0.999 * start) == start, "rounded to the nearest it would stand still"
    adam = scale_by_adam(b1=0.9, b2=0.999, eps=1e-8, moments=moments)
    params = jnp.zeros(MATRIX)
    first = adam.init(params)
    _, first = adam.update(jnp.ones(MATRIX), first, key=jax.random.key(1))

    def decay(state, i):
        return adam.update(params, state, key=jax.random.fold_in(jax.random.key(0), i))[1], None

    last, _ = jax.jit(lambda state: jax.lax.scan(decay, state, jnp.arange(2000)))(first)
    value = last.nu.astype(jnp.float32) if moments == "bfloat16" else from_blocks(last.nu)
    np.testing.assert_allclose(value.mean(), 1e-3 * 0.999**2000, rtol=0.03)


@pytest.mark.parametrize("moments", ["bfloat16", "int8"])
def test_directions_of_compressed_moments_are_those_of_float32_on_average(moments: str) -> None:
    scale = jnp.exp(2 * jax.random.normal(jax.random.key(5), MATRIX))  # gradients of very different sizes in a block
    adams = {kept: scale_by_adam(b1=0.9, b2=0.95, eps=1e-8, moments=kept) for kept in ("float32", moments)}

    def run(adam):
        def one(state, i):
            key = jax.random.fold_in(jax.random.key(7), i)
            grads = scale * (0.5 + jax.random.normal(key, MATRIX))
            direction, state = adam.update(grads, state, key=jax.random.fold_in(key, 1))
            return state, direction

        return jax.jit(lambda: jax.lax.scan(one, adam.init(scale), jnp.arange(60))[1])()

    exact, found = run(adams["float32"]), run(adams[moments])
    apart = jnp.sqrt(jnp.square(found - exact).mean() / jnp.square(exact).mean())
    assert apart < {"bfloat16": 0.01, "int8": 0.12}[moments]
    assert abs((found * exact).sum() / jnp.square(exact).sum() - 1) < {"bfloat16": 0.005, "int8": 0.02}[moments]


@pytest.mark.parametrize("moments", ["float32", "bfloat16", "int8"])
def test_the_state_takes_as_many_bytes_as_the_recipe_says_and_vectors_stay_float32(moments: str) -> None:
    spec = AdamW(learning_rate=1.0, moments=moments)
    params = {"weight": jnp.zeros((64, 128), jnp.bfloat16), "bias": jnp.zeros(128, jnp.bfloat16)}
    state = scale_by_adam(b1=0.9, b2=0.95, eps=1e-8, moments=spec.moments).init(params)
    big = [leaf for name, leaf in named_leaves((state.mu, state.nu)).items() if "weight" in name]
    assert sum(leaf.nbytes for leaf in big) == spec.state_bytes((64, 128))
    assert state.mu["bias"].dtype == state.nu["bias"].dtype == jnp.float32


@pytest.mark.parametrize("moments", ["float32", "bfloat16", "int8"])
def test_an_update_is_done_in_place_and_holds_no_second_copy_of_all_moments(moments: str) -> None:
    side, leaves = 512, 8
    params = {f"w{i}": jax.ShapeDtypeStruct((side, side), jnp.float32) for i in range(leaves)}
    optimizer = optim.build(AdamW(learning_rate=1.0, moments=moments), models.leaf_names(params), params)

    def update(params, state, grads, key):
        directions, state = optimizer.update(grads, state, params, key=key)
        return jax.tree.map(lambda p, d: p - 0.1 * d, params, directions), state

    state = jax.eval_shape(optimizer.init, params)
    compiled = jax.jit(update, donate_argnums=(0, 1)).lower(params, state, params, jax.random.key(0)).compile()
    memory = compiled.memory_analysis()
    kept = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((params, state)))
    assert memory.alias_size_in_bytes >= 0.999 * kept - 64
    # of 8-bit codes XLA copies the old ones on CPU; both moments in float32 would be 2 x leaves x float32
    float32 = side * side * 4
    assert memory.temp_size_in_bytes < {"float32": 0.01, "bfloat16": 0.01, "int8": 0.6}[moments] * leaves * float32


@cache
def low_program(moments: str, rate: float, rounding: str, compute: jnp.dtype, params: jnp.dtype):
    """(initial state of a key, step), compiled once for all tests."""

    def model(key):
        size = {"vocab_size": small.VOCAB, "sequence_length": small.LENGTH}
        return models.cast(models.build(small.SPEC, **size, implementation="blockwise", key=key), params)

    trainable = jax.eval_shape(lambda key: eqx.filter(model(key), eqx.is_inexact_array), jax.random.key(0))
    optimizer = optim.build(AdamW(learning_rate=rate, moments=moments), models.leaf_names(trainable), trainable)
    step = make_step(
        task=build_task(CausalLM()),
        optimizer=optimizer,
        learning_rate=optim.learning_rate(Constant(type="constant", warmup=0), peak=rate, steps=20),
        compute=compute,
        max_grad_norm=1.0,
        rounding=rounding,
    )
    initial = partial(init, model=model, optimizer=optimizer, compute=compute)
    return jax.jit(initial), jax.jit(step, donate_argnums=0)


def low_state(seed: int = 0, *, moments: str = "float32", rate: float = 1e-2, rounding: str = "stochastic", **kinds):
    """(state, step) of the small model in bfloat16."""
    compute, params = (jnp.dtype(kinds.get(name, jnp.bfloat16)) for name in ("compute", "params"))
    initial, step = low_program(moments, rate, rounding, compute, params)
    return initial(jax.random.key(seed)), step


def test_updates_too_small_for_bfloat16_count_on_average_where_it_rounds_stochastically() -> None:
    moved = {}
    for rounding in ("stochastic", "nearest"):
        state, step = low_state(rate=1e-5, rounding=rounding)
        before = np.asarray(state.params.token_embedding, np.float32)
        for i in range(10):
            state, _ = step(state, small.batch(i % 2))
        moved[rounding] = np.asarray(state.params.token_embedding, np.float32) - before
    exact, step = low_state(rate=1e-5, params=jnp.float32)
    before = np.asarray(exact.params.token_embedding)
    for i in range(10):
        exact, _ = step(exact, small.batch(i % 2))
    true = np.asarray(exact.params.token_embedding) - before

    def follows(found: np.ndarray) -> float:
        return float((found * true).sum() / (true * true).sum())

    assert abs(follows(moved["stochastic"]) - 1) < 0.3 and follows(moved["nearest"]) < 0.7


def test_parameters_in_float32_are_not_rounded_and_the_same_step_rounds_alike() -> None:
    one, step = low_state(params=jnp.float32)
    two, other = low_state(params=jnp.float32, rounding="nearest")
    trees_equal(step(one, small.batch(0))[0], other(two, small.batch(0))[0])
    state, step = low_state()
    copy = jax.tree.map(jnp.copy, state)
    trees_equal(step(state, small.batch(0))[0], step(copy, small.batch(0))[0])


@pytest.mark.parametrize("moments", ["bfloat16", "int8"])
def test_a_run_with_few_bits_learns_as_one_in_float32_does(moments: str) -> None:
    losses = {}
    for kept, params in (("float32", jnp.float32), (moments, jnp.bfloat16)):
        state, step = low_state(moments=kept, params=params)
        for _ in range(40):
            state, metrics = step(state, small.batch(0))
        losses[kept] = float(metrics["train/loss"])
    assert losses["float32"] < 2.5 and abs(losses[moments] - losses["float32"]) < 0.25, losses


def test_saved_and_restored_a_run_in_few_bits_continues_bit_for_bit(tmp_path: Path) -> None:
    state, step = low_state(moments="int8")
    for i in range(6):
        if i == 3:
            saver = Saver(tmp_path, on_saved=lambda saved: None)
            saver.save(state, step=3, kind="rolling", provenance=Provenance(recipe="", data="", attempt=1))
            saver.close()
        state, _ = step(state, small.batch(i))
    again = restore(tmp_path / "checkpoints" / "3", jax.eval_shape(lambda: low_state(moments="int8")[0]))
    for i in range(3, 6):
        again, _ = step(again, small.batch(i))
    trees_equal(state, again)


def trees_equal(left: object, right: object) -> None:
    named = named_leaves(right)
    for name, leaf in named_leaves(left).items():
        a, b = (jax.random.key_data(x) if name == "key" else x for x in (leaf, named[name]))
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b), err_msg=name)


def scaled(state: State, value: float, good_steps: int = 0) -> State:
    return eqx.tree_at(
        lambda s: s.loss_scale,
        state,
        LossScale(jnp.float32(value), jnp.int32(good_steps)),
        is_leaf=lambda leaf: leaf is None,
    )


@pytest.mark.parametrize("accumulation", [1, 4])
def test_a_scaled_loss_has_the_same_gradients(accumulation: int) -> None:
    batch = small.batch(0, accumulation=accumulation)
    plain, expected = small.jitted()(small.state(), batch)
    found, metrics = small.jitted()(scaled(small.state(), 2.0**20), batch)
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=2e-5, err_msg=name)
    small.trees_close(plain.optimizer[0].mu, found.optimizer[0].mu, atol=2e-8)


def test_float16_learns_as_float32_does_and_only_it_has_a_loss_scale() -> None:
    losses = {}
    for compute in (jnp.float32, jnp.float16):
        state, step = low_state(params=jnp.float32, compute=compute)
        assert (state.loss_scale is None) == (compute == jnp.float32)
        for _ in range(20):
            state, metrics = step(state, small.batch(0))
        losses[compute] = float(metrics["train/loss"])
        assert ("precision/loss_scale" in metrics) == (compute == jnp.float16)
    assert abs(losses[jnp.float16] - losses[jnp.float32]) < 0.1
    assert not any("loss_scale" in name for name in named_leaves(small.state()))


@pytest.mark.parametrize("accumulation", [1, 4])
def test_a_step_that_overflows_changes_nothing_but_its_number_and_the_scale(accumulation: int) -> None:
    state, step = low_state(params=jnp.bfloat16, moments="int8", compute=jnp.float16)
    state, _ = step(state, small.batch(0))
    state = scaled(state, 2.0**60, good_steps=7)
    before = jax.tree.map(jnp.copy, state)
    after, metrics = step(state, small.batch(1, accumulation=accumulation))
    assert not np.isfinite(metrics["gradients/norm"])
    assert metrics["updates/norm"] == 0 and np.isfinite(metrics["parameters/norm"])
    assert after.loss_scale.value == metrics["precision/loss_scale"] == 2.0**59 and after.loss_scale.good_steps == 0
    assert after.step == before.step + 1
    trees_equal((before.params, before.optimizer), (after.params, after.optimizer))


def test_the_scale_comes_down_until_nothing_overflows_and_doubles_after_enough_good_steps() -> None:
    state, step = low_state(params=jnp.float32, compute=jnp.float16)
    state = scaled(state, 2.0**40)
    for i in range(40):
        state, metrics = step(state, small.batch(0))
        check_finite(i, {name: float(value) for name, value in metrics.items()})
    assert 1 < state.loss_scale.value < 2.0**30 and state.loss_scale.good_steps > 0
    settled = float(state.loss_scale.value)
    state = scaled(state, settled / 4, good_steps=SCALE_PATIENCE - 2)
    state, _ = step(state, small.batch(0))
    assert state.loss_scale.value == settled / 4
    state, _ = step(state, small.batch(0))
    assert state.loss_scale.value == settled / 2 and state.loss_scale.good_steps == 0


FINE = {"train/loss": 1.0, "gradients/norm": 1.0, "parameters/norm": 1.0}


def test_the_guard_lets_a_skipped_step_pass_and_stops_where_scaling_cannot_help() -> None:
    overflow = FINE | {"gradients/norm": math.inf, "train/loss": math.nan}
    check_finite(1, overflow | {"precision/loss_scale": 1.0})
    check_finite(1, FINE | {"precision/loss_scale": 512.0})
    with pytest.raises(TrainkitError, match=r"fell to 0\.5") as error:
        check_finite(3, overflow | {"precision/loss_scale": 0.5})
    assert "bfloat16" in error.value.hint and error.value.where == "step 3"
    for broken in (
        overflow,
        overflow | {"precision/loss_scale": 8.0, "parameters/norm": math.nan},
        FINE | {"train/loss": math.nan, "precision/loss_scale": 8.0},
    ):
        with pytest.raises(TrainkitError, match="the run was stopped"):
            check_finite(1, broken)


def test_an_overflow_that_the_scale_answers_raises_no_alert() -> None:
    def alerts(**metrics: float) -> list[str]:
        watch = Watch()
        found = []
        for step in range(1, 40):
            values = FINE | ({"gradients/norm": math.inf} | metrics if step == 30 else metrics)
            found += watch.feed({"type": "step", "t": 0.0, "step": step, "attempt": 1, "metrics": values})
        return [alert[0] for alert in found]

    assert "not-finite" in alerts() and "not-finite" not in alerts(**{"precision/loss_scale": 4.0})


def test_fp8_is_bfloat16_outside_of_linear_layers() -> None:
    assert precision.compute_dtype("fp8") == jnp.bfloat16 and precision.compute_dtype("float16") == jnp.float16


def test_updates_take_a_key_of_their_own_so_that_no_two_steps_round_alike() -> None:
    optimizer = small.optimizer(AdamW(learning_rate=1.0, moments="int8"))
    grads = jax.tree.map(lambda p: jax.random.normal(jax.random.key(0), p.shape), small.state().params)
    update = jax.jit(lambda key: optimizer.update(grads, optimizer.init(grads), grads, key=key)[1][0])
    rounded = [update(jax.random.key(i)) for i in range(2)]
    weights = [moments.mu.blocks.attention.qkv.weight.codes for moments in rounded]
    assert (weights[0] != weights[1]).mean() > 0.05
    assert isinstance(rounded[0], optax.ScaleByAdamState)
