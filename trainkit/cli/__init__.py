"""The command line. `main` turns errors into stderr and an exit code; `entry.py` calls `program`."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from typing import NoReturn

from trainkit.errors import DONE, FAILED, INTERRUPTED, TrainkitError
from trainkit.printer import complain, quote
from trainkit.train import signals

#: Limit of open files: far more than a run needs, and few enough for programs that close all of them one by one.
DESCRIPTORS = 1 << 16


def program() -> NoReturn:
    """Run `main` and end the process, quickly where nothing heavy is loaded."""
    # looking for garbage among what is being imported takes a twentieth of the time of `check`, which leaves none;
    # loading a command that runs for longer enables it again
    gc.disable()
    try:
        main()
    except SystemExit as end:
        if "numpy" in sys.modules:
            raise
        # a command that loaded nothing heavy has no thread and no file to wait for, and tearing down every imported
        # module would be a tenth of the time of `check`
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else FAILED)


def main() -> NoReturn:
    """Run the command in `sys.argv` and leave with its exit code (see `trainkit.errors`).

    Only results go to stdout. With `--debug` or `TRAINKIT_DEBUG=1` errors show their traceback.
    """
    # looking for pydantic's plugins reads the metadata of every installed package; a recipe needs none
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")
    # XLA calls LAPACK from threads of its own; those that wait inside OpenBLAS take the processor from all others:
    # a QR decomposition on a busy machine took twelve times the CPU time
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _open_missing_streams()
    sys.unraisablehook = signals.repeat_ignored
    _raise_descriptor_limit()
    code = _run()
    try:
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            _print_error(f"the output cannot be written: {error.strerror}")
            code = code or FAILED
        # without this the interpreter complains when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if hosts := sys.modules.get("trainkit.parallel.hosts"):
        hosts.leave(code)
    if "trainkit.run.attempt" in sys.modules:  # the process trained
        signals.leave(code)
    sys.exit(code)


def _open_missing_streams() -> None:
    """Let stdin, stdout and stderr be /dev/null if they are closed, so that no file of a run gets their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            nothing = os.open(os.devnull, os.O_RDWR)  # the lowest free number
            setattr(sys, name, open(nothing, mode, closefd=False))  # noqa: SIM115 - for as long as the process lives


def _raise_descriptor_limit() -> None:
    """Raise the limit of open files of this process and its children as far as allowed, up to `DESCRIPTORS`."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # macOS permits fewer than its hard limit
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _run() -> int:
    from trainkit.cli.app import app

    interrupts = signals.Interrupts()
    try:
        app(prog_name="trainkit")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else DONE
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        return INTERRUPTED if interrupts.caused_error() else _failed(error)
    return DONE


def _failed(error: Exception) -> int:
    """Print the error that ended a command, and return the exit code."""
    if isinstance(error, BrokenPipeError):
        return FAILED
    _print_error(str(error) if isinstance(error, TrainkitError) else _in_words(error))
    return error.exit_code if isinstance(error, TrainkitError) else FAILED


def _in_words(error: Exception) -> str:
    """Return the message of an error that no part of trainkit expected: of a file that cannot be used, or a bug."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        look = f"hint: look at what is there: ls -ld {quote(str(error.filename))}"
        return f"{error.filename}: cannot be used: {error.strerror}\n{look}"
    if isinstance(error, MemoryError):
        reason = f": {error}" if str(error) else ""
        look = "hint: close other programs, or use less: trainkit plan RECIPE shows what a recipe needs"
        return f"this machine has no memory left{reason}\n{look}"
    return f"{type(error).__name__}: {error}\nhint: this is a bug in trainkit; to see where: trainkit --debug …"


def _print_error(message: str) -> None:
    if os.environ.get("TRAINKIT_DEBUG", "") not in ("", "0"):
        import traceback

        complain(traceback.format_exc().rstrip())

    complain(f"error: {message}")
