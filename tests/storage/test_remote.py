import gzip
import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import boto3
import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.storage import remote, stores
from flaxformer_lite.storage.kvstore import Versioned
from flaxformer_lite.storage.objects import Objects
from flaxformer_lite.storage.stores import StorageError
from tests import object_stores as storage

CONTENT = b"".join(b"line %d\n" % n for n in range(3000))


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Short pauses, and clients of this test alone."""
    monkeypatch.setattr(stores, "PAUSE", timedelta(milliseconds=1))
    monkeypatch.setattr(stores, "LONGEST_PAUSE", timedelta(milliseconds=20))
    stores._client.cache_clear()
    yield
    stores._client.cache_clear()


def test_an_object_reads_back_with_its_size_and_version(bucket):
    url = f"{bucket.url}/a/b.txt"
    storage.write(url, CONTENT)
    file = remote.find(url)
    size = len(CONTENT)
    assert (file.url, file.name, file.suffix, file.size) == (url, "b.txt", ".txt", size)
    assert remote.read(file) == CONTENT
    for start, end in ((5, 9), (size - 3, size + 9), (size, size + 9)):
        assert remote.read(file, start, end) == CONTENT[start:end]
    storage.write(url, CONTENT[::-1])
    assert remote.find(url).version != file.version


def test_names_and_patterns_are_listed_in_order(bucket):
    names = ["a.txt", "b.txt", "d.bin", "deep/c.txt", "none.txt"]
    for name in (*names[::-1], "../list2/e.txt"):
        url = f"{bucket.url}/list/{name}".replace("list/../", "")
        storage.write(url, name.encode() if "none" not in name else b"")

    def listed(files):
        return [str(file).removeprefix(f"{bucket.url}/list/") for file in files]

    assert listed(remote.find_below(f"{bucket.url}/list/")) == names
    texts = ["a.txt", "b.txt", "none.txt"]
    assert listed(remote.find_like(f"{bucket.url}/list/*.txt")) == texts
    assert listed(remote.find_like(f"{bucket.url}/list/**/c.*")) == ["deep/c.txt"]
    assert remote.find(f"{bucket.url}/list") is remote.find(bucket.url) is None
    assert remote.find_below(f"{bucket.url}/nothing") == []
    assert remote.find_like(f"{bucket.url}/nothing/*") == []
    assert remote.read(remote.find(f"{bucket.url}/list/none.txt")) == b""


def test_a_stream_seeks_and_is_decompressed(bucket):
    storage.write(f"{bucket.url}/z.txt.gz", gzip.compress(CONTENT))
    with remote.find(f"{bucket.url}/z.txt.gz").open() as file, gzip.open(file) as plain:
        assert plain.read() == CONTENT
    storage.write(f"{bucket.url}/z.txt", CONTENT)
    with remote.find(f"{bucket.url}/z.txt").open() as file:
        assert file.readline() == b"line 0\n"
        assert file.seek(-10, os.SEEK_END) == len(CONTENT) - 10
        assert file.read() == CONTENT[-10:]


def test_files_are_copied_there_and_back_in_blocks(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "REQUEST_BYTES", 5 << 20)  # the least that S3 takes as a part
    (tmp_path / "here").write_bytes(CONTENT * 400)
    assert (tmp_path / "here").stat().st_size > 2 * remote.REQUEST_BYTES
    bucket.seen.clear()
    remote.upload(tmp_path / "here", f"{bucket.url}/there")
    assert len([request for request in bucket.seen if "partNumber=" in request]) == 3
    remote.download(remote.find(f"{bucket.url}/there"), tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == CONTENT * 400
    bucket.fail(503, on="partNumber=2")
    remote.upload(tmp_path / "here", f"{bucket.url}/there")


def test_an_upload_that_is_interrupted_leaves_the_object_as_it_was(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "REQUEST_BYTES", 5 << 20)
    (tmp_path / "here").write_bytes(CONTENT * 400)
    bucket.fail(403, on="partNumber=2")
    with pytest.raises(StorageError, match=r"half: .*403.*; log in"):
        remote.upload(tmp_path / "here", f"{bucket.url}/half")
    assert remote.find(f"{bucket.url}/half") is None


def test_an_object_that_is_replaced_while_it_is_copied_is_refused(bucket, tmp_path):
    storage.write(f"{bucket.url}/c", CONTENT)
    file = remote.find(f"{bucket.url}/c")
    storage.write(f"{bucket.url}/c", CONTENT[::-1])
    with pytest.raises(StorageError, match=r"bucket/c: was replaced while it was read"):
        remote.download(file, tmp_path / "c")


def test_names_are_taken_as_they_are(bucket, tmp_path):
    url = f"{bucket.url}/names"
    names = ["a b", "a%20b", "c?d#e", "é*[x]", "f/g+h&i=j;k"]
    for name in names:
        storage.write(f"{url}/{name}", name.encode())
    assert [str(file).removeprefix(f"{url}/") for file in remote.find_below(url)] == sorted(names)
    assert all(remote.read(remote.find(f"{url}/{name}")) == name.encode() for name in names)
    assert [file.name for file in remote.find_like(f"{url}/a[%]*")] == ["a%20b"]
    refused = r"names/x//y: an address needs a name between two slashes"
    with pytest.raises(ConfigError, match=refused):
        remote.upload(b"", f"{url}/x//y")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_passes_is_tried_again(status, bucket, tmp_path):
    storage.write(f"{bucket.url}/t", CONTENT)
    file = remote.find(f"{bucket.url}/t")
    # not the listing that a client did not wait for
    bucket.fail(status, times=3, on=r"alt=media|GET /bucket/t\b")
    assert remote.read(file) == CONTENT
    assert not bucket.faults
    bucket.fail(status, times=2, on="PUT|POST")
    (tmp_path / "t").write_bytes(CONTENT[:9])
    remote.upload(tmp_path / "t", f"{bucket.url}/t")
    assert not bucket.faults
    assert remote.find(f"{bucket.url}/t").size == 9


LOGIN = r"log in \((gcloud auth|aws configure)"


def test_what_stays_is_one_sentence(bucket):
    storage.write(f"{bucket.url}/s", CONTENT)
    file = remote.find(f"{bucket.url}/s")
    for status, message in (
        (
            503,
            r".*after 9 retries.*503 Serv.*; check the network, and",
        ),
        (401, rf".*401 Unauthorized; {LOGIN}"),
        (403, rf".*; {LOGIN}.*\), or ask"),
        (418, r".*418 I'm a teapot"),
    ):
        bucket.fail(status, times=1000)
        with pytest.raises(StorageError, match=f"bucket/s: {message}") as error:
            remote.read(file)
        assert "\n" not in str(error.value)
        with pytest.raises(StorageError, match=f"bucket/below: {message}"):
            remote.find_below(f"{bucket.url}/below")
        bucket.faults.clear()
    elsewhere = f"{bucket.url[:2]}://elsewhere/a"
    said = r"://elsewhere/a:.*no bucket.*check its name"
    for act in (remote.find_below, lambda url: remote.upload(Path(__file__), url)):
        with pytest.raises(StorageError, match=said) as error:
            act(elsewhere)
        assert "\n" not in str(error.value)
    with pytest.raises(StorageError, match=r"bucket/gone:.*no object"):
        remote.read(remote.RemoteFile(f"{bucket.url}/gone", 9, ""))


def test_a_store_that_is_not_there_is_one_sentence(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    said = r".*127.0.0.1.*after 9 retries.*error sending"
    for variable, url in (("STORAGE_EMULATOR_HOST", "gs://b/a"), ("AWS_ENDPOINT_URL", "s3://b/a")):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
        with pytest.raises(StorageError, match=f"{url}: {said}"):
            remote.find(url)


@pytest.mark.parametrize("look", [remote.find, lambda url: Versioned(url, "a").read()])
def test_without_credentials_a_store_is_not_tried_for_long(look, monkeypatch, tmp_path):
    monkeypatch.setattr(stores, "_machine_has_credentials", lambda: False)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9/other")
    said = r"s3://bucket/a:.*(after 1 retries|1 retry).*no credentials; log in \(aws"
    with pytest.raises(StorageError, match=said):
        look("s3://bucket/a")


@pytest.mark.parametrize("answers", [True, False])
def test_a_machine_that_answers_for_credentials_is_asked_for_them(answers, monkeypatch, tmp_path):
    monkeypatch.setattr(stores, "_machine_has_credentials", lambda: answers)
    monkeypatch.setattr(os, "environ", {"HOME": str(tmp_path)})
    assert stores.is_anonymous("s3://b") == stores.is_anonymous("gs://b") == (not answers)


def test_public_objects_are_read_without_credentials(s3, monkeypatch):
    url = f"{s3.url}/public"
    for name in ("config.json", "secret"):
        storage.write(f"{url}/{name}", b"{}")
    open_to_all = {"Bucket": storage.BUCKET, "Key": "public/config.json", "ACL": "public-read"}
    boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"]).put_object_acl(**open_to_all)
    monkeypatch.setattr(stores, "is_anonymous", lambda url: True)
    stores._client.cache_clear()
    assert remote.read(remote.find(f"{url}/config.json")) == b"{}"
    assert Objects(url).read("config.json") == b"{}"
    said = r"bucket/public.*; log in \(aws configure"
    for look in (lambda: remote.find(f"{url}/secret"), lambda: Objects(url).read("secret")):
        with pytest.raises(StorageError, match=said):
            look()


def test_keys_of_aws_configure_are_used_by_boto3(s3, tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    (tmp_path / "keys").write_text(
        "[default]\naws_access_key_id = a\naws_secret_access_key = b\n"
        "[far]\naws_access_key_id = c\naws_secret_access_key = d\naws_session_token = e\n"
    )
    (tmp_path / "config").write_text("[default]\nregion = r1\n[profile far]\nregion = r2\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for profile, key, region in (("default", "a", "r1"), ("far", "c", "r2")):
        monkeypatch.setenv("AWS_PROFILE", profile)
        stores._client.cache_clear()
        storage.write(f"{s3.url}/by-profile", b"1")
        client = stores._client("s3", "bucket")
        assert client.credential_provider()["access_key_id"] == key
        assert client.config["region"] == region
    monkeypatch.setitem(sys.modules, "boto3", None)
    monkeypatch.delitem(sys.modules, "obstore.auth.boto3")
    assert stores._amazon_login() is None


def test_credentials_that_need_googles_library_say_so(tmp_path, monkeypatch):
    file = tmp_path / "keys.json"
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    monkeypatch.setitem(sys.modules, "google.auth", None)
    user = {"client_id": "a", "client_secret": "b", "refresh_token": "c"}
    file.write_text(json.dumps({"type": "authorized_user", **user}))
    assert stores._client("gs", "bucket")
    file.write_text('{"type": "external_account"}')
    stores._client.cache_clear()
    with pytest.raises(StorageError, match=r"`external_account`.* pip install google-auth"):
        remote.find("gs://bucket/a")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("hf://user/data", r"hf://.*not read.*gs:// and s3:// and local paths"),
        ("http://host/a", "http:// is not read or written"),
        ("gs:/bucket/a", "two slashes, gs://BUCKET/NAME"),
        ("s3:bucket/a", "two slashes, s3://BUCKET/NAME"),
        ("gs:///a", "two slashes"),
        ("s3://KEY:HIDDEN@b/a", r"s3://\*\*\*b/a:.*no keys"),
        ("gs://b/a?token=HIDDEN", r"gs://b/a\?\*\*\*: an address must hold no keys"),
    ],
)
def test_other_addresses_are_refused(url, message):
    with pytest.raises(StorageError, match=message) as error:
        remote.find(url)
    assert "HIDDEN" not in str(error.value)


def test_a_forked_process_is_refused_what_its_parent_has_used(gcs):
    """In a process of its own, without the threads of this one."""
    storage.write(f"{gcs.url}/f", CONTENT)
    size = f"remote.find('{gcs.url}/f').size"
    program = (
        "import os, sys\nfrom flaxformer_lite.storage import remote\n"
        f"{size}\nif not os.fork():\n    {size}\nelse:\n    sys.exit(os.wait()[1] >> 8)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "a forked process cannot use a store that its parent has used" in ended.stderr


def test_only_addresses_of_known_stores_are_addresses():
    assert stores.is_url("gs://b") and stores.is_url("s3://b/c")
    assert not any(map(stores.is_url, ("gs", "gs:/b", "hf://b", "/gs://b", "a/gs://b")))


def test_names_that_would_lie_elsewhere_on_a_disk_are_refused(s3):
    key = {"Bucket": storage.BUCKET, "Key": "dots/../elsewhere"}
    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    client.put_object(**key, Body=b"1")
    said = r'dots: .*invalid path.*"\.\."'
    with pytest.raises(StorageError, match=said):
        remote.find_below(f"{s3.url}/dots")
    client.delete_object(**key)


def test_a_store_without_its_client_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(StorageError, match=r"needs obstore; pip install '\w+\[stores\]'"):
        remote.find("gs://bucket/name")
