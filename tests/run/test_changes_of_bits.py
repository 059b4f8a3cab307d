"""What a resume says of a machine that may compute other bits."""

from __future__ import annotations

import pytest

from trainkit.checkpoint.manifest import Manifest, machine
from trainkit.run.resume import changes_of_bits


def test_other_cores_and_flags_of_xla_are_named_and_an_earlier_manifest_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_one=1 --xla_gpu_deterministic_ops=true")
    now = machine()
    assert now["XLA_FLAGS"] == "--xla_one=1", "the recipe sets the other one in the trainer"
    assert list(changes_of_bits(Manifest.model_construct(machine=now, versions={}))) == []
    before = Manifest.model_construct(machine=now | {"cores": "999", "XLA_FLAGS": ""}, versions={"jax": "0.0.1"})
    cores, flags, version = changes_of_bits(before)
    assert cores == f"machine: cores 999 -> {now['cores']}; results may differ in the last bits"
    assert flags.startswith("machine: XLA_FLAGS none -> --xla_one=1") and version.startswith("versions: jax 0.0.1 -> ")
    assert list(changes_of_bits(Manifest.model_construct(machine={}, versions={}))) == []
