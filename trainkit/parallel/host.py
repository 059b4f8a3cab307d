"""The memory of the host, which is that of a CPU."""

from __future__ import annotations

import re
from pathlib import Path


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes that are available, by Linux or by a control group, whichever is fewer; None where
    the system does not tell. `root` is where /proc and /sys are.
    """
    sizes = _meminfo(root, "MemAvailable"), *(left for _, left in _groups(root))
    return min((size for size in sizes if size is not None), default=None)


def whole_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory, or those that a control group allows, if fewer; None if unknown."""
    found = [size for size in (_meminfo(root, "MemTotal"), *(most for most, _ in _groups(root))) if size is not None]
    return min(found, default=None)


def _meminfo(root: Path, what: str) -> int | None:
    told = re.search(rf"^{what}: +(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    return int(told[1]) * 1024 if told else None


def _groups(root: Path) -> list[tuple[int, int]]:
    """(bytes it allows, what is left of them) of every control group that holds this process and has a limit; those of
    version 2 and of version 1.
    """
    found = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        base = root / "sys/fs/cgroup" / controllers
        limit, used = ("memory.max", "memory.current") if not controllers else (f"memory.{w}_in_bytes" for w in _V1)
        group = base / path.lstrip("/")
        for directory in (group, *group.parents):
            if not directory.is_relative_to(base):
                break
            most, now = _read(directory / limit).strip(), _read(directory / used).strip()
            if most.isdecimal() and now.isdecimal():
                # what files are held in memory for nobody's use at the moment is given up when somebody asks
                idle = re.search(r"^(?:total_)?inactive_file (\d+)", _read(directory / "memory.stat"), re.MULTILINE)
                found.append((int(most), max(0, int(most) - int(now) + (int(idle[1]) if idle else 0))))
    return found


_V1 = ("limit", "usage")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
