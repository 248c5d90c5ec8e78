"""Stand-ins for Google's and Amazon's object stores on this machine, which can be told to fail;
with fixtures for tests.

    # serves both until ctrl-C, and prints the environment variables that point clients to them
    python -m tests.object_stores
"""

import base64
import contextlib
import dataclasses
import functools
import hashlib
import html
import logging
import os
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from typing import Any

import pytest

from flaxformer_lite.storage import stores
from flaxformer_lite.storage.objects import Objects

BUCKET = "bucket"
PAGE = 50  # names that a list of Google's has at most


@dataclasses.dataclass
class Store:
    """A store that answers on loopback.

    Attributes:
      url: its bucket.
      environment: variables that lead the clients to it.
      objects: returns the content of each object by its name.
      seen: "PUT /path?query" of each request so far.
    """

    url: str
    environment: dict[str, str]
    objects: Callable[[], dict[str, bytes]]
    seen: list[str] = dataclasses.field(default_factory=list)
    # (pattern of requests, status)
    faults: list[tuple[str, int]] = dataclasses.field(default_factory=list)

    def fail(self, status: int, times: int = 1, on: str = "") -> None:
        """Answers the next `times` requests that match the pattern `on` with an error."""
        self.faults += [(on, status)] * times

    def status_of(self, request: str) -> int | None:
        """Records a request; returns the error that it gets."""
        self.seen.append(request)
        for fault in self.faults:
            if re.search(fault[0], request):
                self.faults.remove(fault)
                return fault[1]
        return None


@contextlib.contextmanager
def google() -> Iterator[Store]:
    """Serves gs://bucket by gcp-storage-emulator, with what it lacks: preconditions, ranges of
    names, and most of the XML interface, which obstore speaks where tensorstore speaks the JSON
    one."""
    from gcp_storage_emulator.exceptions import NotFound
    from gcp_storage_emulator.handlers import buckets
    from gcp_storage_emulator.server import Request, RequestHandler
    from gcp_storage_emulator.storage import Storage

    logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)
    one_by_one = threading.Lock()
    asked: dict[str, str] = {}  # of the request that is being answered
    parts: dict[str, dict[int, bytes]] = {}  # of uploads that have begun

    class Conditional(Storage):
        def create_file(self, bucket_name: str, file_name: str, *rest: Any) -> None:
            self._check(bucket_name, file_name)
            super().create_file(bucket_name, file_name, *rest)

        def delete_file(self, bucket_name: str, file_name: str) -> None:
            self._check(bucket_name, file_name)
            super().delete_file(bucket_name, file_name)

        def _check(self, bucket_name: str, file_name: str) -> None:
            if "ifGenerationMatch" in asked:
                try:
                    now = int(self.get_file_obj(bucket_name, file_name)["generation"])
                except NotFound:
                    now = 0
                if now != int(asked["ifGenerationMatch"]):
                    raise PreconditionError

        def get_file_list(self, *where: Any, **options: Any) -> tuple[list, list]:
            begin = asked.get("startOffset", "")
            end = asked.get("endOffset", "")
            objects, prefixes = super().get_file_list(*where, **options)
            after = [one for one in objects if begin <= one["name"]]
            return [one for one in after if one["name"] < end or not end], prefixes

    class Handler(RequestHandler):
        protocol_version = "HTTP/1.0"

        def handle_one_request(self) -> None:
            with contextlib.suppress(ConnectionError):  # of a client that was killed
                super().handle_one_request()

        def parse_request(self) -> bool:
            if not super().parse_request():
                return False
            path, _, query = self.path.partition("?")
            if status := store.status_of(f"{self.command} {urllib.parse.unquote(path)}?{query}"):
                length = int(self.headers.get("Content-Length", 0))
                self.rfile.read(length)
                self.send_error(status)
                return False
            return True

        def end_headers(self) -> None:
            place = re.match(r".*/b/([^/]+)/o/([^?]+)\?.*alt=media", self.path)
            if self.command == "GET" and place:  # as Google's, of the content that is sent
                with contextlib.suppress(NotFound):
                    found = storage.get_file_obj(place[1], urllib.parse.unquote(place[2]))
                    self.send_header("x-goog-generation", found["generation"])
            super().end_headers()

        def _answer(self, answer: Any) -> None:
            path = urllib.parse.urlsplit(self.path)
            bucket, _, name = urllib.parse.unquote(path.path).removeprefix("/").partition("/")
            with one_by_one:
                asked.clear()
                asked.update(urllib.parse.parse_qsl(path.query, keep_blank_values=True))
                try:
                    if bucket in ("storage", "upload", "download"):
                        answer()
                    else:
                        self._answer_xml(bucket, name)
                except PreconditionError:
                    self.send_error(412)
                except NotFound:
                    self.send_error(404)

        def _answer_xml(self, bucket: str, name: str) -> None:
            """Answers a request of Google's other interface, which the emulator hardly knows."""
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.command == "GET" and not name:
                self._send(_list_as_xml(storage, bucket, asked).encode())
            elif self.command in ("GET", "HEAD"):
                self._send_object(bucket, name)
            elif self.command == "DELETE":
                if "uploadId" not in asked:
                    storage.delete_file(bucket, name)
                self._send(status=204)
            elif "uploads" in asked:
                parts[str(len(parts))] = {}
                self._send(_xml("InitiateMultipartUploadResult", UploadId=len(parts) - 1))
            elif "partNumber" in asked:
                parts[asked["uploadId"]][int(asked["partNumber"])] = body
                self._send(ETag='"part"')
            else:
                several = parts.pop(asked["uploadId"]) if "uploadId" in asked else {1: body}
                content = b"".join(several[number] for number in sorted(several))
                storage.create_file(bucket, name, content, _resource(bucket, name, content))
                headers = self._headers_of(bucket, name)
                self._send(_xml("CompleteMultipartUploadResult", ETag="all"), **headers)

        def _send_object(self, bucket: str, name: str) -> None:
            headers = self._headers_of(bucket, name)
            if self.headers.get("If-Match", headers["ETag"]) != headers["ETag"]:
                raise PreconditionError
            content = storage.get_file(bucket, name)
            if wanted := re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
                begin = int(wanted[1])
                end = min(int(wanted[2]) + 1, len(content))
                headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
                self._send(content[begin:end], status=206, **headers)
            else:
                self._send(content, **headers)

        def _headers_of(self, bucket: str, name: str) -> dict[str, str]:
            found = storage.get_file_obj(bucket, name)
            return {
                "ETag": f'"{base64.b64decode(found["md5Hash"]).hex()}"',
                "Last-Modified": self.date_time_string(),
                "x-goog-generation": str(found["generation"]),
            }

        def _send(self, content: bytes = b"", *, status: int = 200, **headers: str) -> None:
            self.send_response(status)
            for header, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(header, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def do_POST(self) -> None:
            self._answer(super().do_POST)

        def do_PUT(self) -> None:
            self._answer(super().do_PUT)

        def do_GET(self) -> None:
            self._answer(super().do_GET)

        def do_HEAD(self) -> None:
            self._answer(super().do_GET)

        def do_DELETE(self) -> None:
            self._answer(super().do_DELETE)

    body = Request.data.fget
    if not hasattr(body, "of_nothing"):  # which the emulator takes for no body at all
        Request.data = property(lambda request: b"" if (found := body(request)) is None else found)
        Request.data.fget.of_nothing = True
    storage = Conditional(use_memory_fs=True)
    buckets.create_bucket(BUCKET, storage)
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, storage))
    endpoint = f"http://127.0.0.1:{server.server_port}"
    environment = {"STORAGE_EMULATOR_HOST": endpoint, "TENSORSTORE_GCS_HTTP_URL": endpoint}

    def objects() -> dict[str, bytes]:
        with one_by_one:
            names = storage.objects.get(BUCKET, {})
            return {name: storage.get_file(BUCKET, name) for name in names}

    environment["GOOGLE_AUTH_TOKEN_FOR_TESTING"] = "none"
    store = Store(f"gs://{BUCKET}", environment, objects)
    with _serving(server):
        yield store


@contextlib.contextmanager
def amazon() -> Iterator[Store]:
    """Serves s3://bucket by moto."""
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from moto.s3.models import s3_backends
    from werkzeug.serving import make_server
    from werkzeug.wrappers import Request, Response

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    moto = DomainDispatcherApplication(create_backend_app)

    def app(environ: dict, start: Any) -> Any:
        request = Request(environ)
        if status := store.status_of(f"{request.method} {request.full_path}"):
            request.get_data()
            return Response(status=status)(environ, start)
        return moto(environ, start)

    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)
    endpoint = f"http://127.0.0.1:{server.server_port}"
    keys = dict.fromkeys(("AWS_REGION", "AWS_DEFAULT_REGION"), "us-east-1")
    keys |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    keys["AWS_EC2_METADATA_DISABLED"] = "true"
    account = s3_backends["123456789012"]["aws"]
    account.reset()
    made = account.create_bucket(BUCKET, "us-east-1")

    def objects() -> dict[str, bytes]:
        return {key.name: key.value for key in list(made.keys.values())}

    store = Store(f"s3://{BUCKET}", {"AWS_ENDPOINT_URL": endpoint, **keys}, objects)
    with _serving(server):
        yield store


def write(url: str, content: bytes) -> None:
    """Writes an object."""
    folder, _, name = url.rpartition("/")
    Objects(folder).write(name, content)


def delete(url: str) -> None:
    """Deletes an object."""
    folder, _, name = url.rpartition("/")
    Objects(folder).delete(name)


@contextlib.contextmanager
def led(store: Store) -> Iterator[Store]:
    """Leads the clients of this process to a store."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment.items():
            patch.setenv(name, value)
        stores._client.cache_clear()  # which were led elsewhere
        yield store


@pytest.fixture(scope="module")
def gcs() -> Iterator[Store]:
    """A store of Google's kind, for the tests of one file."""
    with google() as store, led(store):
        yield store


@pytest.fixture(scope="module")
def s3() -> Iterator[Store]:
    """A store of Amazon's kind, for the tests of one file."""
    with amazon() as store, led(store):
        yield store


@pytest.fixture(params=["gcs", "s3"], scope="module")
def bucket(request: pytest.FixtureRequest) -> Store:
    """A store of each kind in turn."""
    return request.getfixturevalue(request.param)


class PreconditionError(Exception):
    """An object has another generation than a request demands."""


def _list_as_xml(storage: Any, bucket: str, asked: dict[str, str]) -> str:
    """Lists a bucket as Google's XML interface does."""
    after = asked.get("continuation-token") or asked.get("start-after") or ""
    found, _ = storage.get_file_list(bucket, asked.get("prefix"))
    entries = [entry for entry in found if entry["name"] > after]
    listed = "".join(
        "<Contents>"
        f"<Key>{html.escape(entry['name'])}</Key><Size>{entry['size']}</Size>"
        f"<ETag>&quot;{base64.b64decode(entry['md5Hash']).hex()}&quot;</ETag>"
        "<LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        "</Contents>"
        for entry in entries[:PAGE]
    )
    if entries[PAGE:]:
        last = html.escape(entries[PAGE - 1]["name"])
        listed += f"<NextContinuationToken>{last}</NextContinuationToken>"
    return f"<ListBucketResult>{listed}</ListBucketResult>"


def _resource(bucket: str, name: str, content: bytes) -> dict[str, Any]:
    """Describes an object as Google's JSON interface does."""
    import google_crc32c

    md5 = base64.b64encode(hashlib.md5(content).digest()).decode()
    return {
        "bucket": bucket,
        "name": name,
        "generation": str(time.time_ns()),
        "size": str(len(content)),
        "md5Hash": md5,
        "crc32c": base64.b64encode(google_crc32c.Checksum(content).digest()).decode(),
        "etag": md5,
    }


def _xml(kind: str, **fields: Any) -> bytes:
    inner = "".join(f"<{name}>{value}</{name}>" for name, value in fields.items())
    return f"<{kind}>{inner}</{kind}>".encode()


@contextlib.contextmanager
def _serving(server: Any) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


if __name__ == "__main__":
    with google() as one, amazon() as other, contextlib.suppress(KeyboardInterrupt):
        for name, value in {**one.environment, **other.environment}.items():
            print(f"export {name}={value}", flush=True)
        while os.getppid() != 1:
            time.sleep(1)
