"""docs/optimisers.md has a row for everything that a recipe can choose, and the tests that its rows name exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from trainkit.recipe.optimizers.moments import Moments
from trainkit.recipe.optimizers.spec import DecayType, Optimizer
from trainkit.recipe.optimizers.wrapper_spec import Wrapper
from trainkit.recipe.sections.average import Average
from trainkit.recipe.sections.outputs import StatisticName
from trainkit.recipe.sections.schedule_spec import Schedule
from trainkit.recipe.sections.schedules import Schedules
from trainkit.recipe.spec import type_of
from trainkit.recipe.union import members_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "optimisers.md").read_text()
#: The rows of every table, as lists of cells, with the head of the table.
Row = tuple[list[str], list[str]]


def rows() -> list[Row]:
    found: list[Row] = []
    head: list[str] = []
    for line in PAGE.splitlines():
        if not line.startswith("|"):
            head = []
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not head:
            head = cells
        elif set(line) - set("|- "):
            found.append((head, cells))
    return found


def choices() -> dict[str, tuple[str, list[str]]]:
    """Return how the first cell of a row names a choice, and the names of all, by kind."""
    return {
        "optimizers": ("`{}`", list(map(type_of, members_of(Optimizer)))),
        "wrappers": ("`{}`", list(map(type_of, members_of(Wrapper)))),
        "schedules": ("`{}`", list(map(type_of, members_of(Schedule)))),
        "averages": ("`{}`", list(map(type_of, members_of(Average)))),
        "weight decays": ('`decay_type = "{}"`', list(get_args(DecayType))),
        "moments": ('`moments = "{}"`', [name for name in get_args(Moments) if name != "float32"]),
        "statistics": ("`{}`", list(get_args(StatisticName))),
        "scheduled values": ("{}", list(Schedules.model_fields)),
    }


@pytest.mark.parametrize("kind", choices())
def test_everything_that_can_be_chosen_has_a_row(kind: str) -> None:
    pattern, names = choices()[kind]
    first_cells = [cells[0] for _, cells in rows()]
    assert names
    missing = [name for name in names if not any(pattern.format(name) in cell for cell in first_cells)]
    assert not missing, f"{kind} without a row"


def test_rows_name_tests_that_exist() -> None:
    files = {path.name: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    functions = set(re.findall(r"def (test_\w+)", "".join(files.values())))
    named = re.findall(r"`((?:tests/|test_)[^`\s]*)`", PAGE)
    assert len(named) > 50
    for name in named:
        beginning = name.removesuffix("…")
        exists = (ROOT / name).exists() if "/" in name else name in files
        assert exists or any(function.startswith(beginning) for function in functions), name
    of_tests = [(head, cells) for head, cells in rows() if head[-1].startswith("test")]
    without = [cells[0] for _, cells in of_tests if not re.search("`(tests/|test_)|the same", cells[-1])]
    assert of_tests and not without, "rows without a test"
