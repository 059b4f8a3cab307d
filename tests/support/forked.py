"""Commands of trainkit in processes that are forked from one which has imported all that a trainer needs.

Importing jax and what stands on it takes as long as all the rest of a short run, and the suite has hundreds of them.
The process that is forked from has opened no device and has started nothing: a command begins as it would otherwise.
`python tests/support/forked.py SOCKET` is that process; it ends when its standard input does.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

from held import hold
from places import LIMIT, ROOT

#: What begins so is read when a module is imported: processes that differ in it are forked from different ones.
READ_AT_IMPORT = ("JAX_", "XLA_", "PYTHON")
_PID, _STATUS = struct.Struct("q"), struct.Struct("i")


class Forked:
    """`python -m trainkit ARGUMENTS`, with what `subprocess.Popen` has of attributes and methods.

    Attributes:
        pid: of the command.
        returncode: None as long as it runs; negative where a signal ended it.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdin: IO[bytes] | None = None,
        stdout: IO[bytes] | IO[str],
        stderr: IO[bytes] | IO[str],
    ) -> None:
        self.returncode: int | None = None
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(_server(tuple(sorted(_read_at_import(env).items()))))
        message = json.dumps([os.fspath(cwd), list(arguments), dict(env)]).encode()
        with open(os.devnull, "rb") as nothing:
            files = [(stdin or nothing).fileno(), stdout.fileno(), stderr.fileno()]
            socket.send_fds(self._connection, [struct.pack("q", len(message))], files)
            self._connection.sendall(message)
            (self.pid,) = _PID.unpack(_receive(self._connection, _PID.size))

    def poll(self) -> int | None:
        return self._status(0)

    def wait(self, timeout: float | None = None) -> int:
        if (status := self._status(timeout)) is None:
            raise subprocess.TimeoutExpired("trainkit", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _status(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], timeout)[0]:
            (status,) = _STATUS.unpack(_receive(self._connection, _STATUS.size))
            self.returncode = os.waitstatus_to_exitcode(status)
            self._connection.close()
        return self.returncode


def run(
    arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], text: str = "", timeout: float = LIMIT
) -> subprocess.CompletedProcess[str]:
    """Return how the command ended and what it printed, with `text` on its standard input."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(text.encode())
        stdin.seek(0)
        command = Forked(arguments, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr)
        try:
            code = command.wait(timeout)
        finally:
            command.kill()
        for file in (stdout, stderr):
            file.seek(0)
        return subprocess.CompletedProcess(arguments, code, stdout.read().decode(), stderr.read().decode())


def _read_at_import(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(READ_AT_IMPORT)}


@cache
def _server(environment: tuple[tuple[str, str], ...]) -> str:
    """Return the address of the process that commands with this environment are forked from, which is started."""
    directory = tempfile.mkdtemp(prefix="trainkit-forked-")
    address = os.path.join(directory, "socket")
    others = {name: value for name, value in os.environ.items() if not name.startswith(READ_AT_IMPORT)}
    process = subprocess.Popen(
        [sys.executable, __file__, address], stdin=subprocess.PIPE, cwd=ROOT, env=others | dict(environment)
    )
    atexit.register(process.communicate)  # closes its standard input, upon which it ends
    deadline = time.monotonic() + LIMIT
    while not os.path.exists(address):
        assert process.poll() is None and time.monotonic() < deadline, "the process to fork from does not start"
        time.sleep(0.01)
    return address


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        assert more, "the process that was forked from has ended"
        data += more
    return data


# in the process that is forked from


def serve(address: str) -> None:
    """Fork a command for each connection; return, in the command's process, where it is to begin."""
    import trainkit.cli.run
    import trainkit.run.setup  # noqa: F401
    from trainkit.cli import doctor
    from trainkit.export import background
    from trainkit.run import health, job

    # a run that ends waits for its trackers and exports, and `doctor` for a process that imports jax: on a slow machine
    # they take longer than a user would wait
    health.TRACKER_SECONDS = job.TRACKER_SECONDS = job.AIM_HASH_SECONDS = doctor.PATIENCE = LIMIT
    # an export at the lowest priority gets nothing of processors that the other tests fill, and a test waits for it
    background.NICENESS = 0
    assert "huggingface_hub" not in sys.modules, "it reads HF_HUB_OFFLINE and others when it is imported"
    gc.collect()
    gc.freeze()
    watched = os.dup(0)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{address}.new")
    listener.listen()
    os.rename(f"{address}.new", address)
    while watched not in (ready := select.select([watched, listener], [], [])[0]):
        assert listener in ready
        connection = listener.accept()[0]
        if _fork() == 0:
            listener.close()
            os.close(watched)
            return _keep(connection)
        connection.close()
        with contextlib.suppress(ChildProcessError):  # those that have ended
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    os._exit(0)


def _keep(connection: socket.socket) -> None:
    """Start the command and wait for its end, which only its parent hears of; return in the command's process."""
    data, files, *_ = socket.recv_fds(connection, 8, 3)
    (size,) = struct.unpack("q", data)
    message = _receive(connection, size)
    if (pid := _fork()) == 0:
        connection.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        return _become(message)
    with contextlib.suppress(OSError):  # nobody waits for it any more
        connection.sendall(_PID.pack(pid))
        connection.sendall(_STATUS.pack(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _become(message: bytes) -> None:
    directory, arguments, environment = json.loads(message)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [str(ROOT / "trainkit" / "__main__.py"), *arguments]
    sys.path[0] = directory
    sys.stdin = open(0)  # noqa: SIM115
    hold()


def _fork() -> int:
    with warnings.catch_warnings():  # the threads of numpy's BLAS, which knows what to do when it is forked
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


if __name__ == "__main__":
    serve(sys.argv[1])
    from trainkit.cli import program

    program()
