"""A real run in all trackers, and Aim's web interface in a real browser: what the run wrote is drawn there."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from places import LIMIT
from ports import free_port
from track_run import CHILD, history, scalars
from trainer import RECIPE, environment, losses, trainkit, workplace
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from trainkit.events.tail import read
from trainkit.track import projections

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

#: The corners of the line in the chart of the loss, as "Mx,yLx,y…"; null where there is none. Aim draws what is seen.
LINE = """
(() => {
    const chart = document.querySelector('[data-name="train/loss"][data-context*=train]')
    chart?.scrollIntoView()
    return chart?.querySelector('svg path.Line')?.getAttribute('d')
})()
"""


class Page:
    """A page of a headless browser, driven through its DevTools protocol."""

    def __init__(self, connection: Connection) -> None:
        self._socket = connection
        self._ids = itertools.count(1)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (answer := json.loads(self._socket.recv(timeout=LIMIT))).get("id") != number:
            pass
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def run(self, code: str) -> Any:
        return self.call("Runtime.evaluate", expression=code, returnByValue=True)["result"].get("value")

    def picture(self) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])


def wait(what: str, ready: Callable[[], Any], *, whose: subprocess.Popen[bytes] | None = None) -> Any:
    """The first true answer of `ready`."""
    deadline = time.monotonic() + LIMIT
    while not (found := ready()):
        assert time.monotonic() < deadline, f"{what}: not within {LIMIT} s"
        assert whose is None or whose.poll() is None, f"{what}: its process has ended"
        time.sleep(0.2)
    return found


def fetched(url: str) -> bytes | None:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            body: bytes = answer.read()
            return body
    except OSError:
        return None


@contextmanager
def process(*command: str, output: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """With all that it starts, ended together."""
    with output.open("wb") as file:
        started = subprocess.Popen(
            command, stdout=file, stderr=file, env=os.environ | environment, start_new_session=True
        )
        try:
            yield started
        finally:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    if CHROMIUM is None:
        pytest.skip("no chromium here (apt-get install chromium): nobody has looked at Aim's web interface")
    profile = tmp_path / "profile"
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    command += ["--window-size=1400,1000", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
    # nothing but this machine can be reached, so that the test is the same everywhere
    command += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--disable-background-networking"]
    with process(*command, "about:blank", output=tmp_path / "chromium.txt") as browser:
        told = profile / "DevToolsActivePort"
        wait("the browser", lambda: told.exists() and told.read_text().count("\n"), whose=browser)
        port = told.read_text().split("\n")[0]

        def pages() -> list[str]:
            listed = json.loads(fetched(f"http://127.0.0.1:{port}/json") or b"[]")
            return [found["webSocketDebuggerUrl"] for found in listed if found["type"] == "page"]

        address, *_ = wait("its page", pages)
        with connect(address, max_size=None) as connection:
            yield Page(connection)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a run was trained that all trackers were asked for."""
    recipe = (
        RECIPE.replace("steps = 24", "steps = 12").replace("aim = false", "tensorboard = true\nwandb = true")
        + "[statistics]\nevery = 6\n"
    )
    place = workplace(tmp_path_factory.mktemp("tracked"), recipe, documents=20)
    done = trainkit(place, "run", "tiny.toml", "--plain")
    assert done.returncode == 0 and "ALERT" not in done.stdout, done.stdout + done.stderr
    return place


@pytest.fixture
def aim(place: Path, tmp_path: Path) -> Iterator[str]:
    """The address of `aim up`."""
    port = str(free_port())
    command = [str(Path(sys.executable).with_name("aim")), "up", "--host", "127.0.0.1", "--port", port]
    with process(*command, "--workers", "1", "--repo", str(place), output=tmp_path / "aim.txt") as server:
        wait("aim up", lambda: fetched(f"http://127.0.0.1:{port}/api/projects/"), whose=server)
        yield f"http://127.0.0.1:{port}"


def test_the_loss_of_a_run_is_drawn_in_aims_web_interface_and_its_checkpoints_are_listed(
    place: Path, aim: str, page: Page, tmp_path: Path
) -> None:
    run = place / "runs" / "tiny"
    known = projections.read_progress(run, "aim")
    assert known is not None
    page.call("Page.navigate", url=f"{aim}/runs/{known.run}/metrics")
    try:
        drawn = wait("the chart of the loss", lambda: page.run(LINE))
    finally:
        (tmp_path / "aim.png").write_bytes(page.picture())
    points = [tuple(map(float, point.split(","))) for point in drawn.removeprefix("M").split("L")]
    expected = losses(run)
    assert len(points) == len(expected) == 12
    steps, values = list(expected), list(expected.values())
    (left, _), (right, _) = points[0], points[-1]
    # heights grow downwards
    (_, bottom), (_, top) = points[values.index(min(values))], points[values.index(max(values))]
    for (x, y), step, value in zip(points, steps, values, strict=True):
        assert x == pytest.approx(left + (right - left) * (step - steps[0]) / (steps[-1] - steps[0]), abs=0.5)
        assert y == pytest.approx(
            bottom + (top - bottom) * (value - min(values)) / (max(values) - min(values)), abs=0.5
        )
    assert bottom - top > 100
    page.call("Page.navigate", url=f"{aim}/runs/{known.run}/overview")
    wait("the checkpoint", lambda: "checkpoints/12" in (page.run("document.body.innerText") or ""))


def test_a_run_that_asks_for_all_trackers_is_in_each_with_the_numbers_of_its_log(place: Path) -> None:
    run = place / "runs" / "tiny"
    expected = losses(run)
    assert scalars(run)["train/loss"] == [(step, pytest.approx(loss)) for step, loss in expected.items()]
    assert {row["step"]: row["train/loss"] for row in history(run) if "train/loss" in row} == expected
    events = read(run)
    assert not [event for event in events if event["type"] == "alert"]
    distributions = [event["values"] for event in events if event["type"] == "distributions"]
    (aim,) = json.loads(subprocess.check_output([sys.executable, CHILD, place], text=True))
    found = aim["distributions"]["parameters/layers/1/mlp_in.weight {'layer': 1}"]
    weights = [values["parameters/layers/1/mlp_in.weight"] for values in distributions]
    assert found == [[step, [w["low"], w["high"], w["counts"]]] for step, w in zip((6, 12), weights, strict=True)]
    again = trainkit(place, "track", "tiny")
    assert again.returncode == 0 and again.stdout.count("has steps up to 12") == 3, again.stderr
    assert scalars(run)["train/loss"] == [(step, pytest.approx(loss)) for step, loss in expected.items()]
    only = trainkit(place, "track", "tiny", "--to", "tensorboard")
    assert only.stdout == "TensorBoard's runs/tiny/tensorboard (tensorboard --logdir runs) has steps up to 12\n"
    assert trainkit(place, "track", "tiny", "--to", "paper").returncode == 2


def test_a_tracker_that_fails_is_an_alert_and_the_run_ends_well(place: Path) -> None:
    sets = ("train.steps=2", "track.repository=tiny.toml", "track.tensorboard=false", "track.wandb=false")
    done = trainkit(place, "run", "tiny.toml", "--plain", "--name", "alone", *[p for s in sets for p in ("--set", s)])
    assert done.returncode == 0 and "finished at step 2" in done.stdout, done.stderr
    (alert,) = [event for event in read(place / "runs" / "alone") if event["type"] == "alert"]
    assert alert["kind"] == "aim" and "the Aim repository cannot be opened" in alert["message"]


def test_a_tracker_that_is_not_installed_is_reported_with_its_line_before_anything_is_trained(tmp_path: Path) -> None:
    workplace(tmp_path, RECIPE.replace("aim = false", "aim = false\ntensorboard = true"), documents=2)
    code = "import sys; from trainkit.track import projections as p\n"
    code += "p.ABOUT['tensorboard'] = p.About('TensorBoard', 'not_here')\n"
    code += "sys.argv = ['trainkit', 'run', 'tiny.toml', '--plain']; from trainkit.cli import program; program()"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 2
    assert "tiny.toml:35: track.tensorboard: TensorBoard needs not_here, which is not installed" in done.stderr
    assert "trainkit[tensorboard]" in done.stderr and not (tmp_path / "cache").exists()
    assert not list((tmp_path / "runs").iterdir())
