"""What is compiled again is told, on real compilations and on a real run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import trainer

from trainkit.events.log import EventLog
from trainkit.events.tail import read
from trainkit.train.compilations import CALM, SETTLED, Compilations, InterruptibleJit, changes


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    log = EventLog(tmp_path, attempt=1)
    yield log
    log.close()


@pytest.fixture
def compilations(log: EventLog) -> Iterator[Compilations]:
    compilations = Compilations(log)
    yield compilations
    compilations.close()


def fresh() -> jax.stages.Wrapped:
    """A function that nobody has compiled for any shape."""

    def doubled(x: jax.Array) -> jax.Array:
        return 2 * x

    return jax.jit(doubled)


def work(compilations: Compilations, function: jax.stages.Wrapped, sizes: list[int], what: str = "evaluation") -> None:
    arrays = [jnp.zeros(size) for size in sizes]
    for step, array in enumerate(arrays, 1):
        with compilations.record(what, step):
            function(array)


def told(run: Path) -> list[str]:
    return [event["message"] for event in read(run) if event["type"] == "alert" and event["kind"] == "recompilation"]


def test_work_that_has_been_done_twice_and_compiles_again_is_reported_with_its_step(
    tmp_path: Path, compilations: Compilations
) -> None:
    work(compilations, fresh(), [3, 4, 3, 4, 5])
    (message,) = told(tmp_path)
    assert message.startswith("evaluation at step 5 compiled again, for ") and "doubled" in message


def test_what_is_compiled_the_first_times_is_not_reported(tmp_path: Path, compilations: Compilations) -> None:
    work(compilations, fresh(), list(range(1, SETTLED + 1)))
    work(compilations, fresh(), list(range(1, SETTLED + 1)), "sampling")
    assert told(tmp_path) == []


def test_each_kind_is_reported_once_until_it_was_calm(tmp_path: Path, compilations: Compilations) -> None:
    settled = [1] * SETTLED
    work(compilations, fresh(), [*settled, 2, 3, 1, 4])
    assert len(told(tmp_path)) == 1, "it was not calm in between"
    work(compilations, fresh(), [*settled, 2], "sampling")
    assert len(told(tmp_path)) == 2, "another kind is another alert"
    function = fresh()
    function(jnp.zeros(1))
    work(compilations, function, [*[1] * CALM, 2])
    assert len(told(tmp_path)) == 3


def test_what_other_threads_compile_or_what_is_compiled_outside_belongs_to_no_work(
    tmp_path: Path, compilations: Compilations
) -> None:
    function = fresh()
    work(compilations, function, [1] * SETTLED)
    function(jnp.zeros(2))
    three = jnp.zeros(3)
    thread = threading.Thread(target=function, args=(three,))
    with compilations.record("evaluation", 9):
        thread.start()
        thread.join()
    assert told(tmp_path) == []


def test_nothing_is_heard_after_it_was_closed(tmp_path: Path, log: EventLog) -> None:
    compilations = Compilations(log)
    function = fresh()
    work(compilations, function, [1] * SETTLED)
    compilations.close()
    work(compilations, function, [2])
    assert told(tmp_path) == []


def test_a_run_that_evaluates_samples_and_takes_statistics_compiles_nothing_again(tmp_path: Path) -> None:
    recipe = trainer.RECIPE.replace("every = 10", "every = 4").replace("every = 12", "every = 5")
    trainer.workplace(tmp_path, recipe + "[statistics]\nevery = 3\n")
    done = trainer.trainkit(tmp_path, "run", "tiny.toml", "--plain")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "tiny"
    kinds = [event["type"] for event in read(run)]
    assert min(kinds.count(kind) for kind in ("evaluated", "sampled", "distributions")) > SETTLED
    assert told(run) == []


def test_the_argument_that_has_changed_is_named_with_what_it_was_and_is(
    tmp_path: Path, compilations: Compilations
) -> None:
    def total(batch: dict[str, jax.Array]) -> jax.Array:
        return batch["tokens"].sum()

    function = jax.jit(total)
    batches = [{"tokens": jnp.zeros((2, length), jnp.int32)} for length in (3, 3, 4)]
    for step, batch in enumerate(batches, 1):
        with compilations.record("evaluation", step):
            function(batch)
    (message,) = told(tmp_path)
    assert "batch['tokens'] was i32[2,3] and is i32[2,4]" in message


def test_every_work_that_compiles_is_an_event_with_its_functions_and_why_it_did_again(
    tmp_path: Path, compilations: Compilations
) -> None:
    work(compilations, fresh(), [3, 3, 3, 4])
    first, again = (event for event in read(tmp_path) if event["type"] == "compiled")
    assert (first["what"], first["step"], first["count"]) == ("evaluation", 1, 1) and "cause" not in first
    assert "doubled" in first["functions"][0] and first["seconds"] > 0
    assert again["step"] == 4 and again["cause"] == "x was f32[3] and is f32[4]"


@pytest.mark.parametrize(
    ("explanation", "found"),
    [
        ("  * at x, now f32[4] and before f32[3]", ["x was f32[3] and is f32[4]"]),
        ("  * at input path [0]['a'], now int and before str, so they differ", ["[0]['a'] was str and is int"]),
        ("TRACING CACHE MISS at here:\n  never seen function:\n    f id=1", ["it is another function each time"]),
        ("nothing that we know", []),
    ],
)
def test_of_an_explanation_only_what_has_changed_is_read(explanation: str, found: list[str]) -> None:
    assert changes(explanation) == found


def test_other_warnings_of_jax_are_still_heard(compilations: Compilations, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        logging.getLogger("jax._src.anything").warning("something else")
    assert "something else" in caplog.text


def test_what_a_signal_may_interrupt_compiles_once_for_each_shape_and_belongs_to_its_work(
    tmp_path: Path, compilations: Compilations
) -> None:
    function = InterruptibleJit(lambda x: 3 * x, interrupted=lambda: False)
    work(compilations, function, [3, 4, 3, 4])  # type: ignore[arg-type]
    compiled = [event for event in read(tmp_path) if event["type"] == "compiled"]
    assert [(event["step"], event["count"]) for event in compiled] == [(1, 1), (2, 1)]


def test_nobody_waits_for_a_compilation_once_the_run_is_to_end(
    compilations: Compilations, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling, compiled = threading.Event(), threading.Event()

    def compile(lowered: jax.stages.Lowered) -> None:
        compiling.set()
        compiled.wait()

    monkeypatch.setattr(jax.stages.Lowered, "compile", compile)
    with compilations.record("evaluation", 1):
        InterruptibleJit(lambda x: 3 * x, interrupted=compiling.is_set)(jnp.zeros(1))
        pytest.fail("it has a result")
    compiled.set()
