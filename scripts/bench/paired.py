"""What the benchmarks share: what they are run on, and how they print ratios."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "quickstart.toml"
TRAINKIT = [sys.executable, "-m", "trainkit"]


def environment_of(python: str) -> dict[str, str]:
    """Return the environment for a process of `python`: another Python must not import the packages of this one."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH" or python == sys.executable}


def begin() -> None:
    """Print the day, the machine and the Python, and let bytecode be cached.

    Without the cache every start would compile the modules of trainkit again, unlike the start of a user.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    python = sys.version.split()[0]
    print(f"# {time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores, Python {python}", flush=True)


def report(name: str, ratios: Sequence[float], absolute: str) -> None:
    """Print the median of the ratios and their range; `absolute` says what they are ratios of."""
    low, high = min(ratios), max(ratios)
    print(f"{name}: x{statistics.median(ratios):.3f} [{low:.3f} to {high:.3f}] ({absolute})", flush=True)
