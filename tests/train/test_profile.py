"""A trace of a few steps: how the range is written, what is made of a trace, and real runs that are profiled."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
import trainer
from hypothesis import given
from hypothesis import strategies as st

from trainkit.cli.arguments import steps_of
from trainkit.errors import TrainkitError
from trainkit.events.tail import read
from trainkit.train.profile import check_steps, kind_of, operations, summary, trace_of

US = st.integers(0, 1000)


def called(name: str, ts: float, dur: float, *, tid: int = 1, op: bool = True) -> dict[str, Any]:
    return {"ph": "X", "pid": 7, "tid": tid, "ts": ts, "dur": dur, "name": name, "args": {"hlo_op": name} if op else {}}


def row(tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 7, "tid": tid, "name": "thread_name", "args": {"name": name}}


@given(st.integers(1, 10**6), st.integers(0, 10**6))
def test_a_range_is_two_numbers_and_both_steps_belong_to_it(first: int, more: int) -> None:
    assert steps_of(f"{first}:{first + more}") == (first, first + more)


@pytest.mark.parametrize("text", ["", "20", "20-25", "25:20", "0:3", ":", "a:b", "1:2:3", "-1:2", "²:3", "1" * 5000])
def test_what_is_no_range_is_reported_with_the_way_it_is_written(text: str) -> None:
    with pytest.raises(TrainkitError) as wrong:
        steps_of(text)
    assert wrong.value.where == "--profile" and "FIRST:LAST" in wrong.value.hint and "20:25" in wrong.value.hint


@given(st.integers(1, 50), st.integers(0, 50), st.integers(0, 60), st.integers(1, 60))
def test_steps_that_an_attempt_does_not_do_are_refused_with_some_that_it_does(
    first: int, more: int, done: int, total: int
) -> None:
    steps = first, first + more
    try:
        check_steps(steps, done=done, total=total)
    except TrainkitError as refused:
        assert first <= done or first + more > total
        assert (refused.hint == "") == (done >= total)
        if refused.hint:
            check_steps(steps_of(refused.hint.removeprefix("--profile ")), done=done, total=total)
    else:
        assert done < first and first + more <= total


def test_an_attempt_that_profiles_nothing_is_not_checked() -> None:
    check_steps(None, done=3, total=3)


def test_a_loop_is_charged_only_with_what_is_not_in_the_operations_within_it() -> None:
    trace = [called("while.1", 0, 100), called("dot.3", 10, 30), called("dot.3", 50, 40), called("exp.2", 60, 5)]
    found = {one.name: (one.calls, round(one.seconds * 1e6)) for one in operations(trace)}
    assert found == {"while.1": (1, 30), "dot.3": (2, 65), "exp.2": (1, 5)}


@given(st.lists(st.tuples(st.sampled_from("abc"), US, US, st.integers(1, 3)), max_size=30))
def test_no_time_is_counted_twice_within_a_row(calls: list[tuple[str, int, int, int]]) -> None:
    found = operations([called(name, ts, dur, tid=tid) for name, ts, dur, tid in calls])
    assert sum(one.calls for one in found) == len(calls)
    assert all(one.seconds >= 0 for one in found)
    for tid in (1, 2, 3):
        rows = [(ts, ts + dur) for _, ts, dur, row in calls if row == tid]
        alone = operations([called("x", ts, end - ts, tid=tid) for ts, end in rows])
        covered = len({us for ts, end in rows for us in range(ts, end)})
        assert sum(one.seconds for one in alone) * 1e6 <= covered + 1e-6 or _partly_overlapping(rows)


def _partly_overlapping(rows: list[tuple[int, int]]) -> bool:
    return any(a < c < b < d for a, b in rows for c, d in rows)


def test_where_a_device_has_a_row_of_operations_nothing_else_is_counted() -> None:
    kernels = [called("gemm_kernel", 0, 9, tid=2), called("host_function", 0, 50, tid=3, op=False)]
    ops = {"ph": "X", "pid": 7, "tid": 1, "ts": 0, "dur": 10, "name": "fusion.1"}
    assert [one.name for one in operations([row(1, "XLA Ops"), row(2, "Stream #13"), ops, *kernels])] == ["fusion.1"]
    assert [one.name for one in operations([row(2, "Stream #13"), *kernels])] == ["gemm_kernel"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("fusion.12", "fusion"), ("multiply_add_fusion.3.clone.1", "fusion"), ("dot.4", "dot"), ("%copy", "copy")],
)
def test_the_kind_of_an_operation_is_its_name_without_its_number(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_a_trace_without_operations_is_refused_and_so_is_a_directory_without_a_trace(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no operation"):
        summary([called("host_function", 0, 50, op=False)], first=1, last=2, seconds=1.0)
    with pytest.raises(ValueError, match="no trace"):
        trace_of(tmp_path)


def test_shares_and_counts_are_those_of_the_whole_trace() -> None:
    lines = summary([called("dot.1", 0, 750), called("copy.2", 800, 250)], first=3, last=5, seconds=0.003)
    assert lines[0] == "steps 3 to 5: 0.003 s, 1.00 ms a step"
    assert any(re.fullmatch(r"dot\.1 +1 +0\.750 +75\.0%", line) for line in lines)
    assert any(re.fullmatch(r"copy +1 +0\.250 +25\.0%", line) for line in lines)


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that was profiled, stopped short of its end by being short itself."""
    place = trainer.workplace(tmp_path_factory.mktemp("profile") / "here")
    done = trainer.trainkit(place, "run", "tiny.toml", "--plain", "--set", "train.steps=8", "--profile", "3:5")
    assert done.returncode == 0, done.stderr
    assert "profiled steps 3 to 5: profile/3/summary.txt" in done.stdout
    return place


def test_a_run_leaves_a_trace_for_both_viewers_and_a_summary_of_what_it_computed(profiled: Path) -> None:
    run = profiled / "runs" / "tiny"
    (xplane,) = (run / "profile" / "3").rglob("*.xplane.pb")
    assert xplane.stat().st_size > 1000
    (perfetto,) = (run / "profile" / "3").rglob("perfetto_trace.json.gz")
    with gzip.open(perfetto, "rt") as file:
        assert json.load(file)["traceEvents"]
    told = (run / "profile" / "3" / "summary.txt").read_text()
    assert told.startswith("steps 3 to 5: ") and re.search(r"^(dot|fusion) +\d+ ", told, re.MULTILINE)
    assert not [event for event in read(run) if event["type"] == "alert"]


def test_every_step_of_a_profiled_run_is_logged_once(profiled: Path) -> None:
    assert sorted(trainer.losses(profiled / "runs" / "tiny")) == list(range(1, 9))
    assert [event["step"] for event in read(profiled / "runs" / "tiny") if event["type"] == "step"] == list(range(1, 9))


def test_a_resumed_run_is_profiled_too_and_the_first_trace_is_kept(profiled: Path) -> None:
    arguments = "--plain", "--raise-rate", "--set", "train.steps=12"
    refused = trainer.trainkit(profiled, "resume", "tiny", *arguments, "--profile", "3:5")
    assert refused.returncode == 2 and "steps 9 to 12" in refused.stderr and "--profile 9:11" in refused.stderr
    done = trainer.trainkit(profiled, "resume", "tiny", *arguments, "--profile", "10:10")
    assert done.returncode == 0, done.stderr
    kept = sorted(path.name for path in (profiled / "runs" / "tiny" / "profile").iterdir())
    assert kept == ["10", "3"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--profile", "5-7"], "--profile 20:25"),
        (["--profile", "20:30"], "--profile 20:24"),
        (["--profile", "1:2", "--smoke"], "a smoke test keeps no files"),
    ],
)
def test_a_wrong_range_ends_the_run_before_its_first_step_and_leaves_nothing(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    place = trainer.workplace(tmp_path / "here")
    done = trainer.trainkit(place, "run", "tiny.toml", "--plain", *arguments)
    assert done.returncode == 2 and said in done.stderr
    assert not (place / "runs" / "tiny").exists()
