"""Clients of object stores, `gs://` and `s3://`, by fsspec: their failures are tried again and
counted, or end in a sentence.

Endpoints and credentials are those of the clients' own environment variables
(STORAGE_EMULATOR_HOST, AWS_ENDPOINT_URL).
"""

import asyncio
import contextlib
import contextvars
import functools
import http
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from flaxformer_lite.config import ConfigError
from flaxformer_lite.config.choices import STORES
from flaxformer_lite.config.rules import is_place

PATIENCE = 120.0  # seconds, from the first failure to the last retry
PAUSE = 0.5  # seconds before the first retry, doubled for each further one
LONGEST_PAUSE = 20.0
PASSING = {408, 429, 500, 502, 503, 504}  # HTTP statuses that a retry may mend
LOST = {
    "ConnectionError",
    "TimeoutError",
    "Timeout",
    "ClientConnectionError",
    "ClientPayloadError",
    "HTTPClientError",
    "IncompleteReadError",
    "ProxyError",
    "TransportError",
}  # as are errors of the clients that have one of these names, or a base of it
NO_LOGIN = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "DefaultCredentialsError",
    "RefreshError",
    "ProfileNotFound",
}
LOGIN = {"gs": "gcloud auth application-default login", "s3": "aws configure, or AWS_ACCESS_KEY_ID"}
# What shows that there may be credentials: beginnings of variables, a file, and whose machine this
# is.
SIGNS = {
    "gs": (
        (
            "GOOGLE_APPLICATION_",
            "CLOUDSDK_CONFIG",
            "STORAGE_EMULATOR_HOST",
            "KUBERNETES_",
            "CLOUD_RUN_",
            "GCE_METADATA_",
        ),
        "~/.config/gcloud/application_default_credentials.json",
        ("Google",),
    ),
    "s3": (
        (
            "AWS_ACCESS_",
            "AWS_PROFILE",
            "AWS_WEB_",
            "AWS_CONTAINER_",
            "AWS_SHARED_",
            "AWS_CONFIG_",
            "KUBERNETES_",
        ),
        "~/.aws",
        ("Amazon", "Xen"),  # the latter of Amazon's older machines
    ),
}
VENDOR = Path("/sys/class/dmi/id/sys_vendor")
_retries = 0
_copies: dict[str, str] = {}  # folders that are copies, with their addresses
_url = contextvars.ContextVar("url", default="")


class StorageError(ConfigError):
    """A store or an object that cannot be used; the message names it, the reason and the way
    out."""


def is_url(path: Any) -> bool:
    """Returns whether a path is the address of an object, or of those below it, in a store."""
    return str(path).startswith(tuple(f"{scheme}://" for scheme in STORES))


def name_copy(folder: Path, url: str) -> None:
    """Remembers the address of what was copied to a folder."""
    _copies[str(folder)] = url


def address_of(path: str | Path) -> str:
    """Returns an address, or that of which a path is a copy; "" of other paths."""
    return str(path) if is_url(path) else _copies.get(str(path), "")


def addressed(message: str) -> str:
    """Returns a message with the addresses in place of the copies on this machine."""
    for folder, url in _copies.items():
        message = message.replace(folder, url)
    return message


def is_anonymous(url: str) -> bool:
    """Returns whether there is nothing to log in with, so that only public objects can be read, and
    waiting is in vain."""
    names, file, vendors = SIGNS[url[:2]]
    found = any(name.startswith(names) for name in os.environ) or Path(file).expanduser().exists()
    return not (found or (VENDOR.exists() and VENDOR.read_text().startswith(vendors)))


def forbidden(url: str, why: str) -> StorageError:
    """Returns the error that the store wants other credentials."""
    return StorageError(
        f"{url}: access is forbidden ({why}); log in ({LOGIN[url[:2]]}), or ask the bucket's owner"
        " for it."
    )


def unreachable(url: str, why: str) -> StorageError:
    """Returns the error that the store does not answer."""
    if is_anonymous(url):
        return StorageError(
            f"{url}: there are no credentials, and without them the store cannot be reached"
            f" ({why}); log in: {LOGIN[url[:2]]}."
        )
    return StorageError(
        f"{url}: the store cannot be reached ({why}); check the network, and the endpoint if you"
        " have set one; the same command continues."
    )


def no_bucket(url: str) -> StorageError:
    """Returns the error that the bucket of an address does not exist."""
    bucket = url.split("/")[2]
    return StorageError(
        f"{url}: there is no bucket {bucket}; check its name, and that it is this endpoint's."
    )


def retries() -> int:
    """Returns how often this process has tried a request of fsspec's again."""
    return _retries


def run(url: str, act: Callable[[Any], Awaitable[Any]]) -> Any:
    """Runs a coroutine on the store's asynchronous fsspec file system.

    Args:
      url: an address in the store, for messages.
      act: uses coroutines such as `files._info(key)`; it is called again where it fails.

    Raises:
      FileNotFoundError: there is no such object or bucket.
      StorageError: the store cannot be used, or not within PATIENCE.
    """
    if problem := is_place(url):
        raise StorageError(f"{url}: {problem}")
    scheme = url.partition("://")[0]
    endpoint = os.environ.get("STORAGE_EMULATOR_HOST" if scheme == "gs" else "AWS_ENDPOINT_URL", "")
    files = _client(scheme, endpoint, is_anonymous(url), os.getpid())

    async def named() -> Any:
        _url.set(url)
        return await _patient(lambda: act(files))

    import fsspec.asyn

    return fsspec.asyn.sync(files.loop, named)


@functools.cache
def _client(scheme: str, endpoint: str, anonymous: bool, process: int) -> Any:
    """Makes a client, whose own retries, which nobody sees, ours replace."""
    options: dict[str, Any] = dict(use_listings_cache=False, skip_instance_cache=True)
    try:
        if scheme == "gs":
            from gcsfs.core import GCSFileSystem

            files: Any = GCSFileSystem(token="anon" if endpoint or anonymous else None, **options)
            undecorated = GCSFileSystem._request.__wrapped__
            files._request = lambda *args, **given: _patient(
                lambda: undecorated(files, *args, **given)
            )
        else:
            from s3fs import S3FileSystem

            once = {"retries": {"total_max_attempts": 1}}
            files = S3FileSystem(
                endpoint_url=endpoint or None, anon=anonymous, config_kwargs=once, **options
            )
            files.retries = 1
            one = files._call_s3
            files._call_s3 = lambda *args, **given: _patient(lambda: one(*args, **given))
    except ImportError as error:
        extra = {"gs": "gcs", "s3": "s3"}[scheme]
        raise StorageError(
            f"{scheme}:// needs a package that is not installed ({error}): pip install"
            f" 'flaxformer_lite[{extra}]'."
        ) from None
    return files


async def _patient(act: Callable[[], Awaitable[Any]]) -> Any:
    """Awaits an action, again if it fails for a reason that may pass; turns what stays into a
    sentence."""
    global _retries
    began = 0.0
    pause = PAUSE
    tries = 1
    while True:
        try:
            return await act()
        except (FileNotFoundError, StorageError):
            raise
        except Exception as error:
            began = began or time.monotonic()
            wait = random.uniform(pause / 2, pause)
            patience = 0 if is_anonymous(_url.get()) else PATIENCE
            if not _may_pass(error) or time.monotonic() + wait - began > patience:
                raise _explained(error, tries) from error
            print(
                f"notice: {_url.get()}: {_said(error)}; trying again in {wait:.1f} s.",
                file=sys.stderr,
            )
        _retries += 1
        tries = tries + 1
        pause = min(2 * pause, LONGEST_PAUSE)
        await asyncio.sleep(wait)


def _may_pass(error: BaseException) -> bool:
    status = _status(error)
    return (
        status in PASSING if status else bool(LOST & _names(error)) and not NO_LOGIN & _names(error)
    )


def _explained(error: BaseException, tries: int) -> StorageError:
    url = _url.get()
    status = _status(error)
    is_refusal = (
        isinstance(error, PermissionError)
        or str(error).startswith("Forbidden")
        or NO_LOGIN & _names(error)
    )
    if status in (401, 403) or is_refusal:
        return forbidden(url, _said(error))
    if _may_pass(error):
        return unreachable(url, f"{_said(error)}; {tries} tries")
    return StorageError(f"{url}: the store refuses it ({_said(error)}).")


def _status(error: BaseException) -> int:
    """Returns the HTTP status behind a client's error, or 0."""
    response = getattr(error.__cause__, "response", None) or getattr(error, "response", None)
    found = (
        response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if isinstance(response, dict)
        else None
    )
    found = found or getattr(error, "code", None) or getattr(error, "status", None) or 0
    return int(found) if str(found).isdigit() else 0


def _names(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def _said(error: BaseException) -> str:
    with contextlib.suppress(ValueError):
        return f"{_status(error)} {http.HTTPStatus(_status(error)).phrase}"
    said = getattr(error, "strerror", None) or str(error)
    return next(iter(said.strip().splitlines()), "")[:200] or type(error).__name__
