import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import tokenizers

import flaxformer_lite
from flaxformer_lite import load_tokenizer
from flaxformer_lite.__main__ import main
from flaxformer_lite.cli.open_model import open_model
from flaxformer_lite.config import ConfigError, to_config_dict
from flaxformer_lite.data.open_tokenizer import open_tokenizer
from flaxformer_lite.inference.embed import embed, prompt_length
from flaxformer_lite.model_details import load_sentence_layers
from flaxformer_lite.nn.functions.activations import TORCH_ACTIVATIONS
from flaxformer_lite.nn.functions.pooling import pool
from flaxformer_lite.objectives.tables.sentence_embeddings import SentenceEmbeddings
from flaxformer_lite.pretrained.safetensors import WeightsError
from flaxformer_lite.pretrained.sentences import SentenceLayers, read_sentence_layers
from flaxformer_lite.pretrained.tokenizer import framed
from flaxformer_lite.runs.evaluate_file import open_trained
from flaxformer_lite.runs.start.adopt import read_experiment
from tests.objectives import learned

ROOT = Path(__file__).parents[1] / "fixtures" / "sentences"
EXPECTED = json.loads((ROOT / "expected.json").read_text())
LAYERS = {
    "mean_normalize": ("mean", 0, True),
    "cls_dense": ("first", 1, False),
    "mean_dense_normalize": ("mean", 1, True),
}


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(ROOT / "mean_dense_normalize", tmp_path / "model"))


@pytest.mark.parametrize("name", LAYERS)
def test_vectors_are_those_of_sentence_transformers(name):
    layers = read_sentence_layers(ROOT / name)
    assert (layers.pooling, len(layers.dense), layers.normalize) == LAYERS[name]
    vectors = embed(open_model(str(ROOT / name)), EXPECTED["texts"], layers)
    np.testing.assert_allclose(vectors, EXPECTED["vectors"][name], atol=2e-6)


def test_poolings_and_prompts_are_those_of_sentence_transformers(folder):
    """With the prompt's tokens, and without them; all in one program, and one by `embed`."""
    opened = open_model(str(folder))
    layers = []
    for config in EXPECTED["poolings"]:
        (folder / "1_Pooling" / "config.json").write_text(config)
        layers.append(read_sentence_layers(folder)._replace(dense=(), normalize=False))
    prompt = "three four "
    rows = [opened.tokenizer.encode(prompt + text, max_length=8) for text in EXPECTED["texts"]]
    ids = np.asarray([row + [0] * (8 - len(row)) for row in rows])
    mask = (ids != 0).astype(np.int32)
    skip = prompt_length(opened, prompt)

    @jax.jit
    def run(params):
        x = opened.model.apply({"params": params}, ids, attention_mask=mask, method="encode")
        return [
            pool(one.pooling, x, mask, skip=0 if one.include_prompt else skip, unit=False)
            for one in layers
        ]

    made = run(opened.params)
    for got, (config, due) in zip(made, EXPECTED["poolings"].items(), strict=True):
        np.testing.assert_allclose(got, due, atol=5e-6, err_msg=config)
    vectors = embed(opened, EXPECTED["texts"], layers[-1], prompt=prompt)
    np.testing.assert_allclose(vectors, due, atol=5e-6)


def test_a_trained_decoder_reads_texts_with_the_special_tokens_that_it_was_trained_with(folder):
    made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    specials = [("[CLS]", 1), ("[SEP]", 2)]
    made.post_processor = tokenizers.processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", specials
    )
    made.save(str(folder / "tokenizer.json"))
    inner = open_tokenizer(folder)
    published = load_tokenizer(folder).encode("four one")
    assert framed(inner, "decoder", as_published=True).encode("four one") == published
    # [SEP] would end a prompt that is to be continued
    assert framed(inner, "decoder").encode("four one") == published[:-1]
    bare = open_tokenizer(folder, frame="end")
    assert framed(bare, "decoder").encode("four one") == published[1:-1]


# Of torch 2.13 at -1.5, -0.3, 0.4, 2 and 7.
OF_TORCH = {
    "CELU": [-0.77687, -0.259182, 0.4, 2.0, 7.0],
    "ELU": [-0.77687, -0.259182, 0.4, 2.0, 7.0],
    "GELU": [-0.100211, -0.114627, 0.262169, 1.9545, 7.0],
    "Hardsigmoid": [0.25, 0.45, 0.566667, 0.833333, 1.0],
    "Hardswish": [-0.375, -0.135, 0.226667, 1.666667, 7.0],
    "Hardtanh": [-1.0, -0.3, 0.4, 1.0, 1.0],
    "Identity": [-1.5, -0.3, 0.4, 2.0, 7.0],
    "LeakyReLU": [-0.015, -0.003, 0.4, 2.0, 7.0],
    "LogSigmoid": [-1.701413, -0.854355, -0.513015, -0.126928, -0.000911],
    "Mish": [-0.2981, -0.151133, 0.289031, 1.943959, 6.999989],
    "ReLU": [0.0, 0.0, 0.4, 2.0, 7.0],
    "ReLU6": [0.0, 0.0, 0.4, 2.0, 6.0],
    "SELU": [-1.365814, -0.455667, 0.42028, 2.101402, 7.354907],
    "SiLU": [-0.273638, -0.127667, 0.239475, 1.761594, 6.993623],
    "Sigmoid": [0.182426, 0.425557, 0.598688, 0.880797, 0.999089],
    "Softplus": [0.201413, 0.554355, 0.913015, 2.126928, 7.000912],
    "Softsign": [-0.6, -0.230769, 0.285714, 0.666667, 0.875],
    "Tanh": [-0.905148, -0.291313, 0.379949, 0.964028, 0.999998],
    "Tanhshrink": [-0.594852, -0.008687, 0.020051, 1.035972, 6.000002],
}


def test_activations_of_dense_layers_are_those_of_torch():
    assert set(OF_TORCH) == set(TORCH_ACTIVATIONS)
    x = np.asarray([-1.5, -0.3, 0.4, 2.0, 7.0], np.float32)
    for name, due in OF_TORCH.items():
        np.testing.assert_allclose(TORCH_ACTIVATIONS[name](x), due, atol=2e-6, err_msg=name)


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_prompts_and_lower_case_are_those_of_sentence_transformers(tmp_path, capsys):
    """The first numbers of its vectors, of the same folder."""
    folder = Path(shutil.copytree(ROOT / "mean_normalize", tmp_path / "model"))
    prompts = {"query": "three four ", "document": ""}
    edit(folder / "config_sentence_transformers.json", prompts=prompts, default_prompt_name="query")
    layers = read_sentence_layers(folder)
    opened = open_model(str(folder))
    asked = embed(opened, EXPECTED["texts"], layers)
    due = [[0.172138, 0.169202], [0.192965, -0.023402], [0.096981, 0.020389]]
    np.testing.assert_allclose(asked[:, :2], due, atol=2e-6)
    plain = embed(opened, EXPECTED["texts"], layers, prompt=layers.prompt("document"))
    np.testing.assert_allclose(plain, EXPECTED["vectors"]["mean_normalize"], atol=2e-6)
    with pytest.raises(ConfigError, match="prompt_name='passage': no such prompt; choose from"):
        layers.prompt("passage")
    command = [
        "embed",
        "--model",
        str(folder),
        "--text",
        "four",
        "--output",
        str(tmp_path / "v.npy"),
    ]
    main(command)
    assert "'three four '" in capsys.readouterr().err
    np.testing.assert_allclose(np.load(tmp_path / "v.npy")[0, :2], due[1], atol=2e-6)
    edit(folder / "sentence_bert_config.json", do_lower_case=True)
    lower = embed(open_model(str(folder)), ["Zero ONE two [CLS]"], layers, prompt="")
    np.testing.assert_allclose(lower[0, :2], [0.089185, 0.283524], atol=2e-6)
    edit(folder / "config_sentence_transformers.json", default_prompt_name="passage")
    with pytest.raises(ConfigError, match=r"default_prompt_name='passage':.*prompts"):
        read_sentence_layers(folder)


def test_a_prompt_that_fills_the_window_is_told(tmp_path, caplog):
    folder = Path(shutil.copytree(ROOT / "mean_normalize", tmp_path / "model"))
    edit(folder / "sentence_bert_config.json", max_seq_length=4)
    pooling = next(folder.glob("*Pooling")) / "config.json"
    edit(pooling, include_prompt=False)
    layers = read_sentence_layers(folder)
    vectors = embed(open_model(str(folder)), ["five", "six"], layers, prompt="one two three four ")
    assert not vectors.any()
    assert "2 of 2 texts have no token within 4 but those of the prompt" in caplog.text
    caplog.clear()
    assert embed(open_model(str(folder)), ["five"], layers, prompt="one ").any()
    assert "prompt" not in caplog.text


def test_without_modules_vectors_are_means_of_any_length(tmp_path, caplog):
    """The first numbers of sentence-transformers' vectors, of the same folder."""
    folder = Path(shutil.copytree(ROOT / "mean_normalize", tmp_path / "model"))
    (folder / "modules.json").unlink()
    edit(folder / "1_Pooling" / "config.json", pooling_mode="cls")
    layers = read_sentence_layers(folder)
    vectors = embed(open_model(str(folder)), ["zero one two", "four"], layers)
    due = [[0.405912, 0.632298, -0.588307], [1.309892, -0.292659, 0.062104]]
    np.testing.assert_allclose(vectors[:, :3], due, atol=2e-6)
    assert "1_Pooling is not read" in caplog.text


@pytest.mark.parametrize(
    ("place", "values", "message"),
    [
        (
            "1_Pooling/config.json",
            {"pooling_mode": "median"},
            r"pools by \['median'\]: no such pooling;.*choose.*mean",
        ),
        ("1_Pooling/config.json", {"pooling_mode": []}, "pools by"),
        ("1_Pooling/config.json", {"pooling_mode": {"mean": 1}}, "pools by"),
        ("1_Pooling/config.json", {"include_prompt": "no"}, "must be true or false"),
        (
            "2_Dense/config.json",
            {"activation_function": "torch.nn.PReLU"},
            r"read.*of the sentence's vector",
        ),
        ("2_Dense/config.json", {"use_residual": True}, "without a residual"),
        ("2_Dense/config.json", {"in_features": "16"}, "in_features='16': must be a whole number"),
        ("modules.json", {"path": "../x", "type": "a.Dense"}, "a folder in it"),
        (
            "modules.json",
            {"path": "", "type": "a.Normalize"},
            "a layer 'Normalize' in '': read are Transformer",
        ),
        ("modules.json", {"path": "x", "type": "a.WordWeights"}, "a layer 'WordWeights' in 'x'"),
        ("modules.json", "Pooling", "must be a list of objects"),
        (
            "sentence_bert_config.json",
            {"max_seq_length": "8"},
            r"max_seq_length='8':.*number",
        ),
    ],
)
def test_other_layers_are_refused(folder, place, values, message):
    path = folder / place
    old = json.loads(path.read_text())
    path.write_text(json.dumps([values] if isinstance(old, list) else {**old, **values}))
    with pytest.raises(ConfigError, match=message):
        read_sentence_layers(folder)


def test_a_dense_layer_needs_its_weights(folder):
    config = json.loads((folder / "2_Dense" / "config.json").read_text())
    for size in (7, -1, 10**15):
        (folder / "2_Dense" / "config.json").write_text(
            json.dumps({**config, "out_features": size})
        )
        with pytest.raises(
            WeightsError, match=rf"expected .*weight': \({size}, 16\), .*bias': \({size},\)"
        ):
            read_sentence_layers(folder)
    (folder / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"2_Dense: no model.safetensors"):
        read_sentence_layers(folder)


@pytest.mark.nightly
def test_a_run_takes_pooling_and_lower_case_from_the_weights_and_publishes_them(tmp_path, capsys):
    source = Path(shutil.copytree(ROOT / "cls_dense", tmp_path / "source"))
    edit(source / "sentence_bert_config.json", do_lower_case=True)
    modules = json.loads((source / "modules.json").read_text())
    rows = [
        {"anchor": "zero one", "positive": "two"},
        {"anchor": "four", "positive": "five six"},
    ] * 5
    values = to_config_dict(learned.config(tmp_path, SentenceEmbeddings(), rows, steps=1, length=6))
    values.train.init_from = str(source)
    values.data.tokenizer.path = ""
    with pytest.raises(ConfigError, match=r"dense.*not trained"):
        read_experiment(values)
    (source / "modules.json").write_text(json.dumps(modules[:2]))
    cfg = read_experiment(values)
    assert cfg.objective.pooling == "first" and cfg.model.head == "none" and cfg.model.d_model == 16
    flaxformer_lite.run(cfg, tmp_path / "run")
    main(["convert", str(tmp_path / "run"), str(tmp_path / "published")])
    capsys.readouterr()
    published = read_sentence_layers(tmp_path / "published")
    # those of the source, which are empty
    assert published == SentenceLayers("first", 6, True, (), prompts=published.prompts)
    assert dict(published.prompts) == dict(read_sentence_layers(source).prompts)
    found = [
        embed(open_model(str(path)), EXPECTED["texts"], load_sentence_layers(path))
        for path in (tmp_path / "run", tmp_path / "published")
    ]
    np.testing.assert_allclose(*found, atol=1e-6)
    assert open_trained(tmp_path / "published").cfg.objective.pooling == "first"
    due = load_tokenizer(source).encode("zero one", special_tokens=False)
    for path in (source, tmp_path / "run", tmp_path / "published"):
        assert load_tokenizer(path).encode("Zero ONE", special_tokens=False) == due
        assert open_trained(path).tokenizer.encode("Zero ONE") == due
    with pytest.raises(ConfigError, match=r"do_lower_case: cannot be done with tokenizer\.bytes"):
        (source / "tokenizer.json").rename(source / "tokenizer.bytes")
        open_tokenizer(source)
