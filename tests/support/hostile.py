"""Files that trainkit reads and others may have written: for each a valid one, and a reader of any bytes in its place.

A reader may refuse what it reads with a TrainkitError, or ignore it. It must not raise anything else, nor touch a file
outside of its directory. `tests/test_hostile_files.py` tries changed files, and `scripts/fuzz_readers.py` many more.
"""

from __future__ import annotations

import contextlib
import json
import random
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import fake_run

from trainkit import files
from trainkit.checkpoint import manifest as manifests
from trainkit.checkpoint import store
from trainkit.data import recorded
from trainkit.data.cache import arrays, ledger, shards
from trainkit.data.documents.chat_template import EXAMPLE, ChatTemplate, render
from trainkit.data.tokenizer import vocabulary
from trainkit.errors import TrainkitError
from trainkit.events import index
from trainkit.events.commands import issued_commands
from trainkit.events.damage import COMPACTED, damage
from trainkit.events.log import EventLog
from trainkit.events.mark import MARK, newest_mark
from trainkit.events.tail import NAME as LOG
from trainkit.events.tail import last_attempt, last_end, last_step, read
from trainkit.hub import safetensors
from trainkit.rundir import checkpoint_files
from trainkit.rundir.directory import read_sweep
from trainkit.rundir.follow import LogFollower
from trainkit.rundir.summary import SummaryReader
from trainkit.track.projections import read_progress

HASH = "0123456789abcdef"
SHARD = {
    "key": HASH, "dtype": "uint16", "tokens": 4, "documents": 1, "entries": 1, "bytes": 9, "crc32": 5, "marked": False,
    "learned": 4, "unknown": 0, "highest": 3, "empty": 0, "refused": 0, "filtered": 0, "examples": [["a", "b"]],
    "reasons": [["why", 1, 2, "where"]], "pieces": 1, "last": True,
}  # fmt: skip
LEDGER = {"split": "all", "tokenizer": "t", "dtype": "uint16", "shards": [SHARD], "units": [0],
          "files": [{"name": "a", "path": "a", "kind": "text", "unit": 0, "units": 1, "digest": "d"}]}  # fmt: skip
TOKENIZER = {
    "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None, "decoder": None,
    "added_tokens": [{"id": 0, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False,
                      "normalized": False, "special": True}],
    "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
              "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
              "vocab": {"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3}, "merges": [["a", "b"]]},
}  # fmt: skip


class Reader(NamedTuple):
    """A kind of file: its name, a valid content, and what reads it from a directory."""

    name: str
    valid: bytes
    read: Callable[[Path], object]


def _events() -> bytes:
    lines = [{"type": "run_started", "t": 1.0, "step": 0, "attempt": 1, **fake_run.started()}]
    lines += [{"type": "planned", "t": 1.0, "step": 0, "attempt": 1, **fake_run.PLAN}]
    lines += [{"type": kind, "t": 2.0, "step": n, "attempt": 1, **rest} for kind, n, rest in fake_run.training(4)]
    lines += [{"type": "control", "t": 3.0, "step": 4, "attempt": 1, "command": "rate", "argument": 0.5, "detail": "",
               "total_steps": None}]  # fmt: skip
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def _log_with_index() -> tuple[bytes, bytes]:
    """Return a log whose steps are past those that are always read as lines, and its index."""
    with tempfile.TemporaryDirectory() as place:
        log = EventLog(Path(place), attempt=1)
        for step in range(index.FINE, index.FINE + 40):
            log.write("step", step=step, metrics={"train/loss": 1 / step})
        log.close()
        return (Path(place) / LOG).read_bytes(), (Path(place) / index.NAME).read_bytes()


INDEXED_LOG, INDEX = _log_with_index()


def _read_log(run: Path) -> None:
    issued_commands(run), last_attempt(run), last_end(run), last_step(run), read(run)
    damage(run, (9, "00000000"), step=5, attempt=1)
    SummaryReader(run).read()
    follower = LogFollower(run)
    while follower.advance(seconds=1):
        pass


def _manifest() -> bytes:
    leaf = {"shape": [2, 3], "dtype": "float32"}
    fields = {
        "format": manifests.FORMAT, "step": 5, "kind": "rolling", "created": 1.0, "attempt": 1, "recipe": "r",
        "data": "d", "aim_run": None, "metrics": {"train/loss": 1.0}, "versions": {"jax": "1"}, "devices": ["cpu"],
        "mesh": {}, "bytes": 24, "leaves": {"params.weight": leaf}, "log": [9, "00000000"], "checksums": {},
    }  # fmt: skip
    return json.dumps(fields).encode()


def _read_manifest(directory: Path) -> None:
    manifest = manifests.read(directory)
    for name in manifest.leaves:
        assert (directory / "arrays" / name).resolve().parent == (directory / "arrays").resolve(), name


def _read_shard(cache: Path) -> None:
    if (shard := shards.find(cache, HASH)) is not None:
        with contextlib.suppress(OSError, ValueError):
            arrays.open_arrays(cache, shard)


def _read_ledger(cache: Path) -> None:
    found = ledger.find(cache, HASH)
    for shard in found.shards if found else ():
        path = shards.path_of(cache, shard.key)
        assert path.resolve().parent == (cache / "shards").resolve(), shard.key
    ledger.files_of(cache, HASH)


def _read_recorded(run: Path) -> None:
    for name in record.ledgers if (record := recorded.read(run)) else ():
        assert ledger.find(run, name) is None or "/" not in name, name


def _safetensors() -> bytes:
    header = {"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(8)


def _read_tensors(directory: Path) -> None:
    tensors = safetensors.open_directory(directory)
    for name in tensors:
        tensors.view(name)


def _read_tokenizer(directory: Path) -> None:
    vocabulary.load(directory / "tokenizer.json")


def _read_template(directory: Path) -> None:
    text = (directory / "chat_template.jinja").read_text(errors="replace")
    from jinja2 import TemplateSyntaxError

    with contextlib.suppress(TemplateSyntaxError, RecursionError):
        render(
            ChatTemplate(text, "test"), [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "x"}]
        )


READERS: Mapping[str, Reader] = {
    "events": Reader("events.jsonl", _events(), _read_log),
    "manifest": Reader(manifests.NAME, _manifest(), _read_manifest),
    "checkpoints": Reader("checkpoints/5/manifest.json", _manifest(), lambda run: store.newest(run)),
    "shard": Reader(f"shards/{HASH}.json", json.dumps(SHARD).encode(), _read_shard),
    "ledger": Reader(f"ledgers/{HASH}.json", json.dumps(LEDGER).encode(), _read_ledger),
    "data": Reader(recorded.NAME, json.dumps({"fingerprint": "f", "ledgers": [HASH]}).encode(), _read_recorded),
    "log index": Reader(index.NAME, INDEX, _read_log),
    "log mark": Reader(MARK, b'{"bytes": 9, "crc32": "00000000", "step": 1, "attempt": 1}', newest_mark),
    "small log": Reader(COMPACTED, b'{"bytes": 9, "crc32": "00000000", "attempt": 1}', _read_log),
    "best": Reader("checkpoints/best.json", b'{"step": 5, "metric": "m", "value": 1.5}', checkpoint_files.best),
    "tracker": Reader(
        "aim.json", b'{"run": "r", "repository": ".", "offset": 5}', lambda run: read_progress(run, "aim")
    ),
    "sweep": Reader("sweep.json", b'{"name": "s", "trial": 1, "parameters": {"a": {"b": 1}}}', read_sweep),
    "safetensors": Reader(safetensors.FILE, _safetensors(), _read_tensors),
    "index": Reader(safetensors.INDEX, b'{"weight_map": {"w": "model.safetensors"}}', _read_tensors),
    "tokenizer": Reader("tokenizer.json", json.dumps(TOKENIZER).encode(), _read_tokenizer),
    "tokenizer config": Reader(
        "tokenizer_config.json", b'{"eos_token": {"content": "<|endoftext|>"}, "added_tokens_decoder": {}}',
        _read_tokenizer,
    ),
    "template": Reader("chat_template.jinja", EXAMPLE.encode(), _read_template),
}  # fmt: skip


def prepare(directory: Path) -> None:
    """Write the files beside which a hostile one is read."""
    for reader in READERS.values():
        (directory / reader.name).parent.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_bytes(READERS["tokenizer"].valid)
    (directory / safetensors.FILE).write_bytes(_safetensors())
    (directory / LOG).write_bytes(INDEXED_LOG)
    for name in ("shards", "arrays"):
        (directory / name).mkdir(exist_ok=True)
    (directory / "shards" / f"{HASH}.shard").write_bytes(bytes(28))


def try_reader(directory: Path, reader: Reader, content: bytes) -> None:
    """Let a reader read this content. Raises what it raises, unless it is a refusal in words."""
    path = directory / reader.name
    before = path.read_bytes() if path.exists() else None
    path.write_bytes(content)
    try:
        with contextlib.suppress(TrainkitError):
            reader.read(directory)
    finally:
        path.unlink() if before is None else path.write_bytes(before)


#: Values that people and programs do not expect.
STRANGE: tuple[object, ...] = (
    None, True, -1, 0, 2**31, 2**63, 10**30, 1e308, -0.5, float("nan"), "", "../../x", "/etc/passwd", "..", "a\x00b",
    "\ud800", "x" * 300, [], {}, [[]], {"": None}, [None], "object", "O", "float32", "9" * 4400,
)  # fmt: skip


def change(value: object, chance: random.Random) -> object:
    """Return a JSON value with one or a few parts replaced, removed, repeated or renamed."""
    if chance.random() < 0.15 or not isinstance(value, dict | list) or not value:
        return chance.choice(STRANGE)
    if isinstance(value, list):
        place = chance.randrange(len(value))
        part = [*value[:place], change(value[place], chance), *value[place + 1 :]]
        return chance.choice([part, part, value[:place] + value[place + 1 :], [*value, *value]])
    key, changed = chance.choice(sorted(value)), dict(value)
    match chance.randrange(4):
        case 0:
            del changed[key]
        case 1:
            changed[str(chance.choice(STRANGE))] = changed.pop(key)
        case _:
            changed[key] = change(value[key], chance)
    return changed


def changed_content(reader: Reader, chance: random.Random) -> bytes:
    """Return a valid content with changed bytes or, where it is JSON, with changed values."""
    content = bytearray(reader.valid)
    if chance.random() < 0.7 and reader.name.endswith((".json", ".jsonl", ".safetensors")):
        begin = 8 if reader.name.endswith(".safetensors") else 0
        lines = bytes(content[begin:]).rstrip(b"\0").splitlines() or [b""]
        number = chance.randrange(len(lines))
        value = change(json.loads(lines[number]), chance)
        with contextlib.suppress(ValueError):
            lines[number] = json.dumps(value).encode(errors="replace")
        text = b"\n".join(lines) + b"\n" * (len(lines) > 1)
        if chance.random() < 0.3 and reader.name.endswith(".json") and text.startswith(b"{") and text.rstrip() != b"{}":
            text = files.seal(text.decode()).encode()
        return (len(text).to_bytes(8, "little") + text + bytes(8)) if begin else text
    for _ in range(chance.randint(1, 4)):
        place, end = sorted((chance.randrange(len(content) + 1), chance.randrange(len(content) + 1)))
        match chance.randrange(4):
            case 0:
                del content[place : min(end, place + 8)]
            case 1:
                content[place:place] = content[place : min(end, place + 40)]
            case 2:
                content[place:place] = chance.choice([b"\0" * 9, b"\xff", b"{", b"[" * 2000, b'"', b"\n", b"\x1b[2J"])
            case _ if place < len(content):
                content[place] ^= 1 << chance.randrange(8)
            case _:
                content.clear()
    return bytes(content)
