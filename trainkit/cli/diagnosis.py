"""What `trainkit doctor` makes of a machine: facts in, findings out. Asks nobody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from trainkit.events.plain import bytes_
from trainkit.parallel import reasons

Level = Literal["ok", "warn", "bad"]

#: Pythons that trainkit runs on, as (first, first that is too new); aim has wheels for no others.
PYTHONS = ((3, 11), (3, 13))
#: Bytes below which memory or disk will hardly do, and below which it is worth a word.
MEMORY, DISK = (10**9, 4 * 10**9), (10**9, 20 * 10**9)
#: What NCCL needs of /dev/shm to pass data between GPUs; Docker gives 64 MB.
SHM = 256 * 2**20


class Finding(NamedTuple):
    """`fix` is what to do about it, empty where nothing is wrong."""

    level: Level
    what: str
    told: str
    fix: str = ""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What JAX said in a process of its own."""

    devices: tuple[str, ...] = ()
    """Such as "gpu:0 NVIDIA H200"."""
    error: str = ""
    """Why it failed; empty where it did not."""
    waited: float | None = None
    """Seconds after which it was given up; None where it answered."""

    @property
    def platforms(self) -> set[str]:
        return {device.partition(":")[0] for device in self.devices}


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of this machine, its terminal and what is installed. None where it could not be found out."""

    python: tuple[int, int, int]
    gpu: reasons.Facts
    seen: Seen
    cores: int
    memory: tuple[int, int] | None
    """Bytes that are available, of all; those of the container, where it has fewer."""
    disks: Mapping[str, int | None] = field(default_factory=dict)
    """Bytes that are free: what is kept there -> how many; None where it cannot be written."""
    shm: int | None = None
    encoding: str = "utf-8"
    term: str | None = None
    """TERM; None without a terminal."""
    colors: bool = False
    """Whether the terminal says that it has all of them."""
    tmux: bool = False
    """Whether this runs in tmux."""
    nvml: str | None = None
    """What is wrong with nvidia-ml-py; None where it works or there is nothing to ask."""
    aim: str | None = None
    """What is wrong with Aim."""


def diagnose(facts: Facts) -> list[Finding]:
    """All findings, in the order in which they are to be read."""
    return [
        _python(facts),
        *_jax(facts),
        *_gpu(facts),
        *_machine(facts),
        *_terminal(facts),
        Finding("warn", "aim", facts.aim, "uv sync   or, not to use it: --set track.aim=false")
        if facts.aim
        else Finding("ok", "aim", "can be used"),
    ]


def _python(facts: Facts) -> Finding:
    version, (oldest, too_new) = ".".join(map(str, facts.python)), PYTHONS
    if oldest <= facts.python < too_new:
        return Finding("ok", "python", version)
    newest = f"{too_new[0]}.{too_new[1] - 1}"
    told = f"{version} is not {oldest[0]}.{oldest[1]} to {newest}"
    return Finding("bad", "python", told, f"uv python install {newest}")


def _jax(facts: Facts) -> Iterator[Finding]:
    versions, seen = facts.gpu.packages, facts.seen
    missing = [name for name in ("jax", "jaxlib") if name not in versions]
    told = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    if missing:
        yield Finding("bad", "jax", f"{' and '.join(missing)} not installed", "uv sync   or: pip install trainkit")
    elif reasons.newer(versions["jaxlib"], versions["jax"]):
        yield Finding("bad", "jax", f"{told}: jaxlib is newer than jax", "uv sync   or: pip install --upgrade trainkit")
    else:
        yield Finding("ok", "jax", told)
    again = "JAX_PLATFORMS=cpu trainkit doctor tells whether the CPU at least can be used"
    if seen.waited is not None:
        hung = f"JAX did not answer in {seen.waited:.0f} s: a driver that hangs"
        yield Finding("bad", "devices", hung, f"look at nvidia-smi and dmesg, restart the machine; {again}")
    elif seen.error:
        fix = reasons.why_no_gpu(facts.gpu).hint if facts.gpu.cards else again
        yield Finding("bad", "devices", f"JAX found none: {seen.error}", fix)
    else:
        yield Finding("ok", "devices", ", ".join(seen.devices))


def _gpu(facts: Facts) -> Iterator[Finding]:
    gpu, there = facts.gpu, bool(facts.gpu.cards or facts.gpu.driver)
    if facts.seen.platforms & {"gpu", "cuda"}:
        driver = f"driver {gpu.driver}" if gpu.driver else "in use"
        yield Finding("ok", "gpu", driver)
        if facts.nvml:
            fix = reasons.install(reasons.plugin_of(gpu) or "cuda13")
            yield Finding("warn", "nvml", f"power and temperature will not be told: {facts.nvml}", fix)
    elif there and facts.seen.waited is None:
        reason = reasons.why_no_gpu(gpu)
        yield Finding("bad", "gpu", reason.problem, reason.hint)
    elif not there:
        yield Finding("ok", "gpu", f"{reasons.why_no_gpu(gpu).problem}; training is on {_used(facts)}")
    if not there and (wrong := reasons.mismatches(gpu)):
        yield Finding("warn", "plugin", f"installed is {' and '.join(wrong)}: JAX ignores it", "uv sync")


def _used(facts: Facts) -> str:
    return " and ".join(sorted(facts.seen.platforms)) or "nothing"


def _machine(facts: Facts) -> Iterator[Finding]:
    yield Finding("ok", "cores", str(facts.cores))
    if facts.memory:
        available, whole = facts.memory
        level = _level(available, MEMORY)
        fix = "end what else runs here" if level != "ok" else ""
        yield Finding(level, "memory", f"{bytes_(available)} of {bytes_(whole)} available", fix)
    for what, free in facts.disks.items():
        if free is None:
            yield Finding("bad", "disk", f"{what} cannot be written", "permit it, or choose another in the recipe")
        else:
            level = _level(free, DISK)
            fix = "make room: checkpoints and the token cache need it" if level != "ok" else ""
            yield Finding(level, "disk", f"{bytes_(free)} free for {what}", fix)
    if facts.shm is not None:
        several = sum(device.startswith(("gpu:", "cuda:")) for device in facts.seen.devices) > 1
        small = several and facts.shm < SHM
        fix = "docker run --shm-size=1g" if small else ""
        told = "; several GPUs pass their data through it" if small else ""
        yield Finding("warn" if small else "ok", "/dev/shm", f"{bytes_(facts.shm)}{told}", fix)


def _terminal(facts: Facts) -> Iterator[Finding]:
    if facts.encoding.lower().replace("-", "") != "utf8":
        told = f"{facts.encoding}: the dashboard draws in ASCII"
        yield Finding("warn", "locale", told, "export LC_ALL=C.UTF-8")
    else:
        yield Finding("ok", "locale", facts.encoding)
    if facts.term is None:
        yield Finding("ok", "terminal", "none: a run prints lines")
    elif facts.term in ("", "dumb", "unknown"):
        told = f"TERM is {facts.term!r}, which cannot move its cursor: a run prints lines"
        yield Finding("warn", "terminal", told, "export TERM=xterm-256color")
    elif facts.tmux and not facts.colors:
        fix = "export COLORTERM=truecolor, and in ~/.tmux.conf: set -as terminal-features ',*:RGB'"
        yield Finding("warn", "terminal", f"{facts.term} in tmux, with 256 colours", fix)
    else:
        yield Finding("ok", "terminal", facts.term + (" in tmux" if facts.tmux else ""))


def _level(there: int, least: tuple[int, int]) -> Level:
    return "bad" if there < least[0] else "warn" if there < least[1] else "ok"
