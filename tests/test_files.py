"""What is written survives a power cut whole, and what was changed on the disk is found."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from pathlib import Path

import pytest
from checkpoint_child import FACTS, state_at

import trainkit
from trainkit import files
from trainkit.checkpoint import store
from trainkit.checkpoint.saver import Saver

#: Writers of what no checkpoint stands on: products for other programs, which an export flushes as a whole, and what a
#: person can do without.
NOT_STATE = (
    "hub/",
    "export/",
    "dashboard/",
    "search/landscape.py",
    "train/profile.py",
    "track/tail.py",
    "cli/sweep.py",
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was flushed and renamed, in order."""
    seen: list[str] = []
    fsync, rename = os.fsync, Path.replace

    def flushed(descriptor: int) -> None:
        kind = "directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        seen.append(f"{kind} {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        fsync(descriptor)

    def renamed(path: Path, target: Path) -> Path:
        seen.append(f"rename {target.name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Path, "replace", renamed)
    return seen


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names what is flushed by /proc")
def test_a_file_is_flushed_before_it_gets_its_name_and_its_directory_after(tmp_path: Path, calls: list[str]) -> None:
    files.write(tmp_path / "state.json", "1")
    assert calls == ["file .state.json", "rename state.json", f"directory {tmp_path.name}"]
    calls.clear()
    files.make_directory(tmp_path / "a" / "b")
    assert sorted(calls) == ["directory a", f"directory {tmp_path.name}"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names what is flushed by /proc")
def test_the_log_is_on_the_disk_before_a_checkpoint_that_stands_on_it_has_its_name(
    tmp_path: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "events.jsonl").write_text("{}\n")
    commit = store.commit
    monkeypatch.setattr(store, "commit", lambda *paths: (calls.append("commit"), commit(*paths)))
    saver = Saver(tmp_path, on_saved=lambda saved: None)
    saver.save(state_at(1), step=1, kind="rolling", provenance=FACTS)
    saver.close()
    before, after = calls[: calls.index("commit")], calls[calls.index("commit") :]
    assert {"file events.jsonl", "file .manifest.json", f"directory {tmp_path.name}"} <= set(before)
    assert "directory checkpoints" in after
    # a draft with a manifest counts as a checkpoint after a power cut
    assert before.index("file events.jsonl") < before.index("rename manifest.json")


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_file_system_that_flushes_no_directories_is_no_error_and_a_broken_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError) if number == errno.EIO else contextlib.nullcontext():
        files.write(tmp_path / "state.json", "1")
    assert (tmp_path / "state.json").read_text() == "1"


def test_json_that_is_nested_without_end_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_bytes(b"[" * 100_000)
    with pytest.raises(files.Damaged, match="nested too deeply"):
        files.read_json(tmp_path / "state.json")


def test_a_write_that_fails_leaves_the_file_as_it_was_and_nothing_beside_it(tmp_path: Path) -> None:
    files.write(tmp_path / "state.json", "before")
    with pytest.raises(ZeroDivisionError), files.replace_file(tmp_path / "state.json") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert (tmp_path / "state.json").read_text() == "before" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("value", [{}, {"a": {"checksum": "00000000"}}, {"a": [1, 2.5, None, "é"]}])
def test_json_is_read_as_it_was_written_and_every_flipped_bit_is_found(
    tmp_path: Path, value: dict[str, object]
) -> None:
    path = tmp_path / "state.json"
    files.write_json(path, value)
    assert files.read_json(path) == value
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        path.write_bytes(bytes(byte ^ (1 << bit % 8) * (at == bit // 8) for at, byte in enumerate(whole)))
        with pytest.raises(ValueError):  # also what is no UTF-8 or no JSON any more
            raise_unless_known(path)


def raise_unless_known(path: Path) -> None:
    """Read a file, and raise as its readers do where it has a member that nobody wrote."""
    if any(re.fullmatch("a|", name) is None for name in files.read_json(path)):
        raise files.Damaged("a member that nobody knows")


def test_every_state_file_is_written_by_the_one_writer() -> None:
    package = Path(trainkit.__file__).parent
    found = [
        f"{path.relative_to(package)}: {line.strip()}"
        for path in sorted(package.rglob("*.py"))
        if not str(path.relative_to(package)).startswith(NOT_STATE)
        for line in path.read_text().splitlines()
        if re.search(r"\.write_(text|bytes)\(|\.open\(\"w|\bopen\([^)]*\"w", line)
    ]
    allowed = (
        "files.py: ",
        "events/mark.py: draft.write_text(files.seal(",
        "data/storage.py: file = temporary.open",
        "track/sidecar.py: ",
        "cli/run.py: sys.stdout",
    )
    assert [line for line in found if not line.startswith(allowed)] == []
