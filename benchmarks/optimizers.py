"""The optimizers on one text: the same model, seeds and batches, each at its best learning rate.

    nice -n 10 python -m benchmarks.optimizers     # prints the table of docs/optimizers.md

A GPT of two layers is trained on the same batches of bytes of the built-in text. Each optimizer is
trained at learning rates that triple, from a middle that suits it, further if the best is at an
end; the best is trained from further seeds.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import numpy as np

from benchmarks import small_runs
from flaxformer_lite import registry
from flaxformer_lite.config import ExperimentConfig, OptimizerConfig, TrainConfig
from flaxformer_lite.models import gpt2
from flaxformer_lite.objectives.text.causal_lm import CausalLm
from flaxformer_lite.training import bound_models, optimizer

SOAP = "examples.soap:make"
ADAM_MINI = "examples.adam_mini:make"
LENGTH = 64
STEPS = 150
SEEDS = 3
FURTHER = 3  # rates tried at most beyond the first three
MIDDLES = {
    ADAM_MINI: 1e-2,
    "adamw": 1e-2,
    "adafactor": 1e-1,
    "lion": 1e-3,
    "muon": 1e-2,
    "muon_spectral": 1e-2,
    "schedule_free": 1e-2,
    "sgd": 1.0,
    SOAP: 1e-2,
}
# as their authors have it
B1 = {"muon": 0.95, "muon_spectral": 0.95, SOAP: 0.95}
B2 = {SOAP: 0.95}


def experiment(name: str, rate: float) -> ExperimentConfig:
    model = gpt2.config(
        "tiny",
        vocab_size=0,
        d_model=64,
        num_heads=2,
        mlp_dim=256,
        decoder_layers=2,
        max_length=LENGTH,
        dropout=0.0,
    )
    schedule = "constant" if name == "schedule_free" else "linear"
    optimizer = OptimizerConfig(
        name=name,
        learning_rate=rate,
        warmup_steps=15,
        schedule=schedule,
        final_fraction=0.0,
        b1=B1.get(name, 0.9),
        b2=B2.get(name, OptimizerConfig.b2),
        weight_decay=0.0,
    )
    return ExperimentConfig(
        model=model,
        objective=CausalLm(),
        data=small_runs.text(LENGTH),
        optimizer=optimizer,
        train=TrainConfig(steps=STEPS, batch_size=16, loss_chunks=1),
    )


def losses(name: str, rate: float, seeds: int) -> list[float]:
    cfg = small_runs.sized(experiment(name, rate))
    return small_runs.train(cfg, [1.0], seeds)[0].tolist()


def state_numbers(name: str) -> float:
    """Returns the numbers that the optimizer keeps for each parameter."""
    cfg = small_runs.sized(experiment(name, 1.0))
    inputs = {"input_ids": np.ones((1, LENGTH), np.int32)}
    model = bound_models.build(cfg).model
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), **inputs)["params"])
    state = jax.eval_shape(optimizer.build(cfg.optimizer, STEPS).init, params)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    return sum(leaf.size for leaf in jax.tree.leaves(state)) / count


def measure(name: str) -> dict:
    started = time.process_time()
    middle = MIDDLES[name]
    found = {rate: losses(name, rate, 1)[0] for rate in (middle / 3, middle, middle * 3)}
    for _ in range(FURTHER):
        best = min(found, key=lambda rate: np.nan_to_num(found[rate], nan=np.inf))
        if best not in (min(found), max(found)):
            break
        further = best / 3 if best == min(found) else best * 3
        found[further] = losses(name, further, 1)[0]
    best = min(found, key=lambda rate: np.nan_to_num(found[rate], nan=np.inf))
    return {
        "name": name,
        "rates": found,
        "rate": best,
        "losses": losses(name, best, SEEDS),
        "state": state_numbers(name),
        "seconds": time.process_time() - started,
    }


def table(results: list[dict]) -> str:
    lines = [
        "| optimizer | best rate | held-out loss, nats a byte | tried | state a parameter |",
        "|---|---:|---:|---|---:|",
    ]
    for row in sorted(results, key=lambda row: np.mean(row["losses"])):
        seeds = row["losses"]
        tried = ", ".join(
            f"{float(rate):.2g}: {loss:.3f}"
            for rate, loss in sorted(row["rates"].items(), key=lambda item: float(item[0]))
        )
        spread = f"{np.mean(seeds):.3f} ({min(seeds):.3f} to {max(seeds):.3f})"
        lines.append(
            f"| `{row['name']}` | {float(row['rate']):.2g} | {spread} | {tried} |"
            f" {row['state']:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("runs/optimizers.json"))
    parser.add_argument("--name", nargs="+", help="only these optimizers")
    args = parser.parse_args()
    results = json.loads(args.results.read_text()) if args.results.exists() else []
    for name in args.name or (*registry.available("optimizers"), SOAP):
        if name not in [row["name"] for row in results]:
            results.append(measure(name))
            print(name, results[-1], flush=True)
            args.results.parent.mkdir(parents=True, exist_ok=True)
            args.results.write_text(json.dumps(results))
    print(table(results))


if __name__ == "__main__":
    main()
