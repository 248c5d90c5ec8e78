"""Compares eight experts with a dense model of equal FLOPs, each at its best learning rate.

    nice -n 10 python -m benchmarks.experts           # prints the table of docs/experts.md
    nice -n 10 python -m benchmarks.experts --quick   # a few steps, to see that it runs

The experts are those of the page moe_tiny, two of eight for each token, in a model that is small
enough to see many tokens for each parameter: two layers of width 64, on bytes. The dense model
differs in its feed-forward only, which is as wide as a token's experts and their router cost.
"""

import argparse
import dataclasses
import math
import statistics

import jax
import numpy as np

from benchmarks import small_runs
from flaxformer_lite import pages
from flaxformer_lite.config import ExperimentConfig, from_config_dict
from flaxformer_lite.runs.start import setup

LENGTH = 64
WIDTH = 88  # of each expert
SUBJECTS = ("experts", "dense")
RATES = (3e-3, 1e-2, 3e-2)


def experiment(subject: str, steps: int) -> ExperimentConfig:
    """Returns the experiment of a subject, with a peak rate of 1."""
    cfg = from_config_dict(ExperimentConfig, pages.get_config("moe_tiny"))
    model = dataclasses.replace(
        cfg.model,
        vocab_size=0,
        d_model=64,
        num_heads=2,
        num_kv_heads=2,
        mlp_dim=WIDTH,
        decoder_layers=2,
    )
    if subject == "dense":
        assert model.feed_forward is not None
        router = math.ceil(model.feed_forward.num_experts / 3)  # a gated layer has three matrices
        model = dataclasses.replace(model, feed_forward=None, mlp_dim=2 * WIDTH + router)
    optimizer = dataclasses.replace(
        cfg.optimizer, learning_rate=1.0, warmup_steps=steps // 10, weight_decay=0.0
    )
    train = dataclasses.replace(cfg.train, steps=steps, batch_size=16, loss_chunks=1)
    cfg = dataclasses.replace(
        cfg, model=model, data=small_runs.text(LENGTH), optimizer=optimizer, train=train
    )
    return small_runs.sized(cfg)


def cost(cfg: ExperimentConfig) -> tuple[int, float]:
    """Returns the numbers of parameters, and of FLOPs of a token, forwards and backwards."""
    ready = setup.prepare_experiment(cfg).program
    count = sum(leaf.size for leaf in jax.tree.leaves(ready.target.params))
    return count, ready.flops_per_step / ready.tokens_per_step


def row(subject: str, steps: int, rates: list[float], seeds: int) -> str:
    """Trains a subject at each rate, and at the best one from further seeds."""
    cfg = experiment(subject, steps)
    first = small_runs.train(cfg, rates)[:, 0].tolist()
    tried = ", ".join(f"{rate:g}: {loss:.3f}" for rate, loss in zip(rates, first, strict=True))
    print(subject, tried, flush=True)
    rate = rates[int(np.nanargmin(first))]
    losses = small_runs.train(cfg, [rate], seeds)[0].tolist()
    each = ", ".join(f"{loss:.3f}" for loss in losses)
    parameters, flops = cost(cfg)
    return (
        f"| {subject} | {parameters:,} | {flops:,.0f} | {tried} | {rate:g} |"
        f" {statistics.mean(losses):.3f} | {each} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--subject", nargs="+", default=SUBJECTS, choices=SUBJECTS)
    parser.add_argument("--quick", action="store_true", help="one seed, one rate and three steps")
    args = parser.parse_args()
    if args.quick:
        args.steps = 3
        args.rates = RATES[:1]
        args.seeds = 1
    rows = [row(subject, args.steps, list(args.rates), args.seeds) for subject in args.subject]
    print("| | parameters | FLOPs a token | tried | best rate | held-out loss, mean | by seed |")
    print("|---|---:|---:|---|---:|---:|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
