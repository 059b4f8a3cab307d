"""A Ray cluster makes the same bytes as the threads of one process, whatever happens to its workers."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import data_room as room
import psutil
import pytest
from places import LIMIT, SUPPORT
from test_plugin_sources import opened

from trainkit.data import storage
from trainkit.data.cache import build as caches
from trainkit.data.cache import ray_engine, shards
from trainkit.data.cache.encode import CacheWork, Engine
from trainkit.data.jobs import CachingProgress, Reporter, Stop, Stopped
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.errors import FAILED, INTERRUPTED, TrainkitError


@pytest.fixture(scope="module")
def address():
    """Of a cluster of two CPUs, whose workers find the tokenizers of this file."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (SUPPORT, Path(__file__).parent)))
    ray_engine._import()
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 128 << 20}
    started = Cluster(initialize_head=True, head_node_args=head)
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before
    yield started.address
    started.shutdown()


@pytest.fixture(scope="module")
def engine(address):
    with ray_engine.cluster(address) as engine:
        yield engine


always_small_units = room.always_small_units


class _Unlucky(LoadedTokenizer):
    """Kills the process it is in at the third batch of all, and leaves a half-written shard behind."""

    def encode_batch(self, texts, *, special_tokens=False):
        left = self.path.with_name("left")
        with left.open("ab") as file:
            file.write(b".")
        if left.stat().st_size == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode_batch(texts, special_tokens=special_tokens)

    def __reduce__(self):
        return _Unlucky, (self.path, self.content)


class _Doomed(LoadedTokenizer):
    def encode_batch(self, texts, *, special_tokens=False):
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    def __reduce__(self):
        return _Doomed, (self.path, self.content)


class _Slow(LoadedTokenizer):
    def encode_batch(self, texts, *, special_tokens=False):
        self.path.with_name("begun").touch()
        while True:
            time.sleep(0.01)

    def __reduce__(self):
        return _Slow, (self.path, self.content)


def _with(tokenizer: type[LoadedTokenizer], engine: Engine) -> Engine:
    """The same engine, in whose workers the tokenizer is another."""

    def run(work, **options):
        engine([dataclasses.replace(w, tokenizer=_turned(tokenizer, w.tokenizer)) for w in work], **options)

    return run


def _turned(into: type[LoadedTokenizer], tokenizer: LoadedTokenizer) -> LoadedTokenizer:
    return into(tokenizer.path, tokenizer.path.read_bytes())


def _work(directory: Path, *texts: Path) -> list[CacheWork]:
    """The work of a recipe that is not done yet."""
    there: list[CacheWork] = []

    def take(work, **options):
        there.extend(work)
        raise Stopped

    with pytest.raises(Stopped):
        caches.build(room.recipe(directory, *texts), engine=take)
    return there


@pytest.mark.parametrize("kind", ["text", "jsonl"])
@pytest.mark.parametrize("held_out", [0.0, 0.2])
def test_a_cluster_makes_the_same_bytes_as_one_process(tmp_path, engine, kind, held_out):
    if kind == "text":
        pattern = room.write_texts(tmp_path / "text", 60) / "**/*.txt"
    else:
        pattern = room.write_jsonl(tmp_path / "a.jsonl", [room.text(i) for i in range(300)])
    made = {}
    for name, who in (("local", None), ("ray", engine)):
        told: list[CachingProgress] = []
        recipe = room.recipe(tmp_path / name, pattern, held_out=held_out)
        cache = caches.build(recipe, engine=who, progress=told.append)
        counted = (told[-1].documents, told[-1].bytes, told[-1].tokens, told[-1].done)
        made[name] = (cache.fingerprint, room.stored(tmp_path / name), counted, cache.train.tokens)
    assert made["local"] == made["ray"]
    assert sum(map(len, made["ray"][1].values())) > 5000
    assert not list((tmp_path / "ray/cache/locks").iterdir())


def test_a_cluster_imports_the_plugin_of_a_source(tmp_path, engine):
    made = []
    for name, who in (("local", None), ("ray", engine)):
        recipe = opened(tmp_path, cache=tmp_path / name / "cache")
        made.append((caches.build(recipe, engine=who).fingerprint, room.stored(tmp_path / name)))
    assert made[0] == made[1] and made[1][1]


def test_a_document_that_cannot_be_used_is_named_as_by_one_process(tmp_path, engine):
    path = room.write_jsonl(tmp_path / "a.jsonl", [room.text(i) for i in range(20)])
    path.write_text(path.read_text() + '{"txet": "b"}\n')
    told = []
    for name, who in (("local", None), ("ray", engine)):
        with pytest.raises(TrainkitError) as error:
            caches.build(room.recipe(tmp_path / name, path), engine=who)
        told.append((type(error.value), str(error.value), error.value.exit_code))
    assert told[0] == told[1]
    assert told[1][0] is TrainkitError
    assert f"{path}:21" in told[1][1]


def test_an_error_for_people_survives_pickling():
    error = pickle.loads(pickle.dumps(TrainkitError("a", where="b:1", hint="c", exit_code=FAILED)))
    assert (str(error), error.exit_code) == ("b:1: a\nhint: c", FAILED)


def test_a_worker_that_is_killed_in_the_middle_changes_no_byte(tmp_path, engine):
    pattern = room.write_texts(tmp_path / "text", 60) / "**/*.txt"
    caches.build(room.recipe(tmp_path / "local", pattern))
    caches.build(room.recipe(tmp_path / "ray", pattern), engine=_with(_Unlucky, engine))
    assert (tmp_path / "ray/left").stat().st_size > 3, "one was killed, and others went on"
    assert room.stored(tmp_path / "local") == room.stored(tmp_path / "ray")


def test_a_unit_that_kills_every_worker_is_named(tmp_path, engine, monkeypatch):
    monkeypatch.setattr(ray_engine, "_RETRIES", 1)
    room.write_texts(tmp_path / "text", 1)
    with pytest.raises(TrainkitError, match="could not tokenise") as error:
        caches.build(room.recipe(tmp_path, tmp_path / "text/**/*.txt"), engine=_with(_Doomed, engine))
    assert error.value.where == str(tmp_path / "text/part0/0000.txt")
    assert error.value.exit_code == FAILED


def test_stop_interrupts_what_runs_and_leaves_nothing_half_written(tmp_path, engine, monkeypatch):
    monkeypatch.setattr(ray_engine, "_BY_THEMSELVES", 0.5)  # this tokenizer never asks
    work = _work(tmp_path, room.write_texts(tmp_path / "text", 30) / "**/*.txt")
    slow = _turned(_Slow, work[0].tokenizer)
    stop = Stop()

    def end() -> None:
        while not (tmp_path / "begun").exists():
            time.sleep(0.05)
        stop.set()

    threading.Thread(target=end, daemon=True).start()
    with pytest.raises(Stopped):
        engine(
            [dataclasses.replace(w, tokenizer=slow) for w in work],
            wanted=lambda index: True,
            on_result=lambda index, parts: None,
            reporter=Reporter("train", 1, None),
            stop=stop,
        )
    assert not list((tmp_path / "cache/shards").iterdir())


def test_what_is_not_wanted_any_more_is_not_done_and_work_begins_in_its_order(tmp_path, engine):
    work = _work(tmp_path, room.write_texts(tmp_path / "text", 200) / "**/*.txt")
    assert len(work) > 12
    came: dict[int, bool] = {}
    engine(
        work,
        wanted=lambda index: not any(came.values()),
        on_result=lambda index, parts: came.update({index: parts is not None}),
        reporter=Reporter("train", 1, None),
        stop=Stop(),
    )
    assert sorted(came) == list(range(len(work)))
    done = [index for index, there in came.items() if there]
    assert 0 in done
    assert max(done) < 5, "only a few tasks are handed in ahead"


def test_a_unit_that_another_process_makes_is_waited_for_while_the_others_are_done(tmp_path, engine):
    work = _work(tmp_path, room.write_texts(tmp_path / "text", 40) / "**/*.txt")
    lock = tmp_path / "cache/locks" / shards.key_of(work[0].unit, "all", work[0].encoding)
    came: list[int] = []
    with contextlib.ExitStack() as held:
        assert held.enter_context(storage.claim(lock))

        def on_result(index: int, parts: object) -> None:
            came.append(index)
            if len(came) == len(work) - 1:
                held.close()

        engine(work, wanted=lambda index: True, on_result=on_result, reporter=Reporter("train", 1, None), stop=Stop())
    assert sorted(came) == list(range(len(work)))
    assert came[-1] == 0


def test_a_host_that_sees_another_directory_is_distinguished_from_one_that_is_right(tmp_path, engine, monkeypatch):
    room.write_texts(tmp_path / "text", 3)
    with pytest.raises(TrainkitError, match="does not see the token cache") as error:
        # a directory that is not there for the worker is one whose mark is gone
        monkeypatch.setattr(ray_engine, "_mark_file", lambda cache: contextlib.nullcontext(cache / "locks/not-there"))
        caches.build(room.recipe(tmp_path, tmp_path / "text/**/*.txt"), engine=engine)
    assert error.value.where == str(tmp_path / "cache")


def test_an_address_without_a_cluster_is_reported_in_seconds():
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else can begin to
        nobody, other = (f"127.0.0.1:{one.getsockname()[1]}" for one in (bound, listening))
        threading.Thread(
            target=lambda: listening.accept()[0].sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n"), daemon=True
        ).start()
        # in a process of its own: this one is connected
        program = (
            "import sys\nfrom trainkit.data.cache.ray_engine import cluster\n"
            "from trainkit.errors import TrainkitError\n"
            "for address in sys.argv[1:]:\n    try:\n        with cluster(address):\n            pass\n"
            "    except TrainkitError as error:\n        print(error)\n"
        )
        call = [sys.executable, "-c", program, nobody, other, "nonsense"]
        told = subprocess.run(call, capture_output=True, text=True, timeout=LIMIT, check=True).stdout.splitlines()
    assert told[0].startswith(f"{nobody}: cannot connect to a Ray cluster")
    assert told[2].startswith(f"{other}: something else than a Ray cluster answers there")
    assert told[4].startswith("nonsense: cannot use the Ray cluster")
    assert all(line.startswith("hint: ") for line in told[1::2])


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(TrainkitError, match=r"trainkit\[ray\]"), ray_engine.cluster():
        pass


def _command(directory: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """`cache-data` of two sources with a unit each."""
    room.tokenizer_file(directory)
    (directory / "recipe.toml").write_text(
        'schema = 1\n[model]\ntype = "gpt2"\nlayers = 1\nhidden = 16\nheads = 2\n'
        '[tokenizer]\npath = "tokenizer-300.json"\n'
        '[data]\nsequence_length = 16\n[[data.train]]\npath = "text/part0/*"\n[[data.train]]\npath = "text/part1/*"\n'
        '[train]\nsteps = 1\nbatch_size = 1\n[optimizer]\ntype = "adamw"\nlearning_rate = 1e-3\n'
    )
    return subprocess.Popen(
        [sys.executable, "-m", "trainkit", "cache-data", "recipe.toml", "--engine", "ray", *arguments],
        cwd=directory,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_the_command_prints_only_results_and_finds_the_cluster_in_the_environment(tmp_path, address, monkeypatch):
    monkeypatch.undo()
    text = room.write_texts(tmp_path / "text", 20)
    process = _command(tmp_path, RAY_ADDRESS=address)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    assert out.splitlines()[0].split() == ["SET", "DOCUMENTS", "BYTES", "TOKENS"]
    assert {line.split(":")[0] for line in err.splitlines()} == {"files", "train"}, "and nothing of Ray's"
    caches.build(room.recipe(tmp_path / "local", text / "part0/*", text / "part1/*"))
    assert room.stored(tmp_path) == room.stored(tmp_path / "local")


def test_ctrl_c_ends_the_command_with_the_cluster_that_it_started_and_what_was_finished_is_kept(tmp_path, monkeypatch):
    monkeypatch.undo()
    text = room.write_texts(tmp_path / "text", 20)
    work = _work(tmp_path, text / "part0/*", text / "part1/*")
    started: dict[psutil.Process, str] = {}
    # the second unit is never done: this process makes it
    with storage.claim(tmp_path / "cache/locks" / shards.key_of(work[1].unit, "all", work[1].encoding)) as mine:
        assert mine
        process = _command(tmp_path, "--workers", "2")
        while not room.stored(tmp_path):
            assert process.poll() is None, process.communicate()[1]
            for child in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    started[child] = child.name()
            time.sleep(0.1)
        # as a terminal does: to all processes of the command
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, out) == (INTERRUPTED, ""), err
    assert {"raylet", "gcs_server"} <= set(started.values())
    assert not psutil.wait_procs(started, timeout=LIMIT)[1]
    assert len(room.stored(tmp_path)) == 1
    assert not list((tmp_path / "cache/shards").glob(".tmp-*"))


@pytest.mark.parametrize("during", ["init", "work", "shutdown"])
def test_ctrl_c_stays_an_interrupt_where_ray_drops_it_or_fails_because_of_it(during, monkeypatch):
    def interrupted(now: str) -> None:
        if now == during:
            with contextlib.suppress(KeyboardInterrupt):  # as Python does in a destructor
                signal.raise_signal(signal.SIGINT)
            raise ValueError("a worker ended")

    steps = {"init": lambda *_, **__: interrupted("init"), "shutdown": lambda: interrupted("shutdown")}
    fake = SimpleNamespace(is_initialized=lambda: False, **steps)
    monkeypatch.setattr(ray_engine, "_import", lambda: fake)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), ray_engine.cluster():
        interrupted("work")
    assert signal.getsignal(signal.SIGINT) is before
