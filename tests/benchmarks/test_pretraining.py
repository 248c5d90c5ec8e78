"""Input and output of the comparison of pretrainings, whose runs are those of the objectives."""

from benchmarks import pretraining
from tests.objectives.tables import write_rows


def test_the_last_held_out_accuracy_counts_and_seeds_are_averaged(tmp_path):
    shown = [("eval", 0, 0.1), ("train", 2, 0.9), ("eval", 2, 0.5)]
    records = [{"split": split, "step": step, "accuracy": x} for split, step, x in shown]
    write_rows(tmp_path / "metrics.jsonl", records)
    assert pretraining.accuracy(tmp_path) == 0.5
    runs = [("BERT", 1638, 0.5), ("ELECTRA", 573, 0.25), ("BERT", 1638, 0.6)]
    results = [{"name": name, "steps": steps, "accuracy": x} for name, steps, x in runs]
    _, _, bert, electra = pretraining.table(results).splitlines()
    assert bert == "| BERT | 1,638 | 55.0% | 50.0%, 60.0% |"
    assert electra == "| ELECTRA | 573 | 25.0% | 25.0% |"


def test_all_subjects_have_one_size_and_the_objective_of_their_paper():
    subjects = pretraining.subjects()
    assert {(model.d_model, model.encoder_layers) for model, _ in subjects.values()} == {(128, 2)}
    _, objective = subjects["DeBERTa-v3"]
    generator = objective.auxiliary_model(subjects["DeBERTa-v3"][0])
    assert (generator.cfg.d_model, generator.cfg.encoder_layers) == (128, 1)
    table = "token_embed/embedding"
    assert generator.offsets([table, "embed/norm/scale"]) == [table]
