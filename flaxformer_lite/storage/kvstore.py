"""The store client of tensorstore, for arrays of checkpoints, conditional writes and deletions.

obstore, the client for everything else, has no conditional deletion (0.12). tensorstore's errors
have no types, so what happened is read from their texts.
"""

import contextlib
import functools
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from flaxformer_lite.files.read import Json
from flaxformer_lite.storage import stores
from flaxformer_lite.storage.stores import StorageError

if TYPE_CHECKING:
    import tensorstore

REFUSED = re.compile(r"PERMISSION_DENIED|UNAUTHENTICATED|http_response_code='(401|403)'")
# Listing a missing bucket fails with the second message, as tensorstore parses the answer.
NO_BUCKET = re.compile(r"NOT_FOUND|parse response metadata")
UNREACHED = re.compile(
    r"UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|retry attempts|CURL|http_response_code='(408|429|5..)'"
)


class Version(NamedTuple):
    """The content of an object, None if it does not exist, and its generation."""

    content: bytes | None
    mark: bytes


class Versioned:
    """An object that is replaced only if no other process has changed it meanwhile.

    All methods raise StorageError if the store cannot be reached or denies access.

    Args:
      url: the address that the object is below.
      name: its name relative to the address.
    """

    def __init__(self, url: str, name: str):
        self._url = url
        self._name = name

    def read(self) -> Version:
        """Reads the object and its generation."""
        with explain_errors(self._url):
            answer = self._store.read(self._name).result()
        content = answer.value if answer.state == "value" else None
        return Version(content, answer.stamp.generation)

    def replace(self, content: bytes | None, seen: bytes) -> bytes | None:
        """Replaces the object if it is unchanged since it was read.

        Args:
          content: the new content, or None to delete the object.
          seen: the mark of the version that was read.

        Returns:
          The mark of the new version; None if another process was faster, or if the answer to an
          earlier attempt of the same request was lost.
        """
        with explain_errors(self._url):
            return self._store.write(self._name, content, if_equal=seen).result().generation or None

    @functools.cached_property
    def _store(self) -> "tensorstore.KvStore":
        import tensorstore

        with explain_errors(self._url):
            return tensorstore.KvStore.open(store_spec(f"{self._url}/")).result()


def store_spec(url: str) -> Json:
    """Returns the tensorstore spec of an address, with its retries and credentials."""
    scheme, _, place = url.partition("://")
    bucket, _, path = place.partition("/")
    driver = {"gs": "gcs", "s3": "s3"}[scheme]
    anonymous = stores.is_anonymous(url)
    known: Json = {"driver": driver, "bucket": bucket, "path": path}
    known[f"{driver}_request_retries"] = {
        "max_retries": 1 if anonymous else stores.MAX_RETRIES,
        "initial_delay": "300ms",
        "max_delay": "20s",
    }
    if scheme == "gs":
        emulator = os.environ.get("STORAGE_EMULATOR_HOST")
        if emulator:
            os.environ.setdefault("TENSORSTORE_GCS_HTTP_URL", emulator)
        return known
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        # A compatible server reads no region, but requests are signed with one.
        known |= {"endpoint": endpoint, "aws_region": region or "us-east-1"}
    if region:
        known["aws_region"] = region
    # Otherwise tensorstore looks for other credentials, and complains on stderr.
    if anonymous:
        known["aws_credentials"] = {"type": "anonymous"}
    elif os.environ.get("AWS_ACCESS_KEY_ID"):
        known["aws_credentials"] = {"type": "environment"}
    return known


@contextlib.contextmanager
def explain_errors(url: str, *, content: bool = False) -> Iterator[None]:
    """Turns errors of tensorstore into a StorageError that names the address.

    Args:
      url: the address.
      content: whether errors about the content, such as a missing or damaged part, propagate
        unchanged.
    """
    try:
        yield
    except StorageError:
        raise
    except (ValueError, OSError, RuntimeError, TimeoutError) as error:
        message = re.split(r"\[(?:http_response|source loc)", str(error))[0]
        reason = " ".join(message.split())[:200]
        if REFUSED.search(str(error)):
            raise stores.unusable(url, reason, denied=True) from error
        if content and not UNREACHED.search(str(error)):
            raise
        if NO_BUCKET.search(reason):
            raise stores.no_bucket(url) from error
        raise stores.unusable(url, reason) from error
