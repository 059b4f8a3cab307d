"""`trainkit doctor`: what is installed, what this machine has, and what is wrong with it.

Checks that may hang or crash, above all those of drivers, run in processes of their own with a time limit.
"""

from __future__ import annotations

import json as json_format
import locale
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from trainkit.cli.diagnosis import Diagnosis, MachineReport, Seen, diagnose
from trainkit.errors import DONE, FAILED
from trainkit.parallel import reasons
from trainkit.parallel.hardware import available_memory, whole_memory
from trainkit.text import neutralise

#: Seconds for all checks in processes of their own. A cold start of JAX on many GPUs takes half of it.
PATIENCE = 60.0

DEVICES = """
import json, jax
print(json.dumps([f"{d.platform}:{d.id} {d.device_kind}" for d in jax.devices()]))
"""
AIM = "import aim"
NVML = "import pynvml; pynvml.nvmlInit(); pynvml.nvmlDeviceGetCount()"


def doctor(json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> tuple[str, int]:
    """Find problems of this machine, and show how to fix them."""
    findings = diagnose(look())
    code = FAILED if any(finding.level == "bad" for finding in findings) else DONE
    if json:
        return json_format.dumps({"findings": [finding._asdict() for finding in findings]}, indent=2), code
    return "\n".join(lines(findings)), code


def lines(findings: list[Diagnosis]) -> list[str]:
    """Return a line for each finding, with its fix below. None of them can move the cursor."""
    width = max(len(finding.what) for finding in findings)
    rows = []
    for level, what, message, fix in findings:
        rows.append(f"{level:<4}  {what:<{width}}  {neutralise(message)}")
        if fix:
            rows.append(f"{'':<4}  {'':<{width}}  fix: {neutralise(fix)}")
    return rows


def look() -> MachineReport:
    """Return the facts of this machine, in at most `PATIENCE` seconds plus the time limit of `nvidia-smi`."""
    questions = {name: Question(code) for name, code in (("devices", DEVICES), ("aim", AIM))}
    gpu = reasons.gpu_facts()
    if gpu.driver:
        questions["nvml"] = Question(NVML)
    deadline = time.monotonic() + PATIENCE
    answers = {name: question.answer(deadline) for name, question in questions.items()}
    version = sys.version_info
    return MachineReport(
        python=(version.major, version.minor, version.micro),
        gpu=gpu,
        seen=_seen(answers["devices"]),
        cores=len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1,
        memory=_memory(),
        disks={f"{what} ({path})": _free(path) for what, path in _places().items()},
        shm=shutil.disk_usage("/dev/shm").total if Path("/dev/shm").exists() else None,
        encoding=locale.getpreferredencoding(False),
        term=os.environ.get("TERM", "") if sys.stdout.isatty() else None,
        colors=os.environ.get("COLORTERM", "") in ("truecolor", "24bit"),
        tmux="TMUX" in os.environ,
        nvml=_complaint(answers["nvml"]) if "nvml" in answers else None,
        aim=_complaint(answers["aim"]),
    )


class Question:
    """Python code that runs in a process of its own from now on; its answer can be awaited later."""

    def __init__(self, code: str) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # a process that waits for a driver in the kernel cannot be killed: it must not keep our terminal
            start_new_session=True,
        )
        self._start = time.monotonic()

    def answer(self, deadline: float) -> tuple[str, str] | float:
        """Return (its stdout, the last line of its error or ""), or the seconds after which it was abandoned."""
        try:
            out, err = self._child.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._child.kill()
            return time.monotonic() - self._start
        if self._child.returncode == 0:
            return out, ""
        ended = f"the check ended with exit code {self._child.returncode}"
        return out, next((line.strip() for line in reversed(err.splitlines()) if line.strip()), ended)


def _seen(answer: tuple[str, str] | float) -> Seen:
    if isinstance(answer, float):
        return Seen(waited=answer)
    out, error = answer
    return Seen(error=error) if error else Seen(devices=tuple(json_format.loads(out.splitlines()[-1])))


def _complaint(answer: tuple[str, str] | float) -> str | None:
    if isinstance(answer, float):
        return f"no answer within {answer:.0f} s"
    return answer[1] or None


def _memory() -> tuple[int, int] | None:
    """Return (available, total) bytes, as trainers plan with them; None where the system does not report them."""
    available, whole = available_memory(), whole_memory()
    return None if available is None or whole is None else (available, whole)


def _places() -> dict[str, Path]:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return {"runs and tokens": Path.cwd(), "compiled programs": cache}


def _free(path: Path) -> int | None:
    """Return the bytes free where `path` is or would be; None where it cannot be written or not even looked up."""
    try:
        there = next(parent for parent in (path, *path.parents) if parent.exists())
        return shutil.disk_usage(there).free if os.access(there, os.W_OK) else None
    except OSError:
        return None
