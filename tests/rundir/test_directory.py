"""A run's directory: one trainer at a time, whatever happens to its files."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from trainkit.errors import TrainkitError
from trainkit.rundir import directory as directories
from trainkit.rundir.directory import hold_lock, is_training


def test_a_deleted_lock_lets_no_second_trainer_in(tmp_path: Path) -> None:
    with hold_lock(tmp_path):
        (tmp_path / "lock").unlink()
        assert is_training(tmp_path)
        with pytest.raises(TrainkitError, match="another process is training this run"), hold_lock(tmp_path):
            pass
    assert not is_training(tmp_path)
    with hold_lock(tmp_path), pytest.raises(TrainkitError, match=f"process {os.getpid()} is"), hold_lock(tmp_path):
        pass


def test_a_trainer_waits_for_who_only_asks_whether_the_run_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lock").touch()
    asking = os.open(tmp_path / "lock", os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)
    monkeypatch.setattr(directories.time, "sleep", lambda seconds: os.close(asking))
    with hold_lock(tmp_path):
        assert is_training(tmp_path)
