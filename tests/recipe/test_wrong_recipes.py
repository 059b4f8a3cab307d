"""Recipes with mistakes of any kind are refused with file, line and key, in bounded time and without a traceback."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from places import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import fuzz_recipes
import recipe_mutations
import recipes_reference

CASES = 500


def test_whatever_is_done_to_a_recipe_the_answer_names_the_place_and_the_key(
    tmp_path: Path,
) -> None:
    path = fuzz_recipes.make_workplace(tmp_path)
    results: Counter[str] = Counter()
    for number, case in zip(range(CASES), recipe_mutations.mutants(seed=17), strict=False):
        path.write_bytes(case.text)
        answer = fuzz_recipes.answer_to(path)
        results[answer.result] += 1
        assert answer.result in ("accepted", "refused"), f"{number} ({case.made_by}): {answer.result}: {answer.said}"
    assert results["accepted"] > 10 and results["refused"] > 300


@pytest.mark.parametrize(
    ("said", "result"),
    [
        ("mutant.toml:3: train.steps = 0: expected a whole number", "refused"),
        ("mutant.toml: section [model] is missing", "refused"),
        ("mutant.toml:3:1: not TOML: expected =", "refused"),
        ("mutant.toml: something is wrong with train.steps", "no place"),
        ("mutant.toml:3: it does not work", "no key"),
        ("mutant.toml:3: train.epochs = 0: another key than that of the line", "no key"),
        ("mutant.toml: 2 mistakes\n\nmutant.toml:3: train.steps = 0\n\nmodel is wrong", "no place"),
    ],
)
def test_a_bad_answer_is_seen(tmp_path: Path, said: str, result: str) -> None:
    path = tmp_path / recipe_mutations.NAME
    path.write_text("schema = 1\n[train]\nsteps = 0\n")
    assert fuzz_recipes.judge(said, path) == result


def test_the_page_of_all_keys_is_up_to_date() -> None:
    assert recipes_reference.PAGE.read_text() == recipes_reference.page(), "run scripts/recipes_reference.py"
