"""What a resume says of a machine that may compute other bits, and of a changed [guard]."""

from __future__ import annotations

import pytest

from trainkit.checkpoint.manifest import Manifest, machine
from trainkit.recipe.sections.guard import Guard
from trainkit.run.resume import _guard_changes, changes_of_bits


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


def test_a_changed_guard_is_named_and_so_is_one_that_remembers_nothing() -> None:
    skip, spike = Guard(non_finite="skip"), Guard(spike="stop")
    assert list(_guard_changes(Guard(), Guard())) == []
    (line,) = _guard_changes(spike, Guard(spike="skip", threshold=9.0))
    assert line.startswith("[guard] changed: it judges the steps from here on")
    for old, new in ((Guard(), skip), (skip, spike), (spike, Guard(spike="stop", window=50))):
        assert list(_guard_changes(old, new))[1].startswith("[guard] remembers no earlier losses")
    assert len(list(_guard_changes(spike, Guard()))) == 1, "nothing is to be remembered"
