import contextlib
import threading

import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import tokenizing
from flaxformer_lite.data.corpus import open_corpus
from flaxformer_lite.storage import content_cache

TEXT = ("text",)


@pytest.fixture(autouse=True)
def _short_pieces(monkeypatch):
    monkeypatch.setattr(tokenizing, "PIECE", 150)


def arrays(found):
    return {
        name: (tokens.ids.tolist(), tokens.offsets.tolist())
        for name, tokens in found.tokens.items()
    }


@pytest.mark.parametrize("name", ["bytes", "byte_bpe", "sentencepiece", "words"])
def test_batches_of_any_size_are_the_same_tokens(experiment, tmp_path, monkeypatch, name):
    due = arrays(open_corpus(experiment(tokenizer=name, tokens=430).data, TEXT))
    monkeypatch.setattr(tokenizing, "BATCH", 1000)  # a document may go over two
    again = experiment(tokenizer=name, tokens=430, cache=str(tmp_path / "again"))
    assert arrays(open_corpus(again.data, TEXT)) == due


def test_a_full_disk_leaves_nothing_half_written(experiment, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tokenizing, "write_tokens", fail)
    said = r"data.cache=.*: cannot write there \(No space left on device\); free some space"
    with pytest.raises(ConfigError, match=said):
        open_corpus(experiment().data, TEXT)
    assert not list((tmp_path / "cache").glob("tokens*"))


def test_of_hosts_that_share_the_cache_one_tokenizes_and_the_others_wait(
    experiment, tmp_path, monkeypatch
):
    found = {}
    messages = []
    made = []
    waits = threading.Event()
    write = tokenizing.write_tokens

    @contextlib.contextmanager
    def working(message):
        messages.append(message)
        waits.set()
        yield

    def write_once_the_other_waits(folder, *args):
        made.append(folder)
        assert waits.wait(600)
        write(folder, *args)

    monkeypatch.setattr(content_cache.progress, "working", working)
    monkeypatch.setattr(tokenizing, "write_tokens", write_once_the_other_waits)

    def host(number):
        found[number] = open_corpus(experiment().data, TEXT)

    hosts = [threading.Thread(target=host, args=(number,)) for number in range(2)]
    for thread in hosts:
        thread.start()
    for thread in hosts:
        thread.join()
    assert arrays(found[0]) == arrays(found[1])
    assert len(made) == 1
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [
        f"tokens-{found[0].fingerprint}"
    ], "and nothing else is left"
    assert messages == [f"waiting for another process to write tokens-{found[0].fingerprint}"]
