"""What a sweep does with damaged records: it recovers what the runs of its trials know, or says what is damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_sweep import GRID, board, finish, study
from test_tpe import TPE

from trainkit.errors import TrainkitError
from trainkit.rundir.directory import SWEEP, read_sweep, write_sweep
from trainkit.search.trials import NAME, Record


def test_a_trial_whose_sweep_file_is_cut_off_anywhere_says_which_file_and_what_to_do(tmp_path: Path) -> None:
    assert read_sweep(tmp_path) is None
    write_sweep(tmp_path, name="tiny-sweep", trial=3, settings={"model.layers": 2})
    content = (tmp_path / SWEEP).read_bytes()
    whole = {"name": "tiny-sweep", "trial": 3, "parameters": {"model": {"layers": 2}}}
    for damaged in (*(content[:size] for size in range(len(content) - 1)), b"\xff" + content, b"[1]", b'{"name": 1}'):
        (tmp_path / SWEEP).write_bytes(damaged)
        with pytest.raises(TrainkitError, match="is damaged") as refused:
            read_sweep(tmp_path)
        assert refused.value.where == str(tmp_path / SWEEP) and "delete it" in (refused.value.hint or "")
    (tmp_path / SWEEP).write_bytes(content)
    assert read_sweep(tmp_path) == whole


@pytest.mark.parametrize(("text", "every"), [(GRID, 1), (TPE, 5)], ids=["grid", "tpe"])
def test_a_record_cut_off_anywhere_is_read_and_the_sweep_ends_the_same(tmp_path: Path, text: str, every: int) -> None:
    found = study(tmp_path, text)
    finish(found)
    record, expected = found.directory / NAME, board(found)
    content, settings = record.read_bytes(), {trial.number: trial.settings for trial in found.trials}
    for size in range(len(content)):
        record.write_bytes(content[:size])
        begun, ends = Record(found.directory).read(found._header())
        assert begun.items() <= settings.items()
        assert all(found.ends[number].as_json() == ends[number].as_json() for number in ends)
    lines = content.splitlines(keepends=True)
    for count in range(0, len(lines), every):
        record.write_bytes(b"".join(lines[:count]) + lines[count][: len(lines[count]) // 2])
        again = study(tmp_path, text)
        finish(again, start=_nothing_to_train)
        assert board(again) == expected


def _nothing_to_train(directory: Path, environment: object) -> None:
    raise AssertionError(f"{directory} has ended, and is trained again")


def test_settings_that_only_a_run_has_are_taken_from_it_and_others_are_said_to_be_lost(tmp_path: Path) -> None:
    found = study(tmp_path, TPE)
    finish(found)
    record, expected = found.directory / NAME, board(found)
    lines = record.read_bytes().splitlines(keepends=True)
    number = next(at for at, line in enumerate(lines) if json.loads(line).get("trial") == 3)
    record.write_bytes(b"".join([*lines[:number], b"\xff\x00\n", *lines[number + 1 :]]))
    again = study(tmp_path, TPE)
    finish(again, start=_nothing_to_train)
    assert board(again) == expected

    (found.trials[2].directory / SWEEP).unlink()
    with pytest.raises(TrainkitError, match="damaged: it does not say what trial 3 tries") as refused:
        study(tmp_path, TPE).read()
    assert refused.value.where == str(record) and "--name NAME" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("line", "change", "problem"),
    [
        (0, lambda line: line[:9] + b"\n", "its first line, which says what the sweep was begun with"),
        (2, lambda line: line.replace(b'"value"', b'"velue"'), 'one of its lines is {"trial": 1, "status"'),
    ],
)
def test_a_garbled_record_is_named(tmp_path: Path, line: int, change, problem: str) -> None:
    found = study(tmp_path)
    finish(found)
    record = found.directory / NAME
    lines = record.read_bytes().splitlines(keepends=True)
    lines[line] = change(lines[line])
    record.write_bytes(b"".join(lines))
    with pytest.raises(TrainkitError, match=f"the record of the sweep is damaged: {problem}") as refused:
        study(tmp_path).read()
    assert refused.value.where == str(record)
