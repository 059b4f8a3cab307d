"""Ports for servers that a test starts."""

from __future__ import annotations

import random
import socket
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """Return a free port below those that the kernel gives away, so that no other process gets it before the server."""
    lowest = int(RANGE.read_text().split()[0]) if RANGE.exists() else 32_768
    while True:
        port = random.SystemRandom().randrange(max(1024, lowest - 12_000), lowest)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
