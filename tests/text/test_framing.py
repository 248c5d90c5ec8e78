"""One rule for what stands around a text: an odd tokenizer through every door, beside the ids of
transformers."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite import run
from flaxformer_lite.checkpoints import workdir
from flaxformer_lite.config import (
    ConfigError,
    DataConfig,
    ExperimentConfig,
    TokenizerConfig,
    TrainConfig,
    fingerprint,
    to_config_dict,
)
from flaxformer_lite.data.dataset import open_dataset
from flaxformer_lite.data.documents import open_corpus
from flaxformer_lite.model_details import load_tokenizer
from flaxformer_lite.models import gpt2
from flaxformer_lite.objectives.tables.classification import Classification
from flaxformer_lite.objectives.text.causal_lm import CausalLm
from flaxformer_lite.pretrained.tokenizer import framed, read_tokenizer
from flaxformer_lite.runs.start import resume
from flaxformer_lite.runs.start.adopt import read_experiment
from flaxformer_lite.text.tokenizer import HuggingFace, load

FOLDER = Path(__file__).parents[1] / "fixtures/framing"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
TEXTS = EXPECTED["texts"][:3]
BOS, EOS, PAD = EXPECTED["roles"]


DOCUMENTS = [f"{TEXTS[number % 3]} {number}" for number in range(60)]  # so many are held out whole


def experiment(tmp_path, frame="published", **options):
    data = DataConfig(
        path=str(tmp_path / "docs.jsonl"),
        tokenizer=TokenizerConfig(path=str(FOLDER), frame=frame),
        length=8,
        eval_fraction=0.3,
        cache=str(tmp_path / "cache"),
    )
    model = gpt2.config("tiny", d_model=16, num_heads=2, mlp_dim=16, decoder_layers=1)
    train = TrainConfig(batch_size=8, **{"steps": 2, "eval_every": 2, **options})
    return ExperimentConfig(model=model, objective=CausalLm(), data=data, train=train)


@pytest.fixture
def documents(tmp_path):
    lines = [json.dumps({"text": text}) for text in DOCUMENTS]
    (tmp_path / "docs.jsonl").write_text("\n".join(lines))
    return tmp_path


def read_documents(corpus):
    """Returns the documents of both splits, as tuples of ids."""
    found = set()
    for tokens in corpus.tokens.values():
        for start, end in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True):
            found.add(tuple(tokens.ids[start:end].tolist()))
    return found


def test_a_published_tokenizer_frames_cuts_and_pads_as_its_folder_says():
    tokenizer = read_tokenizer(FOLDER)
    assert [tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id] == [BOS, EOS, PAD]
    assert [tokenizer.encode(text) for text in TEXTS] == EXPECTED["framed"]
    cut = [tokenizer.encode(text, max_length=EXPECTED["limit"]) for text in TEXTS]
    assert cut == EXPECTED["cut"]
    batch = tokenizer(TEXTS)
    np.testing.assert_array_equal(batch["input_ids"], EXPECTED["padded"])
    np.testing.assert_array_equal(batch["attention_mask"], EXPECTED["mask"])


def test_training_has_the_special_tokens_that_the_folder_names():
    tokenizer = load(FOLDER)
    assert [tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id] == [BOS, EOS, PAD]
    assert tokenizer.encode_batch(TEXTS) == EXPECTED["bare"]
    frame = tokenizer.frame("decoder")
    for text, due in zip(TEXTS, EXPECTED["cut"], strict=True):
        (spans,) = tokenizer.encode_spans([text])
        assert frame.join(spans, limit=EXPECTED["limit"]).ids.tolist() == due


def test_documents_begin_and_end_as_the_tokenizer_frames_them(documents):
    dataset = open_dataset(experiment(documents))
    encode = read_tokenizer(FOLDER).encode  # transformers' ids, by the first test
    assert read_documents(dataset.sources[""].corpus) == {
        (*encode(text), EOS) for text in DOCUMENTS
    }
    # a document's first token of text is learned, given the token that begins it
    example = dataset.example(0, 0, 0)
    begins = example["inputs"]["input_ids"] == BOS
    assert begins.any()
    assert example["targets"]["weights"][begins].all()


def test_documents_begin_with_nothing_if_the_page_says_so(documents):
    dataset = open_dataset(experiment(documents, frame="end"))
    usual = load(FOLDER, frame="end").eos_id
    assert usual == 3, "the usual spelling comes first, as before frames were read"
    assert read_documents(dataset.sources[""].corpus) == {
        (*bare(text), usual) for text in DOCUMENTS
    }


def test_an_encoder_adds_its_special_tokens_itself(documents):
    corpus = open_corpus(experiment(documents).data, ("text",), skeleton="encoder")
    assert read_documents(corpus) == {(*bare(text), EOS) for text in DOCUMENTS}


def bare(text):
    return read_tokenizer(FOLDER).encode(text, special_tokens=False)


def test_rows_of_a_table_are_framed_and_cut_so(tmp_path):
    lines = ["text,label", *(f"{text},{number % 2}" for number, text in enumerate(TEXTS * 8))]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    cfg = experiment(tmp_path)
    data = dataclasses.replace(
        cfg.data, length=EXPECTED["limit"], path=str(tmp_path / "rows.csv"), columns="text=text"
    )
    model = gpt2.config("tiny", head="sequence_classification", vocab_size=320)
    cfg = dataclasses.replace(cfg, model=model, data=data, objective=Classification())
    found = set()
    for dataset in (open_dataset(cfg, "train"), open_dataset(cfg, "eval")):
        for row in range(dataset.num_examples):
            inputs = dataset.example(row, 0, 0)["inputs"]
            found.add(tuple(inputs["input_ids"][inputs["attention_mask"] > 0].tolist()))
    assert found == {*map(tuple, EXPECTED["cut"])}


@pytest.mark.nightly
def test_a_workdir_keeps_the_frame_for_those_who_read_it(documents):
    run(experiment(documents), documents / "run")
    opened = load_tokenizer(documents / "run")
    assert [opened.encode(text) for text in TEXTS] == EXPECTED["framed"]
    assert opened.eos_id == EOS
    run(experiment(documents, frame="end"), documents / "end")
    opened = load_tokenizer(documents / "end")
    assert [opened.encode(text) for text in TEXTS] == EXPECTED["bare"]


def test_added_tokens_keep_the_frame():
    grown = load(FOLDER).with_tokens(["<new>"])
    assert grown.begin_ids == (BOS,)
    assert grown.eos_id == EOS
    assert framed(grown, "decoder").encode("the cat sat") == EXPECTED["framed"][0]


@pytest.mark.nightly
def test_a_run_begun_before_keeps_its_framing(documents):
    """Its config.json has no `frame`, and its page neither."""
    folder = documents / "run"
    run(experiment(documents, frame="end"), folder)
    path = folder / "config.json"
    inputs = json.loads(path.read_text())
    del inputs["config"]["data"]["tokenizer"]["frame"]
    inputs["hash"] = fingerprint(inputs["config"])
    path.write_text(json.dumps(inputs))
    assert workdir.read_config(folder).data.tokenizer.frame == "end"
    page = to_config_dict(experiment(documents, steps=4))
    assert read_experiment(page, folder).data.tokenizer.frame == "end"
    assert read_experiment(page, documents / "other").data.tokenizer.frame == "published"
    stated = read_experiment(page, folder, ["data.tokenizer.frame"])
    assert stated.data.tokenizer.frame == "published"
    with pytest.raises(ConfigError, match=r"data\.tokenizer\.frame: end -> published"):
        run(stated, folder)
    result = run(page, folder)
    assert result.last["step"] == 4


def test_a_checkpoint_begun_before_is_compared_by_what_it_did(documents):
    cfg = experiment(documents, frame="end")
    stored = resume.meta(cfg, "data", 2)
    del stored["config"]["data"]["tokenizer"]["frame"]
    resume.check(stored, cfg, "data")
    with pytest.raises(ConfigError, match=r"data\.tokenizer\.frame: end -> published"):
        resume.check(stored, experiment(documents), "data")


@pytest.mark.parametrize("kind", ["PreTrainedTokenizerFast", "TokenizersBackend", None])
def test_a_class_that_takes_the_file_as_it_is_adds_no_space(tmp_path, kind):
    """As transformers does; a family's class rebuilds its first step."""
    shutil.copytree(FOLDER, tmp_path / "folder")
    path = tmp_path / "folder/tokenizer_config.json"
    config = json.loads(path.read_text())
    config["tokenizer_class"] = kind
    path.write_text(json.dumps(config))
    assert load(tmp_path / "folder").encode("the cat") != load(FOLDER).encode("the cat")
    assert load(tmp_path / "folder").encode(" the cat") == load(FOLDER).encode("the cat")


def test_another_frame_is_refused():
    with pytest.raises(ConfigError, match=r"frame='none'.*choose from published, end"):
        TokenizerConfig(frame="none")


def test_special_tokens_of_a_run_begun_before_are_those_of_their_usual_spelling():
    """Its fingerprint, by which it goes on, is that of a file whose folder names nothing."""
    definition = (FOLDER / "tokenizer.json").read_bytes()
    named = {"bos": "<|begin|>", "eos": "<|fin|>", "cls": "<|begin|>", "mask": "<|void|>"}
    before = HuggingFace(definition, {}, "end")
    kept = HuggingFace(definition, named, "end")
    assert kept.ids == before.ids
    assert kept.fingerprint == before.fingerprint
    published = HuggingFace(definition, named)
    assert published.ids != before.ids
    assert published.fingerprint != before.fingerprint
    renamed = definition.replace(b"<|endoftext|>", b"<|otherwise|>")
    assert HuggingFace(renamed, named, "end").eos_id == EOS
