"""Input and output of the comparison of pretrainings, whose runs are those of the objectives."""

import json

from benchmarks import pretraining


def test_the_last_held_out_accuracy_counts_and_seeds_are_averaged(tmp_path):
    records = [
        {"split": "eval", "step": 0, "accuracy": 0.1},
        {"split": "train", "step": 2, "accuracy": 0.9},
        {"split": "eval", "step": 2, "accuracy": 0.5},
    ]
    text = "\n".join(json.dumps(record) for record in records)
    (tmp_path / "metrics.jsonl").write_text(text)
    assert pretraining.accuracy(tmp_path) == 0.5
    results = [
        {"name": "BERT", "steps": 1638, "accuracy": 0.5},
        {"name": "ELECTRA", "steps": 573, "accuracy": 0.25},
        {"name": "BERT", "steps": 1638, "accuracy": 0.6},
    ]
    lines = pretraining.table(results).splitlines()
    assert lines[2:] == [
        "| BERT | 1,638 | 55.0% | 50.0%, 60.0% |",
        "| ELECTRA | 573 | 25.0% | 25.0% |",
    ]


def test_all_subjects_have_one_size_and_the_objective_of_their_paper():
    subjects = pretraining.subjects()
    assert {(model.d_model, model.encoder_layers) for model, _ in subjects.values()} == {(128, 2)}
    _, objective = subjects["DeBERTa-v3"]
    generator = objective.auxiliary_model(subjects["DeBERTa-v3"][0])
    assert (generator.cfg.d_model, generator.cfg.encoder_layers) == (128, 1)
    assert generator.offsets(["token_embed/embedding", "embed/norm/scale"]) == [
        "token_embed/embedding"
    ]
