import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import load_pretrained, load_tokenizer
from flaxformer_lite.__main__ import main
from flaxformer_lite.cli import command_line
from tests.cli import models

TURN = "<{{ m['role'] }}> {{ m['content'] }}\n"
CHAT = "{{ bos_token }}{% for m in messages %}" + TURN + "{% endfor %}<assistant>"


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return models.directory(tmp_path_factory.mktemp("gpt2"))


ZERO = ("--prompt", "zero one", "--max_new_tokens")


def written(capsys, folder, *args):
    main(["generate", "--model", str(folder), *args])
    return capsys.readouterr().out


def refused(capsys, folder, *args):
    with pytest.raises(SystemExit):
        main(["generate", "--model", str(folder), *args])
    return capsys.readouterr().err


def greedy(folder, text, tokens):
    """By the full forward pass, token for token; what comes after the last one does not matter to a
    decoder."""
    model, params = load_pretrained(folder)
    tokenizer = load_tokenizer(folder)
    forward = jax.jit(model.apply)
    ids = tokenizer.encode(text)
    for _ in range(tokens):
        row = jnp.asarray([ids + [0] * (64 - len(ids))])
        logits = np.array(forward({"params": params}, row).logits[0, len(ids) - 1])
        logits[tokenizer.vocab_size :] = -np.inf
        ids.append(int(logits.argmax()))
    return tokenizer.decode(ids[-tokens:])


def test_the_likeliest_continuation_alone_is_on_stdout(gpt2, capsys):
    expected = greedy(gpt2, "zero one", 6)
    assert written(capsys, gpt2, *ZERO, "6") == expected + "\n"


def test_without_a_length_it_writes_what_fits(gpt2, capsys):
    """The model's positions end at 64, its own length where none is asked for."""
    tokens = 64 - len(load_tokenizer(gpt2).encode("zero one"))
    assert tokens < 64
    assert written(capsys, gpt2, *ZERO[:2]) == written(capsys, gpt2, *ZERO, str(tokens))


@pytest.mark.nightly  # as of tests/inference
def test_a_stream_is_the_same_text(gpt2, capsys):
    args = [*ZERO, "9", "--temperature", "1", "--seed", "3"]
    assert written(capsys, gpt2, *args, "--stream") == written(capsys, gpt2, *args)


@pytest.mark.nightly
def test_several_texts_are_numbered_and_a_seed_gives_the_same(gpt2, capsys):
    args = "--prompt zero --prompt four --num_return_sequences 2 --temperature 1 --max_new_tokens 4"
    first, again, other = (written(capsys, gpt2, *args.split(" "), "--seed", s) for s in "112")
    assert [f"[{n}]" in first for n in range(1, 6)] == [True] * 4 + [False]
    assert first == again != other


def test_stop_ends_the_text(gpt2, capsys):
    whole = written(capsys, gpt2, *ZERO, "8").rstrip("\n")
    stop = next(letter for letter in whole if letter.isascii())
    cut = written(capsys, gpt2, *ZERO, "8", "--stop", stop).rstrip("\n")
    assert whole.startswith(cut) and stop in cut and len(cut) < len(whole)


@pytest.mark.nightly
def test_an_empty_prompt_begins_with_bos(gpt2, capsys):
    assert written(capsys, gpt2, "--prompt", "", "--max_new_tokens", "3")


def test_an_encoder_decoder_writes_its_target(tmp_path, capsys):
    settings = {"decoder_start_token_id": 0, "num_beams": 2}
    folder = models.directory(tmp_path, "t5", generation_config=settings)
    main(["generate", "--model", str(folder), *ZERO, "3"])
    said = capsys.readouterr()
    assert said.out.strip("\n") and "notice: settings of this model: num_beams=2" in said.err


def test_the_users_settings_rule_out_the_directorys(tmp_path, capsys):
    settings = {"do_sample": True, "temperature": 0.7, "top_p": 0.5}
    folder = models.directory(tmp_path, generation_config=settings)
    main(["generate", "--model", str(folder), *ZERO, "5"])
    assert "temperature=0.7, top_k=50, top_p=0.5" in capsys.readouterr().err
    likeliest = greedy(folder, "zero one", 5) + "\n"
    assert written(capsys, folder, *ZERO, "5", "--temperature", "0") == likeliest
    assert written(capsys, folder, *ZERO, "5", "--num_beams", "2")


def test_chat_asks_by_the_template(tmp_path, capsys):
    config = {"chat_template": CHAT, "bos_token": "[BOS]", "eos_token": {"content": "[EOS]"}}
    folder = models.directory(tmp_path, tokenizer_config=config)
    args = ["--prompt", "two", "--max_new_tokens", "6"]
    main(["generate", "--model", str(folder), *args])
    plain = capsys.readouterr()
    assert "this model has a chat template; --chat uses it" in plain.err
    asked = written(capsys, folder, *args, "--chat", "--system", "be brief")
    due = greedy(folder, "[BOS]<system> be brief\n<user> two\n<assistant>", 6) + "\n"
    assert asked == due != plain.out


@pytest.mark.parametrize("flag", ["--chat_variable", "--chat-variable"])
def test_a_variable_reaches_the_chat_template(tmp_path, capsys, flag):
    template = "{{ messages[0].content }} {{ 'one' if calm else 'three' }}"
    folder = models.directory(tmp_path, tokenizer_config={"chat_template": template})
    args = ["--prompt", "two", "--max_new_tokens", "6", "--chat"]
    assert written(capsys, folder, *args) == greedy(folder, "two three", 6) + "\n"
    calm = written(capsys, folder, *args, flag, "calm=true")
    assert calm == greedy(folder, "two one", 6) + "\n"
    said = refused(capsys, folder, *args, flag, "calm")
    assert "--chat_variable='calm': must be KEY=VALUE" in said


def test_a_prompt_without_end_is_refused(gpt2, capsys, monkeypatch):
    monkeypatch.setattr(command_line, "MOST_TEXT", 1000)
    monkeypatch.setattr("sys.stdin", io.StringIO("zero " * 1000))
    said = refused(capsys, gpt2, "--prompt", "-")
    assert "--prompt -: has more than 1,000 characters; split it." in said


def test_a_template_that_refuses_is_one_line(tmp_path, capsys):
    refusing = {"chat_template": "{{ raise_exception('roles must alternate') }}"}
    folder = models.directory(tmp_path, tokenizer_config=refusing)
    assert "roles must alternate" in refused(capsys, folder, "--prompt", "two", "--chat")


def test_a_foreign_tokenizer_is_noticed(tmp_path, capsys):
    folder = models.directory(tmp_path)
    read = json.loads((folder / "tokenizer.json").read_text())
    read["added_tokens"].append({**read["added_tokens"][0], "id": 600, "content": "zero"})
    read["model"]["vocab"]["zero"] = 600
    (folder / "tokenizer.json").write_text(json.dumps(read))
    assert "they do not belong together" in refused(capsys, folder, "--prompt", "zero")


def test_a_draft_with_other_tokens_is_refused(gpt2, tmp_path, capsys):
    other = models.directory(tmp_path / "other")
    definition = json.loads((other / "tokenizer.json").read_text())
    vocabulary = definition["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (other / "tokenizer.json").write_text(json.dumps(definition))
    for flags, message in (
        (("--draft", str(other)), "its tokenizer has other tokens than the model's"),
        (("--set", "num_assistant_tokens=3"), "needs a draft model; add --draft"),
        (("--draft", "hf://small"), "a model on the hub is hf://ORG/NAME"),
    ):
        assert message in refused(capsys, gpt2, "--prompt", "zero one", *flags)


@pytest.mark.nightly
def test_guesses_do_not_change_a_text(gpt2, capsys):
    args = [*ZERO, "20", "--temperature", "0"]
    plain = written(capsys, gpt2, *args)
    assert (
        written(capsys, gpt2, *args, "--draft", str(gpt2), "--set", "num_assistant_tokens=3")
        == plain
    )
    assert written(capsys, gpt2, *args, "--set", "prompt_lookup_num_tokens=5", "--stream") == plain
