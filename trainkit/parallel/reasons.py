"""Why JAX sees no NVIDIA GPU here, and what to do about it: for `trainkit doctor`, and for a recipe that asks for one.

Neither imports jax, which may hang or fail where something is wrong: the system and the installed packages are asked.
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

#: The oldest driver that each of our CUDA extras runs on, on Linux (NVIDIA's table of minor version compatibility).
OLDEST_DRIVER = {"cuda13": (580, 65), "cuda12": (525, 60)}
#: CUDA 13 has no code for devices before Turing.
BEFORE_TURING = re.compile(r"\b(V100S?|P100|P40|P4|GTX (10|9)\d\d|TITAN (X|V)\w*|QUADRO G?[PV]\d+)\b", re.IGNORECASE)
#: PCI's number of NVIDIA, and of the class of display controllers, of which a card for computing alone is one too.
NVIDIA, DISPLAY = "0x10de", "0x03"
#: Seconds that `nvidia-smi` may take: a driver in trouble does not answer.
PATIENCE = 20.0


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """What of a machine decides whether JAX can use an NVIDIA GPU."""

    system: str = "Linux"
    driver: str | None = None
    """The version of the kernel's NVIDIA driver, such as "580.65.06"; None where none is loaded."""
    cards: tuple[str, ...] = ()
    """Names, as far as the driver tells them; without a driver "an NVIDIA device" for each on the PCI bus."""
    nodes: bool = False
    """Whether there is a /dev/nvidia0 or the like, or WSL's /dev/dxg."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions of jaxlib and of JAX's plugins, as far as they are installed."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """JAX_PLATFORMS and CUDA_VISIBLE_DEVICES, where they are set."""


class GpuReason(NamedTuple):
    problem: str
    hint: str


def why_no_gpu(facts: GpuFacts | None = None) -> GpuReason:
    """Return why JAX finds no GPU and what to do about it, by the facts given or those of this machine."""
    found = facts or gpu_facts()
    return (
        _hidden(found) or _no_card(found) or _no_driver(found) or _no_plugin(found) or _mismatch(found)
        or _old_driver(found) or _no_node(found)
        or GpuReason(
            f"there is {_cards(found)}, a driver {found.driver} and a CUDA plugin, but JAX could not start them",
            "see what it says: JAX_PLATFORMS=cuda python -c 'import jax; jax.devices()'",
        )
    )  # fmt: skip


def gpu_facts() -> GpuFacts:
    """Return the facts of this machine. Takes as long as `nvidia-smi`, where there is one."""
    asked, variables = _ask_driver(), ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES")
    loaded = _loaded_driver()
    return GpuFacts(
        system=platform.system(),
        driver=loaded or (asked[0][1] if asked else None),
        cards=tuple(name for name, _ in asked) or _cards_of_the_kernel() or _cards_on_the_bus(),
        nodes=any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists(),
        packages=installed(),
        environment={name: os.environ[name] for name in variables if name in os.environ},
    )


def installed() -> dict[str, str]:
    """Return the versions of jax, jaxlib and the plugins by which they reach devices."""
    wanted = re.compile(r"jax|jaxlib|jax-(cuda|rocm)\d*-(plugin|pjrt)|libtpu")
    found: dict[str, str] = {}
    from importlib.metadata import distributions  # a quarter of the time of `trainkit --help`

    for distribution in distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        if wanted.fullmatch(name):
            found.setdefault(name, distribution.version)
    return found


def plugin_of(facts: GpuFacts) -> str | None:
    """The extra whose CUDA plugin is installed, "cuda13" before "cuda12" as JAX has it; None where none is."""
    return next((extra for extra in OLDEST_DRIVER if f"jax-{extra}-plugin" in facts.packages), None)


def mismatches(facts: GpuFacts) -> list[str]:
    """What is installed for CUDA in another version than jaxlib, in words: JAX uses none of it."""
    lib = facts.packages.get("jaxlib")
    return [
        f"{name} {version}, which does not go with jaxlib {lib}"
        for name, version in facts.packages.items()
        if lib and name.startswith("jax-cuda") and _numbers(version) != _numbers(lib)
    ]


def newer(version: str, than: str) -> bool:
    """Whether one version comes after another, by their numbers alone."""
    return _numbers(version) > _numbers(than)


def install(extra: str) -> str:
    """The commands that install one of our extras."""
    return f'uv sync --extra {extra}   or: pip install --upgrade "trainkit[{extra}]"'


def suitable_extra(facts: GpuFacts) -> str | None:
    """The newest of our extras that driver and cards can run; None where the driver is too old for all."""
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
            f"JAX's CUDA plugin is for Linux, and this is {facts.system}",
            "train under Linux (on Windows: in WSL2), or on the CPU: --set 'parallel.platform=\"cpu\"'",
        )
    if facts.cards or facts.driver or facts.nodes:
        return None
    return GpuReason(
        "this machine shows no NVIDIA GPU: none on its PCI bus, no driver, no /dev/nvidia*",
        "a container needs to be given it (docker run --gpus all); or train on the CPU:"
        " --set 'parallel.platform=\"cpu\"'",
    )


def _no_driver(facts: GpuFacts) -> GpuReason | None:
    if facts.driver:
        return None
    what = "its device nodes" if facts.nodes else _cards(facts)
    return GpuReason(
        f"there is {what}, but no NVIDIA driver is loaded",
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
        f"installed is {' and '.join(wrong)}: JAX ignores it",
        f"install them together again: {install(plugin_of(facts) or 'cuda13')}",
    )


def _old_driver(facts: GpuFacts) -> GpuReason | None:
    plugin = plugin_of(facts)
    if plugin is None or _numbers(facts.driver or "") >= OLDEST_DRIVER[plugin]:
        return None
    if (other := suitable_extra(facts)) and other != plugin:
        oldest = OLDEST_DRIVER[plugin][0]
        return GpuReason(
            f"the driver {facts.driver} is too old for the plugin of {plugin}, which needs {oldest} or newer",
            f"update the driver; or take the plugin that it can run: {install(other)}",
        )
    return _too_old(facts, plugin)


def _no_node(facts: GpuFacts) -> GpuReason | None:
    if facts.nodes:
        return None
    return GpuReason(
        f"the driver {facts.driver} is loaded, but there is no /dev/nvidia* to reach {_cards(facts)} by",
        "a container needs to be given them (docker run --gpus all); elsewhere: sudo nvidia-modprobe -u -c=0",
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
    """`580.65.06` as (580, 65, 6); what comes after the digits, such as `.dev1`, is left out."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def _ask_driver() -> list[tuple[str, str]]:
    """(name, version of the driver) of each card, from `nvidia-smi`; empty where it is missing, fails or hangs."""
    if (tool := shutil.which("nvidia-smi")) is None:
        return []
    command = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.rpartition(",") for line in told.splitlines() if "," in line]
    return [(name.strip(), version.strip()) for name, _, version in rows]


def _loaded_driver() -> str | None:
    """`NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  …` names the module that is loaded."""
    try:
        told = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", told)
    return found[1] if found else None


def _cards_of_the_kernel() -> tuple[str, ...]:
    files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    found = [re.search(r"^Model:\s*(.+)$", file.read_text(), re.MULTILINE) for file in files]
    return tuple(model[1].strip() for model in found if model)


def _cards_on_the_bus() -> tuple[str, ...]:
    found = 0
    for device in Path("/sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
        except OSError:  # unplugged, or not ours to read
            continue
        found += vendor == NVIDIA and kind.startswith(DISPLAY)
    return ("an NVIDIA device",) * found
