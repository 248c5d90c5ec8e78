"""Settings that come with published weights."""

import json

import pytest

from flaxformer_lite.generation.published import published_settings
from flaxformer_lite.generation.settings import settings
from tests.pretrained.fixtures import MANIFEST, ROOT


@pytest.mark.parametrize("name", [name for name, row in MANIFEST.items() if row.get("generate")])
def test_every_published_directory_gives_settings(name):
    found = settings(max_new_tokens=5, **published_settings(ROOT / name))
    assert found.pad_token_id == MANIFEST[name]["generate"]["greedy"]["pad_token_id"]


def write(folder, name, **values):
    (folder / name).write_text(json.dumps(values))


def test_the_newer_file_wins_and_spellings_are_ours(tmp_path):
    write(tmp_path, "config.json", eos_token_id=1, num_beams=2, vocab_size=9)
    write(tmp_path, "generation_config.json", eos_token_id=[3, 4], bad_words_ids=[[7], [1, 2]], forced_eos_token_id=None)
    want = {"eos_token_id": (3, 4), "num_beams": 2, "suppress_tokens": (7,), "pad_token_id": 3}
    assert published_settings(tmp_path) == want


def test_sampling_only_where_it_is_on(tmp_path):
    write(tmp_path, "generation_config.json", temperature=0.6, top_p=0.9)
    assert published_settings(tmp_path) == {}
    write(tmp_path, "generation_config.json", temperature=0.6, top_p=0.9, do_sample=True)
    assert published_settings(tmp_path) == {"temperature": 0.6, "top_k": 50, "top_p": 0.9, "min_p": 0.0}


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"generation_config.json: not JSON"):
        published_settings(tmp_path)
