"""Every family computes what transformers computes, in float32: logits, gradients, greedy answers.

`test_parity_fixtures.py` compares the same with what was kept, and needs no torch.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from family_configs import FAMILIES
from hypothesis import strategies as st
from parity import ASKED, NEAR, differences, drawn, ours
from reference import Reference

SIZE = (2, 24)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_it_computes_what_the_reference_does(family: str, reference: Reference, tmp_path: Path) -> None:
    config, seed = drawn(FAMILIES[family](), st.integers(0, 1000))
    expected = reference.make(tmp_path, config, seed=seed, size=SIZE, **ASKED)
    found = ours(tmp_path, expected["tokens"], **ASKED)
    assert {*found, "tokens"} == set(expected)
    far = {name: apart for name, apart in differences(found, expected).items() if not apart < NEAR}
    assert not far, config
    assert found["greedy"].tolist() == expected["greedy"].tolist()
