"""30 chat templates of published shapes times 12 conversations, beside transformers' ids and masks.

Expected values are made by tools/make_chat_fixture.py.
"""

import datetime
import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.pretrained import chat
from flaxformer_lite.pretrained.tokenizer import read_tokenizer
from flaxformer_lite.text import chat_template, conversations
from flaxformer_lite.text.tokenizer import load

FOLDER = Path(__file__).parents[1] / "fixtures/chat"
CHATS = json.loads((FOLDER / "chats.json").read_text())
TEMPLATES = CHATS["templates"]
CONVERSATIONS = CHATS["conversations"]


def digest(ids):
    return hashlib.blake2b(json.dumps(ids).encode(), digest_size=6).hexdigest()


def accepted(name):
    return [told for told, due in CHATS["expected"][name].items() if "error" not in due]


def test_the_fixture_has_all_that_it_is_for():
    assert len(TEMPLATES) == 30
    assert len(CONVERSATIONS) == 12
    assert sum(len(accepted(name)) for name in TEMPLATES) > 250


@pytest.mark.parametrize("name", TEMPLATES)
def test_ids_and_masks_are_those_of_transformers(name):
    told = accepted(name)
    tokenizer = load(FOLDER)
    made = conversations.encode(tokenizer, TEMPLATES[name], [CONVERSATIONS[one] for one in told])
    for one, conversation in zip(told, made, strict=True):
        due = CHATS["expected"][name][one]
        assert digest(conversation.ids.tolist()) == due["ids"], one
        if "mask" in due:
            assert digest(conversation.answers.tolist()) == due["mask"], one
        else:
            check_mask(tokenizer, conversation, CONVERSATIONS[one]["messages"], one)


def check_mask(tokenizer, conversation, messages, told):
    """By hand: every answer that is written is learned to its last letter, and nothing asked is."""
    written = tokenizer.decode(conversation.ids.tolist())
    learned = tokenizer.decode(conversation.ids[conversation.answers > 0].tolist())
    assert not any(word in learned for word in ("question", "result", "brief", "document")), told
    answers = [answer for answer in ("answer one", "answer two", "answer ß") if answer in written]
    assert [answer for answer in answers if answer in learned] == answers, told
    if messages[-1]["role"] == "assistant":
        assert learned or not answers, told


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_transformers_refuses_is_refused(name):
    refused = [told for told in CONVERSATIONS if told not in accepted(name)]
    for told in refused[:1]:
        with pytest.raises(ConfigError, match="row 1: chat: the model's template fails"):
            conversations.encode(load(FOLDER), TEMPLATES[name], [CONVERSATIONS[told]])


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_answer_that_was_begun_goes_on_as_in_transformers(name, tmp_path):
    shutil.copy(FOLDER / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    (tmp_path / "chat_template.jinja").write_text(TEMPLATES[name])
    tokenizer = read_tokenizer(tmp_path)
    for told, due in CHATS["expected"][name].items():
        variables = dict(CONVERSATIONS[told])
        messages = variables.pop("messages")
        if due.get("continued"):
            ids = chat.encode(tokenizer, messages, variables, continue_final_message=True)
            assert digest(ids) == due["continued"], told
        elif "continued" in due:
            with pytest.raises(ConfigError, match="does not write the last message as it is"):
                chat.encode(tokenizer, messages, variables, continue_final_message=True)


def test_an_answer_without_a_text_cannot_be_gone_on_with(tmp_path):
    shutil.copy(FOLDER / "tokenizer.json", tmp_path)
    (tmp_path / "chat_template.jinja").write_text(TURNS)
    with pytest.raises(ConfigError, match="the last message has no text to go on with"):
        chat.encode(read_tokenizer(tmp_path), [answer(None)], continue_final_message=True)


def question(text):
    return {"role": "user", "content": text}


def answer(text, **others):
    return {"role": "assistant", "content": text, **others}


def learned(template, messages):
    """The tokens of one conversation that are learned, a text for each answer."""
    tokenizer = load(FOLDER)
    (made,) = conversations.encode(tokenizer, template, [{"messages": messages}])
    runs = np.split(made.ids, np.flatnonzero(np.diff(made.answers)) + 1)
    marks = np.split(made.answers, np.flatnonzero(np.diff(made.answers)) + 1)
    spelled = [[tokenizer.library.id_to_token(i) for i in run] for run in runs]
    return ["".join(one) for one, mark in zip(spelled, marks, strict=True) if mark[0]]


TURNS = (
    "{% for m in messages %}<|header|>{{ m.role }}<|/header|>{{ m.content }}"
    "{{ m.tool_calls | tojson if m.tool_calls }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|header|>assistant<|/header|>{% endif %}"
)


MARKED = (
    "<|start|>{{ m.role }} {% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|end|>"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
)
MACRO = "{% macro turn(m) %}BODY{% endmacro %}{% for m in messages %}{{ turn(m) }}{% endfor %}"
SET = "{% for m in messages %}{% set turn %}BODY{% endset %}{{ turn }}{% endfor %}"


def marked(around, messages):
    (made,) = conversations.encode(
        load(FOLDER), around.replace("BODY", MARKED), [{"messages": messages}]
    )
    return made.ids.tolist(), made.answers.tolist()


@pytest.mark.parametrize(
    "around",
    [
        MACRO,
        SET,
        SET.replace("{{ turn }}", "{{ turn | trim }}").replace("BODY", "BODY{{ '\n ' }}"),
        "{% set all %}{% for m in messages %}BODY{% endfor %}{% endset %}{{ all }}",
    ],
)
@pytest.mark.parametrize("texts", [("ok", "ok", "say ok again", "ok"), ("what", "a", "who", "an")])
def test_marks_in_a_buffer_are_where_it_is_written(around, texts):
    """The same letters may stand earlier, in a question or in a header."""
    turn = [question(texts[0]), answer(texts[1]), question(texts[2]), answer(texts[3])]
    assert marked(around, turn) == marked("{% for m in messages %}BODY{% endfor %}", turn)


def test_marks_that_a_filter_hides_are_refused():
    hidden = SET.replace("{{ turn }}", "{{ turn }}{{ turn | length }}")
    with pytest.raises(ConfigError, match="row 1: chat: the template changes what is within"):
        marked(hidden, [question("what"), answer("one")])


def test_a_marked_answer_in_other_letters_is_found():
    loud = SET.replace("{{ turn }}", "{{ turn | upper | replace('<|END|>', '<|end|>') }}")
    assert learned(loud.replace("BODY", MARKED), [question("a"), answer("a")]) == ["A<|end|>"]


TOOLS = (
    "{{ tools[0].name }}{% for m in messages %}<|start|>{{ m.tool_calls[0] if m.tool_calls }}"
    "<|end|>{% endfor %}"
)


@pytest.mark.parametrize("form", ["list", "files"])
def test_a_conversation_with_tools_has_the_template_for_them(form, tmp_path):
    """By name, as transformers chooses."""
    shutil.copy(FOLDER / "tokenizer.json", tmp_path)
    named = {"default": TURNS, "tool_use": TOOLS}
    if form == "list":
        listed = [{"name": name, "template": source} for name, source in named.items()]
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": listed}))
    else:
        (tmp_path / "chat_template.jinja").write_text(TURNS)
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates/tool_use.jinja").write_text(TOOLS)
    tokenizer = read_tokenizer(tmp_path)
    call = [answer("one", tool_calls=["look"])]
    prompt = "<|header|>assistant<|/header|>"
    assert chat.render(tokenizer, [question("a")]) == f"<|header|>user<|/header|>a<|end|>{prompt}"
    with_tools = chat.render(tokenizer, call, {"tools": [{"name": "look"}]})
    assert with_tools == "look<|start|>look<|end|>"
    rows = [{"messages": [question("a"), *call], "tools": [{"name": "look"}]}]
    (made,) = conversations.encode(load(FOLDER), tokenizer.chat_template, rows)
    assert tokenizer.decode(made.ids.tolist()) == "looklook"
    assert tokenizer.decode(made.ids[made.answers > 0].tolist()) == "look"


def test_without_a_default_template_only_tools_are_rendered():
    joined = chat_template.join_named({"tool_use": TOOLS})
    rows = [{"messages": [answer("", tool_calls=["look"])], "tools": [{"name": "look"}]}]
    assert chat_template.render(joined, rows) == ["look<|start|>look<|end|>"]
    with pytest.raises(ConfigError, match="of the chat templates tool_use none is named default"):
        chat_template.render(joined, [{"messages": [question("a")]}])


def test_only_what_was_rendered_is_said_to_be_unread(caplog):
    template = "{% if 'tool_calls' in messages[0] %}{{ raise_exception('no') }}{% endif %}a"
    calls = answer("one", tool_calls=["look"])
    chat_template.render_each(template, [{"messages": [calls]}])
    assert "never reads" not in caplog.text


def test_a_content_of_null_is_none_to_the_template():
    """DeepSeek's templates find tool calls so."""
    template = (
        "{% for m in messages %}<|start|>{% if m.content is none %}<|call|>"
        "{{ m.tool_calls[0].function.name }}{% else %}{{ m.content }}{% endif %}<|end|>{% endfor %}"
    )
    call = answer(None, tool_calls=[{"function": {"name": "look"}}])
    assert learned(template, [question("what"), call]) == ["<|start|><|call|>look<|end|>"]


def test_a_special_token_in_a_key_of_a_tool_call_is_text():
    tokenizer = load(FOLDER)
    calls = [{"function": {"name": "look", "arguments": {"<|end|>": 1}}}]
    row = {"messages": [question("what"), answer("", tool_calls=calls)]}
    (made,) = conversations.encode(tokenizer, TURNS, [row])
    assert made.ids.tolist().count(tokenizer.spelled["<|end|>"]) == 2


def test_a_message_may_have_a_date():
    """Parquet has, and the template seldom reads it."""
    said = answer("one", at=datetime.date(2026, 11, 27))
    assert learned(TURNS, [question("what"), said]) == ["one<|end|>"]
    dated = TURNS.replace("{{ m.content }}", "{{ m.at or m.content }}")
    assert learned(dated, [question("what"), said]) == ["2026-11-27<|end|>"]


def test_an_earlier_answer_without_its_thoughts_ends_as_its_turn_does():
    """As of gpt-oss: another token ends the last turn."""
    template = (
        "{% for m in messages %}<|header|>{{ m.role }}<|/header|>{% if m.thinking and loop.last %}"
        "{{ m.thinking }}<|call|>{% endif %}{{ m.content }}"
        "{{ '</turn>' if loop.last and not add_generation_prompt else '<|end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}<|header|>assistant<|/header|>{% endif %}"
    )
    first = answer("one", thinking="as one")
    last = answer("two", thinking="as two")
    asked = [question("what"), first, question("why"), last]
    assert learned(template, asked) == ["one<|end|>", "asĠtwo<|call|>two</turn>"]


def test_an_answer_with_many_spaces_is_read_in_linear_time():
    """The search for what closes an answer took minutes for this one."""
    long = "one" + " " * 200_000 + "two"
    assert learned(TURNS, [question("what"), answer(long)])[0].endswith("two<|end|>")


def test_many_long_conversations_fit_into_the_memory_of_their_processes(monkeypatch):
    monkeypatch.setattr(chat_template, "BATCH_BYTES", 60_000)
    sent = []
    run = chat_template._in_process
    monkeypatch.setattr(
        chat_template, "_in_process", lambda request: sent.append(request) or run(request)
    )
    rows = [{"messages": [question("what" * 10_000), answer("one")]}] * 3
    rows[1] = {"messages": [question("what"), answer("two")]}
    texts = chat_template.render("{{ messages[1].content }}", rows)
    assert texts == ["one", "two", "one"]
    assert [len(request["batch"]) for request in sent] == [2, 1]


def test_variables_reach_the_template_of_a_prompt(tmp_path):
    shutil.copy(FOLDER / "tokenizer.json", tmp_path)
    template = TEMPLATES["thinking, off by a variable"]
    (tmp_path / "chat_template.jinja").write_text(template)
    tokenizer = read_tokenizer(tmp_path)
    variables = chat.read_variables(["enable_thinking=false", "tone=calm"], "--chat_variable")
    assert variables == {"enable_thinking": False, "tone": "calm"}
    asked = [{"role": "user", "content": "question one"}]
    usual = chat.render(tokenizer, asked)
    assert chat.render(tokenizer, asked, variables) == f"{usual}<think>\n\n</think>\n\n"
    ids = chat.encode(tokenizer, asked, variables)
    assert ids[: len(chat.encode(tokenizer, asked))] == chat.encode(tokenizer, asked)


def test_a_variable_without_a_value_is_refused():
    with pytest.raises(ConfigError, match="--chat_variable='thinking': must be KEY=VALUE"):
        chat.read_variables(["thinking"], "--chat_variable")
