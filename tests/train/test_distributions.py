"""How the parameters are distributed."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import SPEC, model

from trainkit.train.metrics import BINS, distributions, histogram

DRAW = jax.jit(histogram)


@settings(deadline=None)
@given(st.lists(st.floats(-1e3, 1e3, width=32, allow_subnormal=False), min_size=20, max_size=20))
def test_every_value_is_counted_in_the_bin_that_it_lies_in(values: list[float]) -> None:
    told = DRAW(np.array(values, np.float32))
    low, high = float(told.low), float(told.high)
    assert (low, high) == (min(values), max(values))
    assert told.counts.sum() == len(values)
    # a value beside a border may fall to either side
    borders = np.linspace(low, high, BINS + 1)
    slack = 1e-4 * (high - low)
    for bin, count in enumerate(np.asarray(told.counts)):
        inside = sum(borders[bin] + slack < v < borders[bin + 1] - slack for v in values)
        near = sum(borders[bin] - slack <= v <= borders[bin + 1] + slack for v in values)
        assert inside <= count <= near or high == low


def test_only_a_cpu_scatters_all_parameters_and_all_devices_count_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    values = jax.random.normal(jax.random.key(0), (3, 5000))
    expected = jax.vmap(histogram)(values)
    assert expected.counts.sum() == values.size
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    program = jax.jit(lambda values: jax.vmap(histogram)(values)).lower(values).compile()
    assert " scatter(" not in program.as_text() and " while(" in program.as_text()
    for found, right in zip(program(values), expected, strict=True):
        np.testing.assert_array_equal(found, right)


def test_every_layer_of_every_parameter_has_its_own() -> None:
    made = model(jax.random.key(0))
    found = distributions(made)
    weight = np.asarray(made.blocks.attention.qkv.weight)
    for layer in range(SPEC.layers):
        told = found[f"parameters/layers/{layer}/attention.qkv.weight"]
        assert told["low"] == weight[layer].min() and told["high"] == weight[layer].max()
        assert sum(told["counts"]) == weight[layer].size
    assert sum(found["parameters/token_embedding"]["counts"]) == made.token_embedding.size
    total = sum(leaf.size for leaf in jax.tree.leaves(made) if hasattr(leaf, "size"))
    assert sum(sum(told["counts"]) for told in found.values()) == total


def test_what_is_not_finite_is_left_out() -> None:
    assert distributions({"a": np.array([1.0, np.nan]), "b": np.array([1.0, 1.0])}).keys() == {"parameters/b"}
