"""Exported pages in a real browser show the numbers of `fill-mask`, `predict` and `embed`.

`make browser` runs it; see runs/browser. It needs the extra [export], and the libraries of npm.
"""

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest
from tokenizers import (
    Tokenizer,
    decoders,
    models as kinds,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from examples import sentence_similarity
from flaxformer_lite.__main__ import main
from flaxformer_lite.cli.fill_mask import fill
from flaxformer_lite.cli.open_model import open_model
from tests.cli import models
from tools.browser.contrast import lowest_contrast

pytest.importorskip("jax2onnx", reason="pip install 'flaxformer_lite[export]'")
SHOTS = Path("runs/browser")
NPM = os.environ.get("NPM", "runs/browser/npm")
APART = 1e-4
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ODD = [
    "zero one two",
    "ZERO, \u00c7\u00e0 \u0646\u0635 na\u0308\u0131ve\u00a0\u65e5\u672c\u200b",
    "3\u00d74\u2026\t\x07 \U0001f642\U0001f469\u200d\U0001f4bb \ufb01 \u00bd",
    "[SEP] one </s> [CLS] <b>two</b>",
    "   ",
    "e\u0301\u00e9 \uff46\uff55 \u0130s \u00df \u017f \u01c5 a\u0315\u0300",
]
ATTACK = "</script><img src=x onerror=alert(1)>"
TITLE = "<img src=x onerror=alert(1)>"


def word_piece():
    made = Tokenizer(kinds.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    return made, trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIALS)


def unigram():
    made = Tokenizer(kinds.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    return made, trainers.UnigramTrainer(vocab_size=200, special_tokens=SPECIALS, unk_token="[UNK]")


def with_tokenizer(folder, kind):
    """Replaces a BERT's tokenizer by one of another kind."""
    made, trainer = kind()
    made.train_from_iterator([*models.WORDS * 20, *ODD * 20], trainer)
    marks = [(name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=marks)
    made.save(str(folder / "tokenizer.json"))
    return folder


def export(folder, page, *args):
    main(["export", "--model", str(folder), "--output", str(page), "--runtime", NPM, *args])
    return page


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    where = tmp_path_factory.mktemp("models")
    labels = {"id2label": {"0": ATTACK, "1": "bad"}, "label2id": {ATTACK: 0, "bad": 1}}
    made = {
        "bytes": models.directory(where / "bytes", "bert", "masked_lm"),
        "word_piece": with_tokenizer(
            models.directory(where / "word_piece", "bert", "masked_lm"), word_piece
        ),
        "unigram": with_tokenizer(
            models.directory(where / "unigram", "bert", "masked_lm"), unigram
        ),
        "classes": models.directory(where / TITLE, "bert", "sequence_classification"),
        "vectors": models.directory(where / "vectors", "bert", "none"),
    }
    config = made["classes"] / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | labels))
    return made


@pytest.fixture(scope="module")
def pages(folders, tmp_path_factory):
    where = tmp_path_factory.mktemp("pages")
    return {name: export(folder, where / f"{name}.html") for name, folder in folders.items()}


@pytest.fixture
def visit(browser):
    """Opens a page, and refuses errors, dialogs and requests when the test ends."""
    contexts = []
    troubles = []

    def opened(file, width=1000, scheme="light", javascript=None):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: troubles.append("dialog") or dialog.dismiss())
        page.on(
            "request",
            lambda request: (
                None
                if request.url == file.as_uri() or request.url.startswith("blob:")
                else troubles.append(request.url)
            ),
        )
        if javascript:
            page.add_init_script(javascript)
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready]", timeout=120_000)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not troubles


def compute(page, text):
    """Types a text; returns the rows of names and numbers of the tables, and the error."""
    runs = int(page.get_attribute("html", "data-runs"))
    page.fill("#text", text)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(f"html[data-runs='{runs + 1}']", timeout=60_000)
    rows = page.query_selector_all("table.bars tr")
    found = [
        (row.query_selector("th").text_content(), float(row.query_selector("td").text_content()))
        for row in rows
    ]
    return found, page.text_content("#error")


@pytest.mark.parametrize("name", ["bytes", "word_piece", "unigram"])
def test_masks_are_filled_as_fill_mask_does(visit, pages, folders, name):
    page = visit(pages[name])
    assert "are those of flaxformer_lite" in page.text_content("#check")
    opened = open_model(str(folders[name]), head="masked_lm")
    for odd in ODD:
        for text in (f"{odd} [MASK]", f"[MASK] {odd}[MASK]"):
            shown, error = compute(page, text)
            assert not error
            due = fill(opened, text, 6)
            for best in due:
                guesses = shown[:5]
                shown = shown[5:]
                probabilities = [probability for _, probability in best]
                expected = pytest.approx(probabilities[:5], abs=APART)
                assert [probability for _, probability in guesses] == expected
                if abs(np.diff(probabilities)).min() > 1e-6:  # else two may change places
                    names = [token if token.isprintable() else repr(token) for token, _ in best]
                    assert [token for token, _ in guesses] == names[:5]
            assert not shown
    _, error = compute(page, "no mask")
    assert error.startswith("The text has no mask")
    _, error = compute(page, "[MASK] " + "zero one " * 60)
    assert "positions end at 64" in error
    page.fill("#text", "zero ")
    page.click("#mask")
    assert page.input_value("#text") == "zero [MASK]"


def test_classes_are_those_of_predict(visit, pages, folders, tmp_path, capsys):
    page = visit(pages["classes"])
    texts = [text for text in ODD if text.strip()] + ["zero one two three " * 40]
    table = tmp_path / "texts.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text"], *([text] for text in texts)])
    output = tmp_path / "predicted.jsonl"
    model = str(folders["classes"])
    main(["predict", "--model", model, "--data", str(table), "--output", str(output)])
    for line, text in zip(output.read_text().splitlines(), texts, strict=True):
        row = json.loads(line)
        shown, error = compute(page, text)
        assert not error
        assert page.text_content(".prediction") == row["prediction"]
        for name, probability in shown:
            assert probability == pytest.approx(row[f"probability_{name}"], abs=APART)
    assert page.text_content("#result p.soft") == "Cut after 64 tokens."
    assert not page.query_selector("img")
    assert page.title() == TITLE


def vectors(page):
    return np.asarray([json.loads(line) for line in page.text_content("pre").splitlines()])


def test_vectors_are_those_of_embed(visit, pages, folders, tmp_path):
    page = visit(pages["vectors"])
    texts = [text for text in ODD if text.strip()] + ["zero one two three " * 40]
    out = tmp_path / "vectors.npy"
    args = [word for text in texts for word in ("--text", text)]
    main(["embed", "--model", str(folders["vectors"]), *args, "--out", str(out)])
    _, error = compute(page, "\n".join(texts))
    assert not error
    due = np.load(out)
    np.testing.assert_allclose(vectors(page), due, atol=APART)
    assert "Cut after 64 tokens" in page.text_content("#result")
    cells = [float(cell.text_content()) for cell in page.query_selector_all("tbody td:not(.text)")]
    unit = due / np.linalg.norm(due, axis=1, keepdims=True)
    np.testing.assert_allclose(np.reshape(cells, (len(texts), -1)), unit @ unit.T, atol=APART)
    page.fill("#prompt", "query: ")
    compute(page, texts[0])
    main(
        ["embed", "--model", str(folders["vectors"]), "--text", texts[0], "--prompt", "query: "]
        + ["--out", str(out)]
    )
    np.testing.assert_allclose(vectors(page), np.load(out), atol=APART)
    _, error = compute(page, " \n ")
    assert error.startswith("No text")


def test_a_published_encoder_in_int8(visit, tmp_path, capsys):
    pytest.importorskip(sentence_similarity.PACKAGE, reason="make examples installs it")
    folder = sentence_similarity.model_directory()
    file = export(folder, tmp_path / "minilm.html", "--weights", "int8")
    assert "cost of int8: cosine with float32 0.999" in capsys.readouterr().out
    page = visit(file)
    assert "are those of flaxformer_lite" in page.text_content("#check")
    texts = [sentence_similarity.QUESTION, *sentence_similarity.SENTENCES]
    _, error = compute(page, "\n".join(texts))
    assert not error
    page.screenshot(path=SHOTS / "minilm.png", full_page=True)
    due = sentence_similarity.embed(folder, texts)
    assert (vectors(page) * due).sum(axis=1).min() > 0.99  # int8's cost


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1000, 360])
@pytest.mark.parametrize("name", ["bytes", "classes", "vectors"])
def test_it_fits_and_can_be_read(visit, pages, name, width, scheme):
    page = visit(pages[name], width, scheme)
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"export_{name}_{width}_{scheme}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    seen = "h1, p, label, th, td, caption, button, textarea, summary, pre"
    assert lowest_contrast(page, seen) >= 4.5
    for box in page.query_selector_all("textarea, input"):
        assert page.query_selector(f"label[for={box.get_attribute('id')}]")


def test_other_numbers_and_old_browsers_are_said(visit, pages, tmp_path):
    text = pages["classes"].read_text()
    wrong = tmp_path / "wrong.html"
    wrong.write_text(text.replace('"numbers": [0.', '"numbers": [1.', 1))
    assert "do not trust" in visit(wrong).text_content("#error")
    page = visit(pages["classes"], javascript="delete window.DecompressionStream")
    assert "browser is too old" in page.text_content("#error")
    assert page.is_disabled("#run")
