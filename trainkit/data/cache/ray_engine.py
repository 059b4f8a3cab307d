"""Tokenising on a Ray cluster (Moritz et al. 2018): the same work, with the same bytes, on the CPUs of many hosts.

Hosts exchange neither text nor tokens. Each reads the sources and writes the cache itself, so all of them must see both
under the same path.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trainkit.data import storage
from trainkit.data.cache import shards
from trainkit.data.cache.encode import CacheWork, Engine
from trainkit.data.cache.ray_task import UnitTask, tokenise, version
from trainkit.data.cache.shards import Parts
from trainkit.data.jobs import Interrupt, Reporter, Stop, remember_interrupt
from trainkit.data.sources.units import Unit
from trainkit.errors import FAILED, TrainkitError
from trainkit.recipe.toml.plugins import imported_plugins

#: Tasks submitted for each CPU, one of them running. They are done even if they are no longer wanted.
_AHEAD = 2
#: Tasks submitted even if the cluster has no CPU yet: waiting tasks make an autoscaling cluster grow.
_FEWEST = 4
#: How often a unit whose worker or host died is tried again.
_RETRIES = 3
#: Seconds between two checks of the cluster's size, and until a CPU must appear.
_LOOK, _PATIENCE = 5.0, 300.0
#: Seconds for tasks to end by themselves once their mark has gone.
_BY_THEMSELVES = 10.0
#: Seconds for cancelled tasks to clean up, and until those that continue are cancelled again.
_GRACE, _CANCEL_EVERY = 20.0, 2.0
#: Seconds in which an address must answer.
_ANSWER = 20.0
#: Bytes for the arguments and results of tasks: a tokenizer, and records of shards.
_OBJECTS = 128 << 20
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


@contextlib.contextmanager
def cluster(address: str | None = None, *, workers: int | None = None) -> Iterator[Engine]:
    """Yield an engine that works on a Ray cluster, one CPU a task, until the block ends.

    Args:
        address: `HOST:PORT`, `auto` (the cluster that this host belongs to) or `ray://HOST:PORT`. By default the
            cluster that this process is connected to, else the one in the environment's `RAY_ADDRESS`, else one that
            is started on this machine and ends with the block.
        workers: the most tasks at once; by default all CPUs.

    Raises:
        TrainkitError: Ray is not installed, or the cluster cannot be reached or started.
        KeyboardInterrupt: after a Ctrl-C, whatever Ray makes of it.
    """
    with remember_interrupt() as interrupt:
        ray = _import()
        address = address or os.environ.get("RAY_ADDRESS") or None
        connected = ray.is_initialized()
        if not connected:
            _connect(ray, address, workers)
        try:
            yield partial(_run, ray, workers, interrupt)
        finally:
            if not connected:
                ray.shutdown()


def _import() -> Any:
    # read when Ray is imported: with `uv run` it would send the working directory to all hosts and install there
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise TrainkitError(
            f"Ray is not installed: {error}", where="--engine ray", hint="pip install 'trainkit[ray]'"
        ) from error
    return ray


def _connect(ray: Any, address: str | None, workers: int | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is not None:
        _knock(address)
    try:
        if address is None:
            ray.init("local", num_cpus=workers, include_dashboard=False, object_store_memory=_OBJECTS, **quiet)
        else:
            ray.init(address, **quiet)
    # Ray raises ConnectionError, RuntimeError, ValueError, and bare Exception where no host of the cluster is this one
    except Exception as error:
        tried = "cannot use the Ray cluster" if address else "cannot start a Ray cluster on this machine"
        raise TrainkitError(
            f"{tried}: {str(error).strip()}",
            where=address or "--engine ray",
            hint="this machine must be one of its hosts, with the same Python and Ray: ray start --address=HOST:PORT"
            if address
            else "its logs are in session_latest/logs of Ray's directory: /tmp/ray, unless RAY_TMPDIR says otherwise",
            exit_code=FAILED,
        ) from error


def _knock(address: str) -> None:
    """Raise TrainkitError if nothing answers at an address, or not with HTTP/2, which Ray speaks.

    Ray itself keeps trying for minutes, and may end the process when it gives up.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return  # "auto", or what Ray refuses at once
    wrong = partial(TrainkitError, where=address, exit_code=FAILED)
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER) as connection:
            connection.sendall(_PREFACE)
            # the first frame is one of settings: type 4, after three bytes of length
            if os.environ.get("RAY_USE_TLS", "0") == "0" and connection.recv(4)[3:] != b"\4":
                raise wrong(
                    "something else than a Ray cluster answers there",
                    hint="`ray start --head` prints the cluster's address; its port is 6379 where not given",
                )
    except (OSError, OverflowError) as error:
        raise wrong(
            f"cannot connect to a Ray cluster, tried for at most {_ANSWER:.0f} s: {error}",
            hint="start one there: ray start --head; or omit --address and RAY_ADDRESS to start one on this machine",
        ) from error


def _run(
    ray: Any,
    workers: int | None,
    interrupt: Interrupt,
    work: Sequence[CacheWork],
    *,
    wanted: Callable[[int], bool],
    on_result: Callable[[int, Parts | None], None],
    reporter: Reporter,
    stop: Stop,
) -> None:
    if not work:
        return
    task = ray.remote(num_cpus=1, max_retries=_RETRIES)(tokenise)
    tokenizer = ray.put(pickle.dumps(work[0].tokenizer))  # a set has one
    plugins = imported_plugins()
    size = _Size(ray, workers)
    waiting = deque(range(len(work)))
    running: dict[Any, int] = {}
    with _mark_file(work[0].cache.absolute()) as mark:
        try:
            while waiting or running:
                stop.check()
                interrupt.check()
                while waiting and len(running) < size.look():
                    index = waiting.popleft()
                    item = work[index]
                    if wanted(index):
                        unit, cache = pickle.dumps(item.unit), item.cache.absolute()
                        task_input = UnitTask(unit, plugins, item.encoding, cache, item.on_error, mark.name, version())
                        running[task.remote(tokenizer, task_input)] = index
                    else:
                        on_result(index, None)
                done = ray.wait(list(running), timeout=0.2)[0] if running else []
                for reference in done:
                    index = running.pop(reference)
                    parts = _result(ray, reference, work[index].unit)
                    if parts is None:
                        waiting.append(index)
                    else:
                        reporter.add_shards(shards.all_shards(parts))
                        reporter.add_done(shards.all_shards(parts), source=work[index].unit.size)
                        on_result(index, parts)
                reporter.tick()
        finally:
            _end(ray, list(running), mark)


class _Size:
    """How many tasks may be submitted at once; a cluster may grow and shrink."""

    def __init__(self, ray: Any, workers: int | None) -> None:
        self._ray, self._workers = ray, workers
        self._began = time.monotonic()
        self._next = self._limit = 0.0

    def look(self) -> float:
        """Return the number now. Raises TrainkitError if there was no CPU for too long."""
        now = time.monotonic()
        if now >= self._next:
            cpus = self._ray.cluster_resources().get("CPU", 0)
            if cpus >= 1:
                self._began = now
            elif now - self._began > _PATIENCE:
                raise TrainkitError(
                    f"the Ray cluster has had no CPU for {_PATIENCE:.0f} s",
                    where="--engine ray",
                    hint="ray status shows what it has; start a host with CPUs: ray start --address=HOST:PORT",
                    exit_code=FAILED,
                )
            self._next = now + _LOOK
            self._limit = self._workers or max(_FEWEST, _AHEAD * cpus)
        return self._limit


@contextlib.contextmanager
def _mark_file(cache: Path) -> Iterator[Path]:
    path = cache / "locks" / f"ray-{secrets.token_hex(8)}"
    with storage.write_file(path):
        pass
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):  # an empty file does no harm
            path.unlink(missing_ok=True)


def _result(ray: Any, reference: Any, unit: Unit) -> Parts | None:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        # what the task raised, and not Ray's wrapping of it, which is the cause
        raise error.cause from error
    except ray.exceptions.RayError as error:
        more = f" (and {len(unit.files) - 1} more)" if len(unit.files) > 1 else ""
        raise TrainkitError(
            f"the Ray cluster could not tokenise it: {type(error).__name__}: {str(error).strip()}",
            where=f"{unit.files[0].path}{more}",
            hint="what is finished is kept: run the same command again; with --workers N if memory ran out",
            exit_code=FAILED,
        ) from error


def _end(ray: Any, running: list[Any], mark: Path) -> None:
    """End tasks, which then remove their unfinished files: they end once their mark has gone.

    Ray is asked to cancel only those that do not: it ends this process if it cancels a task that is done at that moment
    (github.com/ray-project/ray/pull/54785). What continues even then is killed.
    """
    with contextlib.suppress(OSError):
        mark.unlink(missing_ok=True)
    # a cluster that has gone takes its tasks with it, and its error must not hide the reason for which they end
    with contextlib.suppress(ray.exceptions.RayError):
        running = _still_running(ray, running, _BY_THEMSELVES)
        deadline = time.monotonic() + _GRACE
        while running and time.monotonic() < deadline:
            for reference in running:  # again and again: Python drops an interrupt that comes during some imports
                ray.cancel(reference)
            running = _still_running(ray, running, _CANCEL_EVERY)
        for reference in running:  # those that ignore interrupts, as in a process that a script began with `&`
            ray.cancel(reference, force=True)


def _still_running(ray: Any, tasks: list[Any], seconds: float) -> list[Any]:
    return ray.wait(tasks, num_returns=len(tasks), timeout=seconds)[1] if tasks else []
