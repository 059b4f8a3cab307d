"""A real terminal is whole again, however the viewer ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import fake_run
import pytest
from places import LIMIT
from terminal import Terminal
from viewer import write_run

WATCH = [sys.executable, "-m", "trainkit", "watch"]
#: What a dashboard switches on, and what switches it off again.
MODES = (
    (b"\x1b[?1049h", b"\x1b[?1049l"),
    (b"\x1b[?1000h", b"\x1b[?1000l"),
    (b"\x1b[?1003h", b"\x1b[?1003l"),
    (b"\x1b[?1006h", b"\x1b[?1006l"),
    (b"\x1b[?2004h", b"\x1b[?2004l"),
    (b"\x1b[?25l", b"\x1b[?25h"),
)


class Viewer(Terminal):
    """`trainkit watch` on a terminal of its own, which controls nobody."""

    def __init__(self, run: Path, *options: str, **environment: str) -> None:
        ours = ("LANG", "LC_ALL", "LC_CTYPE", "NO_COLOR")
        kept = {name: value for name, value in os.environ.items() if name not in ours}
        kept |= {"TERM": "xterm-256color", "XDG_STATE_HOME": str(run.parent / "state"), **environment}
        super().__init__([*WATCH, str(run), *options], kept)

    def child(self) -> int:
        """The process that draws."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def is_whole(self) -> bool:
        now = termios.tcgetattr(self.inside)
        off = all(self.written.rindex(off) > self.written.rindex(on) for on, off in MODES)
        return off and now == self.before


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "quickstart", steps=50)


@contextlib.contextmanager
def viewing(run: Path, *options: str, **environment: str) -> Iterator[Viewer]:
    viewer = Viewer(run, *options, **environment)
    try:
        viewer.until(rb"quickstart")
        viewer.until(rb"\x1b\[\?2004h")  # the last mode that it switches on
        yield viewer
    finally:
        viewer.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_viewer_restores_the_terminal_before_it_ends(run: Path, number: int) -> None:
    with viewing(run) as viewer:
        viewer.process.send_signal(number)
        assert viewer.end() == 128 + number and viewer.is_whole()


def test_a_viewer_that_is_killed_outright_leaves_a_whole_terminal(run: Path) -> None:
    with viewing(run) as viewer:
        assert termios.tcgetattr(viewer.inside) != viewer.before, "it was in another mode"
        os.kill(viewer.child(), signal.SIGKILL)
        assert viewer.end() == 128 + signal.SIGKILL and viewer.is_whole()
        assert b"killed by signal 9" in viewer.written


def test_a_viewer_whose_parent_is_killed_hangs_up_and_restores_the_terminal(run: Path) -> None:
    with viewing(run) as viewer:
        child = viewer.child()
        viewer.process.kill()
        viewer.process.wait()
        viewer.wait(lambda: not Path(f"/proc/{child}").exists())
        viewer.end()
        assert viewer.is_whole()


def test_leaving_it_is_success_and_shows_how_to_come_back(run: Path) -> None:
    with viewing(run) as viewer:
        viewer.type(b"q")
        assert viewer.end() == 0 and viewer.is_whole()
        assert b"trainkit watch" in viewer.written[viewer.written.rindex(b"\x1b[?1049l") :]


def test_it_stops_and_continues_with_the_process_that_draws(run: Path) -> None:
    with viewing(run) as viewer:
        os.kill(viewer.child(), signal.SIGSTOP)
        viewer.wait(lambda: b"\nState:\tT" in Path(f"/proc/{viewer.process.pid}/status").read_bytes())
        os.killpg(viewer.process.pid, signal.SIGCONT)
        viewer.type(b"q")
        assert viewer.end() == 0


def test_who_was_stopped_and_continued_from_outside_ends_and_leaves_a_whole_terminal(run: Path) -> None:
    with viewing(run) as viewer:
        viewer.until(rb"step 50")
        for _ in range(2):
            viewer.forget()
            os.kill(viewer.child(), signal.SIGCONT)
            viewer.until(rb"\x1b\[\?1049h")  # it has taken the terminal again
            time.sleep(0.5)
        viewer.process.terminate()
        assert viewer.end() == 128 + signal.SIGTERM and viewer.is_whole()


def test_the_terminal_of_a_locale_without_utf_8_is_sent_ascii_only(run: Path) -> None:
    with viewing(run, LANG="C") as viewer:
        viewer.until(rb"step 50")
        viewer.type(b"2")
        viewer.until(rb"gradients/norm")
        viewer.type(b"?")
        viewer.until(rb"signs|everywhere")
        viewer.type(b"qq")
        assert viewer.end() == 0 and viewer.written.isascii()


def test_where_no_color_is_set_no_colour_is_sent(run: Path) -> None:
    with viewing(run, NO_COLOR="1") as viewer:
        viewer.until(rb"step 50")
        for key in b"235678:":
            viewer.type(bytes([key]))
        viewer.until(rb"Search for commands")
        codes = {code for found in re.findall(rb"\x1b\[([0-9;]*)m", viewer.written) for code in found.split(b";")}
        colors = {code for code in codes if code and (30 <= int(code) <= 49 or 90 <= int(code) <= 107)}
        assert b"1" in codes and colors == set()


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_cannot_move_its_cursor_gets_an_error(run: Path, term: str) -> None:
    viewer = Viewer(run, TERM=term)
    try:
        assert viewer.end() == 2
        assert b"cannot move its cursor" in viewer.written and b"--once" in viewer.written
        assert b"\x1b" not in viewer.written
    finally:
        viewer.close()


def test_a_viewer_whose_terminal_is_gone_ends_by_itself(run: Path) -> None:
    with viewing(run) as viewer:
        viewer.until(rb"step 50")
        os.close(viewer.terminal)  # it is the terminal of no session: the kernel sends no signal
        viewer.terminal = os.dup(viewer.inside)  # to be closed in the end
        assert viewer.process.wait(LIMIT) == 128 + signal.SIGHUP


def test_the_terminal_says_how_large_it_is_whatever_a_shell_has_exported(run: Path) -> None:
    with viewing(run, COLUMNS="40", LINES="10") as viewer:
        viewer.until(rb"gradient norm")


def test_escape_alone_is_a_key_and_nobody_has_to_press_another(run: Path) -> None:
    with viewing(run) as viewer:
        viewer.until(rb"gradient norm")
        viewer.type(b":")
        viewer.until(rb"Search for commands")
        viewer.type(b"\x1b")
        viewer.until(rb"gradient norm")


def test_a_viewer_with_nothing_to_draw_hardly_ever_wakes(tmp_path: Path) -> None:
    end = {"type": "run_finished", "t": 1.8e9, "step": 50, "attempt": 1}
    told = [*fake_run.events(50), {**end, "status": "finished", "exit_code": 0, "message": ""}]
    run = fake_run.write(tmp_path / "quickstart", told)
    with viewing(run) as viewer:
        viewer.until(rb"step 50")

        def rests() -> bool:
            """Whether it looks twice a second, and no more for keys."""
            before = wakings(viewer.child())
            time.sleep(2)
            return wakings(viewer.child()) - before < 16

        viewer.wait(rests)  # it has still to draw for a while


def wakings(process: int) -> int:
    """How often its threads have waited for something so far."""
    told = (Path(f"/proc/{process}/task") / thread / "status" for thread in os.listdir(f"/proc/{process}/task"))
    return sum(int(re.findall(r"\nvoluntary_ctxt_switches:\s+(\d+)", path.read_text())[0]) for path in told)
