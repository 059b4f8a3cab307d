"""What is left on a disk: bytes and files, within the file system and its quotas."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainkit.events import disk_space
from trainkit.events.disk_space import _QUOTA, Room, disk_alert, find_room


def test_a_disk_is_reported_when_it_has_less_left_than_is_needed(tmp_path: Path) -> None:
    assert disk_alert(tmp_path, 1) is None
    told = disk_alert(tmp_path / "not" / "there yet", 1 << 80)
    assert told is not None and "there yet" in told and "needed" in told


@pytest.fixture
def few_inodes(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=20", "tmpfs", str(disk)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False) if os.geteuid() == 0 else None
    if done is None or done.returncode:
        pytest.skip("no disk could be made for this")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_disk_without_inodes_is_reported_although_it_has_bytes(few_inodes: Path) -> None:
    assert disk_alert(few_inodes, 1000, 10) is None
    for number in range(15):
        (few_inodes / str(number)).touch()
    told = disk_alert(few_inodes, 1000, 10)
    assert told is not None and "room for 4 more files, and 10 are needed" in told


@pytest.mark.parametrize(
    ("limits", "room"),
    [
        ((100, 0, 30 * 1024, 0, 0, 7), Room(70 * 1024, math.inf)),
        ((100, 50, 30 * 1024, 20, 0, 7), Room(20 * 1024, 13)),
        ((10, 0, 30 * 1024, 0, 5, 7), Room(0, 0)),
        ((0, 0, 30 * 1024, 0, 0, 7), Room(math.inf, math.inf)),
    ],
)
def test_a_quota_leaves_its_nearest_limit_without_what_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: tuple[int, ...], room: Room
) -> None:
    status = os.statvfs(tmp_path)  # others write to this disk too
    monkeypatch.setattr(os, "statvfs", lambda path: status)
    whole = find_room(tmp_path)
    monkeypatch.setattr(
        disk_space, "read_quota", lambda fd, kind, owner: _QUOTA.pack(*limits, 0, 0, 0) if kind else None
    )
    assert find_room(tmp_path) == Room(min(whole.bytes, room.bytes), min(whole.files, room.files))
