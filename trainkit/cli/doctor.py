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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

from trainkit.errors import DONE, FAILED
from trainkit.parallel import reasons
from trainkit.parallel.hardware import available_memory, whole_memory
from trainkit.text import format_bytes, neutralise

Level = Literal["ok", "warn", "bad"]

#: Pythons that trainkit runs on, as (first, first that is too new); aim has wheels for no others.
PYTHONS = ((3, 11), (3, 13))
#: Bytes of memory and of disk: with fewer than the first a run can hardly work; fewer than the second are a warning.
MEMORY, DISK = (10**9, 4 * 10**9), (10**9, 20 * 10**9)
#: What NCCL needs of /dev/shm to pass data between GPUs; Docker gives 64 MB.
SHM = 256 * 2**20
#: Seconds for all checks in processes of their own. A cold start of JAX on many GPUs takes half of it.
PATIENCE = 60.0

DEVICES = """
import json, jax
print(json.dumps([f"{d.platform}:{d.id} {d.device_kind}" for d in jax.devices()]))
"""
AIM = "import aim"
NVML = "import pynvml; pynvml.nvmlInit(); pynvml.nvmlDeviceGetCount()"


class Diagnosis(NamedTuple):
    """A finding: what was checked, the result, and how to fix it (empty where nothing is wrong)."""

    level: Level
    what: str
    message: str
    fix: str = ""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What JAX reported in a process of its own."""

    devices: tuple[str, ...] = ()
    """Such as "gpu:0 NVIDIA H200"."""
    error: str = ""
    """Why it failed; empty where it did not."""
    waited: float | None = None
    """Seconds after which it was abandoned; None where it answered."""

    @property
    def platforms(self) -> set[str]:
        """Return the platforms of the devices, such as `gpu`."""
        return {device.partition(":")[0] for device in self.devices}


@dataclass(frozen=True, kw_only=True)
class MachineReport:
    """The facts of this machine, its terminal and what is installed; None where unknown."""

    python: tuple[int, int, int]
    gpu: reasons.GpuFacts
    seen: Seen
    cores: int
    memory: tuple[int, int] | None
    """(available, total) bytes; those of the container where it has a limit; None where not reported."""
    disks: Mapping[str, int | None] = field(default_factory=dict)
    """What is kept on a disk -> bytes free there; None where it cannot be written."""
    shm: int | None = None
    encoding: str = "utf-8"
    term: str | None = None
    """TERM; None without a terminal."""
    colors: bool = False
    """Whether the terminal reports 24-bit colour."""
    tmux: bool = False
    """Whether this runs in tmux."""
    nvml: str | None = None
    """What is wrong with nvidia-ml-py; None where it works or there is nothing to ask."""
    aim: str | None = None
    """What is wrong with Aim."""


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
    available, whole = available_memory(), whole_memory()  # as trainers plan with them
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    places = {"runs and tokens": Path.cwd(), "compiled programs": cache}
    return MachineReport(
        python=sys.version_info[:3],
        gpu=gpu,
        seen=_seen(answers["devices"]),
        cores=len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1,
        memory=None if available is None or whole is None else (available, whole),
        disks={f"{what} ({path})": _free(path) for what, path in places.items()},
        shm=shutil.disk_usage("/dev/shm").total if Path("/dev/shm").exists() else None,
        encoding=locale.getpreferredencoding(False),
        term=os.environ.get("TERM", "") if sys.stdout.isatty() else None,
        colors=os.environ.get("COLORTERM", "") in ("truecolor", "24bit"),
        tmux="TMUX" in os.environ,
        nvml=_complaint(answers["nvml"]) if "nvml" in answers else None,
        aim=_complaint(answers["aim"]),
    )


class Question:
    """Python code that starts to run in a process of its own; `answer` waits for its result."""

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


def _free(path: Path) -> int | None:
    """Return the bytes free where `path` is or would be; None if it cannot be written or looked up."""
    try:
        nearest = next(parent for parent in (path, *path.parents) if parent.exists())
        return shutil.disk_usage(nearest).free if os.access(nearest, os.W_OK) else None
    except OSError:
        return None


def diagnose(facts: MachineReport) -> list[Diagnosis]:
    """Return all findings, in the order of the output."""
    return [
        _python(facts),
        *_jax(facts),
        *_gpu(facts),
        *_machine(facts),
        *_terminal(facts),
        Diagnosis("warn", "aim", facts.aim, "uv sync   or train without it: --set track.aim=false")
        if facts.aim
        else Diagnosis("ok", "aim", "installed"),
    ]


def _python(facts: MachineReport) -> Diagnosis:
    version, (oldest, too_new) = ".".join(map(str, facts.python)), PYTHONS
    if oldest <= facts.python < too_new:
        return Diagnosis("ok", "python", version)
    newest = f"{too_new[0]}.{too_new[1] - 1}"
    message = f"found {version}; trainkit runs on {oldest[0]}.{oldest[1]} to {newest}"
    return Diagnosis("bad", "python", message, f"uv python install {newest}")


def _jax(facts: MachineReport) -> Iterator[Diagnosis]:
    versions, seen = facts.gpu.packages, facts.seen
    missing = [name for name in ("jax", "jaxlib") if name not in versions]
    message = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    if missing:
        yield Diagnosis("bad", "jax", f"{' and '.join(missing)} not installed", "uv sync   or: pip install trainkit")
    elif reasons.newer(versions["jaxlib"], versions["jax"]):
        yield Diagnosis("bad", "jax", f"{message}: jaxlib is newer than jax", "uv sync   or: pip install -U trainkit")
    else:
        yield Diagnosis("ok", "jax", message)
    again = "to see whether at least the CPU works: JAX_PLATFORMS=cpu trainkit doctor"
    if seen.waited is not None:
        hung = f"JAX did not answer within {seen.waited:.0f} s, probably because a driver hangs"
        yield Diagnosis("bad", "devices", hung, f"check nvidia-smi and dmesg, or restart the machine; {again}")
    elif seen.error:
        fix = reasons.why_no_gpu(facts.gpu).hint if facts.gpu.cards else again
        yield Diagnosis("bad", "devices", f"JAX found no device: {seen.error}", fix)
    else:
        yield Diagnosis("ok", "devices", ", ".join(seen.devices))


def _gpu(facts: MachineReport) -> Iterator[Diagnosis]:
    gpu, present = facts.gpu, bool(facts.gpu.cards or facts.gpu.driver)
    if facts.seen.platforms & {"gpu", "cuda"}:
        yield Diagnosis("ok", "gpu", f"driver {gpu.driver}" if gpu.driver else "in use")
        if facts.nvml:
            fix = reasons.install(reasons.plugin_of(gpu) or "cuda13")
            yield Diagnosis("warn", "nvml", f"power and temperature will not be shown: {facts.nvml}", fix)
    elif present and facts.seen.waited is None:
        reason = reasons.why_no_gpu(gpu)
        yield Diagnosis("bad", "gpu", reason.problem, reason.hint)
    elif not present:
        used = " and ".join(sorted(facts.seen.platforms)) or "no device"
        yield Diagnosis("ok", "gpu", f"{reasons.why_no_gpu(gpu).problem}; training uses {used}")
    if not present and (wrong := reasons.mismatches(gpu)):
        yield Diagnosis("warn", "plugin", f"JAX ignores {' and '.join(wrong)}", "uv sync")


def _machine(facts: MachineReport) -> Iterator[Diagnosis]:
    yield Diagnosis("ok", "cores", str(facts.cores))
    if facts.memory:
        available, whole = facts.memory
        level = _level(available, MEMORY)
        fix = "close other programs" if level != "ok" else ""
        yield Diagnosis(level, "memory", f"{format_bytes(available)} of {format_bytes(whole)} available", fix)
    for what, free in facts.disks.items():
        if free is None:
            fix = "allow writing there, or choose another in the recipe"
            yield Diagnosis("bad", "disk", f"{what} cannot be written", fix)
        else:
            level = _level(free, DISK)
            fix = "free some space for checkpoints and the token cache" if level != "ok" else ""
            yield Diagnosis(level, "disk", f"{format_bytes(free)} free for {what}", fix)
    if facts.shm is not None:
        gpus = sum(device.startswith(("gpu:", "cuda:")) for device in facts.seen.devices)
        small = gpus > 1 and facts.shm < SHM
        fix = "docker run --shm-size=1g" if small else ""
        message = "; several GPUs exchange data through it" if small else ""
        yield Diagnosis("warn" if small else "ok", "/dev/shm", f"{format_bytes(facts.shm)}{message}", fix)


def _terminal(facts: MachineReport) -> Iterator[Diagnosis]:
    if facts.encoding.lower().replace("-", "") != "utf8":
        message = f"{facts.encoding}, so the dashboard draws in ASCII"
        yield Diagnosis("warn", "locale", message, "export LC_ALL=C.UTF-8")
    else:
        yield Diagnosis("ok", "locale", facts.encoding)
    if facts.term is None:
        yield Diagnosis("ok", "terminal", "none; a run prints lines")
    elif facts.term in ("", "dumb", "unknown"):
        problem = f"TERM={facts.term} cannot move the cursor; a run prints lines"
        yield Diagnosis("warn", "terminal", problem, "export TERM=xterm-256color")
    elif facts.tmux and not facts.colors:
        fix = "export COLORTERM=truecolor, and in ~/.tmux.conf: set -as terminal-features ',*:RGB'"
        yield Diagnosis("warn", "terminal", f"{facts.term} in tmux, with only 256 colours", fix)
    else:
        yield Diagnosis("ok", "terminal", facts.term + (" in tmux" if facts.tmux else ""))


def _level(available: int, least: tuple[int, int]) -> Level:
    return "bad" if available < least[0] else "warn" if available < least[1] else "ok"
