"""Closed and full streams: a run needs none, and a result that is lost is an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import forked
import pytest
from places import LIMIT
from trainer import BARE, command, environment, workplace

from trainkit.errors import DONE, FAILED
from trainkit.events.tail import read

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(("arguments", "code"), [(["run", "--plain"], DONE), (["check"], FAILED)])
def test_a_full_stdout_ends_no_run_and_fails_what_has_only_a_result(
    tmp_path: Path, arguments: list[str], code: int
) -> None:
    workplace(tmp_path, BARE.replace("steps = 24", "steps = 2"), documents=5)
    errors = tmp_path / "errors.txt"
    with FULL.open("w") as full, errors.open("w") as stderr:
        process = forked.Forked([*arguments, "tiny.toml"], cwd=tmp_path, env=environment(), stdout=full, stderr=stderr)
        assert process.wait(LIMIT) == code, errors.read_text()
    if code == DONE:
        assert errors.read_text() == "" and read(tmp_path / "runs" / "tiny")[-1]["status"] == "finished"
        assert "finished" in (tmp_path / "runs" / "tiny" / "trainer.log").read_text()
    else:
        assert errors.read_text() == "error: the output cannot be written: No space left on device\n"


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
def test_a_message_that_stderr_does_not_take_ends_nothing() -> None:
    program = "from trainkit.printer import complain; complain('a note')"
    with FULL.open("w") as full:
        assert subprocess.run([sys.executable, "-c", program], stderr=full, check=False).returncode == 0


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    workplace(tmp_path, documents=5)
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "-"]
    checked = subprocess.run([*closed, *command("check", "tiny.toml")], cwd=tmp_path, check=False, timeout=LIMIT)
    assert checked.returncode == DONE
