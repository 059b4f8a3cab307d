"""A job that its batch system starts again continues its run, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_recipe import write

from trainkit.recipe.toml.load import Loaded, load
from trainkit.rundir.directory import JOB, create, run_of_requeued_job


@pytest.fixture
def in_job(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run that job 7 began, before it was requeued once."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    directory = create(loaded)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    return directory


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    return load(write(tmp_path), [f'run.directory="{tmp_path}"'])


def test_a_requeued_job_finds_the_run_that_it_began(in_job: Path, loaded: Loaded) -> None:
    assert run_of_requeued_job(loaded) == in_job


@pytest.mark.parametrize(
    ("name", "value"),
    [("SLURM_RESTART_COUNT", "0"), ("SLURM_RESTART_COUNT", "many"), ("SLURM_JOB_ID", "8"), ("SLURM_JOB_ID", "")],
)
def test_no_other_job_finds_it(
    in_job: Path, loaded: Loaded, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert run_of_requeued_job(loaded) is None


def test_a_damaged_record_of_a_job_is_that_of_no_job(in_job: Path, loaded: Loaded) -> None:
    (in_job / JOB).write_text('{"slurm": "7", "checksum": "00000000"}')
    assert run_of_requeued_job(loaded) is None


def test_a_run_outside_of_slurm_records_no_job(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert not (create(loaded) / JOB).exists()
