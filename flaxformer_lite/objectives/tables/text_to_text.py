"""Translation, summarization, and other tasks that read one text and write another.

Reference: Raffel et al. 2020, "Exploring the Limits of Transfer Learning", section 2.4
(arXiv:1910.10683).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.config.rules import NotNegative, Probability
from flaxformer_lite.objectives.rows import (
    Encoded,
    Encoder,
    Example,
    Rows,
    StoredColumn,
    encoder_decoder,
)
from flaxformer_lite.objectives.tables.task import Column, Row, text_of
from flaxformer_lite.objectives.tables.writing import WritingTask


@dataclass(frozen=True, kw_only=True)
class TextToText(WritingTask):
    """Maximizes sum_t log P(y_t | y_<t, x), with the prefix before each source x.

    The decoder begins each target with the model's decoder_start_token_id. A side longer than its
    row is cut. A column `translation` with a text per language, as `datasets` has it, is read from
    its first language to its second, or with
    data.columns="source=translation.fr,target=translation.en".
    """

    prefix: str = ""  # of each source, such as "translate English to French: "
    packed: bool = True  # whether short training rows share an example
    z_loss: NotNegative = 0.0
    label_smoothing: Probability = 0.0

    skeletons = ("encoder_decoder",)
    stored: ClassVar = {"source": StoredColumn("token"), "target": StoredColumn("token")}
    columns = (
        Column("source", ("src", "document", "article", "text", "input", "translation")),
        Column("target", ("tgt", "summary", "highlights", "output", "translation"), predicted=True),
    )
    sample = ({"source": "A kitten naps.", "target": "another"},)

    def lengths(self, length: int, target_length: int) -> tuple[int, int]:
        """Returns the row lengths; the decoder's defaults to the encoder's."""
        return length, target_length or length

    def encode(self, rows: Sequence[Row], encoder: Encoder) -> list[list[Encoded]]:
        read = [_texts(row, number) for number, row in enumerate(rows)]
        sources = encoder.token_ids([self.prefix + source for source, _ in read])
        targets = encoder.token_ids([target or "" for _, target in read])
        records: list[list[Encoded]] = []
        for source_ids, target_ids in zip(sources, targets, strict=True):
            source = encoder.frame.join_ids(source_ids, limit=encoder.length)
            target = encoder.frame.join_ids(target_ids, limit=encoder.target_length)
            cut = source.cut + target.cut
            records.append([{"source": source.ids, "target": target.ids, "cut": cut}])
        return records

    def make_example(self, records: Rows, index: int, rng: np.random.Generator) -> Example:
        """Returns inputs (decoder_)input_ids and (decoder_)segment_ids, [T] and [U] int32.

        Targets are labels and weights, [U].
        """
        pairs = records.pieces(index)
        sources = [pair["source"] for pair in pairs]
        targets = [pair["target"] for pair in pairs]
        return encoder_decoder(sources, targets, records)

    def prompt(self, records: Rows, example: int) -> np.ndarray:
        return records.pieces(example)[0]["source"]

    def prompt_and_reference(self, records: Rows, example: int) -> tuple[str, str | None]:
        source, target = _texts(records.table_row(example), example)
        return source, target


def _texts(row: Row, number: int) -> tuple[str, str | None]:
    """Returns the source, and the target where the row has one."""
    sides = {role: row[role] for role in ("source", "target")}
    for side, (role, value) in enumerate(sides.items()):
        if isinstance(value, dict):
            if len(value) != 2:
                raise ConfigError(
                    f"row {number + 1}: {role} has the languages {', '.join(map(str, value))}; name"
                    " two: --config.data.columns=source=translation.en,target=translation.fr."
                )
            sides[role] = list(value.values())[side]
    source = text_of(sides, "source", number)
    if sides["target"] is None:
        return source, None
    return source, text_of(sides, "target", number)
