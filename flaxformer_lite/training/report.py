"""The words before and after a run: what is about to be trained, and what came of it."""

import sys
from pathlib import Path

import jax

from flaxformer_lite.config import fingerprint, plugin_name
from flaxformer_lite.training.metrics import Recorder, text_loss
from flaxformer_lite.training.setup import Experiment
from flaxformer_lite.training.state import param_count

Rows = list[tuple[str, str]]


def banner(experiment: Experiment, workdir: Path, start: int) -> Rows:
    """What is about to be trained, on what, where."""
    cfg, mesh = experiment.cfg, experiment.mesh
    layers = " + ".join(str(n) for n in (cfg.model.encoder_layers, cfg.model.decoder_layers) if n)
    shape = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    device = mesh.devices.flat[0]
    source = cfg.data.path or f"{cfg.data.corpus} (built in)"
    data = f"{experiment.train_data.num_examples:,} examples, {experiment.eval_data.num_examples:,} held out"
    step = f"{experiment.tokens_per_step:,} tokens, {experiment.flops_per_step / 1e9:,.1f} GFLOP"
    rows = [
        ("model", f"{cfg.model.family}: {layers} layers, width {cfg.model.d_model}, {cfg.model.num_heads} heads"),
        ("parameters", f"{param_count(experiment.target.params):,}"),
        ("data", f"{source}; {data}"),
        ("objective", f"{plugin_name(cfg.objective)}, vocabulary {experiment.train_data.vocab_size:,}"),
        ("step", f"{step}; {cfg.train.steps} steps"),
        ("optimizer", f"{cfg.optimizer.name}, {cfg.optimizer.schedule} from {cfg.optimizer.learning_rate:g}"),
        ("devices", f"{mesh.size} of {jax.device_count()} {device.device_kind}: {shape}"),
        ("workdir", f"{workdir} (config {fingerprint(cfg)})"),
    ]
    if start:
        rows.append(("resuming", f"after step {start}"))
    if cfg.optimizer.warmup_steps >= cfg.train.steps:
        rows.append(
            ("note", f"warmup_steps={cfg.optimizer.warmup_steps} of {cfg.train.steps}: the peak is not reached")
        )
    return rows


def millions(experiment: Experiment) -> str:
    """Parameters as `1.6M`."""
    return f"{param_count(experiment.target.params) / 1e6:.3g}M"


def closing(recorder: Recorder, unigram: float, compiles: int, workdir: Path) -> Rows:
    """What came of it; losses are those of predicted text alone, so that they compare with the baseline."""
    evals, last = recorder.of("eval"), recorder.of("eval")[-1]
    before = f"{text_loss(evals[0]):.3f} before, " if evals[0]["step"] == 0 else ""
    loss = text_loss(last)
    side = "below" if loss < unigram else "ABOVE: it has learned less than that yet"
    rows = [
        ("held-out loss", f"{before}{loss:.3f} after {last['step']} steps (nats per target)"),
        ("unigram baseline", f"{unigram:.3f}; the model is {abs(unigram - loss):.3f} {side}"),
        ("perplexity", f"{last['perplexity']:,.1f}"),
        ("bits per byte", f"{last['bits_per_byte']:.3f} of predicted text"),
    ]
    if "accuracy" in last:
        rows.append(("accuracy", f"{last['accuracy']:.1%}"))
    speeds = sorted(record["tokens_per_second"] for record in recorder.of("train") if "tokens_per_second" in record)
    if speeds:
        rows.append(("speed", f"{speeds[len(speeds) // 2]:,.0f} tokens/s"))
    return [
        *rows,
        (
            "compilations",
            f"{compiles} after step two" + (": WARNING, a shape changes between steps" if compiles else ""),
        ),
        ("loss curve", str(workdir / "loss.png")),
        ("metrics", f"{workdir / 'metrics.jsonl'}, {workdir / 'tensorboard'}"),
        ("checkpoints", str(workdir / "checkpoints")),
    ]


def next_commands(workdir: Path) -> Rows:
    """What to try now."""
    command = f"python train.py {' '.join(arg for arg in sys.argv[1:] if not arg.startswith('--workdir'))}".strip()
    return [
        ("watch", f"tensorboard --logdir {workdir.parent}"),
        ("your text", f"{command} --config.data.path=FILE_OR_FOLDER --workdir={workdir}_own"),
        ("wider", f"{command} --config.model.d_model=256 --config.model.mlp_dim=1024 --workdir={workdir}_wide"),
    ]
