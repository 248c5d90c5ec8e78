"""Tensorstore's client, for arrays of checkpoints and for conditional rewrites and deletions.

obstore, the client for everything else, has no conditional deletion.

Requests that fail for a while are sent again by tensorstore, which counts them.
"""

import contextlib
import functools
import os
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from flaxformer_lite.storage import stores
from flaxformer_lite.storage.stores import StorageError

SILENT = 15  # seconds without an answer, after which a notice says what is waited for
REFUSED = re.compile(r"PERMISSION_DENIED|UNAUTHENTICATED|http_response_code='(401|403)'")
# the latter of a list, which tensorstore reads nevertheless
NO_BUCKET = re.compile(r"NOT_FOUND|parse response metadata")
UNREACHED = re.compile(
    r"UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|retry attempts|CURL|http_response_code='(408|429|5..)'"
)


class Version(NamedTuple):
    """An object's content, None if there is none, and a mark that changes with it."""

    content: bytes | None
    mark: bytes


class Versioned:
    """An object below an address, of which each process knows whether another has changed it.

    Every method raises StorageError if the store cannot be reached or forbids it.
    """

    def __init__(self, url: str, name: str):
        self._url = url
        self._name = name

    def read(self) -> Version:
        """Reads the object, or that there is none."""
        with explained(self._url):
            found = self._store.read(self._name).result()
        return Version(found.value if found.state == "value" else None, found.stamp.generation)

    def replace(self, content: bytes | None, seen: bytes) -> bytes | None:
        """Writes the object, or deletes it with None, if it is still the version that was seen;
        returns the new mark.

        None says that another was faster, or that the answer to an earlier try of the same request
        was lost.
        """
        with explained(self._url):
            return self._store.write(self._name, content, if_equal=seen).result().generation or None

    @functools.cached_property
    def _store(self) -> Any:
        import tensorstore

        with explained(self._url):
            return tensorstore.KvStore.open(spec(f"{self._url}/")).result()


def spec(url: str) -> dict[str, Any]:
    """Returns tensorstore's description of the place of an address, and of how requests there are
    tried again."""
    scheme, _, place = url.partition("://")
    bucket, _, path = place.partition("/")
    driver = {"gs": "gcs", "s3": "s3"}[scheme]
    anonymous = stores.is_anonymous(url)
    known: dict[str, Any] = {"driver": driver, "bucket": bucket, "path": path}
    known[f"{driver}_request_retries"] = {
        "max_retries": 1 if anonymous else stores.TRIED,
        "initial_delay": "300ms",
        "max_delay": "20s",
    }
    if scheme == "gs":
        if emulator := os.environ.get("STORAGE_EMULATOR_HOST"):
            os.environ.setdefault("TENSORSTORE_GCS_HTTP_URL", emulator)
        return known
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if endpoint := os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
        known |= {"endpoint": endpoint, "aws_region": region or "us-east-1"}
    if region:
        known["aws_region"] = region
    if anonymous or os.environ.get(
        "AWS_ACCESS_KEY_ID"
    ):  # else tensorstore looks further, and complains on stderr
        known["aws_credentials"] = {"type": "anonymous" if anonymous else "environment"}
    return known


def retried() -> int:
    """Returns how many requests of this process were sent again."""
    import tensorstore

    metrics = tensorstore.experimental_collect_matching_metrics("/tensorstore/kvstore/")
    return sum(
        value["value"]
        for metric in metrics
        if metric["name"].endswith("/retries")
        for value in metric["values"]
    )


@contextlib.contextmanager
def explained(url: str, *, content: bool = False) -> Iterator[None]:
    """Turns what tensorstore raises into one sentence about the store.

    Args:
      url: the address.
      content: lets errors pass that speak of what lies there, such as a part that is missing or
        cannot be read.
    """
    waiting = f"notice: {url}: no answer yet; requests are sent again for up to 80 s."
    notice = threading.Timer(SILENT, lambda: print(waiting, file=sys.stderr))
    notice.daemon = True
    notice.start()
    try:
        yield
    except StorageError:
        raise
    except (ValueError, OSError, RuntimeError, TimeoutError) as error:
        said = " ".join(re.split(r"\[(?:http_response|source loc)", str(error))[0].split())[:200]
        if REFUSED.search(str(error)):
            raise stores.forbidden(url, said) from error
        if content and not UNREACHED.search(str(error)):
            raise
        raise (
            stores.no_bucket(url) if NO_BUCKET.search(said) else stores.unreachable(url, said)
        ) from error
    finally:
        notice.cancel()
