"""Recipes with mistakes, checked as `trainkit check` does it (`scripts/fuzz_recipes.py`)."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fault_kinds.workplace import Outcome, Workplace

#: The outcome that each kind of answer counts as; any other answer is `lost`.
OUTCOMES = {"accepted": "exact", "refused": "refused"}


def check_recipes(workplace: Workplace, times: int, chance: random.Random) -> Iterator[Outcome]:
    """Check `times` recipes with mistakes, and yield the outcome of each."""
    from fuzz_recipes import answer_to, limited_memory, make_workplace, mutants  # it imports all that `check` needs

    os.environ["HF_HUB_OFFLINE"] = "1"  # a mutant may name a model
    with tempfile.TemporaryDirectory(prefix="recipes-") as place, limited_memory():
        path = make_workplace(Path(place))
        for _, case in zip(range(times), mutants(chance.randrange(1 << 32)), strict=False):
            path.write_bytes(case.text)
            answer = answer_to(path)
            what = f"{case.made_by}: {answer.result}: {answer.said[-500:]}"
            yield Outcome(OUTCOMES.get(answer.result, "lost"), what, resumed=False)
