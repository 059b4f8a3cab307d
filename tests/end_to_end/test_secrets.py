"""A URL with a password and a token trains and resumes a run, and neither stands in anything that is printed or
written, nor does anything that a terminal obeys."""

from __future__ import annotations

import base64
import json
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from track_run import CHILD
from trainer import BARE, trainkit, workplace

from trainkit.rundir import kept_secrets
from trainkit.rundir.directory import recipe_of
from trainkit.rundir.recipes import values

PASSWORD, TOKEN, KEY = "hUnter2Secret", "t0kenSecret", "k3ySecret"
SECRETS = (PASSWORD, TOKEN, KEY)
#: What a terminal would obey: it sets its title, clears its screen, and turns the direction of writing.
ESCAPES = "\x1b]0;title\x07\x1b[2J\u009b31m\u202e"
PLUGIN = '''
from typing import Literal
from trainkit.recipe.sections.source import CustomRows

class Database(CustomRows):
    """Rows of a service."""
    type: Literal["database"]
    api_key: str
    """Its key."""

    def identity(self):
        return "1"

    def rows(self):
        if self.api_key != "k3ySecret":
            raise ValueError(f"the service refuses api_key = {self.api_key!r}")
        yield from ({"text": "the cat sat on a mat " * 20} for _ in range(20))

SOURCES = [Database]
'''


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """The address of a server that gives text to those who know the password and the token."""
    lines = "".join(json.dumps({"text": f"one dog saw {n} old cats run home " * 8}) + "\n" for n in range(40)).encode()
    expected = "Basic " + base64.b64encode(f"me:{PASSWORD}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.headers.get("Authorization") == expected
            known = known and parse_qs(urlsplit(self.path).query).get("token") == [TOKEN]
            self.send_response(200 if known else 403)
            self.send_header("Content-Length", str(len(lines) if known else 0))
            self.end_headers()
            if known and self.command == "GET":
                self.wfile.write(lines)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def leaks(text: str) -> list[str]:
    """What a text has that it must not have."""
    hostile = [c for c in text if not c.isprintable() and c not in "\n\t"]
    return [secret for secret in SECRETS if secret in text] + hostile


def test_secrets_are_used_and_stand_nowhere(tmp_path: Path, served: str) -> None:
    url = f"http://me:{PASSWORD}@{served}/text.jsonl?token={TOKEN}"
    sources = f'path = "{url}"\nname = "a{ESCAPES}"\nweight = 1.0\n[[data.train]]\ntype = "database"\n'
    sources += f'api_key = "{KEY}"\nname = "b"\nweight = 1.0'
    escaped = sources.encode("unicode_escape").decode().replace("\\n", "\n").replace("\\x", "\\u00")
    recipe = BARE.replace("steps = 24", "steps = 4").replace('path = "text/*.txt"', escaped)
    recipe = recipe.replace("aim = false", "tensorboard = true")
    (tmp_path / "plugin.py").write_text(PLUGIN)
    workplace(tmp_path / "a", recipe.replace("[run]", '[plugins]\nfiles = ["../plugin.py"]\n[run]'), documents=1)
    place = tmp_path / "a"

    def call(*arguments: str, code: int = 0) -> str:
        done = trainkit(place, *arguments)
        assert done.returncode == code, done.stdout + done.stderr
        assert not leaks(done.stdout + done.stderr), arguments
        return done.stdout + done.stderr

    call("check", "tiny.toml")
    call("explain", "tiny.toml", "data.train")
    call("check", "tiny.toml", "--set", f"data.train.0.token={TOKEN}", code=2)
    call("check", "tiny.toml", "--set", f"data.train.0.path=['{url}', 5]", code=2)
    call("run", "tiny.toml", "--json")
    call("resume", "tiny", "--set", "train.steps=6", "--set", "train.batch_size=8", "--raise-rate", "--plain")
    call("inspect", "tiny", "--step", "1")
    call("watch", "tiny", "--once", "--size", "200x60")
    call("export", "tiny", "out")
    call("verify", "tiny")
    assert "***@" in (place / "out" / "README.md").read_text(), "the card names the data"
    run = place / "runs" / "tiny"
    assert "***" in values(run)["data.train.0.path"] and values(run)["data.train.1.api_key"] == '"***"'
    assert recipe_of(run).recipe.data.train[0].path == url, "the run itself has them"
    secret = run / kept_secrets.FILE
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    for path in place.rglob("*"):
        if path.is_file() and path.name not in ("tiny.toml", "secrets.json", "secrets.before-1.json"):
            content = path.read_bytes()
            assert not [name for name in SECRETS if name.encode() in content], path
    # Aim's files are compressed
    told = subprocess.run([sys.executable, CHILD, str(place)], capture_output=True, text=True, check=True).stdout
    (tracked,) = json.loads(told)
    assert "text.jsonl" in json.dumps(tracked["parameters"]) and not leaks(told)

    # whoever has only a copy of the run is told what is missing
    secret.unlink()
    told = call("inspect", "tiny", "--set", "data.cache=other", "--step", "1", code=2)
    assert "its password or token is missing" in told
