"""Files mapped into memory without a descriptor that stays open.

CPython's `mmap` (before 3.13) keeps a duplicate of the file's descriptor for as long as the map lives, and `np.memmap`
with it: a cache of a thousand shards would reach the usual limit of 1,024. The kernel needs none once a file is mapped.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np


def map_file(path: Path, size: int | None = None) -> np.ndarray:
    """The first `size` bytes of a file, or all of them: uint8, (size,), read-only. It lives as long as any view of it.

    Raises:
        OSError: the file cannot be opened, or the system permits no further map.
        ValueError: the file has fewer bytes, or none.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.fstat(descriptor).st_size
        wanted = there if size is None else size
        if not 0 < wanted <= there:
            raise ValueError(f"it has {there:,} bytes instead of {wanted:,}" if wanted else "it is empty")
        address = _libc().mmap(None, wanted, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    if address == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        many = " (the system limits the number of maps: sysctl vm.max_map_count)" if code == errno.ENOMEM else ""
        raise OSError(code, f"{os.strerror(code)}{many}", str(path))
    return np.asarray(_Map(address, wanted))


class _Map:
    """Owns mapped memory; an array made of it refers to it."""

    def __init__(self, address: int, size: int) -> None:
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (address, True)}
        unmap = weakref.finalize(self, _libc().munmap, address, size)
        unmap.atexit = False  # a thread may still be reading when the interpreter ends


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    pointer, length = ctypes.c_void_p, ctypes.c_size_t
    libc.mmap.restype = pointer
    # of an offset only 0 is used, so that its width does not matter
    libc.mmap.argtypes = (pointer, length, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_ssize_t)
    libc.munmap.argtypes = (pointer, length)
    return libc
