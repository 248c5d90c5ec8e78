import pytest
from matplotlib import image

from flaxformer_lite.objectives import Metric
from flaxformer_lite.runs.report.plot import BEST, HELD_OUT, TRAIN, loss_curve
from tests.marks import daily


def where(pixels, color):
    wanted = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return (abs(pixels - wanted).max(axis=-1) < 0.02).nonzero()


def test_draws_both_losses_and_the_baseline(tmp_path):
    headline = Metric("nll", "loss", unit="nats per target")
    history = [
        {"step": s, "split": "train", "loss": 20.0, "nll": 9.0 - s / 20} for s in range(10, 101, 10)
    ]
    history += [
        {"step": s, "split": "eval", "loss": 20.0, "nll": 9.0 - s / 20} for s in (0, 50, 100)
    ]
    loss_curve(
        tmp_path / "loss.png", history, headline=headline, baseline=("unigram", 6.5), title="a run"
    )
    pixels = image.imread(tmp_path / "loss.png")[..., :3]
    assert pixels.shape == (540, 960, 3)
    marked = where(pixels, HELD_OUT)
    assert len(marked[0]) > 50  # markers of held-out text, and they fall from left to right
    assert (
        marked[0][marked[1] < 200].mean() < marked[0][(marked[1] > 850) & (marked[0] > 200)].mean()
    )


def test_a_single_training_record_is_a_dot(tmp_path):
    history = [{"step": 4, "split": "train", "loss": 2.0}]
    history += [{"step": s, "split": "eval", "loss": 3.0 - s / 2} for s in (0, 4)]
    path = tmp_path / "loss.png"
    loss_curve(path, history, headline=Metric("loss"), baseline=None, title="a run")
    _, columns = where(image.imread(path)[..., :3], TRAIN)
    in_the_middle = (columns > 400) & (columns < 700)  # the legend is at the right
    assert in_the_middle.sum() > 20


@pytest.mark.parametrize("by", daily(["accuracy", "loss"], ["loss"]))
def test_draws_the_best_step_in_each_panel_and_where_the_run_stopped(tmp_path, by):
    accuracy = Metric("accuracy", form=".1%", higher_is_better=True)
    loss = Metric("loss")
    history = [
        {"step": s, "split": "train", "loss": 1 - s / 100, "accuracy": s / 100}
        for s in range(10, 91, 10)
    ]
    history += [
        {"step": s, "split": "eval", "loss": abs(s - 45) / 60, "accuracy": 0.5}
        for s in range(0, 91, 15)
    ]
    best = {"accuracy": accuracy, "loss": loss}[by]
    for name, more in {
        "stopped": {"best": (best, 45), "stopped": "no better"},
        "ended": {"best": (best, 45)},
        "plain": {},
    }.items():
        loss_curve(
            tmp_path / f"{name}.png",
            history,
            headline=accuracy,
            baseline=None,
            title="a run",
            **more,
        )
    stopped, ended, plain = (
        image.imread(tmp_path / f"{name}.png")[..., :3] for name in ("stopped", "ended", "plain")
    )
    panels = 1 + (by == "loss")
    assert plain.shape == (540, 960, 3) and stopped.shape == ended.shape == (
        120 + 420 * panels,
        960,
        3,
    )
    _, columns = where(ended, BEST)
    line = max(set(columns), key=list(columns).count)
    assert (columns == line).sum() > 300 * panels, "from bottom to top of each panel"
    assert 400 < line < 600 and not len(where(plain, BEST)[0])
    assert abs(stopped - ended).max(axis=-1)[:, 800:].any(), "the last evaluation is marked"
