"""The dashboard in a terminal, which is restored however the viewer ends; and one frame of it without a terminal.

The dashboard runs in a child of a thin parent. A dashboard that is killed cannot restore the terminal;
the parent can. It is forked before anything heavy is imported, which costs a few milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import termios
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from trainkit.errors import DONE, FAILED, INTERRUPTED, TrainkitError
from trainkit.printer import complain, quote

if TYPE_CHECKING:
    from textual.pilot import Pilot


#: The viewer yields to the trainer, which may use every core. With more niceness it would take seconds to answer a key
#: while no core is idle.
NICENESS = 10
#: Signals that end a process.
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT)
#: Ends what a killed viewer has started: an unfinished sequence, a synchronised update, mouse, focus and size reports,
#: bracketed paste, the Kitty keyboard; then leaves the alternate screen, and wraps lines and shows the cursor again.
RESTORE = (
    b"\x18\x1b[?2026l\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l\x1b[?1004l\x1b[?2048l\x1b[?2004l\x1b[<u"
    b"\x1b[?1049l\x1b[?7h\x1b[?25h\x1b[0m"
)


def watch(
    run_directory: Path, *, replay: bool = False, readonly: bool = False, ascii_only: bool = False, page: str = ""
) -> None:
    """Show a run until the viewer is left; then print on stderr how to come back.

    With `replay` the run is shown again from its beginning; with `readonly` no command can be sent; with `ascii_only`
    it is drawn in ASCII, as it is where the locale is not UTF-8. `page` is shown first.

    Raises:
        TrainkitError: this is not a terminal, or there is no such run.
        SystemExit: there is no such page, or the viewer has failed or was ended by a signal: the terminal is restored.
    """
    if not run_directory.is_dir():
        raise TrainkitError("there is no such run", where=str(run_directory), hint="list them: trainkit runs")
    require_terminal(f"one picture of it as text: trainkit watch {quote(run_directory)} --once")

    def show() -> None:
        from trainkit.dashboard import preferences
        from trainkit.dashboard.app import Dashboard
        from trainkit.dashboard.control_keys import farewell
        from trainkit.dashboard.pages import require_page
        from trainkit.dashboard.panels.sample import graphics
        from trainkit.dashboard.theme import wants_ascii
        from trainkit.rundir.follow import Replay

        require_page(page)
        graphics()
        dashboard = Dashboard(
            run_directory,
            replay=Replay(run_directory) if replay else None,
            readonly=readonly,
            ascii_only=ascii_only or wants_ascii(),
            page=page,
            remembered=preferences.where(),
        )
        dashboard.run()
        if dashboard.signal is not None:
            raise SystemExit(128 + dashboard.signal)
        if dashboard.return_code:
            raise SystemExit(dashboard.return_code)
        complain(farewell(run_directory, "replayed" if replay else dashboard.state))

    run_guarded(show)


def require_terminal(hint: str) -> None:
    """Check for a terminal: the dashboard reads stdin and draws on stdout. Its escapes are not for a file or a pipe.

    Raises:
        TrainkitError: with `hint`, what to do instead.
    """
    if lack := why_unavailable():
        raise TrainkitError(f"the dashboard needs a terminal, and {lack}", hint=hint)


def why_unavailable() -> str:
    """Return why the dashboard cannot be drawn here; empty where it can."""
    streams = {"stdin": sys.__stdin__, "stdout": sys.__stdout__}
    for name, stream in streams.items():
        if stream is None or not stream.isatty():
            return f"{name} is not a terminal"
    if (term := os.environ.get("TERM", "")) in ("", "dumb", "unknown"):
        return f"TERM is {term!r}, which cannot move its cursor"
    return ""


def run_guarded(show: Callable[[], None]) -> None:
    """Call `show` in a child process, which draws on this terminal, and restore the terminal if the child is killed.

    Signals that end a process are passed on to the child. No thread may have been started before.

    Raises:
        SystemExit: the child did not end as it should: with its exit code, or 128 + the signal that killed it.
    """
    before = termios.tcgetattr(sys.stdin.fileno())
    sys.stdout.flush()
    sys.stderr.flush()
    ours, lifeline = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # a signal that comes now waits until a handler is set
    child = os.fork()
    if not child:
        os.close(lifeline)
        _be_the_child(show, ours)
    os.close(ours)
    code = _outlive(child)
    os.close(lifeline)
    if code < 0:
        with contextlib.suppress(OSError, termios.error):  # the terminal may have gone as well
            os.write(sys.stdout.fileno(), RESTORE)
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSAFLUSH, before)
            complain(f"the viewer was killed by signal {-code}; the run continues without it")
        code = 128 - code
    if code != DONE:
        raise SystemExit(code)


def _be_the_child(show: Callable[[], None], lifeline: int) -> NoReturn:
    """Run `show` and leave without unwinding the stack: what the parent has open is the parent's to close.

    `lifeline` is a pipe that the parent holds for as long as it lives: without a parent the child hangs up.
    """

    def hold_on() -> None:
        os.read(lifeline, 1)
        os.kill(os.getpid(), signal.SIGHUP)

    code = DONE
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        threading.Thread(target=hold_on, name="lifeline", daemon=True).start()
        os.nice(NICENESS)
        # Textual draws there; messages go to `sys.stderr`, which may be a file
        sys.__stderr__ = sys.__stdout__  # type: ignore[misc]
        # the terminal itself says how large it is, also after a resize; what a shell exported says how large it was
        for name in ("COLUMNS", "LINES"):
            os.environ.pop(name, None)
        show()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else FAILED
    except KeyboardInterrupt:
        code = INTERRUPTED
    except TrainkitError as error:
        complain(f"error: {error}")
        code = error.exit_code
    except BaseException:
        traceback.print_exc()
        code = FAILED
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _outlive(child: int) -> int:
    """Return the exit code of the child, or minus the signal that killed it; stop and continue with it (ctrl-z, fg)."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    handlers = {number: signal.signal(number, pass_on) for number in ENDING}
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # that of a key reaches the child by itself
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    try:
        while True:
            _, status = os.waitpid(child, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                return os.waitstatus_to_exitcode(status)
            os.kill(os.getpid(), signal.SIGSTOP)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


#: Seconds that a page may take to read what it shows.
PATIENCE = 30.0


def once(run_directory: Path, *, width: int = 120, height: int = 40, page: str = "", ascii_only: bool = False) -> str:
    """Return one frame as `height` lines of plain text of at most `width` cells; of `page`, or of the overview.

    Raises:
        TrainkitError: there is no such run, or no such page.
    """
    import asyncio

    from trainkit.dashboard.app import Dashboard
    from trainkit.dashboard.pages import Page, require_page

    if not run_directory.is_dir():
        raise TrainkitError("there is no such run", where=str(run_directory), hint="list them: trainkit runs")
    require_page(page)
    dashboard = Dashboard(run_directory, page=page, ascii_only=ascii_only)
    lines: list[str] = []

    async def pilot(pilot: Pilot[object]) -> None:
        def busy() -> bool:
            """Return whether something is still being read; a reader that another has replaced does not count."""
            reading = any(not worker.is_finished for worker in dashboard.workers)
            return reading or not all(shown.settled for shown in dashboard.query(Page) if shown.display)

        dashboard.load()
        until, quiet = time.monotonic() + PATIENCE, 0
        while quiet < 2 and time.monotonic() < until:  # reading one thing may start reading another
            await pilot.pause(0.02)
            quiet = 0 if busy() else quiet + 1
        dashboard.draw_all()
        await pilot.pause()
        lines.extend(strip.text.rstrip() for strip in dashboard.screen._compositor.render_strips())
        dashboard.exit()

    asyncio.run(dashboard.run_async(headless=True, size=(width, height), auto_pilot=pilot))
    return "\n".join(lines)
