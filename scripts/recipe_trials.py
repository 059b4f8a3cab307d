"""Two steps with a recipe, in a process forked from one that has imported all that a trainer needs."""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

#: Seconds of CPU time for two steps, and of any time, after which the stacks of all threads are printed.
PROCESSOR, SMOKE = 600, 900
#: The code of a run that took too long.
TOO_LONG = 124
#: What a run imports; none of it opens a device or starts a thread.
HEAVY = ("jax", "equinox", "optax", "numpy", "trainkit.hub.recipe", "trainkit.run.setup", "trainkit.run.attempt")


def trial(path: Path, output: Path, settings: Sequence[str] = ()) -> tuple[int, str]:
    """Return (exit code, output) of `trainkit run PATH --smoke`; the code is `TOO_LONG` where it took too long.

    Args:
        output: a file that is replaced.
        settings: what `--set` changes.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(output.parent / "compiled"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    for module in HEAVY:
        import_module(module)
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        _run(path, output, settings)
    _, status = os.waitpid(child, 0)
    code, said = os.waitstatus_to_exitcode(status), output.read_text(errors="replace")
    return TOO_LONG if code == -signal.SIGXCPU or "Timeout (" in said else code, said


def _run(path: Path, output: Path, settings: Sequence[str]) -> NoReturn:
    """Be the command, in a session of its own, and exit."""
    code = 1
    try:
        os.setsid()
        os.chdir(path.parent)
        file = os.open(output, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(file, 1)
        os.dup2(file, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR, PROCESSOR + 10))
        faulthandler.register(signal.SIGXCPU, chain=True)
        faulthandler.dump_traceback_later(SMOKE, exit=True)
        from trainkit.cli import main

        sys.argv = [
            "trainkit",
            "run",
            path.name,
            "--smoke",
            *(word for setting in settings for word in ("--set", setting)),
        ]
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 70
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
