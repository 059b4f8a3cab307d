"""A trainer to which the system gives only so much memory from a step on: `oom_child.py RECIPE NAME MB STEP`.

MB is how much more it may have than it had when it began to train.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any

import jax

from trainkit import cli
from trainkit.run import job
from trainkit.train.metrics import MetricsWriter


def held() -> int:
    """Bytes of address space."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def main(recipe: str, name: str, megabytes: int, step: int) -> None:
    # the moment is chosen here; that there is no memory is then the system's doing
    train, add = job.train, MetricsWriter.add
    most = 0

    def limit() -> None:
        deadline = time.monotonic() + 30
        while held() > most and time.monotonic() < deadline:
            time.sleep(0.05)  # what a step took is given back a moment after its result is there
        resource.setrlimit(resource.RLIMIT_AS, (most, most))

    def limited_train(*arguments: Any) -> Any:
        nonlocal most
        if most:  # the run has started again
            return train(*arguments)
        most = held() + (megabytes << 20)
        if not step:
            limit()
        return train(*arguments)

    def limited_add(self: MetricsWriter, done: int, metrics: Any, **named: Any) -> None:
        if done == step:
            jax.block_until_ready(metrics)
            limit()
        add(self, done, metrics, **named)

    job.train, MetricsWriter.add = limited_train, limited_add  # type: ignore[assignment, method-assign]
    sys.argv = ["trainkit", "run", recipe, "--name", name, "--plain"]
    cli.main()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
