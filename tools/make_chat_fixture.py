"""Makes tests/fixtures/chat: chat templates of published shapes, conversations, and what
transformers makes of each pair.

    python tools/make_chat_fixture.py  # where transformers 5.23 is installed

The templates are written for this test, in the shapes that published ones have: what they read of
a message, which turns they strip or refuse, and how they space them.
"""

import hashlib
import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

FOLDER = Path(__file__).parents[1] / "tests/fixtures/chat"
SPECIALS = [
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|start|>",
    "<|end|>",
    "[INST]",
    "[/INST]",
]
SPECIALS += ["<|header|>", "<|/header|>", "<|turn|>", "<turn>", "</turn>", "<|call|>"]

SYSTEM_FIRST = (
    "{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}"
    "{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}"
    "{% endif %}"
)
ALTERNATE = (
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}"
)
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}"
)
OPEN = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
MARKED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}"
    "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}"
)
TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\ntools:' }}{% for tool in tools %}{{ '\n' }}"
    "{{ tool | tojson }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}"
)
CALLS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role }}"
    "{% if m.content %}{{ '\n' + m.content }}{% endif %}"
    "{% for call in m.tool_calls or [] %}{{ '\n<|call|>' + call.function.name + ' ' }}"
    "{{ call.function.arguments | tojson }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
)
THINKING = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' %}{% set thought = m.reasoning_content or '' %}"
    "{% set content = m.content or '' %}"
    "{% if '</think>' in content %}{% set thought = content.split('</think>')[0].split('<think>')"
    "[-1] %}{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% if loop.index0 > ns.last %}{{ '<think>\n' + thought.strip() + '\n</think>\n\n' }}"
    "{% endif %}"
    "{{ content }}{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
)
PARTS = (
    "{% for m in messages %}{{ '<turn>' + m.role + '\n' }}{% if m.content is string %}"
    "{{ m.content | trim }}{% else %}{% for part in m.content %}{% if part.type == 'text' %}"
    "{{ part.text | trim }}{% endif %}{% endfor %}{% endif %}{{ '</turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<turn>assistant\n' }}{% endif %}"
)
TEMPLATES = {
    "chatml": CHATML + OPEN,
    "chatml with bos": "{{ bos_token }}" + CHATML + OPEN,
    "chatml, spaced lines": "{% for m in messages %}\n    {{- '<|im_start|>' + m.role + '\n' }}\n"
    "    {{- m.content + '<|im_end|>\n' }}\n{% endfor %}\n" + OPEN,
    "chatml, usual system": "{% if messages[0].role != 'system' %}"
    "{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}" + CHATML + OPEN,
    "chatml, marked": MARKED + OPEN,
    "chatml, marked with tools": TOOLS + MARKED + OPEN,
    "marked without its end": MARKED.replace("m.content + '<|im_end|>' }}", "m.content }}").replace(
        "{% endgeneration %}", "{% endgeneration %}{{ '<|im_end|>' }}"
    )
    + OPEN,
    "marked, trimmed": MARKED.replace("m.content +", "(m.content | trim) +") + OPEN,
    "tools and calls": TOOLS + CALLS + OPEN,
    "calls with text arguments": TOOLS
    + CALLS.replace(
        "{{ call.function.arguments | tojson }}",
        "{{ call.function.arguments if call.function.arguments is string"
        " else call.function.arguments | tojson }}",
    )
    + OPEN,
    "thinking": THINKING + OPEN,
    "thinking, off by a variable": THINKING
    + OPEN
    + "{% if add_generation_prompt and enable_thinking is defined and not enable_thinking %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}",
    "thoughts of earlier turns stripped": "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'assistant' %}{{ '<|turn|>' + (m.content.split('</think>') | last | trim)"
    " + eos_token }}{% else %}{{ '<|header|>' + m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn|><think>\n' }}{% endif %}",
    "alternation enforced": "{{ bos_token }}{% for message in messages %}"
    + ALTERNATE
    + "{% if message.role == 'user' %}{{ '[INST] ' + message.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + message.content + eos_token }}{% endif %}{% endfor %}",
    "system merged": SYSTEM_FIRST
    + "{{ bos_token }}{% for message in rest %}"
    + ALTERNATE
    + "{% if message.role == 'user' %}{{ '[INST] ' + (system + '\n\n' if loop.first and system else"
    " '') + message.content + ' [/INST]' }}{% else %}{{ ' ' + message.content | trim + ' ' +"
    " eos_token }}{% endif %}{% endfor %}",
    "system merged, marked as sys": SYSTEM_FIRST
    + "{% for message in rest %}{% if message.role == 'user' %}{{ bos_token + '[INST] ' +"
    " ('<<SYS>>\n' + system + '\n<</SYS>>\n\n' if loop.first and system else '') +"
    " message.content.strip() + ' [/INST]' }}{% elif message.role == 'assistant' %}{{ ' ' +"
    " message.content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    "no system": "{{ bos_token }}{% if messages[0].role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% for m in messages %}"
    "{{ '<turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim +"
    " '</turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<turn>model\n' }}{% endif %}",
    "headers": "{{ bos_token }}{% for m in messages %}{{ '<|header|>' + m.role + '<|/header|>\n\n'"
    " + m.content | trim + '<|end|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|header|>assistant<|/header|>\n\n' }}{% endif %}",
    "date": "{{ '<|start|>system\nToday: ' + strftime_now('%Y') [:2] + '<|end|>' }}"
    "{% for m in messages %}{{ '<|start|>' + m.role + '\n' + m.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}",
    "date by a variable": "{% if date_string is not defined %}{% set date_string = '26 Jul 2024' %}"
    "{% endif %}{{ '<|start|>Today: ' + date_string + '<|end|>' }}{% for m in messages %}"
    "{{ '<|start|>' + m.role + '\n' + m.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}",
    "effort": "{{ '<|start|>system\nReasoning: ' + (reasoning_effort or 'medium') + '<|end|>' }}"
    "{% for m in messages %}{% if m.thinking is defined and m.thinking %}"
    "{{ '<|start|>' + m.role + '<|turn|>' + m.thinking + '<|end|>' }}{% endif %}"
    "{{ '<|start|>' + m.role + '<|/header|>' + m.content + ('</s>' if loop.last and m.role =="
    " 'assistant' else '<|end|>') }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}",
    "parts": PARTS,
    "parts with bos": "{{- bos_token -}}\n" + PARTS,
    "documents": "{% if documents %}{% for d in documents %}{{ '<|start|>document ' +"
    " (loop.index | string) + '\n' + d.text + '<|end|>\n' }}{% endfor %}{% endif %}"
    + CHATML
    + OPEN,
    "plain roles": "{% for m in messages %}{{ '### ' + m.role | capitalize + ':\n' + m.content +"
    " '\n\n' }}{% endfor %}{% if add_generation_prompt %}{{ '### Assistant:\n' }}{% endif %}",
    "ends with eos": "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token +"
    " '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
    "colons": "{% for m in messages %}{% if m.role == 'system' %}{{ m.content + '\n\n' }}"
    "{% elif m.role == 'user' %}{{ 'USER: ' + m.content + ' ' }}{% else %}{{ 'ASSISTANT: ' +"
    " m.content + '</s>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}",
    "breaks out of a loop": "{% for m in messages %}{% if m.role == 'tool' %}{% continue %}"
    "{% endif %}{{ '<turn>' + m.role + ' ' + m.content + '</turn>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<turn>assistant ' }}{% endif %}",
    "macro": "{% macro turn(role, text) %}{{ '<turn>' + role + '\n' + text + '</turn>\n' }}"
    "{% endmacro %}{% for m in messages %}{{ turn(m.role, m.content) }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<turn>assistant\n' }}{% endif %}",
    "names": "{% for m in messages %}{{ '<turn>' + (m.name or m.role) + '\n' + m.content +"
    " '</turn>' }}{% endfor %}{% if add_generation_prompt %}{{ '<turn>assistant\n' }}{% endif %}",
}


def turn(role: str, content: object, **others: object) -> dict:
    return {"role": role, "content": content, **others}


TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Finds a café — or a bar.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}
CALL = {"type": "function", "function": {"name": "look_up", "arguments": {"place": "Zürich"}}}
ONE = [turn("user", "question one"), turn("assistant", "answer one")]
TWO = [*ONE, turn("user", "question two"), turn("assistant", "answer two")]
CONVERSATIONS = {
    "one turn": {"messages": ONE},
    "two turns": {"messages": TWO},
    "system": {"messages": [turn("system", "Be brief."), *ONE]},
    "system, two turns": {"messages": [turn("system", "Be brief."), *TWO]},
    "no answer yet": {"messages": TWO[:3]},
    "spaces around": {
        "messages": [turn("user", " question one \n"), turn("assistant", "\n answer one  ")]
    },
    "other scripts": {
        "messages": [turn("user", "question 漢字 \U0001f600"), turn("assistant", "answer ß naïve")]
    },
    "thoughts in the text": {
        "messages": [
            turn("user", "question one"),
            turn("assistant", "<think>\nidea one\n</think>\n\nanswer one"),
            turn("user", "question two"),
            turn("assistant", "<think>\nidea two\n</think>\n\nanswer two"),
        ]
    },
    "thoughts apart": {
        "messages": [
            turn("user", "question one"),
            turn("assistant", "answer one", reasoning_content="idea one"),
        ]
    },
    "tools": {
        "messages": [
            turn("user", "question one"),
            turn("assistant", "", tool_calls=[CALL]),
            turn("tool", "the result", name="look_up"),
            turn("assistant", "answer one"),
        ],
        "tools": [TOOL],
    },
    "parts": {
        "messages": [
            turn("user", [{"type": "text", "text": "question one"}]),
            turn("assistant", [{"type": "text", "text": "answer one"}]),
        ]
    },
    "variables": {
        "messages": ONE,
        "documents": [{"title": "t", "text": "a document"}],
        "enable_thinking": False,
        "reasoning_effort": "high",
        "date_string": "1 May 2026",
    },
}


def train() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [json.dumps(each, ensure_ascii=False) for each in CONVERSATIONS.values()]
    tokenizer.train_from_iterator(texts * 3, trainer)
    return tokenizer


def digest(ids: list[int]) -> str:
    return hashlib.blake2b(json.dumps(ids).encode(), digest_size=6).hexdigest()


def expect(theirs: PreTrainedTokenizerFast, template: str, variables: dict) -> dict:
    others = {key: value for key, value in variables.items() if key != "messages"}
    asks = variables["messages"][-1]["role"] != "assistant"
    try:
        made = theirs.apply_chat_template(
            variables["messages"],
            chat_template=template,
            add_generation_prompt=asks,
            return_dict=True,
            return_assistant_tokens_mask="{% generation %}" in template,
            **others,
        )
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:80]}
    expected = {"ids": digest(made["input_ids"])}
    if "{% generation %}" in template:
        expected["mask"] = digest(made["assistant_masks"])
    if not asks:
        expected["continued"] = continued(theirs, template, variables["messages"], others)
    return expected


def continued(
    theirs: PreTrainedTokenizerFast, template: str, messages: list, others: dict
) -> str | None:
    """The prompt that goes on with the last answer; None if transformers refuses that."""
    try:
        made = theirs.apply_chat_template(
            messages, chat_template=template, continue_final_message=True, **others
        )
    except ValueError:
        return None
    return digest(made["input_ids"])


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    train().save(str(FOLDER / "tokenizer.json"))
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(FOLDER / "tokenizer.json"), bos_token="<s>", eos_token="</s>"
    )
    expected = {}
    for name, template in TEMPLATES.items():
        expected[name] = {}
        for told, variables in CONVERSATIONS.items():
            expected[name][told] = expect(theirs, template, variables)
    values = {"templates": TEMPLATES, "conversations": CONVERSATIONS, "expected": expected}
    (FOLDER / "chats.json").write_text(json.dumps(values) + "\n")  # smaller without indents


if __name__ == "__main__":
    main()
