"""`trainkit compare` and `trainkit track`, on real runs."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest
from trainer import RECIPE, losses, trainkit, workplace


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that differ in their learning rate."""
    directory = workplace(tmp_path_factory.mktemp("compare"), RECIPE.replace("steps = 24", "steps = 6"), documents=20)
    for name, rate in (("slow", "1e-4"), ("fast", "1e-2")):
        done = trainkit(
            directory, "run", "tiny.toml", "--plain", "--name", name, "--set", f"optimizer.learning_rate={rate}"
        )
        assert done.returncode == 0, done.stderr
    return directory


def test_compare_shows_what_differs_and_what_came_of_it(place: Path) -> None:
    done = trainkit(place, "compare", "slow", "fast")
    assert done.returncode == 0, done.stderr
    rows = {line.split("  ")[0].strip(): line.split() for line in done.stdout.splitlines() if line}
    assert rows["step"] == ["step", "6/6", "6/6"]
    for column, name in ((-2, "slow"), (-1, "fast")):
        assert float(rows["train/loss, last"][column]) == pytest.approx(losses(place / "runs" / name)[6], rel=1e-3)
    assert rows["optimizer.learning_rate"] == ["optimizer.learning_rate", "0.0001", "0.01"]
    assert "run.name" not in done.stdout and "model.layers" not in done.stdout


def test_compare_of_a_run_with_itself_says_that_nothing_differs(place: Path) -> None:
    done = trainkit(place, "compare", "slow", "slow")
    assert done.returncode == 0 and "their recipes are the same" in done.stdout
    assert trainkit(place, "compare", "slow").returncode == 2
    assert "no run 'slaw'" in trainkit(place, "compare", "slow", "slaw").stderr


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_has_a_row_for_every_step_with_the_numbers_of_the_log(place: Path, suffix: str) -> None:
    path = place / f"numbers{suffix}"
    done = trainkit(place, "track", "fast", "--table", str(path))
    assert done.returncode == 0 and done.stdout.startswith("6 steps in "), done.stderr
    if suffix == ".csv":
        with path.open(newline="") as file:
            found = {int(row["step"]): float(row["train/loss"]) for row in csv.DictReader(file)}
    else:
        from pyarrow import parquet

        table = parquet.read_table(path)
        found = dict(zip(table["step"].to_pylist(), table["train/loss"].to_pylist(), strict=True))
    assert found == losses(place / "runs" / "fast")
    wrong = trainkit(place, "track", "fast", "--table", "numbers.xls")
    assert wrong.returncode == 2 and ".csv or a .parquet" in wrong.stderr


def test_tracking_again_continues_with_the_same_aim_run_and_changes_nothing(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "runs" / "fast", tmp_path / "runs" / "fast")
    first = trainkit(tmp_path, "track", "fast")
    assert first.returncode == 0 and "has steps up to 6" in first.stdout, first.stderr
    again = trainkit(tmp_path, "track", "fast")
    assert again.returncode == 0 and again.stdout == first.stdout
