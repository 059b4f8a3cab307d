"""As much of the Hugging Face hub as its client needs to fetch a model and to upload one. Files live in memory."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Repositories: of each its files by path."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.files: dict[str, dict[str, bytes]] = {}
        self.asked: list[str] = []

    def add(self, name: str, directory: Path) -> None:
        self.files[name] = {file.name: file.read_bytes() for file in directory.iterdir() if file.is_file()}

    def get(self, path: str) -> tuple[int, dict[str, str], bytes]:
        if found := re.fullmatch(r"/api/models/([\w/.-]+?)/(?:revision|tree)/([\w.-]+)", path):
            if found[1] not in self.files:
                return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
            files = self.files[found[1]]
            if "/tree/" in path:
                tree = [{"type": "file", "path": n, "size": len(c), "oid": _digest(c)} for n, c in files.items()]
                return 200, {}, json.dumps(tree).encode()
            about = {"id": found[1], "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
            return 200, {}, json.dumps(about).encode()
        found = re.fullmatch(r"/([\w/.-]+?)/resolve/[\w.-]+/([\w./-]+)", path)
        if not found or found[1] not in self.files:
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
        if found[2] not in self.files[found[1]]:
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, b"{}"
        content = self.files[found[1]][found[2]]
        return 200, {"X-Repo-Commit": COMMIT, "ETag": f'"{_digest(content)}"'}, content

    def post(self, path: str, body: bytes) -> dict[str, Any]:
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            self.files.setdefault(name, {})
            return {"url": f"{self.url}/{name}"}
        if path.startswith("/api/models/") and "/preupload/" in path:
            asked = json.loads(body)["files"]
            return {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked]}
        if found := re.match(r"/api/models/([\w/.-]+?)/commit/", path):
            for line in filter(None, body.splitlines()):
                entry = json.loads(line)
                if entry["key"] == "file":
                    value = entry["value"]
                    self.files[found[1]][value["path"]] = base64.b64decode(value["content"])
            return {"commitUrl": f"{self.url}/{found[1]}/commit/{COMMIT}", "commitOid": COMMIT}
        return {}


def _digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(*hub.get(self.path.partition("?")[0]))

        do_HEAD = do_GET

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._answer(200, {"Content-Type": "application/json"}, json.dumps(hub.post(self.path, body)).encode())

        def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
            hub.asked.append(f"{self.command} {self.path}")
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub = Hub(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
