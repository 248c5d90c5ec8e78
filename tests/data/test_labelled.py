"""Tables as the examples of a task."""

import json

from flaxformer_lite.config import DataConfig, TokenizerConfig
from flaxformer_lite.data.labelled import open_labelled
from flaxformer_lite.objectives.classification import Classification


def test_a_tokenizer_of_frequent_words_is_trained_for_each_count(tmp_path):
    rows = [{"text": f"often word{i}", "label": i % 2} for i in range(50)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sizes = []
    for count in (1, 2):
        words = TokenizerConfig(name="words", vocab_size=256, min_count=count)
        data = DataConfig(
            path=str(tmp_path / "rows.jsonl"),
            tokenizer=words,
            cache=str(tmp_path),
            eval_fraction=0.2,
        )
        sizes.append(
            open_labelled(data, Classification(), "encoder")[1]["train"].tokenizer.vocab_size
        )
    assert sizes[0] > sizes[1]
