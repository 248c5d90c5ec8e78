"""The stand-ins keep the promises of object stores that the library leans on, and fail when they
are told to."""

import os

import pytest
import tensorstore

from tests.object_stores import Store


@pytest.fixture
def objects(bucket: Store) -> tensorstore.KvStore:
    spec = {"driver": "gcs", "bucket": "bucket", "path": "at/"}
    if bucket.url.startswith("s3"):
        spec |= {"driver": "s3", "aws_region": "us-east-1"}
        spec["endpoint"] = os.environ["AWS_ENDPOINT_URL"]
        spec["aws_credentials"] = {"type": "environment"}
    return tensorstore.KvStore.open(spec).result()


def test_of_two_that_create_one_object_one_fails_and_only_the_newest_version_can_be_replaced(
    objects,
):
    none = objects.read("new").result().stamp.generation
    first = objects.write("new", b"first", if_equal=none).result().generation
    assert objects.write("new", b"second", if_equal=none).result().generation == b""
    objects.write("new", b"third", if_equal=first).result()
    assert objects.write("new", b"fourth", if_equal=first).result().generation == b""
    assert objects.read("new").result().value == b"third"


def test_errors_come_as_often_as_asked(bucket, objects):
    objects.write("x", b"1").result()
    bucket.fail(403)
    with pytest.raises(ValueError, match="PERMISSION_DENIED"):
        objects.read("x").result()
    bucket.fail(503, on="GET .*x")
    assert objects.read("x").result().value == b"1"
    assert [request.split("?")[0][-1] for request in bucket.seen[-2:]] == ["x", "x"]
