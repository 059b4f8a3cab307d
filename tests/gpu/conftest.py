"""Which device the tests of this directory compute on: `pytest -m gpu` gives them a GPU, if the machine has one."""

from __future__ import annotations

from dataclasses import replace

import jax
import pytest

from trainkit.parallel.devices import Capabilities, capabilities
from trainkit.parallel.reasons import gpu_facts, why_no_gpu


@pytest.fixture(scope="session")
def device() -> Capabilities:
    """What the device of this process can do."""
    return capabilities()


@pytest.fixture(scope="session")
def on_gpu() -> bool:
    """Whether this process computes on a GPU. On a CPU the same cases are smaller."""
    return jax.default_backend() == "gpu"


@pytest.fixture
def needs_gpu(on_gpu: bool) -> None:
    """Skip the test without a GPU, and say why there is none."""
    if not on_gpu:
        facts = replace(gpu_facts(), environment={})
        why = "`pytest -m gpu` runs it" if facts.nodes else why_no_gpu(facts).problem
        pytest.skip(f"only a GPU has what is tested: {why}")
