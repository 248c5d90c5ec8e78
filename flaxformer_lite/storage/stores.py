"""Addresses in object stores, `gs://` and `s3://`, and requests to them by obstore: those that fail
for a while are sent again and counted, or end in a sentence.

STORAGE_EMULATOR_HOST and AWS_ENDPOINT_URL lead to other servers of the same kind. Credentials are
those that Google's and Amazon's own tools use.
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
from typing import Any, TypeVar

from flaxformer_lite.config import ConfigError
from flaxformer_lite.config.choices import STORES
from flaxformer_lite.config.rules import SECRET, is_place

TRIED = 9  # times that a request is sent again
PATIENCE = 80.0  # seconds, from the first failure to the last retry
PAUSE = 0.3  # seconds before the first retry, doubled for each further one
LONGEST_PAUSE = 20.0
TIMEOUTS = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "120s"}
PASSING = {408, 429, 500, 502, 503, 504}  # HTTP statuses that a retry may mend
METADATA = "169.254."  # where machines of Google and Amazon keep credentials
LOGIN = {"gs": "gcloud auth application-default login", "s3": "aws configure, or AWS_ACCESS_KEY_ID"}
# What shows that there may be credentials: variables, a file, and whose machine this is.
VARIABLES = {
    "gs": (
        "GOOGLE_APPLICATION_|CLOUDSDK_CONFIG|STORAGE_EMULATOR_HOST|KUBERNETES_|CLOUD_RUN_|GCE_META"
    ),
    "s3": "AWS_(ACCESS_|PROFILE|WEB_|CONTAINER_|SHARED_|CONFIG_)|KUBERNETES_",
}
FILES = {"gs": "~/.config/gcloud/application_default_credentials.json", "s3": "~/.aws"}
VENDORS = {"gs": "Google", "s3": "Amazon|Xen"}  # the latter of Amazon's older machines
VENDOR = Path("/sys/class/dmi/id/sys_vendor")
_retries = 0
_counting = threading.Lock()
_copies: dict[str, str] = {}  # folders that are copies, with their addresses
Answer = TypeVar("Answer")


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
    scheme = url[:2]
    vendor = VENDOR.read_text() if VENDOR.exists() else ""
    found = any(re.match(VARIABLES[scheme], name) for name in os.environ)
    found = found or Path(FILES[scheme]).expanduser().exists()
    return not (found or re.match(VENDORS[scheme], vendor))


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
        f"{url.rstrip('/')}: there is no bucket {bucket}; check its name, and that it is this"
        " endpoint's."
    )


def retries() -> int:
    """Returns how many requests of this process were sent again."""
    return _retries


def request(url: str, act: Callable[[Any, str], Answer], *, retried_inside: bool = False) -> Answer:
    """Returns `act(client, name)` of obstore's client for the bucket, and the name of an object.

    Args:
      url: an address in the store.
      act: makes requests; it is called again where one fails for a reason that may pass.
      retried_inside: lets obstore send single requests again, which it does not count: for an
        object of many parts, of which one would else fail them all.

    Raises:
      FileNotFoundError: there is no such object or bucket.
      PreconditionError: obstore's, of a request with a condition.
      StorageError: the store cannot be used, or not within PATIENCE.
    """
    global _retries
    if problem := is_place(url):
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
            if getattr(error, "errno", None):
                raise  # of a local file
            if _status(error) == 404:  # of a list, for which obstore has no type
                raise FileNotFoundError(url) from None
            begun = begun or time.monotonic()
            wait = random.uniform(pause / 2, pause)
            last = tries > (1 if anonymous else TRIED)
            if last or not _may_pass(error) or time.monotonic() + wait - begun > PATIENCE:
                raise _explained(url, error, tries) from error
            print(f"notice: {url}: {_said(error)}; trying again in {wait:.1f} s.", file=sys.stderr)
        with _counting:
            _retries += 1
        pause = min(2 * pause, LONGEST_PAUSE)
        time.sleep(wait)
    raise AssertionError  # for mypy: the loop has no end


@functools.cache
def _client(
    scheme: str, bucket: str, endpoint: str, anonymous: bool, retried_inside: bool, process: int
) -> Any:
    """Makes obstore's client of a bucket; its own retries are off, as it cannot count them."""
    if process != _first_process():
        raise StorageError(
            f"{scheme}://{bucket}: a forked process cannot use a store that its parent has used;"
            " start it by spawn or forkserver."
        )
    from obstore.store import GCSStore, S3Store

    options: dict[str, Any] = {
        "client_options": {"allow_http": endpoint.startswith("http:"), **TIMEOUTS},
        "retry_config": {"max_retries": TRIED if retried_inside else 0},
    }
    if scheme == "gs":
        if endpoint:  # which takes any token; without one, obstore looks for credentials to write
            return GCSStore(bucket, base_url=endpoint, bearer_token="none", **options)
        options |= {"skip_signature": True} if anonymous else _google_login()
        return GCSStore(bucket, **options)
    options |= {"endpoint": endpoint} if endpoint else {}
    options |= {"skip_signature": True} if anonymous else _amazon_login()
    region = _region(bucket, endpoint)
    return S3Store(bucket, region=region, disable_bulk_delete=True, **options)


@functools.cache
def _first_process() -> int:
    """Returns the process that used a store first, whose threads a fork does not copy."""
    return os.getpid()


def _endpoint(scheme: str) -> str:
    if scheme == "gs":
        return os.environ.get("STORAGE_EMULATOR_HOST", "")
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")


def _google_login() -> dict[str, Any]:
    """Returns the file of Google's tools, or their library where obstore cannot read its kind."""
    folder = os.environ.get("CLOUDSDK_CONFIG") or "~/.config/gcloud"
    file = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    path = Path(file or f"{folder}/application_default_credentials.json").expanduser()
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


def _amazon_login() -> dict[str, Any]:
    """Returns keys of `aws configure`, or boto3 if it is installed, which knows all kinds of
    credentials; else obstore looks for those of the environment and the machine."""
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return {}
    names = {"access_key_id": "aws_access_key_id", "secret_access_key": "aws_secret_access_key"}
    names["token"] = "aws_session_token"
    profile = _profile("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", "")
    if names["access_key_id"] in profile:
        return {ours: profile[theirs] for ours, theirs in names.items() if theirs in profile}
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider

        return {"credential_provider": Boto3CredentialProvider()}
    except (ImportError, ValueError):  # not installed, or without credentials
        return {}


def _region(bucket: str, endpoint: str) -> str:
    """Returns the region of a bucket, which Amazon says without a login; of another server the
    configured one."""
    configured = _profile("AWS_CONFIG_FILE", "~/.aws/config", "profile ").get("region", "us-east-1")
    configured = os.environ.get("AWS_DEFAULT_REGION") or configured
    configured = os.environ.get("AWS_REGION") or configured
    if endpoint:
        return configured
    asked = urllib.request.Request(f"https://s3.amazonaws.com/{bucket}", method="HEAD")
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            headers = answer.headers
    except urllib.error.HTTPError as error:
        headers = error.headers
    except OSError:
        return configured
    return headers.get("x-amz-bucket-region") or configured


def _profile(variable: str, file: str, prefix: str) -> dict[str, str]:
    """Returns what a file of Amazon's tools says of the profile in use."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(Path(os.environ.get(variable) or file).expanduser())
    name = os.environ.get("AWS_PROFILE") or "default"
    section = name if name == "default" else f"{prefix}{name}"
    return dict(parser[section]) if parser.has_section(section) else {}


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, ConnectionError):
        return True
    return _status(error) in PASSING or (not _status(error) and "HTTP error" in str(error))


def _explained(url: str, error: BaseException, tries: int) -> StorageError:
    why = _said(error)
    if METADATA in str(error):
        return forbidden(url, "no credentials were found")
    if _status(error) in (401, 403):
        return forbidden(url, why)
    if _may_pass(error):
        return unreachable(url, f"{why}; {tries} tries")
    return StorageError(f"{url}: the store refuses it ({why}).")


def _status(error: BaseException) -> int:
    """Returns the HTTP status behind an error of obstore's, or 0."""
    found = re.search(r"status code: (\d{3})", str(error))
    return int(found[1]) if found else 0


def _said(error: BaseException) -> str:
    """Returns the reason in what obstore says: a status, or what the system says of a
    connection."""
    text = str(error)
    if _status(error) in set(http.HTTPStatus):
        return f"{_status(error)} {http.HTTPStatus(_status(error)).phrase}"
    reasons = re.findall(r'(?:message|error): "([^"]+)"|kind: (Timeout)|HTTP error: (.+)', text)
    if reasons and (request := re.search(r"Error performing ([A-Z]+ [^\s?]+)", text)):
        return f"{request[1]}: {''.join(reasons[-1])}"
    return next(iter(text.strip().splitlines()), "")[:200] or type(error).__name__
