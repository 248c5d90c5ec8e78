from matplotlib import image

from flaxformer_lite.objectives import Metric
from flaxformer_lite.training.report.plot import HELD_OUT, loss_curve


def test_draws_both_losses_and_the_baseline(tmp_path):
    headline = Metric("nll", "loss", unit="nats per target")
    history = [{"step": s, "split": "train", "loss": 20.0, "nll": 9.0 - s / 20} for s in range(10, 101, 10)]
    history += [{"step": s, "split": "eval", "loss": 20.0, "nll": 9.0 - s / 20} for s in (0, 50, 100)]
    loss_curve(tmp_path / "loss.png", history, headline=headline, baseline=("unigram", 6.5), title="a run")
    pixels = image.imread(tmp_path / "loss.png")[..., :3]
    assert pixels.shape == (540, 960, 3)
    wanted = [int(HELD_OUT[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    marked = (abs(pixels - wanted).max(axis=-1) < 0.02).nonzero()
    assert len(marked[0]) > 50  # markers of held-out text, and they fall from left to right
    assert marked[0][marked[1] < 200].mean() < marked[0][(marked[1] > 850) & (marked[0] > 200)].mean()
