"""The page of the machine on real logs: what it tells, in which sizes, and that nothing new costs nothing."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from pathlib import Path

import fake_run
import pytest
from fake_run import HOSTILE
from hypothesis import given
from hypothesis import strategies as st
from pages import only
from textual.pilot import Pilot
from textual.widgets import Static
from viewer import running

import trainkit.dashboard.app as app
from trainkit.dashboard.charts.chart import Chart
from trainkit.dashboard.charts.columns import StepRange
from trainkit.dashboard.pages.system import SystemPage, wait_shares
from trainkit.dashboard.panels.machine import BLOCKS, core_lines
from trainkit.events.schema import Event
from trainkit.events.series import Series
from trainkit.events.tail import NAME
from trainkit.events.view import View

BYTES = {"parameters": 1.0e9, "optimizer": 2.0e9, "activations": 3.2e9}
GPU = {"count": 1, "platform": "gpu", "kind": "H100", "memory_bytes": 10**10}


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, SystemPage)


def events(steps: int, *, wait: float = 0.1) -> list[Event]:
    """A run on a device that tells its memory, and waits for its data."""
    told = fake_run.events(steps)
    for event in told:
        if event["type"] == "planned":
            event["plan"] = {**fake_run.PLAN, "bytes": BYTES, "devices": GPU}
        if event["type"] == "step":
            event["metrics"] |= {"time/step": event["step"] / 1000, "time/data_wait": wait * event["step"] / 1000}
    return told


Steps = Callable[[Pilot[None], SystemPage], Awaitable[None]]


def drive(run: Path, steps: Steps, *, size: tuple[int, int] = (160, 50)) -> None:
    async def drive_it() -> None:
        dashboard = app.Dashboard(run)
        async with running(dashboard, size) as pilot:
            dashboard.load()
            await pilot.press("2")
            await pilot.pause()
            await steps(pilot, dashboard.query_one(SystemPage))

    asyncio.run(drive_it())


def facts(page: SystemPage) -> str:
    return str(page.query_one("#system-facts > Static", Static).content)


def test_it_shows_step_times_the_plan_the_devices_the_host_and_versions(tmp_path: Path) -> None:
    async def steps(pilot: Pilot[None], page: SystemPage) -> None:
        told = facts(page)
        for expected in ("last 200 steps", "200.5 ms", "290.0 ms", "10.0% of the time"):
            assert expected in told, expected
        for expected in ("6.2 GB of 10.0 GB", "activations", "52%", "3.1 GB  31%", "50% of what was planned"):
            assert expected in told, expected
        assert "1.2 GB" in told and "1.9" in told and "0.10.2" in told
        for chart in page.query(Chart):
            assert (chart.size.area > 0 and chart.curves) or (chart.id == "device-power" and not chart.display)

    drive(fake_run.write(tmp_path / "run", events(300)), steps)


@pytest.mark.parametrize("size", [(200, 60), (90, 30), (60, 20), (1, 1)])
def test_it_is_drawn_in_every_size_and_everything_can_be_scrolled_to(tmp_path: Path, size: tuple[int, int]) -> None:
    async def steps(pilot: Pilot[None], page: SystemPage) -> None:
        await pilot.press("G")
        await pilot.pause()
        told = page.query_one("#system-facts > Static").region
        if size[0] >= 60:
            assert page.region.y <= told.bottom <= page.region.bottom and told.right <= size[0]
        await pilot.press("k", "j", "g")
        await pilot.pause()
        assert page.query_one("#time-share").region.y <= 6

    drive(fake_run.write(tmp_path / "run", events(20)), steps, size=size)


def test_before_there_is_anything_it_says_in_words_what_will_be_here(tmp_path: Path) -> None:
    async def steps(pilot: Pilot[None], page: SystemPage) -> None:
        assert "no step has been timed yet" in facts(page) and "run is planned before its first step" in facts(page)
        assert not page.query_one("#device-memory").display

    drive(fake_run.write(tmp_path / "run", events(3)[:1]), steps)
    drive(fake_run.write(tmp_path / "empty", []), steps)


def test_devices_that_do_not_report_their_memory_have_no_chart_of_it(tmp_path: Path) -> None:
    told = events(20)
    for event in told:
        if event["type"] == "step":
            del event["metrics"]["memory/device/0"]

    async def steps(pilot: Pilot[None], page: SystemPage) -> None:
        assert not page.query_one("#device-memory").display
        assert "their memory is not reported" in facts(page)

    drive(fake_run.write(tmp_path / "run", told), steps)


@given(st.lists(st.floats(0, 1) | st.just(math.nan), max_size=300), st.integers(0, 200))
def test_every_core_has_its_block_in_the_order_of_their_numbers(shares: list[float], width: int) -> None:
    view = View(series={f"host/core/{n}": series([(1, share)]) for n, share in reversed(list(enumerate(shares)))})
    lines = [line.plain for line in core_lines(view, width)]
    assert all(len(line) <= max(0, width) for line in lines)
    if not lines:
        return
    head = len(lines[0]) - min(len(shares), 64, width - len(f"cores {len(shares)}–{len(shares)}  "))
    blocks = "".join(line[head:] for line in lines)
    assert len(blocks) == len(shares) and all(len(line) - head <= 64 for line in lines)
    for block, share in zip(blocks, shares, strict=True):
        assert block == " " if math.isnan(share) else BLOCKS.index(block) == min(7, int(8 * share))


def test_cores_power_and_utilization_are_reported_where_the_trainer_shows_them(tmp_path: Path) -> None:
    told = events(20)
    for event in told:
        if event["type"] == "step":
            devices = {"power/device/0": 312.4, "power/device/1": 80.0, "utilization/device/0": 0.97}
            event["metrics"] |= devices | {f"host/core/{n}": n / 80 for n in range(80)}

    async def steps(pilot: Pilot[None], page: SystemPage) -> None:
        assert "312 W, busy 97% of the time" in facts(page) and "80 W" in facts(page)
        power = page.query_one("#device-power", Chart)
        assert power.display and [curve.label for curve in power.curves] == ["power 0", "power 1"]
        assert isinstance(page.app, app.Dashboard)
        page.app.draw_all()  # its width is known only now
        cores = str(page.query_one("#system-cores", Static).content)
        assert "cores 0–63" in cores and "cores 64–79" in cores and "▁" in cores and "█" in cores
        assert "312 W" in (page.copy_text() or "")

    drive(fake_run.write(tmp_path / "run", told), steps)

    async def without(pilot: Pilot[None], page: SystemPage) -> None:
        assert not page.query_one("#device-power").display and not page.query_one("#system-cores").display

    drive(fake_run.write(tmp_path / "other", events(20)), without)


def test_where_a_step_goes_its_speed_and_the_heat_are_reported_and_an_unknown_peak_as_such(tmp_path: Path) -> None:
    told = events(20)
    for event in told:
        if event["type"] == "step":
            step = event["step"] / 1000
            spent = {"time/dispatch": 0.25 * step, "time/device": 0.6 * step, "throughput/samples_per_second": 44.0}
            heat = {"temperature/device/0": 61, "memory/device_peak/0": 4.5e9}
            event["metrics"] |= spent | heat | {"throughput/model_tflops": 0.125}
            event["metrics"] |= {"time/evaluation": 2.5} if event["step"] == 11 else {}

    async def unknown(pilot: Pilot[None], page: SystemPage) -> None:
        for expected in (
            "25.0% of the time",
            "60.0% of the time",
            "2.50 s each, between steps",
            "61 °C",
            "at most 4.5 GB",
        ):
            assert expected in facts(page), expected
        assert "0.1250" in facts(page) and "44" in facts(page) and "n/a" in facts(page)

    drive(fake_run.write(tmp_path / "run", told), unknown)
    for event in told:
        if event["type"] == "step":
            event["metrics"] |= {"throughput/mfu": 0.453}

    async def known(pilot: Pilot[None], page: SystemPage) -> None:
        assert "45.3%" in facts(page) and "n/a" not in facts(page)

    drive(fake_run.write(tmp_path / "known", told), known)


def test_devices_are_counted_by_kind(tmp_path: Path) -> None:
    told = events(3)
    told[1]["devices"] = [f"gpu:{number} NVIDIA H200" for number in range(8)]

    async def steps(pilot: Pilot[None], page: SystemPage) -> None:
        assert "8 × NVIDIA H200" in facts(page)

    drive(fake_run.write(tmp_path / "run", told), steps)


def test_hostile_names_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    told = events(3)
    told[0] |= {"host": HOSTILE, "versions": {HOSTILE: HOSTILE}}
    told[1] |= {"devices": [HOSTILE], "plan": {"bytes": {HOSTILE: 1}}}
    told[2]["metrics"][f"memory/device/{HOSTILE}"] = 1e9

    async def steps(pilot: Pilot[None], page: SystemPage) -> None:
        assert all(c == "\n" or c.isprintable() for c in facts(page))
        assert facts(page).count("[bold red]boo[/]") >= 4, "markup is shown as it is"

    drive(fake_run.write(tmp_path / "run", told), steps)


def test_what_is_new_is_drawn_and_where_nothing_is_new_nothing_is(tmp_path: Path) -> None:
    run = fake_run.write(tmp_path / "run", events(20))

    async def steps(pilot: Pilot[None], page: SystemPage) -> None:
        dashboard = page.app
        assert isinstance(dashboard, app.Dashboard)
        dashboard.show(everything=True)
        page.query_one("#system-facts > Static", Static).update("as it was")
        dashboard.show(everything=True)
        assert facts(page) == "as it was"
        with (run / NAME).open("a") as file:
            file.write(json.dumps(next(e for e in events(21) if e["type"] == "step" and e["step"] == 21)) + "\n")
        dashboard.load()
        assert "last 21 steps" in facts(page)

    drive(run, steps)


def test_the_versions_shown_are_those_of_the_last_attempt(tmp_path: Path) -> None:
    second = fake_run.events(30, attempt=2, resumed_from=20)
    second[0]["versions"] = {"jax": "9.9.9"}
    run = fake_run.write(tmp_path / "run", [*events(20), *second])

    async def steps(pilot: Pilot[None], page: SystemPage) -> None:
        assert "9.9.9" in facts(page) and "0.10.2" not in facts(page)

    drive(run, steps)


def series(points: list[tuple[float, float]]) -> Series:
    made = Series()
    for step, value in points:
        made.add(step, value)
    return made


@pytest.mark.parametrize("limit", [1000, 16])
def test_shares_are_of_the_time_of_a_stretch_and_never_more_than_all_of_it(limit: int) -> None:
    seconds, waited = Series(limit=limit), Series(limit=limit)
    for step in range(1, 97):
        seconds.add(step, 2.0)
        waited.add(step, 0.5 if step <= 48 else 9.0)
    steps, shares = wait_shares(seconds, waited, stretches=4, window=None)
    assert steps[-1] == 96 and steps == sorted(set(steps))
    assert shares[0] == 0.25 and shares[-1] == 1.0 and all(0.25 <= share <= 1 for share in shares)
    closer, _ = wait_shares(seconds, waited, stretches=4, window=StepRange(40, 60))
    assert sum(40 < step <= 60 for step in closer) > sum(40 < step <= 60 for step in steps)
    waited.add(200, 1.0)  # no view of the arrays is left behind, which would keep them from growing
    seconds.add(200, 1.0)


def test_without_a_time_there_is_no_share() -> None:
    one = series([(1, 2.0)])
    for seconds, waited in ((None, one), (one, None), (series([(1, 0.0)]), one), (one, series([(1, math.nan)]))):
        found = wait_shares(seconds, waited, stretches=9, window=None)
        assert found == ([], []) or found == ([1.0], [1.0])
