from flaxformer_lite.checkpoints.mirror import fetch, open_mirror, place_of
from flaxformer_lite.storage.lock import Lock
from flaxformer_lite.storage.objects import Objects
from flaxformer_lite.storage.stores import ADDRESS


def test_what_a_run_does_not_read_again_is_not_copied(gcs, tmp_path):
    objects = Objects(f"{gcs.url}/outer")
    own = ["config.json", "tokenizer/tokenizer.bytes", "tracker-id"]
    others = ["corpus.jsonl", "report.html", "run/config.json", "run/checkpoints/3/state/d/1"]
    others += ["caches/tokens-1/complete.json", "caches/tokens-1/ids"]
    objects.write_all(dict.fromkeys([*own, *others, "checkpoints/3/meta/metadata"], b"{}"))
    fetch(str(objects), tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.relative_to(tmp_path).as_posix() for path in files} == {*own, ADDRESS}
    assert not any("corpus" in request for request in gcs.seen if request.startswith("GET"))


def test_folders_that_a_console_made_are_no_files(bucket, tmp_path):
    made = {"made/": b"", "made/tokenizer/": b"", "made/tokenizer/tokenizer.bytes": b"{}"}
    Objects(bucket.url).write_all(made)
    fetch(f"{bucket.url}/made", tmp_path)
    assert (tmp_path / "tokenizer/tokenizer.bytes").read_bytes() == b"{}"


def test_each_process_sends_what_it_alone_writes(gcs):
    place = place_of(f"{gcs.url}/two")
    objects = Objects(f"{gcs.url}/two")
    objects.write("metrics.jsonl", b"of process 0, before")
    with Lock(objects, "first") as lock, open_mirror(place, None) as other:
        with open_mirror(place, lock) as first:
            (first.folder / "metrics.jsonl").write_bytes(b"of process 0, now")
        (other.folder / "profile-1.txt").write_bytes(b"of process 1")
    assert objects.read("metrics.jsonl") == b"of process 0, now"
    assert objects.read("profile-1.txt") == b"of process 1"
