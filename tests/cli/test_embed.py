import functools
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import scipy.sparse

from flaxformer_lite import load_pretrained, load_tokenizer
from flaxformer_lite.__main__ import main
from tests.cli import models

ROOT = Path(__file__).parents[1] / "fixtures" / "sentences"
TEXTS = ["zero one two", "four", "eight nine ten eleven zero one two three four five"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return models.directory(tmp_path_factory.mktemp("bert"), "bert", "masked_lm")


@functools.partial(jax.jit, static_argnums=0)
def forward(model, params, ids):
    return model.apply({"params": params}, ids).last_hidden_state


def vectors(folder, text):
    """The encoder's vector of each token, without padding."""
    ids = np.asarray([load_tokenizer(folder).encode(text)])
    return np.asarray(forward(*load_pretrained(folder), ids))[0].astype(np.float64)


def alone(folder, text):
    """The vector of one text, by numpy."""
    mean = vectors(folder, text).mean(axis=0)
    return mean / np.linalg.norm(mean)


def test_vectors_are_means_and_padding_does_not_matter(bert, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[1:]) + "\n\n")
    out = tmp_path / "vectors.npy"
    args = ["--text", TEXTS[0], "--file", str(tmp_path / "texts.txt"), "--out", str(out)]
    main(["embed", "--model", str(bert), *args])
    assert "3 vectors of 16" in capsys.readouterr().out
    np.testing.assert_allclose(np.load(out), [alone(bert, text) for text in TEXTS], atol=1e-5)


def test_similarities_are_shown(bert, capsys):
    main(
        ["embed", "--model", str(bert), *(part for text in TEXTS[:2] for part in ("--text", text))]
    )
    said = capsys.readouterr().out
    assert f"{alone(bert, TEXTS[0]) @ alone(bert, TEXTS[1]):.4f}" in said
    assert "1.0000" in said
    assert TEXTS[0] in said


def test_vectors_of_the_first_token(bert, tmp_path):
    (bert / "1_Pooling").mkdir()
    (bert / "1_Pooling" / "config.json").write_text(
        '{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}'
    )
    out = tmp_path / "vectors.npy"
    main(["embed", "--model", str(bert), "--text", TEXTS[0], "--text", TEXTS[2], "--out", str(out)])
    shutil.rmtree(bert / "1_Pooling")
    due = vectors(bert, TEXTS[0])[0]
    np.testing.assert_allclose(np.load(out)[0], due / np.linalg.norm(due), atol=1e-5)


def test_a_long_text_is_cut_and_that_is_said(bert, tmp_path, capsys):
    (bert / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 6}))
    main(
        [
            "embed",
            "--model",
            str(bert),
            "--text",
            "four " * 9,
            "--text",
            "one",
            "--out",
            str(tmp_path / "v.npy"),
        ]
    )
    (bert / "sentence_bert_config.json").unlink()
    assert "notice: 1 of 2 texts are longer than 6 tokens" in capsys.readouterr().err


def test_an_encoder_decoder_gives_its_encoders(tmp_path, capsys):
    folder = models.directory(tmp_path, "t5")
    main(["embed", "--model", str(folder), "--text", "one", "--text", "two"])
    assert capsys.readouterr().out.count("1.0000") == 2


@pytest.mark.parametrize(
    ("name", "similarity", "weights"), [("sparse", "dot", 7), ("late", "maxsim", 4 * 6)]
)
def test_vectors_of_other_kinds_are_saved_and_searched(tmp_path, capsys, name, similarity, weights):
    model = ["--model", str(ROOT / name)]
    out = tmp_path / "vectors.npz"
    main(["embed", *model, "--text", "zero one", "--out", str(out), "--prompt", ""])
    if name == "sparse":
        assert scipy.sparse.load_npz(out).nnz == weights
    else:
        saved = np.load(out)
        assert saved["vectors"].size == weights and saved["lengths"].tolist() == [4]
    with pytest.raises(SystemExit):
        main(["embed", *model, "--text", "zero", "--out", str(tmp_path / "vectors.npy")])
    assert "are written to a file that ends in .npz" in capsys.readouterr().err
    (tmp_path / "texts.txt").write_text("zero\none two\n\nthree one zero\n")
    lines = ["--file", str(tmp_path / "texts.txt"), "--top_k", "2"]
    main(["similar", *model, "--text", "zero one", *lines])
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["zero", "one", similarity] and len(table) == 3


def test_texts_and_words_are_not_looked_for_together(tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("\n")
    file = ["--file", str(tmp_path / "texts.txt")]
    for flags, message in (
        (["--text", "zero"], "must be given together"),
        (["--text", "zero", *file, "--word", "one"], "run the command once for each"),
        (["--text", "zero", *file], "has no text"),
    ):
        with pytest.raises(SystemExit):
            main(["similar", "--model", str(ROOT / "sparse"), *flags])
        assert message in capsys.readouterr().err
