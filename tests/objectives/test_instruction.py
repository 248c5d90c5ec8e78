import dataclasses
import importlib
import json
import re
import types

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from flaxformer_lite.cli.convert import convert
from flaxformer_lite.config import ConfigError
from flaxformer_lite.data.table_examples import open_labelled
from flaxformer_lite.model_details import load_tokenizer
from flaxformer_lite.models import build_model
from flaxformer_lite.objectives.tables.chat import PLAIN
from flaxformer_lite.objectives.tables.instruction import Instruction
from flaxformer_lite.pretrained import chat
from flaxformer_lite.pretrained.companions import publish_tokenizer
from flaxformer_lite.pretrained.tokenizer import framed
from flaxformer_lite.runs.start.adopt import read_experiment
from flaxformer_lite.text import tokenizer as plain
from tests.objectives import learned, tables
from tests.objectives.tables import answer, user
from tests.training import tiny_runs

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content | trim }}<|im_end|>{{ '\\n' }}{%"
    " endfor %}{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)
SPECIALS = ["[PAD]", "[EOS]", "<|im_start|>", "<|im_end|>"]
TEXTS = "user assistant system why because so what then a b c d < | im_end > |> <|"
LLAMA = tables.tiny_llama(64)
ANSWERS = {"a": "one two", "b": "three", "c": "four five", "d": "six"}
ROWS = [{"prompt": letter, "response": text} for letter, text in ANSWERS.items()]
COLUMNS = {"messages": None, "prompt": None, "context": None, "response": None}
EXTRA = {"tools": None, "documents": None, "chat_template_kwargs": None}


@pytest.fixture(scope="module")
def words():
    vocab = {word: i for i, word in enumerate([*SPECIALS, "[UNK]", *TEXTS.split()])}
    made = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(SPECIALS)
    return plain.HuggingFace(made.to_str().encode())


def records_of(task, rows, **how):
    return tables.records(task, [COLUMNS | row for row in rows], **how)


def marked(task, messages, tokenizer, length=48):
    """Returns the tokens of a conversation, those that are learned within brackets."""
    records = records_of(task, [{"messages": messages}], length=length, tokenizer=tokenizer)
    example = task.make_example(records, 0, None)
    known = tokenizer.library.id_to_token
    labels = example["targets"]["labels"]
    weights = example["targets"]["weights"]
    first = [known(int(example["inputs"]["input_ids"][0]))]
    count = int(example["inputs"]["segment_ids"].sum())
    told = [
        f"[{known(int(i))}]" if w else known(int(i)) for i, w in zip(labels, weights, strict=True)
    ]
    return " ".join(first + told[:count]).split()


def test_without_a_template_parts_of_text_are_their_text_and_others_are_refused(words):
    turns = [user([{"type": "text", "text": "why"}]), answer([{"type": "text", "text": "so"}])]
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    plain_turns = [user("why"), answer("so"), answer("")]
    assert marked(Instruction(), [*turns, call], words) == marked(Instruction(), plain_turns, words)
    with pytest.raises(ConfigError, match=r"row 1: .*a turn has texts only"):
        marked(Instruction(), [user([{"type": "image", "url": "x.png"}]), answer("so")], words)


def test_every_answer_is_learned_to_the_token_that_ends_its_turn_and_nothing_else(words):
    turns = [user("why a"), answer(" because b "), user("then what"), answer("so")]
    due = (
        "<|im_start|> user why a <|im_end|> <|im_start|> assistant [because] [b] [<|im_end|>] "
        "<|im_start|> user then what <|im_end|> <|im_start|> assistant [so] [<|im_end|>]"
    )
    assert " ".join(marked(Instruction(template=CHATML), turns, words)[:-1]) == due


def test_turns_of_sharegpt_are_read_and_rows_that_teach_nothing_are_counted(tmp_path):
    shared = [{"from": "human", "value": "why"}, {"from": "gpt", "value": "so"}]
    _, records, _ = opened(tmp_path, [{"conversations": shared}])
    plain_turns = [user("why"), answer("so")]
    due = records_of(Instruction(), [{"messages": plain_turns}], length=32)
    found = records["train"].pieces(0)[0]["answers"]
    assert found.tolist() == due.pieces(0)[0]["answers"].tolist()
    odd = {"conversations": [user("why"), {"role": "model", "content": "so"}]}
    _, _, described = opened(tmp_path, [{"conversations": shared}, odd])
    assert re.search(r"learned from 2 rows.*Turns.*'model'", dict(described)["warning"])
    with pytest.raises(
        ConfigError, match=r"train\.jsonl.*nothing is learned from any row.*'model'"
    ):
        opened(tmp_path, [odd])
    with pytest.raises(ConfigError, match=r"from='observation' in messages must be one of human"):
        opened(tmp_path, [{"conversations": [{"from": "observation", "value": "a"}]}])


def test_a_special_token_that_somebody_wrote_is_text(words):
    told = marked(Instruction(template=CHATML), [user("a <|im_end|> b"), answer("so")], words)
    assert told.count("<|im_end|>") == 1 and told.count("[<|im_end|>]") == 1


def test_prompts_are_those_of_generate(words):
    """pretrained/chat.py, which `generate --chat` uses, renders and tokenizes by other code."""
    task = Instruction(template=CHATML)
    turns = [user("why <|im_end|> a"), answer("because"), user("what")]
    records = records_of(task, [{"messages": turns}], length=48, tokenizer=words)
    assert task.prompt(records, 0).tolist() == chat.encode(framed(words, "decoder", CHATML), turns)
    assert task.prompt_and_reference(records, 0) == ("what", None)
    assert task.limits(records)["eos_token_id"] == (1, 3)


def test_a_template_without_special_tokens_and_bytes():
    task = Instruction()
    text = "user:\nwhy\n\nb\nassistant:\nso"
    records = records_of(task, [{"prompt": "why", "context": "b", "response": "so"}], length=48)
    piece = records.pieces(0)[0]
    ids = [6 + byte for byte in text.encode()]
    assert piece["ids"].tolist() == [*ids, records.tokenizer.eos_id, 6 + ord("\n")]
    assert piece["answers"].tolist() == [0] * (len(ids) - 2) + [1, 1, 1, 0]
    assert piece["prompt"].tolist() == ids[:-2]


def test_packed_rows_have_the_loss_of_their_conversations():
    records = records_of(Instruction(), ROWS, length=64)
    cfg = dataclasses.replace(LLAMA, vocab_size=384)
    count = tables.check_packed(Instruction(), cfg, records, [[0, 1], [2, 3]])
    assert count == sum(len(text) + 1 for text in ANSWERS.values())


def opened(tmp_path, rows, **how):
    cfg = tables.experiment(tmp_path, LLAMA, Instruction(), rows, steps=1, **how).data
    return open_labelled(cfg, Instruction(packed=False), "decoder")


def test_long_conversations_are_cut_or_dropped_and_counted(tmp_path):
    rows = [ROWS[0], {"prompt": "a", "response": "x" * 90}, {"prompt": "y" * 90, "response": "x"}]
    _, records, described = opened(tmp_path, rows, length=40)
    assert records["train"].table_rows.tolist() == [0, 1]
    # in both splits
    assert "2 examples cut at data.length=40 tokens, 2 rows dropped" in dict(described)["notice"]


def test_of_a_template_that_drops_an_answer_what_it_writes_is_learned():
    task = Instruction(template="{{ messages[-1].content }}")
    turns = [user("a"), answer("b"), user("c"), answer("d")]
    piece = records_of(task, [{"messages": turns}]).pieces(0)[0]
    assert piece["ids"].tolist() == [6 + ord("d")] and piece["answers"].tolist() == [1]


def test_what_is_marked_is_learned_and_a_template_without_marks_is_refused(words):
    turns = [user("a"), answer("b")]
    marks = "{% generation %}{{ m.content }}{% endgeneration %}"
    template = CHATML.replace("{{ m.content | trim }}", marks)
    told = marked(Instruction(template=template, learn="marked"), turns, words)
    assert " ".join(told[:4]) == "<|im_start|> user [a] <|im_end|>" and "[b]" in told
    with pytest.raises(ConfigError, match=r"learn='marked'.*no \{% generation %\}"):
        marked(Instruction(template=CHATML, learn="marked"), turns, words)


def test_only_the_last_answer_is_learned_where_this_is_asked(words):
    turns = [user("a"), answer("b"), user("c"), answer("d")]
    told = marked(Instruction(template=CHATML, learn="last"), turns, words)
    assert "b" in told and "[d]" in told


def test_thoughts_of_earlier_turns_that_a_template_strips_leave_the_answers(words):
    thought = "{% if m.reasoning_content and loop.last %}{{ m.reasoning_content }} {% endif %}"
    template = CHATML.replace("{{ m.content | trim }}", thought + "{{ m.content }}")
    first = answer("b") | {"reasoning_content": "why"}
    last = answer("d") | {"reasoning_content": "because"}
    told = marked(Instruction(template=template), [user("a"), first, user("c"), last], words)
    learned = [token for token in told if token.startswith("[") and token != "[PAD]"]
    assert learned == ["[b]", "[<|im_end|>]", "[because]", "[d]", "[<|im_end|>]"]
    assert "why" not in told


def test_a_row_of_csv_without_tools_has_an_empty_cell(words):
    row = {"messages": [user("a"), answer("b")], "tools": "", "documents": ""}
    records = records_of(Instruction(template=CHATML), [EXTRA | row], length=48, tokenizer=words)
    assert records.pieces(0)[0]["answers"].any()


@pytest.mark.parametrize("as_text", [False, True])
def test_tools_calls_and_variables_reach_the_template(as_text, words):
    template = (
        "{{ tools[0].name }} {{ style }} {% for m in messages %}<|im_start|>{{ m.role }} "
        "{{ m.content }}{% for c in m.tool_calls %}{{ c.function.arguments }}{% endfor %}"
        "<|im_end|>{% endfor %}"
    )
    calls = [{"function": {"arguments": '"so"'}}]
    if as_text:  # as in parquet, whose columns have one type
        calls = json.dumps(calls)
    call = {"role": "assistant", "tool_calls": calls}
    row = {"messages": [user("a"), call], "tools": [{"name": "what"}]}
    row = EXTRA | row | {"chat_template_kwargs": {"style": "then"}}
    records = records_of(Instruction(template=template), [row], length=48, tokenizer=words)
    told = [words.library.id_to_token(int(i)) for i in records.pieces(0)[0]["ids"]]
    assert told[:2] == ["what", "then"] and "so" in told


@pytest.mark.parametrize(
    ("turn", "tools", "message"),
    [
        (
            {"role": "assistant", "tool_calls": [{"arguments": "{"}]},
            None,
            "the arguments of a tool call in messages: must be JSON, not '{'",
        ),
        (
            {"role": "assistant", "tool_calls": "[{"},
            None,
            r"the tool calls in messages: must be JSON, not '\[{'",
        ),
        (answer("b"), "{", "tools: must be JSON"),
        (answer("b"), "3", "tools=.*JSON list"),
    ],
)
def test_a_tool_that_is_no_json_is_one_sentence(turn, tools, message):
    row = {"messages": [user("a"), turn], "tools": tools}
    with pytest.raises(ConfigError, match=f"row 1: {message}"):
        records_of(Instruction(), [EXTRA | row])


def test_roles_that_a_template_refuses_are_told_in_its_words(tmp_path):
    refusing = "{{ raise_exception('no system role') }}"
    template = f"{{% if messages[0].role != 'user' %}}{refusing}{{% endif %}}a"
    task = Instruction(packed=False, template=template)
    rows = [{"messages": [{"role": "system", "content": "a"}, answer("b")]}]
    cfg = tables.experiment(tmp_path, LLAMA, task, rows, steps=1).data
    with pytest.raises(ConfigError, match=r"jsonl'?: row 1: chat: .*no system role"):
        open_labelled(cfg, task, "decoder")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    task = Instruction(answer_length=12)
    cfg = tables.experiment(folder, LLAMA, task, ROWS * 8, held=ROWS, steps=60, length=64)
    optimizer = dataclasses.replace(cfg.optimizer, learning_rate=1e-2, warmup_steps=5)
    cfg = dataclasses.replace(tiny_runs.steps(cfg, 60, eval_every=60), optimizer=optimizer)
    return folder / "run", tables.run_and_listen(cfg, folder / "run")


@pytest.mark.nightly
def test_a_run_learns_to_answer(run):
    workdir, said = run
    before, *_, after = tables.read_split(workdir)
    assert before["nll"] > 4 and after["nll"] < 0.2
    result = dict(said["result"])
    assert "WORSE" not in result["unigram baseline"]
    assert result["compilations"] == "0 after step two"
    assert dict(said["written"])["written"] == dict(said["written"])["reference"]


def test_new_prompts_are_answered(run, tmp_path):
    path = tables.write_rows(tmp_path / "new.jsonl", [{"prompt": "c"}, {"prompt": "a"}])
    told = learned.predict(run[0], path)
    assert [row["prediction"] for row in told] == [ANSWERS["c"], ANSWERS["a"]]


def test_its_template_travels_with_the_weights(run, tmp_path):
    """To a run that begins with them, and to a directory for transformers, where it also ends
    texts."""
    config = importlib.import_module("configs.instruct").get_config()
    config.train.init_from = str(run[0])
    assert read_experiment(config).objective.template.endswith(PLAIN)
    convert(str(run[0]), str(tmp_path / "out"), dtype=None, head=None)
    published = load_tokenizer(tmp_path / "out")
    assert published.chat_template == PLAIN
    task = Instruction()
    records = records_of(task, [{"prompt": "why"}])
    assert task.prompt(records, 0).tolist() == chat.encode(published, [user("why")])


def test_a_published_template_ends_texts_with_what_it_ends_turns(words, tmp_path):
    model = build_model(dataclasses.replace(LLAMA, vocab_size=64))
    publish_tokenizer(words, model, tmp_path, CHATML)
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == [1, 3]


def test_the_baseline_is_of_the_headline():
    """A score of what is written is compared with copying the prompt, not with the unigrams'
    loss."""
    task = Instruction(scored_by="bleu")
    same = {"prompt": "so it is then", "response": "so it is then"}
    records = records_of(task, [same, {"prompt": "a", "response": "b"}], length=64)
    held = types.SimpleNamespace(records=records, order=np.arange(1))
    due = ("copying the source", pytest.approx(100))
    assert task.shown[0].name == "bleu" and task.baseline(held, task.fit_baseline(held)) == due
