"""Instruction tuning of decoders: the loss of answers in conversations.

Reference: Wei et al. 2021, "Finetuned Language Models Are Zero-Shot Learners" (arXiv:2109.01652);
the columns instruction, input and output come from Taori et al. 2023, Alpaca.
"""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.config.rules import NotNegative, OneOf, Probability
from flaxformer_lite.files.read import quote_value
from flaxformer_lite.objectives.rows import (
    Encoded,
    Encoder,
    Example,
    Rows,
    fill_row,
    next_tokens,
)
from flaxformer_lite.objectives.tables.chat import (
    VARIABLES,
    ChatTask,
    asked_and_answered,
    check_known,
    messages_of,
    variables_of,
)
from flaxformer_lite.objectives.tables.task import Column, Row, text_of
from flaxformer_lite.text.roles import ANSWERS, Messages

# The roles of turns, as published templates name them.
ROLES = frozenset({"system", "developer", "user", "tool", ANSWERS})


@dataclass(frozen=True, kw_only=True)
class Instruction(ChatTask):
    """Maximizes sum_t log P(x_t | x_<t) over the tokens of answers.

    An answer extends from its first letter to the token that ends the turn.

    A row has `messages`, or a prompt (with `context` under it) and a response. All answers of a
    conversation count. A conversation that is too long loses its end, and is dropped if no answer
    is left.
    """

    # the answers of a conversation: all, the last, or what the template has within generation
    # tags and nothing else; tags that it has count in any case
    learn: Annotated[str, OneOf(("all", "last", "marked"))] = "all"
    packed: bool = True  # whether short training rows share an example
    z_loss: NotNegative = 0.0
    label_smoothing: Probability = 0.0

    columns = (
        Column("messages", ("conversation", "conversations"), optional=True),
        Column("prompt", ("instruction", "question"), optional=True),
        Column("context", ("input",), optional=True),
        Column("response", ("output", "completion", "answer"), optional=True, predicted=True),
        *VARIABLES,
    )
    sample = ({"messages": None, "prompt": "a question", "context": None, "response": "an answer"},)

    def encode(self, rows: Sequence[Row], encoder: Encoder) -> list[list[Encoded]]:
        conversations = [_messages(row, number) for number, row in enumerate(rows)]
        chats = []
        for number, (row, messages) in enumerate(zip(rows, conversations, strict=True)):
            chats.append(variables_of(row, messages, number))
        turns = self.turns(chats, encoder.length, encoder)
        unknown = [messages[-1]["role"] != ANSWERS for messages in conversations]
        records: list[list[Encoded]] = []
        for turn, new in zip(turns, unknown, strict=True):
            is_usable = new or turn.answers.any()
            records.append([turn._asdict()] if is_usable else [])
        return records

    def doubts(self, rows: Iterable[Row]) -> list[str]:
        roles: set[str] = set()
        for number, row in enumerate(rows):
            with contextlib.suppress(ConfigError):
                roles.update(message["role"] for message in _messages(row, number))
        if not roles or (ANSWERS in roles and roles <= ROLES):
            return []
        return [
            f"Turns are of {', '.join(map(quote_value, sorted(roles)))}, and an answer is of"
            f" {ANSWERS!r}; rename the role of answers, or name their column with"
            " --config.data.columns=response=NAME."
        ]

    def make_example(self, records: Rows, index: int, rng: np.random.Generator) -> Example:
        """Returns inputs input_ids and segment_ids, [T] int32.

        Targets are labels, [T] int32, and weights, [T], 1 for answers.
        """
        pieces = records.pieces(index)
        example = next_tokens([piece["ids"] for piece in pieces], records)
        answers, _ = fill_row([piece["answers"] for piece in pieces], records.length + 1, 0)
        example["targets"]["weights"] *= answers[1:]
        return example

    def prompt_and_reference(self, records: Rows, example: int) -> tuple[str, str | None]:
        return asked_and_answered(_messages(records.table_row(example), example))


def _messages(row: Row, number: int) -> Messages:
    check_known(row, ("messages", "prompt"), number)
    if row["messages"] is not None:
        return messages_of(row["messages"], number, "messages")
    question = text_of(row, "prompt", number)
    if row["context"]:
        question += f"\n\n{text_of(row, 'context', number)}"
    messages = [{"role": "user", "content": question}]
    if row["response"] is not None:
        messages.append({"role": ANSWERS, "content": text_of(row, "response", number)})
    return messages
