"""Why JAX finds no NVIDIA GPU, and what to do about it: for `trainkit doctor`, and for a recipe that asks for a GPU.

Reads the system and the installed packages, and does not import jax, which may hang or fail on a faulty machine.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

#: The oldest driver for each CUDA extra, on Linux (NVIDIA's table of minor version compatibility).
OLDEST_DRIVER = {"cuda13": (580, 65), "cuda12": (525, 60)}
#: Devices before Turing, which CUDA 13 does not support.
BEFORE_TURING = re.compile(r"\b(V100S?|P100|P40|P4|GTX (10|9)\d\d|TITAN (X|V)\w*|QUADRO G?[PV]\d+)\b", re.IGNORECASE)
#: PCI's numbers of the vendor NVIDIA and of the class of display controllers, which includes cards without a display.
NVIDIA, DISPLAY = "0x10de", "0x03"
#: Seconds that `nvidia-smi` may take: a faulty driver does not answer.
PATIENCE = 20.0


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """What decides whether JAX can use an NVIDIA GPU on a machine."""

    system: str = "Linux"
    driver: str | None = None
    """The version of the loaded NVIDIA driver, such as "580.65.06"; None without one."""
    cards: tuple[str, ...] = ()
    """The names that the driver gives; without a driver, "an NVIDIA device" for each one on the PCI bus."""
    nodes: bool = False
    """Whether there is a /dev/nvidia0 or the like, or WSL's /dev/dxg."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """The versions of jaxlib and of JAX's plugins that are installed."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """JAX_PLATFORMS and CUDA_VISIBLE_DEVICES, if they are set."""


class GpuReason(NamedTuple):
    """Why JAX finds no GPU, and what to do about it."""

    problem: str
    hint: str


def why_no_gpu(facts: GpuFacts | None = None) -> GpuReason:
    """Return why JAX finds no GPU and what to do about it. `facts` are this machine's if None."""
    facts = facts or gpu_facts()
    return (
        _hidden(facts) or _no_card(facts) or _no_driver(facts) or _no_plugin(facts) or _mismatch(facts)
        or _old_driver(facts) or _no_node(facts)
        or GpuReason(
            f"there is {_cards(facts)}, a driver {facts.driver} and a CUDA plugin, but JAX could not start them",
            "to see its error: JAX_PLATFORMS=cuda python -c 'import jax; jax.devices()'",
        )
    )  # fmt: skip


def overlooked_gpu(facts: GpuFacts | None = None) -> GpuReason | None:
    """Return why JAX uses the CPU though there is an NVIDIA GPU; None if there is none, or a person hides it.

    `facts` are this machine's if None; where nothing of NVIDIA is found, they are not gathered.
    """
    if facts is None:
        traces = shutil.which("nvidia-smi") or Path("/proc/driver/nvidia").exists() or _cards_on_the_bus()
        if os.environ.get("JAX_PLATFORMS") or not traces:
            return None
        facts = gpu_facts()
    return why_no_gpu(facts) if (facts.cards or facts.driver) and not _hidden(facts) and not _no_card(facts) else None


def gpu_facts() -> GpuFacts:
    """Return the facts of this machine. Takes as long as `nvidia-smi`, if it is installed."""
    by_driver, variables = _cards_by_driver(), ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES")
    return GpuFacts(
        system=platform.system(),
        driver=_loaded_driver() or (by_driver[0][1] if by_driver else None),
        cards=tuple(name for name, _ in by_driver) or _cards_of_the_kernel() or _cards_on_the_bus(),
        nodes=any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists(),
        packages=jax_versions(),
        environment={name: os.environ[name] for name in variables if name in os.environ},
    )


def jax_versions() -> dict[str, str]:
    """Return the versions of jax, jaxlib and JAX's plugins, by package."""
    wanted = re.compile(r"jax|jaxlib|jax-(cuda|rocm)\d*-(plugin|pjrt)|libtpu")
    found: dict[str, str] = {}
    from importlib.metadata import distributions  # a quarter of the time of `trainkit --help`

    for distribution in distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        if wanted.fullmatch(name):
            found.setdefault(name, distribution.version)
    return found


def plugin_of(facts: GpuFacts) -> str | None:
    """Return the extra whose CUDA plugin is installed, "cuda13" before "cuda12" as in JAX; None without a plugin."""
    return next((extra for extra in OLDEST_DRIVER if f"jax-{extra}-plugin" in facts.packages), None)


def mismatches(facts: GpuFacts) -> list[str]:
    """Return, in words, the CUDA packages whose version differs from jaxlib's, which JAX ignores."""
    lib = facts.packages.get("jaxlib")
    return [
        f"{name} {version}, which does not match jaxlib {lib}"
        for name, version in facts.packages.items()
        if lib and name.startswith("jax-cuda") and _numbers(version) != _numbers(lib)
    ]


def newer(version: str, than: str) -> bool:
    """Return whether `version` comes after `than`, by their numbers alone."""
    return _numbers(version) > _numbers(than)


def install(extra: str) -> str:
    """Return the commands that install an extra of trainkit."""
    return f'uv sync --extra {extra}   or: pip install --upgrade "trainkit[{extra}]"'


def suitable_extra(facts: GpuFacts) -> str | None:
    """Return the newest CUDA extra that the driver and the cards support; None if the driver is too old for all."""
    driver = _numbers(facts.driver or "")
    for extra, oldest in OLDEST_DRIVER.items():
        if driver >= oldest and not (extra == "cuda13" and any(map(BEFORE_TURING.search, facts.cards))):
            return extra
    return None


def _hidden(facts: GpuFacts) -> GpuReason | None:
    wanted = facts.environment.get("JAX_PLATFORMS", "")
    if wanted and not {"cuda", "gpu"} & set(wanted.split(",")):
        return GpuReason(f"JAX_PLATFORMS={wanted} keeps JAX from looking for a GPU", "unset JAX_PLATFORMS")
    visible = facts.environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and facts.cards and (not visible.strip() or visible.strip() == "-1"):
        return GpuReason(f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU", "unset CUDA_VISIBLE_DEVICES")
    return None


def _no_card(facts: GpuFacts) -> GpuReason | None:
    if facts.system != "Linux":
        return GpuReason(
            f"JAX's CUDA plugin needs Linux, found {facts.system}",
            "train under Linux (on Windows: in WSL2), or on the CPU: --set 'parallel.platform=\"cpu\"'",
        )
    if facts.cards or facts.driver or facts.nodes:
        return None
    return GpuReason(
        "this machine has no NVIDIA GPU: none on its PCI bus, no driver, no /dev/nvidia*",
        "a container needs access to it (docker run --gpus all); or train on the CPU:"
        " --set 'parallel.platform=\"cpu\"'",
    )


def _no_driver(facts: GpuFacts) -> GpuReason | None:
    if facts.driver:
        return None
    what = "there are device nodes of NVIDIA" if facts.nodes else f"there is {_cards(facts)}"
    return GpuReason(
        f"{what}, but no NVIDIA driver is loaded",
        f"install a driver of at least {OLDEST_DRIVER['cuda13'][0]} with the system's packages, and restart",
    )


def _no_plugin(facts: GpuFacts) -> GpuReason | None:
    if plugin_of(facts):
        return None
    extra = suitable_extra(facts)
    if extra is None:
        return _too_old(facts, "cuda12")
    return GpuReason(
        f"there is {_cards(facts)} with driver {facts.driver}, but JAX's CUDA plugin is not installed", install(extra)
    )


def _mismatch(facts: GpuFacts) -> GpuReason | None:
    if not (wrong := mismatches(facts)):
        return None
    return GpuReason(
        f"JAX ignores {' and '.join(wrong)}",
        f"install them together: {install(plugin_of(facts) or 'cuda13')}",
    )


def _old_driver(facts: GpuFacts) -> GpuReason | None:
    plugin = plugin_of(facts)
    if plugin is None or _numbers(facts.driver or "") >= OLDEST_DRIVER[plugin]:
        return None
    if (other := suitable_extra(facts)) and other != plugin:
        oldest = OLDEST_DRIVER[plugin][0]
        return GpuReason(
            f"the driver {facts.driver} is too old for the plugin of {plugin}, which needs {oldest} or newer",
            f"update the driver; or install the plugin that it supports: {install(other)}",
        )
    return _too_old(facts, plugin)


def _no_node(facts: GpuFacts) -> GpuReason | None:
    if facts.nodes:
        return None
    return GpuReason(
        f"the driver {facts.driver} is loaded, but /dev/nvidia* is missing, so {_cards(facts)} cannot be reached",
        "a container needs access to them (docker run --gpus all); elsewhere: sudo nvidia-modprobe -u -c=0",
    )


def _too_old(facts: GpuFacts, extra: str) -> GpuReason:
    oldest = OLDEST_DRIVER[extra][0]
    return GpuReason(
        f"the driver {facts.driver} is too old: CUDA {extra.removeprefix('cuda')} needs {oldest} or newer",
        f"update the driver with the system's packages, and restart; then: {install('cuda13')}",
    )


def _cards(facts: GpuFacts) -> str:
    if not facts.cards:
        return "an NVIDIA GPU"
    names = dict.fromkeys(facts.cards)
    return ", ".join(f"{facts.cards.count(name)} x {name}" if facts.cards.count(name) > 1 else name for name in names)


def _numbers(version: str) -> tuple[int, ...]:
    """Return `580.65.06` as (580, 65, 6), without a suffix such as `.dev1`."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def _cards_by_driver() -> list[tuple[str, str]]:
    """Return (name, version of the driver) of each card from `nvidia-smi`; empty if that is missing, fails or hangs."""
    if (tool := shutil.which("nvidia-smi")) is None:
        return []
    command = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.rpartition(",") for line in output.splitlines() if "," in line]
    return [(name.strip(), version.strip()) for name, _, version in rows]


def _loaded_driver() -> str | None:
    """Return the version in `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  …`; None without a driver."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match[1] if match else None


def _cards_of_the_kernel() -> tuple[str, ...]:
    files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    models = [re.search(r"^Model:\s*(.+)$", file.read_text(), re.MULTILINE) for file in files]
    return tuple(model[1].strip() for model in models if model)


def _cards_on_the_bus() -> tuple[str, ...]:
    count = 0
    for device in Path("/sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
        except OSError:  # unplugged, or not readable
            continue
        count += vendor == NVIDIA and kind.startswith(DISPLAY)
    return ("an NVIDIA device",) * count
