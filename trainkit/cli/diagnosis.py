"""What `trainkit doctor` concludes from the facts of a machine. Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from trainkit.parallel import reasons
from trainkit.text import format_bytes

Level = Literal["ok", "warn", "bad"]

#: Pythons that trainkit runs on, as (first, first that is too new); aim has wheels for no others.
PYTHONS = ((3, 11), (3, 13))
#: Bytes below which memory or disk is hardly enough, and below which a warning is due.
MEMORY, DISK = (10**9, 4 * 10**9), (10**9, 20 * 10**9)
#: What NCCL needs of /dev/shm to pass data between GPUs; Docker gives 64 MB.
SHM = 256 * 2**20


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
        return {device.partition(":")[0] for device in self.devices}


@dataclass(frozen=True, kw_only=True)
class MachineReport:
    """The facts of this machine, its terminal and what is installed; None where unknown."""

    python: tuple[int, int, int]
    gpu: reasons.GpuFacts
    seen: Seen
    cores: int
    memory: tuple[int, int] | None
    """(available, total) bytes; those of the container where it has a limit."""
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
        yield Diagnosis(
            "bad", "jax", f"{message}: jaxlib is newer than jax", "uv sync   or: pip install --upgrade trainkit"
        )
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
        driver = f"driver {gpu.driver}" if gpu.driver else "in use"
        yield Diagnosis("ok", "gpu", driver)
        if facts.nvml:
            fix = reasons.install(reasons.plugin_of(gpu) or "cuda13")
            yield Diagnosis("warn", "nvml", f"power and temperature will not be shown: {facts.nvml}", fix)
    elif present and facts.seen.waited is None:
        reason = reasons.why_no_gpu(gpu)
        yield Diagnosis("bad", "gpu", reason.problem, reason.hint)
    elif not present:
        yield Diagnosis("ok", "gpu", f"{reasons.why_no_gpu(gpu).problem}; training uses {_used(facts)}")
    if not present and (wrong := reasons.mismatches(gpu)):
        yield Diagnosis("warn", "plugin", f"JAX ignores {' and '.join(wrong)}", "uv sync")


def _used(facts: MachineReport) -> str:
    return " and ".join(sorted(facts.seen.platforms)) or "no device"


def _machine(facts: MachineReport) -> Iterator[Diagnosis]:
    yield Diagnosis("ok", "cores", str(facts.cores))
    if facts.memory:
        available, whole = facts.memory
        level = _level(available, MEMORY)
        fix = "close other programs" if level != "ok" else ""
        yield Diagnosis(level, "memory", f"{format_bytes(available)} of {format_bytes(whole)} available", fix)
    for what, free in facts.disks.items():
        if free is None:
            yield Diagnosis(
                "bad",
                "disk",
                f"{what} cannot be written",
                "allow writing there, or choose another in the recipe",
            )
        else:
            level = _level(free, DISK)
            fix = "free some space for checkpoints and the token cache" if level != "ok" else ""
            yield Diagnosis(level, "disk", f"{format_bytes(free)} free for {what}", fix)
    if facts.shm is not None:
        several = sum(device.startswith(("gpu:", "cuda:")) for device in facts.seen.devices) > 1
        small = several and facts.shm < SHM
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
        message = f"TERM={facts.term} cannot move the cursor; a run prints lines"
        yield Diagnosis("warn", "terminal", message, "export TERM=xterm-256color")
    elif facts.tmux and not facts.colors:
        fix = "export COLORTERM=truecolor, and in ~/.tmux.conf: set -as terminal-features ',*:RGB'"
        yield Diagnosis("warn", "terminal", f"{facts.term} in tmux, with only 256 colours", fix)
    else:
        yield Diagnosis("ok", "terminal", facts.term + (" in tmux" if facts.tmux else ""))


def _level(available: int, least: tuple[int, int]) -> Level:
    return "bad" if available < least[0] else "warn" if available < least[1] else "ok"
