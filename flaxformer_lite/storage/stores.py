"""Requests to object stores, `gs://` and `s3://`, by obstore, with retries and readable errors.

STORAGE_EMULATOR_HOST and AWS_ENDPOINT_URL name compatible servers. Credentials are those that the
tools of Google and Amazon use.
"""

import configparser
import functools
import http
import itertools
import os
import random
import re
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from flaxformer_lite.config import ConfigError
from flaxformer_lite.config.choices import STORES
from flaxformer_lite.config.rules import SECRET, is_place
from flaxformer_lite.files.read import Json

if TYPE_CHECKING:  # imported with the first address
    from obstore.store import ObjectStore

TRIED = 9  # maximum number of retries of a request
PATIENCE = 80.0  # seconds from the first failure to the last retry
PAUSE = 0.3  # seconds before the first retry, doubled for each further one
LONGEST_PAUSE = 20.0
TIMEOUTS = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "120s"}
PASSING = {408, 429, 500, 502, 503, 504}  # HTTP statuses that are retried
METADATA = "169.254."  # addresses from which machines of Google and Amazon get credentials
LOGIN = {"gs": "gcloud auth application-default login", "s3": "aws configure, or AWS_ACCESS_KEY_ID"}
# Signs that there may be credentials: environment variables, a file, the vendor of the machine.
VARIABLES = {
    "gs": (
        "GOOGLE_APPLICATION_|CLOUDSDK_CONFIG|STORAGE_EMULATOR_HOST|KUBERNETES_|CLOUD_RUN_|GCE_META"
    ),
    "s3": "AWS_(ACCESS_|PROFILE|WEB_|CONTAINER_|SHARED_|CONFIG_)|KUBERNETES_",
}
FILES = {"gs": "~/.config/gcloud/application_default_credentials.json", "s3": "~/.aws"}
VENDORS = {"gs": "Google", "s3": "Amazon|Xen"}  # older machines of Amazon say Xen
VENDOR = Path("/sys/class/dmi/id/sys_vendor")
_retries = 0
_counting = threading.Lock()
_copies: dict[str, str] = {}  # the address that each local copy was downloaded from
Answer = TypeVar("Answer")


class StorageError(ConfigError):
    """A store or an object that cannot be used; the message says why, and what to do."""


def is_url(path: object) -> bool:
    """Returns whether a path is an address in an object store."""
    return str(path).startswith(tuple(f"{scheme}://" for scheme in STORES))


def name_copy(folder: Path, url: str) -> None:
    """Remembers the address that a folder was copied from."""
    _copies[str(folder)] = url


def address_of(path: str | Path) -> str:
    """Returns the address of an address or of a local copy; "" for other paths."""
    if is_url(path):
        return str(path)
    return _copies.get(str(path), "")


def addressed(message: str) -> str:
    """Replaces local cache paths in a message by their URLs."""
    for folder, url in _copies.items():
        message = message.replace(folder, url)
    return message


def is_anonymous(url: str) -> bool:
    """Returns whether there are no credentials, so that only public objects can be read."""
    scheme = url[:2]
    if any(re.match(VARIABLES[scheme], name) for name in os.environ):
        return False
    if os.path.exists(os.path.expanduser(FILES[scheme])):
        return False
    vendor = ""
    if VENDOR.exists():
        vendor = VENDOR.read_text()
    return not re.match(VENDORS[scheme], vendor)


def forbidden(url: str, why: str) -> StorageError:
    """Builds the error for a store that denies access."""
    return StorageError(
        f"{url}: access is forbidden ({why}); log in ({LOGIN[url[:2]]}), or ask the owner of the"
        " bucket for access."
    )


def unreachable(url: str, why: str) -> StorageError:
    """Builds the error for a store that does not answer."""
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
    """Builds the error for an address whose bucket does not exist."""
    bucket = url.split("/")[2]
    return StorageError(
        f"{url.rstrip('/')}: there is no bucket {bucket}; check its name and the endpoint."
    )


def retries() -> int:
    """Returns how many requests of this process were retried."""
    return _retries


def request(
    url: str, act: Callable[["ObjectStore", str], Answer], *, retried_inside: bool = False
) -> Answer:
    """Returns `act(client, name)`, with obstore's client of the bucket and the name of the object.

    Args:
      url: an address in the store.
      act: makes requests; called again if one of them fails temporarily.
      retried_inside: whether obstore retries single requests, which are not counted; for uploads in
        parts, where a failed part would repeat all of them.

    Raises:
      FileNotFoundError: the object or bucket does not exist.
      PreconditionError: the condition of a conditional request does not hold; of obstore.
      StorageError: the store cannot be used, or fails for longer than PATIENCE.
    """
    global _retries
    problem = is_place(url)
    if problem:
        raise StorageError(f"{SECRET.sub('***', url)}: {problem}")
    from obstore.exceptions import BaseError, PreconditionError

    scheme, _, place = url.partition("://")
    bucket, _, name = place.partition("/")
    anonymous = is_anonymous(url)
    process = os.getpid()
    pause = PAUSE
    begun = 0.0
    for tries in itertools.count(1):
        try:
            client = _client(scheme, bucket, _endpoint(scheme), anonymous, retried_inside, process)
            return act(client, name)
        except (FileNotFoundError, PreconditionError, StorageError):
            raise
        except (BaseError, OSError, ValueError) as error:
            if getattr(error, "errno", None):  # about a local file
                raise
            if _status(error) == 404:  # about a listing, for which obstore has no type
                raise FileNotFoundError(url) from None
            begun = begun or time.monotonic()
            wait = random.uniform(pause / 2, pause)
            most = TRIED
            if anonymous:
                most = 1
            is_last = tries > most
            is_late = time.monotonic() + wait - begun > PATIENCE
            if is_last or is_late or not _may_pass(error):
                raise _explained(url, error, tries) from error
            print(
                f"notice: {url}: {_reason(error)}; trying again in {wait:.1f} s.", file=sys.stderr
            )
        with _counting:
            _retries += 1
        pause = min(2 * pause, LONGEST_PAUSE)
        time.sleep(wait)
    raise AssertionError  # for mypy, which does not know that the loop is infinite


@functools.cache
def _client(
    scheme: str, bucket: str, endpoint: str, anonymous: bool, retried_inside: bool, process: int
) -> "ObjectStore":
    """Builds obstore's client of a bucket, usually without its retries, which are not counted."""
    if process != _first_process():
        raise StorageError(
            f"{scheme}://{bucket}: a forked process cannot use a store that its parent has used;"
            " start the process by spawn or forkserver."
        )
    from obstore.store import GCSStore, S3Store

    retries = 0
    if retried_inside:
        retries = TRIED
    options: Json = {
        "client_options": {"allow_http": endpoint.startswith("http:"), **TIMEOUTS},
        "retry_config": {"max_retries": retries},
    }
    if scheme == "gs":
        if endpoint:  # accepts any token; without one, obstore looks for credentials
            return GCSStore(bucket, base_url=endpoint, bearer_token="none", **options)
        if anonymous:
            options["skip_signature"] = True
        else:
            options |= _google_login()
        return GCSStore(bucket, **options)
    if endpoint:
        options["endpoint"] = endpoint
    if anonymous:
        options["skip_signature"] = True
    else:
        options |= _amazon_login()
    region = _region(bucket, endpoint)
    return S3Store(bucket, region=region, disable_bulk_delete=True, **options)


@functools.cache
def _first_process() -> int:
    """Returns the process that used a store first; a fork does not copy its threads."""
    return os.getpid()


def _endpoint(scheme: str) -> str:
    if scheme == "gs":
        return os.environ.get("STORAGE_EMULATOR_HOST", "")
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")


def _google_login() -> Json:
    """Returns the credentials file of Google's tools, or their library if obstore needs it."""
    folder = os.environ.get("CLOUDSDK_CONFIG") or "~/.config/gcloud"
    file = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    path = Path(os.path.expanduser(file or f"{folder}/application_default_credentials.json"))
    if not path.is_file():
        return {}
    kind = re.search(r'"type":\s*"(\w+)"', path.read_text())
    if kind is None or kind[1] in ("service_account", "authorized_user"):
        return {"application_credentials": str(path)}
    try:
        from obstore.auth.google import GoogleCredentialProvider
    except ImportError as error:
        raise StorageError(
            f"{path}: credentials of the kind {kind[1]} need a package that is not installed"
            f" ({error}): pip install google-auth requests."
        ) from None
    return {"credential_provider": GoogleCredentialProvider()}


def _amazon_login() -> Json:
    """Returns the keys that `aws configure` wrote, or boto3 if it is installed.

    Without either, obstore looks for credentials in the environment and on the machine.
    """
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return {}
    names = {"access_key_id": "aws_access_key_id", "secret_access_key": "aws_secret_access_key"}
    names["token"] = "aws_session_token"
    profile = _profile("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", "")
    if names["access_key_id"] in profile:
        return {field: profile[theirs] for field, theirs in names.items() if theirs in profile}
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider

        return {"credential_provider": Boto3CredentialProvider()}
    except (ImportError, ValueError):  # not installed, or without credentials
        return {}


def _region(bucket: str, endpoint: str) -> str:
    """Returns the region of a bucket of Amazon; for another endpoint, the configured region."""
    configured = _profile("AWS_CONFIG_FILE", "~/.aws/config", "profile ").get("region", "us-east-1")
    configured = os.environ.get("AWS_DEFAULT_REGION") or configured
    configured = os.environ.get("AWS_REGION") or configured
    if endpoint:
        return configured
    head = urllib.request.Request(f"https://s3.amazonaws.com/{bucket}", method="HEAD")
    try:
        with urllib.request.urlopen(head, timeout=10) as answer:
            headers = answer.headers
    except urllib.error.HTTPError as error:
        headers = error.headers
    except OSError:
        return configured
    return headers.get("x-amz-bucket-region") or configured


def _profile(variable: str, file: str, prefix: str) -> dict[str, str]:
    """Returns the section of the current profile in a file of Amazon's tools."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(os.path.expanduser(os.environ.get(variable) or file))
    name = os.environ.get("AWS_PROFILE") or "default"
    section = name
    if name != "default":
        section = f"{prefix}{name}"
    if not parser.has_section(section):
        return {}
    return dict(parser[section])


def _may_pass(error: BaseException) -> bool:
    """Returns whether a retry may succeed."""
    if isinstance(error, ConnectionError):
        return True
    status = _status(error)
    if status:
        return status in PASSING
    return "HTTP error" in str(error)


def _explained(url: str, error: BaseException, tries: int) -> StorageError:
    why = _reason(error)
    if METADATA in str(error):
        return forbidden(url, "no credentials were found")
    if _status(error) in (401, 403):
        return forbidden(url, why)
    if _may_pass(error):
        return unreachable(url, f"{why}; {tries} tries")
    return StorageError(f"{url}: the store rejected the request ({why}).")


def _status(error: BaseException) -> int:
    """Returns the HTTP status in an error message of obstore, or 0."""
    match = re.search(r"status code: (\d{3})", str(error))
    if not match:
        return 0
    return int(match[1])


def _reason(error: BaseException) -> str:
    """Extracts the reason from an error of obstore: an HTTP status, or a message of the system."""
    text = str(error)
    status = _status(error)
    if status in set(http.HTTPStatus):
        return f"{status} {http.HTTPStatus(status).phrase}"
    reasons = re.findall(r'(?:message|error): "([^"]+)"|kind: (Timeout)|HTTP error: (.+)', text)
    performed = re.search(r"Error performing ([A-Z]+ [^\s?]+)", text)
    if reasons and performed:
        return f"{performed[1]}: {''.join(reasons[-1])}"
    lines = text.strip().splitlines()
    if not lines:
        return type(error).__name__
    return lines[0][:200]
