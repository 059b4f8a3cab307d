"""Shared by the tests of commands."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trainkit.cli import main

#: The words of a command to its exit code, stdout and stderr.
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Run a command in an empty directory: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRAINKIT_DEBUG", raising=False)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["trainkit", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        assert isinstance(end.value.code, int)
        return end.value.code, *capsys.readouterr()

    return call
