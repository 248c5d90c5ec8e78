import dataclasses
import sys

import numpy as np
import pytest

from flaxformer_lite.data.table_examples import open_labelled
from flaxformer_lite.models import bart, t5
from flaxformer_lite.objectives.tables import scores
from flaxformer_lite.objectives.tables.text_to_text import TextToText
from flaxformer_lite.runs.evaluate_file import open_file, open_trained
from tests.objectives import learned, tables
from tests.training import tiny_runs

T5 = t5.config("tiny", **learned.SIZES, encoder_layers=1, decoder_layers=1, head_dim=16)
WORDS = {
    "a": "un petit chat noir",
    "b": "deux grands chiens",
    "c": "trois oiseaux",
    "d": "quatre jours de pluie",
}
ROWS = [{"source": letter, "target": text} for letter, text in WORDS.items()]
EOS = 1
PAD = 0


def ids(text):
    return [6 + byte for byte in text.encode()]


def test_a_pair_ends_with_the_end_token_and_the_decoder_reads_the_target_shifted():
    task = TextToText(prefix="fr: ")
    records = tables.records(task, ROWS[:1], length=8, target_length=20)
    example = task.make_example(records, 0, None)
    assert example["inputs"]["input_ids"].tolist() == [*ids("fr: a"), EOS, PAD, PAD]
    labels = [*ids("un petit chat noir"), EOS]
    assert example["targets"]["labels"].tolist() == [*labels, PAD]
    assert example["targets"]["weights"].tolist() == [1.0] * 19 + [0.0]
    assert example["inputs"]["decoder_input_ids"].tolist() == [PAD, *labels[:-1], PAD]


def test_a_side_that_is_too_long_keeps_its_end_token_and_is_counted():
    records = tables.records(TextToText(), ROWS[:1], length=8, target_length=4)
    assert records.pieces(0)[0]["target"].tolist() == [*ids("un "), EOS]
    assert records.tokens_cut(0) == [len("petit chat noir")]


def test_bart_starts_a_target_with_its_own_token_wherever_it_stands_in_a_row():
    """decoder_input_ids of transformers' shift_tokens_right: decoder_start_token_id, then the
    labels but the last."""
    task = TextToText()
    records = tables.records(task, ROWS, length=64, target_length=96)
    batch = tables.stack(task, records.join_neighbors())

    class Reads:
        cfg = bart.config("base")

        def features(self, **inputs):
            return inputs

    read = np.asarray(task.outputs(Reads(), batch["inputs"])["decoder_input_ids"])[0]
    at = 0
    start = Reads.cfg.decoder_start_token_id
    assert start == 2
    for row in ROWS:
        due = [start, *ids(row["target"])]
        assert read[at : at + len(due)].tolist() == due
        at += len(due)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    task = TextToText(score_rows=4)
    # No longer: at this constant rate the loss jumps, at other steps on each processor.
    sizes = {"steps": 240, "length": 8, "target_length": 32}
    cfg = tables.experiment(folder, T5, task, ROWS * 8, held=ROWS, **sizes)
    cfg = tiny_runs.steps(cfg, 240, eval_every=240)
    return folder / "run", tables.run_and_listen(cfg, folder / "run")


@pytest.mark.nightly
def test_a_run_learns_to_write_better_than_copying_and_shows_what_it_wrote(run):
    workdir, said = run
    before, *_, after = tables.read_split(workdir)
    assert before["bleu"] < 5 and after["bleu"] > 90 and after["chrf"] > 90
    result = dict(said["result"])
    assert result["copying the source"].startswith("0.0; the model is")
    assert result["compilations"] == "0 after step two"
    titles, texts = zip(*said["written"], strict=True)
    assert titles == ("read", "reference", "written") * 2
    assert texts[1] == WORDS[texts[0]] and texts[2] == texts[1]


@pytest.mark.nightly
def test_new_rows_are_written_for_without_targets(run, tmp_path):
    path = tables.write_rows(tmp_path / "new.jsonl", [{"source": "c"}, {"source": "a"}])
    trained = open_trained(run[0])
    data = open_file(trained, path, predicts=True)
    found, predictions = trained.evaluate(data)
    told = data.objective.decode(predictions, data.records)
    assert [row["prediction"] for row in told] == [WORDS["c"], WORDS["a"]] and "bleu" not in found


@pytest.mark.nightly  # as those of test_instruction.py
def test_packed_rows_have_the_loss_of_their_pairs():
    records = tables.records(TextToText(), ROWS, length=12, target_length=48)
    cfg = dataclasses.replace(T5, vocab_size=384)
    count = tables.check_packed(TextToText(), cfg, records, [[0, 1], [2, 3]])
    assert count == sum(len(text) + 1 for text in WORDS.values())


def opened(tmp_path, rows, columns=""):
    cfg = tables.experiment(tmp_path, T5, TextToText(), rows, steps=1, columns=columns).data
    return open_labelled(cfg, TextToText(packed=False), "encoder_decoder")[1]["train"]


def test_a_translation_of_datasets_in_either_direction(tmp_path):
    rows = [{"translation": {"en": "one", "fr": "un"}}] * 2
    assert TextToText().prompt_and_reference(opened(tmp_path, rows), 0) == ("one", "un")
    turned = "source=translation.fr,target=translation.en"
    assert TextToText().prompt_and_reference(opened(tmp_path, rows, turned), 0) == ("un", "one")


def test_a_score_whose_library_is_missing_is_left_out_and_said(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    scores.import_library.cache_clear()
    task = TextToText()
    assert task.shown[0].name == "nll" and task.written_rows == 0
    assert "sacrebleu is not installed: pip install 'flaxformer_lite[evaluate]'" in caplog.text
    assert task.scores({"written": np.asarray(["a"])}, np.zeros(0, int), None) == {}
    monkeypatch.undo()
    scores.import_library.cache_clear()
    assert task.shown[0].name == "bleu" and task.written_rows == 32
