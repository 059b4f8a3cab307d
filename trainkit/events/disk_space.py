"""How much more the disk of a run takes from this user: bytes and files, within the file system and its quotas."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import struct
import sys
from pathlib import Path
from typing import NamedTuple

from trainkit.text import format_bytes

#: quotactl_fd(2), of Linux 5.14, and its command Q_GETQUOTA; the number of the call is the same on all architectures.
_QUOTACTL_FD, _GETQUOTA = 443, 0x800007
#: The kinds of quotas: of users and of groups.
_USER, _GROUP = 0, 1
#: `struct if_dqblk`: limits of blocks (hard, soft), bytes in use, limits of files (hard, soft), files in use, two
#: times, and which of these are valid. A block is 1,024 bytes, and a limit of 0 is none.
_QUOTA = struct.Struct("=8QI4x")


class Room(NamedTuple):
    """What can still be written; infinite where nothing limits it."""

    bytes: float
    files: float


def find_room(path: Path, *, soft: bool = True) -> Room:
    """Return what this user can still write on the file system of `path`, which need not exist yet.

    Counts quotas of the user and of the group where Linux reports them, which it does not for network file systems.
    With `soft` their soft limits count too, which stop writing a few days after they are passed.
    Raises OSError if the file system does not answer.
    """
    there = path.absolute()
    while not there.exists():
        there = there.parent
    status = os.statvfs(there)
    rooms = [Room(status.f_bavail * status.f_frsize, status.f_favail if status.f_files else math.inf)]
    with contextlib.suppress(OSError):
        fd = os.open(there, os.O_RDONLY | os.O_CLOEXEC)
        try:
            rooms += [
                _room_of(read_quota(fd, kind, owner), soft=soft)
                for kind, owner in ((_USER, os.geteuid()), (_GROUP, os.getegid()))
            ]
        finally:
            os.close(fd)
    return Room(min(room.bytes for room in rooms), min(room.files for room in rooms))


def disk_alert(path: Path, needed_bytes: int, needed_files: int = 0) -> str | None:
    """Return a warning if `find_room` of `path` says that it has less left than is needed, or None."""
    room = find_room(path)
    if room.bytes < needed_bytes:
        return (
            f"the disk of {path} has {format_bytes(int(room.bytes))} left, and {format_bytes(needed_bytes)} are needed"
        )
    if room.files < needed_files:
        return f"the disk of {path} has room for {room.files:,.0f} more files, and {needed_files:,} are needed"
    return None


def read_quota(fd: int, kind: int, owner: int) -> bytes | None:
    """Return the quota of a user or group on the file system of an open file, as `_QUOTA`; None if there is none."""
    if sys.platform != "linux":
        return None
    found = ctypes.create_string_buffer(_QUOTA.size)
    command = ctypes.c_uint(_GETQUOTA << 8 | kind)
    failed = ctypes.CDLL(None).syscall(_QUOTACTL_FD, fd, command, owner, found)
    return None if failed else found.raw


def _room_of(quota: bytes | None, *, soft: bool) -> Room:
    """Return what a quota leaves up to its hard limits, or with `soft` to its nearest ones."""
    if quota is None:
        return Room(math.inf, math.inf)
    hard, soft_blocks, used, hard_files, soft_files, files, *_ = _QUOTA.unpack(quota)
    blocks = min(filter(None, (hard, soft_blocks * soft)), default=math.inf)
    limit = min(filter(None, (hard_files, soft_files * soft)), default=math.inf)
    return Room(max(0, blocks * 1024 - used), max(0, limit - files))
