"""Object stores, `gs://` and `s3://`: addresses, obstore's client of a bucket, readable errors.

STORAGE_EMULATOR_HOST and AWS_ENDPOINT_URL name compatible servers.
"""

import contextlib
import datetime
import functools
import importlib
import os
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from flaxformer_lite.config import ConfigError
from flaxformer_lite.config.choices import STORES
from flaxformer_lite.config.rules import SECRET, is_place
from flaxformer_lite.files.read import Json

if TYPE_CHECKING:  # imported with the first address
    from obstore.store import ObjectStore, S3CredentialProvider

MAX_RETRIES = 9  # maximum number of retries of a request
PATIENCE = datetime.timedelta(seconds=80)  # from a request to its last retry
# Before the first retry, doubled for each further one up to the longest.
PAUSE = datetime.timedelta(milliseconds=300)
LONGEST_PAUSE = datetime.timedelta(seconds=20)
TIMEOUTS = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "120s"}
METADATA = ("169.254.169.254", 80)  # where machines of Google and Amazon get credentials
METADATA_SECONDS = 1.0  # to connect to it
LOGIN = {
    "gs": "gcloud auth application-default login",
    "s3": "aws configure and pip install boto3, or AWS_ACCESS_KEY_ID",
}
# Where there may be credentials: environment variables, and a file.
VARIABLES = {
    "gs": ("GOOGLE_APPLICATION_", "CLOUDSDK_CONFIG", "STORAGE_EMULATOR_HOST"),
    "s3": ("AWS_ACCESS_", "AWS_PROFILE", "AWS_WEB_", "AWS_CONTAINER_", "AWS_SHARED_", "AWS_CONFIG"),
}
FILES = {"gs": "~/.config/gcloud/application_default_credentials.json", "s3": "~/.aws"}
ADDRESS = ".address"  # in the local copy of a run: where it was copied from


class StorageError(ConfigError):
    """A store or an object that cannot be used; the message says why, and what to do."""


def is_url(path: object) -> bool:
    """Returns whether a path is an address in an object store."""
    return str(path).startswith(tuple(f"{scheme}://" for scheme in STORES))


def address_of(path: str | Path) -> str:
    """Returns the address in a store of an address or of a run's local copy; "" for others."""
    if is_url(path):
        return str(path)
    file = Path(path, ADDRESS)
    return file.read_text() if file.is_file() else ""


def is_anonymous(url: str) -> bool:
    """Returns whether there are no credentials, so that only public objects can be read.

    Neither client finds that out by itself: obstore would ask 169.254.169.254 for a token, ten
    times.
    """
    scheme = url[:2]
    if any(name.startswith(VARIABLES[scheme]) for name in os.environ):
        return False
    return not os.path.exists(os.path.expanduser(FILES[scheme])) and not _machine_has_credentials()


@functools.cache
def _machine_has_credentials() -> bool:
    try:
        socket.create_connection(METADATA, METADATA_SECONDS).close()
    except OSError:
        return False
    return True


def unusable(url: str, why: str, *, denied: bool = False) -> StorageError:
    """Builds the error for a store that does not answer, or refuses a request."""
    way_out = "check the network, and the endpoint if you have set one; the same command continues"
    if denied:
        way_out = f"log in ({LOGIN[url[:2]]}), or ask the owner of the bucket for access"
    elif is_anonymous(url):
        way_out = f"there are no credentials; log in ({LOGIN[url[:2]]})"
    return StorageError(f"{url}: {why}; {way_out}.")


def no_bucket(url: str) -> StorageError:
    """Builds the error for an address whose bucket does not exist."""
    bucket = url.split("/")[2]
    return StorageError(
        f"{url.rstrip('/')}: there is no bucket {bucket}; check its name and the endpoint."
    )


def import_obstore() -> ModuleType:
    """Returns the client library of stores, which most users do without.

    Raises:
      StorageError: it is not installed.
    """
    try:
        return importlib.import_module("obstore")
    except ImportError:
        raise StorageError(
            "an address in a store (gs://, s3://) needs obstore; pip install"
            " 'flaxformer_lite[stores]', or name a folder."
        ) from None


@contextlib.contextmanager
def open_bucket(url: str) -> Iterator[tuple["ObjectStore", str]]:
    """Yields obstore's client of the bucket of an address, and the name of the object.

    Errors within the block, which come after obstore's retries, become one sentence that names the
    address.

    Raises:
      FileNotFoundError: the object or bucket does not exist.
      StorageError: the address is malformed or holds keys, the store cannot be used, or an object
        was replaced since it was listed.
    """
    exceptions = import_obstore().exceptions
    problem = is_place(url)
    if problem:
        raise StorageError(f"{SECRET.sub('***', url)}: {problem}")
    if os.getpid() != _first_process():
        raise StorageError(
            f"{url}: a forked process cannot use a store that its parent has used; start the"
            " process by spawn or forkserver."
        )
    scheme, _, place = url.partition("://")
    bucket, _, name = place.partition("/")
    try:
        yield _client(scheme, bucket), name
    except exceptions.PreconditionError:
        raise StorageError(
            f"{url}: was replaced while it was read; start again when nothing writes it."
        ) from None
    except exceptions.BaseError as error:
        why = _first_sentence(error)
        # The errors of listings have no type of their own (obstore 0.12).
        if "status code: 404" in why:
            raise FileNotFoundError(url) from None
        kinds = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
        denied = isinstance(error, kinds) or re.search("status code: 40[13]", why) is not None
        raise unusable(url, why, denied=denied) from error


def _first_sentence(error: BaseException) -> str:
    """Returns what obstore says, without the page of the server and the structures after it."""
    first_paragraph = str(error).partition("\n\n")[0]
    return " ".join(first_paragraph.partition(": <")[0].split()).rstrip(":")


@functools.cache
def _first_process() -> int:
    """Returns the process that used a store first; a fork does not copy its threads."""
    return os.getpid()


@functools.cache
def _client(scheme: str, bucket: str) -> "ObjectStore":
    from obstore.exceptions import BaseError
    from obstore.store import GCSStore, S3Store

    retries: Json = {
        "max_retries": MAX_RETRIES,
        "retry_timeout": PATIENCE,
        "backoff": {"init_backoff": PAUSE, "max_backoff": LONGEST_PAUSE},
    }
    options: Json = {
        "client_options": {"allow_http": True, **TIMEOUTS},  # of an endpoint in a variable
        "retry_config": retries,
    }
    if is_anonymous(f"{scheme}://{bucket}"):
        options["skip_signature"] = True
        retries["max_retries"] = 1  # such a machine often has no network either
    elif scheme == "s3":
        options["credential_provider"] = _amazon_login()
    if scheme == "s3":
        options |= _region_of(bucket)
        # Not all compatible servers delete several objects by one request.
        return S3Store(bucket, disable_bulk_delete=True, **options)
    endpoint = os.environ.get("STORAGE_EMULATOR_HOST")
    if endpoint:  # accepts any token; without one, obstore looks for credentials
        return GCSStore(bucket, base_url=endpoint, bearer_token="none", **options)
    try:
        return GCSStore(bucket, **options)
    except BaseError as error:  # a file of credentials that obstore does not know
        try:
            from obstore.auth.google import GoogleCredentialProvider

            return GCSStore(bucket, credential_provider=GoogleCredentialProvider(), **options)
        except ImportError:
            raise StorageError(
                f"gs://{bucket}: these credentials need a package that is not installed"
                f" ({_first_sentence(error)}): pip install google-auth requests."
            ) from None


def _amazon_login() -> "S3CredentialProvider | None":
    """Returns boto3's credentials, which include ~/.aws and SSO; None if it has none.

    obstore itself knows those in environment variables, and those of machines and pods.
    """
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return None
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider

        return Boto3CredentialProvider()
    except (ImportError, ValueError):  # not installed, or without credentials
        return None


def _region_of(bucket: str) -> Json:
    """Returns the region of a bucket of Amazon, whose servers redirect other regions' requests."""
    if os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
        return {}
    head = urllib.request.Request(f"https://s3.amazonaws.com/{bucket}", method="HEAD")
    try:
        with urllib.request.urlopen(head, timeout=10) as answer:
            headers = answer.headers
    except urllib.error.HTTPError as error:
        headers = error.headers
    except OSError:
        return {}
    region = headers.get("x-amz-bucket-region")
    return {"region": region} if region else {}
