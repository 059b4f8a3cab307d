"""Memory that really runs out: the system refuses it to a real run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import trainer

from trainkit.errors import TrainkitError
from trainkit.events.log import EventLog, read
from trainkit.parallel.mesh import make_mesh
from trainkit.train.evaluate import Evaluator
from trainkit.train.state import State, initial_live

CHILD = Path(__file__).parent / "oom_child.py"
STEPS, SIZE = 4, 64
#: A step with the whole batch at once takes more than this, one with half of it less.
ROOM_MB = 900
RECIPE = (
    trainer.RECIPE.replace("sequence_length = 32", "sequence_length = 512")
    .replace("heads = 2", "heads = 4")
    .replace("steps = 24", f"steps = {STEPS}")
    .replace("batch_size = 8", f"batch_size = {SIZE}")
    .replace("micro_batch_size = 1", f'micro_batch_size = {SIZE}\nremat = "none"')
    .replace("keep_every = 6", "keep_every = 2")
    .replace("every = 10", "every = 100\nbatch_size = 4")
    .replace("prompts", "max_tokens = 1\nprompts", 1)
    .replace("max_tokens = 8", "")
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trainer.workplace(tmp_path_factory.mktemp("oom"), RECIPE)


@pytest.fixture(scope="module")
def small(place: Path) -> Path:
    """The run as it is with the small micro-batch from the beginning."""
    half = f"train.micro_batch_size={SIZE // 2}"
    done = trainer.trainkit(place, "run", "tiny.toml", "--plain", "--name", "small", "--set", half)
    assert done.returncode == 0, done.stderr
    return place / "runs" / "small"


def starved(
    place: Path, name: str, *, recipe: str = "tiny.toml", megabytes: int = ROOM_MB, step: int
) -> subprocess.CompletedProcess[str]:
    # an arena for each thread would take address space that nobody uses
    environment = trainer.environment() | {"MALLOC_ARENA_MAX": "1"}
    return subprocess.run(
        [sys.executable, str(CHILD), recipe, name, str(megabytes), str(step)],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=trainer.LIMIT,
        check=False,
    )


@pytest.mark.parametrize("step", [0, 3], ids=["in the first step", "in a later one"])
def test_a_step_without_memory_is_done_again_in_smaller_parts_and_nothing_else_changes(place, small, step):
    done = starved(place, f"starved-{step}", step=step)
    assert done.returncode == 0, done.stdout + done.stderr
    run = place / "runs" / f"starved-{step}"
    events = read(run)
    assert len({event["pid"] for event in events if event["type"] == "run_started"}) == 1, "in the same process"
    # what the steps before have taken may come back late: then half is too much as well
    alert, *more = [e for e in events if e["type"] == "alert" and e["kind"] == "out of memory"]
    assert f"micro-batch {SIZE} x accumulation 1" in alert["message"]
    assert f"micro-batch {SIZE // 2} x accumulation 2 and the same batches" in alert["message"]
    last = [event for event in events if event["type"] == "planned"][-1]["plan"]
    parts = 2 ** (1 + len(more))
    assert last["batch"] == {"global_size": SIZE, "micro": SIZE // parts, "accumulation": parts, "replicas": 1}
    found, wanted = trainer.losses(run), trainer.losses(small)
    assert found.keys() == wanted.keys() == set(range(1, STEPS + 1))
    np.testing.assert_allclose([found[n] for n in sorted(found)], [wanted[n] for n in sorted(wanted)], rtol=1e-5)
    if step == 0 and not more:
        assert trainer.arrays(run, STEPS) == trainer.arrays(small, STEPS), "bit for bit, since all of it was done again"
    if step:
        began = [event["resumed_from"] for event in events if event["type"] == "run_started"]
        assert set(began) == {None, 2}, "where the state was lost, the newest checkpoint goes before the beginning"


def test_one_sequence_that_does_not_fit_is_an_error_that_says_what_would(place):
    long = RECIPE.replace("sequence_length = 512", "sequence_length = 2048")
    (place / "long.toml").write_text(re.sub(rf"(batch_size = ){SIZE}\b", r"\g<1>1", long))
    done = starved(place, "hopeless", recipe="long.toml", megabytes=120, step=0)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "one sequence at a time" in done.stderr and "trainkit plan RECIPE says more" in done.stderr
    assert "Traceback" not in done.stderr
    assert read(place / "runs" / "hopeless")[-1]["status"] == "failed"


class Set:
    targets, bytes = 8 * 4, 0

    def ready(self, seconds: float) -> bool:
        return True

    def __len__(self) -> int:
        return 2

    def batch(self, index: int) -> dict[str, np.ndarray]:
        return {"x": np.arange(8, dtype=np.float32).reshape(8, 1) + 8 * index}


class Task:
    def loss(self, model, batch):
        return batch["x"].sum(), np.float32(batch["x"].size)

    def report(self, *, loss, targets, bytes):
        return {"loss": loss}


@pytest.mark.parametrize(("most", "parts"), [(8, 1), (4, 2), (3, 4), (1, 8), (0, None)])
def test_an_evaluation_without_memory_is_done_in_smaller_parts_with_the_same_result(tmp_path, most, parts):
    log = EventLog(tmp_path, attempt=1)
    evaluator = Evaluator(
        {"set": Set()},
        batch_size=8,
        task=Task(),
        compute=np.dtype(np.float32),
        mesh=make_mesh(data=1, fsdp=1),
        log=log,
        interrupted=lambda: False,
    )
    add = evaluator._add

    def refuse(sums, state, batch):
        if batch["x"].shape[1] > most:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes.")
        return add(sums, state, batch)

    evaluator._add = refuse  # type: ignore[assignment]

    state = State(None, None, (), jnp.int32(3), jax.random.key(0), initial_live())
    if parts is None:
        with pytest.raises(TrainkitError, match="no memory to evaluate 1 sequences at once"):
            evaluator(state, 3)
    else:
        evaluator(state, 3)
        (event,) = [event for event in read(tmp_path) if event["type"] == "evaluated"]
        assert event["metrics"] == {"validation/set/loss": 7.5}
        alerts = [event for event in read(tmp_path) if event["type"] == "alert"]
        assert len(alerts) == {1: 0, 2: 1, 4: 2, 8: 3}[parts]
    log.close()
