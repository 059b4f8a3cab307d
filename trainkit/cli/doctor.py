"""`trainkit doctor`: what is installed, what this machine has, and what is wrong with it.

What may hang or crash, drivers above all, is asked in processes that are ended after a while.
"""

from __future__ import annotations

import json
import locale
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from trainkit.cli.diagnosis import Diagnosis, MachineReport, Seen, diagnose
from trainkit.errors import DONE, FAILED
from trainkit.parallel import reasons
from trainkit.parallel.host import available_memory, whole_memory
from trainkit.text import neutralise

#: Seconds for all that is asked in processes of their own. A cold start of JAX on many GPUs takes half of it.
PATIENCE = 60.0

DEVICES = """
import json, jax
print(json.dumps([f"{d.platform}:{d.id} {d.device_kind}" for d in jax.devices()]))
"""
AIM = "import aim"
NVML = "import pynvml; pynvml.nvmlInit(); pynvml.nvmlDeviceGetCount()"


def doctor(*, as_json: bool) -> tuple[str, int]:
    """What was found, as lines or as one JSON object, and the exit code: `FAILED` where something is bad."""
    findings = diagnose(look())
    code = FAILED if any(finding.level == "bad" for finding in findings) else DONE
    if as_json:
        return json.dumps({"findings": [finding._asdict() for finding in findings]}, indent=2), code
    return "\n".join(lines(findings)), code


def lines(findings: list[Diagnosis]) -> list[str]:
    """One for each, with its fix below; nothing that is told can move the cursor."""
    width = max(len(finding.what) for finding in findings)
    told = []
    for level, what, words, fix in findings:
        told.append(f"{level:<4}  {what:<{width}}  {neutralise(words)}")
        if fix:
            told.append(f"{'':<4}  {'':<{width}}  fix: {neutralise(fix)}")
    return told


def look() -> MachineReport:
    """The facts of this machine, in `PATIENCE` seconds at most and what `nvidia-smi` may take."""
    asked = {name: Question(code) for name, code in (("devices", DEVICES), ("aim", AIM))}
    gpu = reasons.gpu_facts()
    if gpu.driver:
        asked["nvml"] = Question(NVML)
    deadline = time.monotonic() + PATIENCE
    answers = {name: question.answer(deadline) for name, question in asked.items()}
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
    """Python code in a process of its own, which begins at once and can be waited for later."""

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
        self._began = time.monotonic()

    def answer(self, deadline: float) -> tuple[str, str] | float:
        """(what it printed, the last line of what went wrong or ""), or the seconds after which it was given up."""
        try:
            out, err = self._child.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._child.kill()
            return time.monotonic() - self._began
        if self._child.returncode == 0:
            return out, ""
        ended = f"it ended with {self._child.returncode}"
        return out, next((line.strip() for line in reversed(err.splitlines()) if line.strip()), ended)


def _seen(answer: tuple[str, str] | float) -> Seen:
    if isinstance(answer, float):
        return Seen(waited=answer)
    out, error = answer
    return Seen(error=error) if error else Seen(devices=tuple(json.loads(out.splitlines()[-1])))


def _complaint(answer: tuple[str, str] | float) -> str | None:
    if isinstance(answer, float):
        return f"it did not answer in {answer:.0f} s"
    return answer[1] or None


def _memory() -> tuple[int, int] | None:
    """(available, all) bytes, as trainers plan with them; None where the system does not tell."""
    available, whole = available_memory(), whole_memory()
    return None if available is None or whole is None else (available, whole)


def _places() -> dict[str, Path]:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return {"runs and tokens": Path.cwd(), "compiled programs": cache}


def _free(path: Path) -> int | None:
    """Bytes free where `path` is or is to be made; None where it may not be written, or not even looked for."""
    try:
        there = next(parent for parent in (path, *path.parents) if parent.exists())
        return shutil.disk_usage(there).free if os.access(there, os.W_OK) else None
    except OSError:
        return None
