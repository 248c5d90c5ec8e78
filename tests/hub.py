"""A stand-in for the Hugging Face Hub on loopback: models and datasets to download, and commits."""

import base64
import contextlib
import hashlib
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants as constants
import pytest

SHA = "0123456789abcdef0123456789abcdef01234567"
REVISIONS = ("main", SHA, "refs%2Fconvert%2Fparquet")
GATED = "gated"  # names of repositories that are answered with an error
TERMS = "terms"  # names of those that are listed, but whose files are answered with one


class Hub:
    """The files of each repository, and each request so far, as "GET /path".

    A model is ORG/NAME, a dataset datasets/ORG/NAME.
    """

    def __init__(self) -> None:
        self.models: dict[str, dict[str, bytes]] = {}
        self.answers: dict[str, tuple[int, object]] = {}  # in place of the usual, by "GET /path"
        self.flipped: set[str] = set()  # names of files that change on their way
        self.seen: list[str] = []
        self.tokens: set[str] = set()
        self.url = ""

    def add(self, name: str, folder: Path) -> None:
        self.models[name] = {}
        for path in folder.rglob("*"):
            if path.is_file():
                self.models[name][path.relative_to(folder).as_posix()] = path.read_bytes()

    def downloaded(self) -> set[str]:
        seen = map(urllib.parse.unquote, self.seen)
        return {line.rpartition("/")[2] for line in seen if re.match("GET .*/resolve/", line)}

    def commit(self, name: str, lines: bytes) -> None:
        for line in lines.splitlines():
            change = json.loads(line)
            value = change["value"]
            if change["key"] == "file":
                self.models[name][value["path"]] = base64.b64decode(value["content"])
            elif change["key"] == "deletedFile":
                del self.models[name][value["path"]]


@contextlib.contextmanager
def serve() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer()

        def do_HEAD(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def log_message(self, *args: object) -> None:
            pass

        def _answer(self) -> None:
            path = self.path.partition("?")[0]
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            hub.seen.append(f"{self.command} {path}")
            hub.tokens.add(self.headers.get("Authorization", ""))
            repository = r"((?:datasets/)?[\w.-]+/[\w.-]+)"
            match = re.match(rf"/(?:api/models/|api/(?=datasets/))?{repository}/?(.*)", path)
            if f"{self.command} {path}" in hub.answers:
                status, answer = hub.answers[f"{self.command} {path}"]
                self._json(answer, status)
            elif path == "/api/repos/create":
                created = json.loads(body)
                name = "/".join(filter(None, [created.get("organization"), created["name"]]))
                hub.models.setdefault(name, {})
                self._json({"url": f"{hub.url}/{name}", "name": name})
            elif path.startswith("/api/whoami"):
                self._json({"name": "me", "type": "user", "auth": {}})
            elif path == "/api/validate-yaml":
                self._json({"errors": [], "warnings": []})
            elif match is None:
                self._json({}, 404)
            elif match[1].endswith(GATED):
                self._json({}, 403, {"X-Error-Code": "GatedRepo"})
            elif match[1] not in hub.models:
                self._json({}, 404, {"X-Error-Code": "RepoNotFound"})
            else:
                self._of_model(match[1], match[2], body)

        def _of_model(self, name: str, rest: str, body: bytes) -> None:
            files = hub.models[name]
            if rest.startswith("preupload/"):
                asked = json.loads(body)["files"]
                mode = {"uploadMode": "regular", "shouldIgnore": False}
                modes = [{"path": file["path"], **mode} for file in asked]
                self._json({"files": modes})
            elif rest.startswith("commit/"):
                hub.commit(name, body)
                self._json({"commitUrl": f"{hub.url}/{name}/commit/{SHA}", "commitOid": SHA})
            elif rest.startswith("tree/"):
                self._json([_entry(path, content) for path, content in files.items()])
            elif rest.startswith("resolve/"):
                _, _, path = rest.removeprefix("resolve/").partition("/")
                path = urllib.parse.unquote(path)
                if name.endswith(TERMS):
                    self._json({}, 403, {"X-Error-Code": "GatedRepo"})
                    return
                if path not in files:
                    self._json({}, 404, {"X-Error-Code": "EntryNotFound"})
                    return
                content = files[path]
                if path in hub.flipped:
                    content = content[:-1] + bytes([content[-1] ^ 1])
                self._send(content, "application/octet-stream", 200, _etag(files[path]))
            elif rest.startswith("revision/") and rest.split("/")[1] not in REVISIONS:
                self._json({}, 404, {"X-Error-Code": "RevisionNotFound"})
            else:
                siblings = [{"rfilename": path} for path in files]
                self._json({"id": name, "modelId": name, "sha": SHA, "siblings": siblings})

        def _json(self, value: object, status: int = 200, headers: dict | None = None) -> None:
            self._send(json.dumps(value).encode(), "application/json", status, headers or {})

        def _send(self, content: bytes, kind: str, status: int, headers: dict) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def use_stand_in(hub: Hub, patch: pytest.MonkeyPatch, cache: Path) -> None:
    """Points huggingface_hub to a stand-in and a cache; it reads its variables when imported."""
    patch.setattr(constants, "ENDPOINT", hub.url)
    template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    patch.setattr(constants, "HF_HUB_CACHE", str(cache))
    patch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    patch.setenv("HF_TOKEN", "hf_secret")


def _etag(content: bytes) -> dict[str, str]:
    return {"ETag": f'"{_oid(content)}"', "X-Repo-Commit": SHA}


def _entry(path: str, content: bytes) -> dict:
    return {"type": "file", "path": path, "size": len(content), "oid": _oid(content)}


def _oid(content: bytes) -> str:
    """Returns the name of a file's content in git."""
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
