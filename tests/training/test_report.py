from pathlib import Path

from flaxformer_lite.training import report


class History:
    def __init__(self, *records):
        self.records = records

    def of(self, split):
        return [r for r in self.records if r["split"] == split]


def result(loss, compiles=0):
    history = History(
        {"split": "eval", "step": 0, "loss": 9.0},
        {"split": "train", "step": 10, "tokens_per_second": 1000.0},
        {"split": "eval", "step": 20, "loss": loss + 1, "nll": loss, "perplexity": 50.0, "bits_per_byte": 1.5},
    )
    return dict(report.closing(history, 6.0, compiles, Path("runs/x")))


def test_the_model_is_measured_against_the_baseline_by_text_alone():
    rows = result(4.0)
    assert rows["held-out loss"] == "9.000 before, 4.000 after 20 steps (nats per target)"
    assert rows["unigram baseline"] == "6.000; the model is 2.000 below"
    assert rows["perplexity"] == "50.0" and rows["speed"] == "1,000 tokens/s"
    assert "ABOVE" in result(7.0)["unigram baseline"]


def test_late_compilations_are_a_warning():
    assert result(4.0)["compilations"] == "0 after step two"
    assert "WARNING" in result(4.0, compiles=3)["compilations"]


def test_next_commands_keep_the_config_and_move_the_workdir(monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py", "--config=configs/demo.py", "--workdir=runs/demo"])
    rows = dict(report.next_commands(Path("runs/demo")))
    assert rows["your text"] == (
        "python train.py --config=configs/demo.py --config.data.path=FILE_OR_FOLDER --workdir=runs/demo_own"
    )
