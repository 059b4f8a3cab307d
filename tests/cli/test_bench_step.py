"""The benchmark compares like with like: the same model, batches and update, whoever computes them."""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import replace

import numpy as np
import pytest
from places import ROOT

from trainkit.recipe.families.gpt2 import Gpt2
from trainkit.recipe.families.llama import Llama

sys.path.insert(0, str(ROOT / "scripts" / "bench"))

import step as bench_step
import step_contenders
import step_jax
import step_trainkit
from paired import environment_of
from step_contenders import Entry, Result
from step_work import Shape, Work, batch, weights

GPT2 = Shape(vocab=97, layers=2, hidden=32, heads=4, kv_heads=4, intermediate=96, length=16, sequences=4)
LLAMA = replace(GPT2, family="llama", kv_heads=2)


@pytest.mark.parametrize("shape", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_trainkit_and_bare_jax_lose_the_same_at_every_step(shape: Shape) -> None:
    work = Work(shape=shape, compute="float32", platform="cpu", curve=6, overrides=("train.micro_batch_size=2",))
    curves = []
    for prepare in (step_jax.prepare, step_trainkit.prepare):
        contender = prepare(work)
        curves.append([contender.loss(contender.step(i)) for i in range(work.curve)])
    np.testing.assert_allclose(*curves, atol=2e-5)
    assert curves[0][-1] < curves[0][0]


@pytest.mark.parametrize("shape", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_the_weights_are_those_of_the_model_in_trainkit_and_the_same_each_time(shape: Shape) -> None:
    common = {"layers": shape.layers, "hidden": shape.hidden, "heads": shape.heads, "intermediate": shape.intermediate}
    gpt2, llama = Gpt2(**common), Llama(**common, kv_heads=shape.kv_heads, tied=True)
    model = gpt2 if shape.family == "gpt2" else llama
    assert shape.parameters == sum(model.parameter_count(vocab_size=97, sequence_length=16).values())
    for (name, first), (_, again) in zip(weights(shape), weights(shape), strict=True):
        assert np.array_equal(first, again), name


def test_a_batch_can_be_learned_and_is_followed_by_another() -> None:
    x, y = batch(replace(GPT2, sequences=200), 3)
    assert x.shape == y.shape and x.min() >= 0 and x.max() < GPT2.vocab
    assert np.array_equal(x[:, 1:], y[:, :-1])
    assert 0.45 < (y == (x + 1) % GPT2.vocab).mean() < 0.7
    assert not np.array_equal(x, batch(replace(GPT2, sequences=200), 4)[0])


def test_every_shape_has_whole_batches_that_a_recipe_allows() -> None:
    for name, shape in {**bench_step.ON_CPU, **bench_step.ON_GPU}.items():
        work = Work(shape=shape, compute="bfloat16", platform="gpu", curve=1)
        assert Work.from_json(work.to_json()) == work
        assert shape.tokens % shape.length == 0 and shape.sequences > 0, name
        assert shape.hidden % shape.heads == 0 and shape.heads % shape.kv_heads == 0, name


def started(kind: str, *, torch: str = "", rounds: int = 2, limit: float = 600.0) -> Result:
    """What `compare` makes of one contender."""
    entry = Entry(kind, "float32")
    arguments = Namespace(
        torch=torch, curve=3, rounds=rounds, seconds=0.01, limit=limit, overrides=[], torch_backend="inductor"
    )
    return step_contenders.compare(GPT2, [entry], arguments, on_gpu=False, apart=True)[entry]


def test_another_python_does_not_find_the_packages_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "carried")
    assert environment_of(sys.executable)["PYTHONPATH"] == "carried"
    assert "PYTHONPATH" not in environment_of("another") and "PATH" in environment_of("another")


def test_a_contender_that_cannot_be_started_is_reported_with_the_reason() -> None:
    assert started("torch", torch="/no/such/python").error == "/no/such/python: No such file or directory"
    absent = started("absent")
    assert started("jax", limit=0.0).error == "not done in time:"
    assert absent.samples == [] and absent.error is not None
    assert "ended with 2" in absent.error and "No such file or directory" in absent.error


def test_samples_are_taken_in_turn_and_none_is_always_first() -> None:
    a, b = Entry("jax", "float32"), Entry("trainkit", "float32")
    assert list(step_contenders.in_turn([a, b], 3)) == [a, b, b, a, a, b]
    assert list(step_contenders.in_turn([], 3)) == []


def test_a_contender_gives_as_many_samples_as_it_is_asked_for() -> None:
    result = started("jax")
    assert result.error is None and len(result.seconds) == 2 and len(result.ready["losses"]) == 3
    assert all(sample["step"] > 0 and sample["peak"] > 1 << 20 for sample in result.samples)


def test_speed_is_shown_against_the_first_that_has_samples(capsys: pytest.CaptureFixture[str]) -> None:
    def result(*seconds: float) -> Result:
        ready = {"losses": [4.0, 3.0], "first_step": 1.0, "facts": {"flops_per_token": 1000}}
        return Result(ready=ready, samples=[{"step": s, "peak": s * 1e9} for s in seconds])

    results = {
        Entry("torch", "float32"): result(0.4, 0.2, 0.2),
        Entry("jax", "float32"): Result(error="no | memory"),
        Entry("trainkit", "float32"): result(0.1, 0.1, 0.2),
    }
    bench_step.report("tiny", GPT2, results, bench_step.Limits(flops=64_000 * 100, bytes=1e9))
    out = capsys.readouterr().out
    assert "| jax float32 | not measured: no / memory |" in out
    # 64 tokens of 1,000 FLOP in 0.1 s, of 6.4 million a second
    assert "| trainkit float32 | 100.0 | 640 | 2.00 [1.00 to 4.00] | 200 MB | 1.00 | 1.0 s | 10.0% |" in out
