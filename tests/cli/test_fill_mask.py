import jax
import numpy as np
import pytest

from flaxformer_lite import load_pretrained, load_tokenizer
from flaxformer_lite.__main__ import main
from tests.cli import models


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return models.directory(tmp_path_factory.mktemp("bert"), "bert", "masked_lm")


def test_guesses_are_the_likeliest_tokens(bert, capsys):
    main(["generate", "--model", str(bert), "--prompt", "zero [MASK] two", "--top_k", "3"])
    model, params = load_pretrained(bert)
    tokenizer = load_tokenizer(bert)
    ids = tokenizer.encode("zero [MASK] two")
    at = ids.index(tokenizer.ids["mask"])
    assert ids[0] == tokenizer.ids["cls"] and ids[-1] == tokenizer.ids["sep"]
    row = np.asarray(
        jax.nn.softmax(model.apply({"params": params}, np.asarray([ids])).logits[0, at])
    )
    best = np.argsort(-row[: tokenizer.vocab_size])[:3]
    shown = [line.split(maxsplit=1)[0] for line in capsys.readouterr().out.splitlines()]
    assert shown == [f"{row[i]:.4f}" for i in best]


def test_each_mask_has_its_guesses(bert, capsys):
    main(["generate", "--model", str(bert), "--prompt", "[MASK] one [MASK]", "--top_k", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mask 1" and lines[3] == "mask 2" and len(lines) == 6


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("zero one", [], "--prompt: has no mask"),
        ("one " * 80 + "[MASK]", [], "positions end at 64"),
        ("[MASK]", ["--num_beams", "2"], "--num_beams: is for models that write"),
        ("[MASK]", ["--stream"], "--stream: is for models that write"),
        ("[MASK]", ["--set", "min_p=0.1"], "--set min_p: is for models that write"),
    ],
)
def test_refusals(bert, capsys, text, flags, message):
    with pytest.raises(SystemExit):
        main(["generate", "--model", str(bert), "--prompt", text, *flags])
    assert message in capsys.readouterr().err
