"""30 chat templates of published shapes times 12 conversations, beside transformers' ids and masks.

Expected values are made by tools/make_chat_fixture.py.
"""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.pretrained import chat
from flaxformer_lite.pretrained.tokenizer import read_tokenizer
from flaxformer_lite.text import conversations
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
