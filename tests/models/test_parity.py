"""Every family computes what transformers computes, in float32: logits, gradients, greedy answers.

`tests/test_parity_fixtures.py` compares the same with what was kept, and needs no torch.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from family_configs import FAMILIES, Config
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from parity import ASKED, NEAR, differences, ours
from reference import Reference

SIZE = (2, 24)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_it_computes_what_the_reference_does(
    family: str,
    reference: Reference,
    tmp_path: Path,
) -> None:
    @settings(
        max_examples=2,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(FAMILIES[family](), st.integers(0, 1000))
    def compared(config: Config, seed: int) -> None:
        with tempfile.TemporaryDirectory(dir=tmp_path) as directory:
            expected = reference.make(Path(directory), config, seed=seed, size=SIZE, **ASKED)
            found = ours(Path(directory), expected["tokens"], **ASKED)
        assert {*found, "tokens"} == set(expected)
        far = {name: apart for name, apart in differences(found, expected).items() if not apart < NEAR}
        assert not far
        assert found["greedy"].tolist() == expected["greedy"].tolist()

    compared()
