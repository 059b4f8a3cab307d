"""Flags of XLA for GPUs: they are known to XLA, have a reason, and a person's own come first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sample_recipe import write

from trainkit.cli.plan import plan
from trainkit.parallel import nvidia, xla
from trainkit.parallel.nvidia import DECIDED_BY, GpuMemory
from trainkit.parallel.xla import FLAGS, prepare_gpus, set_flags

#: Those that differ from XLA's default.
SET = [flag for flag in FLAGS if flag.value is not None]


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XLA_FLAGS", *DECIDED_BY):
        monkeypatch.setenv(name, "")


def test_every_flag_is_known_to_the_installed_xla_and_has_a_reason() -> None:
    libraries = list(xla._xla_libraries())
    assert libraries and all(xla._knows_flag(library, flag.name) for library in libraries for flag in FLAGS)
    assert set_flags(gpus=8) == SET and all(flag.reason for flag in FLAGS)
    assert os.environ["XLA_FLAGS"].split() == [f"--{flag.name}={flag.value}" for flag in SET]


def test_flags_that_a_person_names_or_xla_does_not_know_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, *_ = SET
    monkeypatch.setenv("XLA_FLAGS", f"--{first.name}=false")
    monkeypatch.setattr(xla, "_knows_flag", lambda library, flag: flag == second.name)
    assert set_flags(gpus=2) == [second]
    assert os.environ["XLA_FLAGS"] == f"--{first.name}=false --{second.name}={second.value}"


def test_only_the_gpus_of_this_machine_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [GpuMemory(80 << 30, 80 << 30)]
    monkeypatch.setattr(xla, "_knows_flag", lambda library, flag: True)
    monkeypatch.setattr(nvidia, "memory_of_gpus", lambda: gpus)
    (message,) = prepare_gpus()
    assert "stays free for CUDA" in message and os.environ["XLA_FLAGS"] == ""
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "")
    assert len(prepare_gpus(processes=2)) == len(SET) and not os.environ["XLA_CLIENT_MEM_FRACTION"]
    gpus.clear()
    assert prepare_gpus() == []


def test_a_plan_shows_what_was_decided_about_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(xla, "prepare_gpus", lambda: ["memory for XLA: 78.0 GB of 80.0 GB", "--a=true: reason"])
    found = plan(write(tmp_path)).splitlines()
    where = next(i for i, line in enumerate(found) if line.split()[:2] == ["GPU", "settings"])
    assert "78.0 GB of 80.0 GB" in found[where] and found[where + 1].strip() == "--a=true: reason"
