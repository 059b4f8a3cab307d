"""What a GPU or its driver lacks is an error, or a fallback that is reported, before the first step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sample_recipe import write

from trainkit.cli.plan import plan
from trainkit.errors import TrainkitError
from trainkit.parallel import devices
from trainkit.parallel.devices import Capabilities, fallbacks, require_precision
from trainkit.parallel.reasons import GpuFacts, GpuReason, overlooked_gpu
from trainkit.plan import Devices, make_plan
from trainkit.recipe.toml.load import load

OLD_DRIVER = GpuFacts(
    driver="470.82.01",
    cards=("NVIDIA H200",),
    nodes=True,
    packages={"jax": "0.10.2", "jaxlib": "0.10.2", "jax-cuda12-plugin": "0.10.2"},
)


def test_a_gpu_without_bfloat16_computes_in_float16_and_says_so_or_refuses_what_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    turing, ampere = Capabilities("gpu", "Tesla T4", (7, 5)), Capabilities("gpu", "NVIDIA A100", (8, 0))
    with pytest.raises(TrainkitError, match=r"capability 8\.0 or later; Tesla T4 has 7\.5") as error:
        require_precision("bfloat16", turing)
    assert error.value.where == "precision.compute" and '"float16"' in (error.value.hint or "")
    for compute, device in (("float16", turing), ("bfloat16", ampere)):
        require_precision(compute, device)

    recipe = load(write(tmp_path)).recipe
    stated = "computing in float16, with a scaled loss: Tesla T4 has no units for bfloat16"
    for capabilities, compute, said in ((turing, "float16", [stated]), (ampere, "bfloat16", [])):
        monkeypatch.setattr(devices, "capabilities", lambda found=capabilities: found)
        seen = replace(devices.local(), platform="gpu", kind=capabilities.kind)
        assert make_plan(recipe, devices=seen, vocab_size=300, data=None).compute == compute
        assert fallbacks(seen, platform="auto", compute=compute) == said


def test_a_gpu_that_its_driver_keeps_from_jax_is_named_and_one_that_a_person_hides_is_not() -> None:
    reason = overlooked_gpu(OLD_DRIVER)
    assert reason and "driver 470.82.01 is too old" in reason.problem and "update the driver" in reason.hint
    assert overlooked_gpu(replace(OLD_DRIVER, environment={"CUDA_VISIBLE_DEVICES": ""})) is None
    assert overlooked_gpu(replace(OLD_DRIVER, environment={"JAX_PLATFORMS": "cpu"})) is None
    assert overlooked_gpu(GpuFacts(nodes=True)) is None, "WSL has such a node without a card too"


def test_a_plan_for_the_cpu_of_a_machine_with_a_gpu_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(devices, "overlooked_gpu", lambda: GpuReason("the driver is too old", "update it"))
    recipe = write(tmp_path)
    assert "training on the CPU: the driver is too old; update it" in plan(recipe)
    assert fallbacks(Devices(count=1), platform="cpu", compute="float32") == []
