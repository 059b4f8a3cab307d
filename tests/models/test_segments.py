"""Documents packed into one row of a batch are to be as if each had a row of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
from hypothesis import given, settings
from hypothesis import strategies as st

from trainkit.models.casting import cast
from trainkit.models.stack import LanguageModel
from trainkit.parallel.mesh import batch_sharding, make_mesh, replicated_sharding, state_shardings
from trainkit.tasks.causal_lm import CausalLMTask

Batch = dict[str, jax.Array]
Document = np.ndarray
"""One token more than it has positions in a row."""

DOCUMENTS = 3


@cache
def small_model() -> LanguageModel:
    return small.model(jax.random.key(4))


def pack(rows: Sequence[Sequence[Document]]) -> Batch:
    """A batch with each of `rows` packed in the order given, what is left of it padding."""
    shape = (len(rows), small.LENGTH)
    batch = {name: np.zeros(shape, np.int32) for name in ("tokens", "targets", "segments", "positions")}
    batch["weights"] = np.zeros(shape, np.float32)
    for row, documents in enumerate(rows):
        start = 0
        for segment, document in enumerate(documents, start=1):
            place = (row, slice(start, start := start + len(document) - 1))
            batch["tokens"][place], batch["targets"][place] = document[:-1], document[1:]
            batch["segments"][place], batch["positions"][place] = segment, np.arange(len(document) - 1)
            batch["weights"][place] = 1
        assert start <= small.LENGTH
    return {name: jnp.asarray(array) for name, array in batch.items()}


@st.composite
def packings(draw: st.DrawFn) -> list[Document]:
    """Documents that fit into a row together; often they fill it."""
    lengths = [draw(st.integers(1, small.LENGTH // DOCUMENTS + 1)) for _ in range(DOCUMENTS - 1)]
    lengths.append(draw(st.sampled_from([small.LENGTH - sum(lengths), 1, 3])))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return [random.integers(0, small.VOCAB, length + 1) for length in lengths]


@eqx.filter_jit
def logits(model: LanguageModel, batch: Batch) -> jax.Array:
    hidden, _ = model.hidden_states(batch["tokens"], positions_BT=batch["positions"], segments_BT=batch["segments"])
    return hidden @ model.output_matrix().T


@eqx.filter_jit
def gradients(model: LanguageModel, batch: Batch) -> tuple[tuple[jax.Array, jax.Array], LanguageModel]:
    """((sum of losses, sum of weights), gradients)."""

    def loss(model):
        total, weight, _ = CausalLMTask().loss(model, batch)
        return total, weight

    return eqx.filter_value_and_grad(loss, has_aux=True)(model)


def of_each(batch: Batch, values: jax.Array) -> list[np.ndarray]:
    """Of `values`, (B, T, …), those of each document in the batch."""
    rows = zip(np.asarray(values), np.asarray(batch["segments"]), strict=True)
    return [row[segments == n] for row, segments in rows for n in range(1, segments.max() + 1)]


def without_segments(batch: Batch) -> Batch:
    return {name: batch[name] for name in ("tokens", "targets", "weights")}


def random_documents(seed: int, *lengths: int) -> list[Document]:
    random = np.random.default_rng(seed)
    return [random.integers(0, small.VOCAB, length + 1) for length in lengths]


@settings(max_examples=10, deadline=None)
@given(packings())
def test_documents_in_one_row_are_as_in_rows_of_their_own(documents: list[Document]) -> None:
    together, apart = pack([documents]), pack([[document] for document in documents])
    pairs = zip(
        of_each(together, logits(small_model(), together)), of_each(apart, logits(small_model(), apart)), strict=True
    )
    for packed, alone in pairs:
        np.testing.assert_allclose(packed, alone, atol=2e-6)
    (total, weight), grads = gradients(small_model(), together)
    (expected, expected_weight), expected_grads = gradients(small_model(), apart)
    assert weight == expected_weight == sum(len(document) - 1 for document in documents)
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    small.trees_close(grads, expected_grads, atol=2e-5)


@settings(max_examples=10, deadline=None)
@given(packings(), st.integers(0, DOCUMENTS - 1), st.integers(1, small.VOCAB - 1))
def test_a_document_does_not_depend_on_its_neighbours(documents: list[Document], kept: int, shift: int) -> None:
    others = [d if i == kept else (d + shift) % small.VOCAB for i, d in enumerate(documents)]
    before, after = pack([documents]), pack([others])
    left, right = (of_each(batch, logits(small_model(), batch)) for batch in (before, after))
    np.testing.assert_array_equal(left[kept], right[kept])
    assert all((a != b).any() for i, (a, b) in enumerate(zip(left, right, strict=True)) if i != kept)


@settings(max_examples=10, deadline=None)
@given(packings(), st.permutations(range(DOCUMENTS)))
def test_the_order_of_documents_within_a_row_does_not_matter(documents: list[Document], order: list[int]) -> None:
    before, after = pack([documents]), pack([[documents[i] for i in order]])
    left, right = (of_each(batch, logits(small_model(), batch)) for batch in (before, after))
    for place, i in enumerate(order):
        np.testing.assert_allclose(right[place], left[i], atol=2e-6)
    small.trees_close(gradients(small_model(), before), gradients(small_model(), after), atol=2e-5)


@settings(max_examples=8, deadline=None)
@given(st.integers(1, small.LENGTH - 1), st.integers(1, small.VOCAB - 1))
def test_padding_contributes_nothing(length: int, junk: int) -> None:
    batch = pack([random_documents(length, length), []])  # the second row is nothing but padding
    padding = batch["segments"] == 0
    other = dict(
        batch, tokens=jnp.where(padding, junk, batch["tokens"]), targets=jnp.where(padding, 5, batch["targets"])
    )
    small.trees_close(gradients(small_model(), batch), gradients(small_model(), other), atol=0)
    alone = pack([random_documents(length, length), random_documents(length, length)])
    (total, _), grads = gradients(small_model(), batch)
    (twice, _), doubled = gradients(small_model(), alone)
    np.testing.assert_allclose(2 * total, twice, rtol=1e-5)
    small.trees_close(jax.tree.map(lambda g: 2 * g, grads), doubled, atol=2e-5)


@pytest.mark.parametrize("compute", [jnp.float32, jnp.bfloat16])
def test_padding_leaves_all_numbers_finite(compute: type) -> None:
    batch = pack([random_documents(0, 4, 1), [], random_documents(1, small.LENGTH)])
    model = cast(small_model(), jnp.dtype(compute))
    for leaf in jax.tree.leaves((logits(model, batch), gradients(model, batch))):
        assert jnp.isfinite(leaf).all()


def test_a_row_that_is_one_document_is_as_without_segments() -> None:
    batch = pack([random_documents(seed, small.LENGTH) for seed in range(4)])
    assert (batch["segments"] == 1).all()
    small.trees_close(gradients(small_model(), batch), gradients(small_model(), without_segments(batch)), atol=2e-5)


def test_without_segments_documents_in_a_row_do_see_each_other() -> None:
    batch = pack([random_documents(0, 6, 10)])
    (apart, _), _ = gradients(small_model(), batch)
    (together, _), _ = gradients(small_model(), without_segments(batch))
    assert abs(apart - together) > 1e-3
    # restarted positions alone, or segments alone, are not enough either
    whole = jnp.arange(small.LENGTH)[None]
    for part in (dict(batch, segments=jnp.ones_like(batch["segments"])), dict(batch, positions=whole)):
        assert abs(apart - gradients(small_model(), part)[0][0]) > 1e-3


def test_segments_make_one_mask_for_all_layers_and_without_them_there_is_none() -> None:
    batch = pack([random_documents(seed, 6, 10) for seed in range(5)])
    layers, rows, length = small.SPEC.layers, 5, small.LENGTH

    def program(batch: Batch) -> str:
        return str(
            jax.make_jaxpr(lambda b: eqx.filter_grad(lambda m: CausalLMTask().loss(m, b)[0])(small_model()))(batch)
        )

    mask, stacked = f"bool[{rows},1,{length},{length}]", f"bool[{layers},{rows},"
    assert mask in program(batch) and mask not in program(without_segments(batch))
    assert stacked not in program(batch)


def step_batch(*, accumulation: int) -> Batch:
    """Eight rows of uneven documents, some with padding, one with nothing else."""
    lengths = [(4, 12), (1, 2, 3), (16,), (), (5, 5, 6), (15, 1), (8,), (2, 2, 2, 2)]
    whole = pack([random_documents(seed, *row) for seed, row in enumerate(lengths)])
    return {name: array.reshape(accumulation, -1, small.LENGTH) for name, array in whole.items()}


@pytest.mark.parametrize("accumulation", [2, 8])
def test_accumulated_equals_full_batch_with_segments(accumulation: int) -> None:
    full, expected = small.jitted()(small.state(), step_batch(accumulation=1))
    parts, metrics = small.jitted()(small.state(), step_batch(accumulation=accumulation))
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=2e-5, err_msg=name)
    # the first moment is the gradient, scaled; the parameters themselves hang on the sign of gradients near zero
    small.trees_close(full.optimizer[0].mu, parts.optimizer[0].mu, atol=2e-8)


@pytest.mark.parametrize(("data", "fsdp"), [(8, 1), (2, 4)])
def test_sharded_equals_single_with_segments(data: int, fsdp: int) -> None:
    mesh = make_mesh(data=data, fsdp=fsdp)
    shardings = state_shardings(mesh, jax.eval_shape(small.state))
    batch = step_batch(accumulation=1)
    single, expected = small.jitted()(small.state(), batch)
    step = jax.jit(small.step(), out_shardings=(shardings, replicated_sharding(mesh)))
    sharded, metrics = step(jax.device_put(small.state(), shardings), jax.device_put(batch, batch_sharding(mesh)))
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=2e-5, err_msg=name)
    small.trees_close(single.optimizer[0].mu, sharded.optimizer[0].mu, atol=2e-8)
