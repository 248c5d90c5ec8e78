"""The texts printed before and after a run."""

import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
from flax.traverse_util import flatten_dict

from flaxformer_lite.checkpoints.frozen_base import FOLDER
from flaxformer_lite.config import (
    ExperimentConfig,
    check_family,
    fingerprint,
    outside_plugins,
    plugin_name,
)
from flaxformer_lite.files.home import expand_home
from flaxformer_lite.objectives.base import Metric
from flaxformer_lite.objectives.sums import BY_SOURCE
from flaxformer_lite.objectives.tables.task import Task
from flaxformer_lite.runs.experiment import Experiment
from flaxformer_lite.runs.report.metrics import Recorder
from flaxformer_lite.runs.report.sharding_report import sharding_report
from flaxformer_lite.runtime import invocation
from flaxformer_lite.storage.stores import is_url
from flaxformer_lite.training import optimizer
from flaxformer_lite.training.state import param_count

Rows = list[tuple[str, str]]
ADAPTER_RATE = 1e-4  # the least of the usual ones; the examples of PEFT and TRL take up to 2e-4
TENSORBOARD = "tensorboard"  # the tracker, and its folder in a workdir
MIN_LARGE_PARAMETERS = 100_000_000  # parameters that a built-in text is too short for
MAX_NAMED_STEPS = 8  # most steps in a row


def banner(experiment: Experiment, workdir: Path, start: int) -> Rows:
    """Describes the run that is about to start: model, data, devices."""
    cfg = experiment.cfg
    mesh = experiment.program.mesh
    mixers = []
    for seen, kind in cfg.model.layers:
        mixer = kind.mixer or seen.mixer
        name = f"{seen.num_heads} heads"
        if mixer is not None:
            name = plugin_name(mixer)
        if name not in mixers:
            mixers.append(name)
    layers = " + ".join(str(n) for n in (cfg.model.encoder_layers, cfg.model.decoder_layers) if n)
    sizes = f"width {cfg.model.d_model}"
    if layers:
        sizes = ", ".join([f"{layers} layers, {sizes}", *mixers])
    shape = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    hosts = ""
    if jax.process_count() > 1:
        hosts = f" in {jax.process_count()} processes"
    devices = f"{mesh.size} of {jax.device_count()} {mesh.devices.flat[0].device_kind}{hosts}"
    epochs = cfg.train.steps * cfg.train.batch_size / experiment.train_data.num_examples
    flops = _giga(experiment.program.flops_per_step)
    work = f"{experiment.program.tokens_per_step:,} tokens, {flops}FLOP"
    params = experiment.program.target.params
    count = f"{param_count(params):,}"
    if cfg.optimizer.freeze:
        trained = param_count(optimizer.trained(cfg.optimizer, params))
        count += f", of which {trained:,} are trained"
    rows = [("model", f"{cfg.model.family}: {sizes}")]
    if cfg.train.init_from:
        rows.append(("taken from", _taken(cfg)))
    if experiment.program.frozen_base:
        rows.append(("frozen", _frozen(experiment)))
    rows += [
        ("parameters", count),
        *experiment.about_data,
        (
            "objective",
            f"{plugin_name(cfg.objective)}, vocabulary {experiment.train_data.vocab_size:,}",
        ),
        ("step", f"{work}; {cfg.train.steps} steps ({epochs:.3g} epochs)"),
        (
            "optimizer",
            f"{cfg.optimizer.name}, {cfg.optimizer.schedule} from {cfg.optimizer.learning_rate:g}",
        ),
        ("devices", f"{devices}: {shape}"),
        *sharding_report(experiment.program),
        ("workdir", f"{workdir} (config {fingerprint(cfg)})"),
    ]
    if start:
        rows.append(("resuming", f"after step {start}"))
    warmup = cfg.optimizer.warmup(cfg.train.steps)
    if warmup >= cfg.train.steps:
        rows.append(
            (
                "note",
                f"the warmup of {warmup:,} steps is not over after {cfg.train.steps:,}, so the"
                " learning rate does not reach its peak; --config.optimizer.warmup_share=0.1 warms"
                " up for a tenth of any run",
            )
        )
    rows += warn_of_built_in_text(cfg, param_count(params))
    rate = cfg.optimizer.learning_rate
    if cfg.model.adapter is not None and rate < ADAPTER_RATE:
        advice = (
            f"learning_rate={rate:g} suits training all weights; adapters usually need"
            f" {ADAPTER_RATE:g} to {2 * ADAPTER_RATE:g}: --config.optimizer.learning_rate=2e-4"
        )
        rows.append(("note", advice))
    return rows


def warn_of_built_in_text(cfg: ExperimentConfig, parameters: int) -> Rows:
    """Warns of a large model that learns from a text that is there for trials."""
    if parameters < MIN_LARGE_PARAMETERS or cfg.data.path or cfg.data.mixture:
        return []
    advice = (
        f"{parameters:,} parameters learn from the few megabytes of the built-in"
        f" {cfg.data.corpus}; name your text with --config.data.path=FOLDER"
    )
    return [("WARNING", advice)]


def _taken(cfg: ExperimentConfig) -> str:
    """Describes which parts of a run come from the directory in `train.init_from`."""
    folder = cfg.train.init_from
    tokenizer = cfg.data.tokenizer.path
    if expand_home(tokenizer).is_relative_to(expand_home(folder)):
        return f"{folder}: model, weights and tokenizer, in place of the config's"
    return (
        f"{folder}: model and weights, in place of the config's; tokenizer of"
        f" {tokenizer or 'the text'}"
    )


def _frozen(experiment: Experiment) -> str:
    """Describes where the frozen weights are that checkpoints do not hold."""
    base = experiment.base
    assert base is not None
    leaves = flatten_dict(experiment.program.target.params, sep="/")
    frozen = [leaves[path] for path in experiment.program.frozen_base]
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in frozen)
    if base.kept == "copy":
        return f"{size / 1e6:,.1f} MB of weights are kept once, in the workdir's {FOLDER}/"
    return (
        f"{size / 1e6:,.1f} MB of weights stay in {base.source}, where every start reads them;"
        " --config.train.base=copy would keep a copy here"
    )


def _giga(number: int) -> str:
    """Formats 1234567890 as `1.2 G`, and never as `0.0 G`."""
    if number >= 1e9:
        return f"{number / 1e9:,.1f} G"
    return f"{number / 1e6:,.1f} M"


def closing(
    recorder: Recorder,
    metrics: Sequence[Metric],
    baseline: tuple[str, float] | None,
    compiles: int,
    workdir: Path,
    best: str = "",
    used: Sequence[tuple[str, str]] = (),
    trackers: Sequence[str] = (),
) -> Rows:
    """Summarizes a finished run.

    Args:
      baseline: name and value to compare the headline with, or None.
      compiles: number of compilations after step two.
      best: a description of the best evaluation, or an empty string.
      used: rows about the resources that the run used.
      trackers: the config's.
    """
    headline, *others = metrics
    evals = recorder.of("eval")
    last = evals[-1]
    before = ""
    if evals[0]["step"] == 0:
        before = f"{headline.show(evals[0][headline.name])} before, "
    after = f"{headline.show(last[headline.name])} after {last['step']} steps"
    unit = ""
    if headline.unit:
        unit = f" ({headline.unit})"
    rows = [(f"held-out {headline.words}", f"{before}{after}{unit}")]
    if baseline:
        rows.append((baseline[0], _compared(headline, last[headline.name], baseline[1])))
    for metric in others:
        if metric.name in last:
            rows.append((metric.words, f"{metric.show(last[metric.name])} {metric.unit}".rstrip()))
    by_source = []
    for name, value in last.items():
        if name.startswith(BY_SOURCE):
            by_source.append(f"{name.removeprefix(BY_SOURCE)} {value:.3f}")
    if by_source:
        rows.append(("held-out loss by source", ", ".join(by_source)))
    if best:
        rows.append(("best", f"{best}; {workdir / 'best'}"))
    train = recorder.of("train")
    speeds = sorted(r["tokens_per_second"] for r in train if "tokens_per_second" in r)
    if speeds:
        rows.append(("speed", f"{speeds[len(speeds) // 2]:,.0f} tokens/s"))
    skipped = [str(record["step"]) for record in recorder.of("spike") if record.get("skipped")]
    if skipped:
        steps = ", ".join(skipped[:MAX_NAMED_STEPS])
        if len(skipped) > MAX_NAMED_STEPS:
            steps += ", ..."
        rows.append(("skipped updates", f"{len(skipped)}, at step {steps}"))
    logs = [str(workdir / "metrics.jsonl")]
    if TENSORBOARD in trackers:
        logs.append(str(workdir / TENSORBOARD))
    warning = ""
    if compiles:
        warning = ": WARNING, a shape changes between steps"
    return [
        *rows,
        *used,
        ("compilations", f"{compiles} after step two{warning}"),
        ("report", str(workdir / "report.html")),
        ("metrics", ", ".join(logs)),
        ("checkpoints", str(workdir / "checkpoints")),
    ]


def _compared(headline: Metric, value: float, baseline: float) -> str:
    if math.isclose(value, baseline, rel_tol=1e-6):  # one of them is a float32 sum
        return f"{headline.show(baseline)}; the model is no better yet"
    difference = headline.show(abs(value - baseline))
    if headline.form.endswith("%"):
        difference = f"{difference.removesuffix('%')} points"
    verdict = "WORSE so far"
    if (value > baseline) == headline.higher_is_better:
        verdict = "better"
    return f"{headline.show(baseline)}; the model is {difference} {verdict}"


def next_commands(cfg: ExperimentConfig, workdir: Path) -> Rows:
    """Suggests commands to try next, which use the trained model."""
    model = cfg.model
    rows = []
    read = ["--model", str(workdir)]
    if outside_plugins(cfg):
        read.append("--allow-plugins")
    if model.decoder_layers and model.head == "lm":
        rows.append(("write", _program("generate", *read, *_prompt(cfg))))
    if model.head in ("masked_lm", "pretraining") and model.head in check_family(model).vocab_heads:
        rows.append(
            ("guess", _program("generate", *read, "--prompt", "The capital of [MASK] is Paris."))
        )
    if isinstance(cfg.objective, Task):
        table = cfg.data.eval_path or cfg.data.path
        test_file = cfg.data.eval_path or "TEST_FILE"
        plugins = read[2:]
        rows += [
            ("predict", _program("predict", *read, "--data", table)),
            ("evaluate", _program("evaluate", *read, "--data", test_file)),
            ("convert", _program("convert", *plugins, str(workdir), f"{workdir}-converted")),
        ]
    elif model.encoder_layers and not model.decoder_layers:
        texts = ("--text", "A cat sleeps.", "--text", "A kitten naps.")
        rows.append(("compare", _program("embed", *read, *texts)))
    if TENSORBOARD in cfg.train.trackers:
        logs = workdir.parent
        if is_url(workdir) and str(workdir).count("/") == 2:  # a bucket; nothing is beside it
            logs = workdir
        logdir = shlex.quote(str(logs))
        rows.append(("watch", f"pip install tensorboard && tensorboard --logdir {logdir}"))
    return rows


def _prompt(cfg: ExperimentConfig) -> list[str]:
    """Returns the flags of `generate` for what the model was trained to continue.

    A decoder's text is sampled: the likeliest tokens of a small model repeat each other.
    """
    if "chat_template" in cfg.objective.published_fields():
        return ["--chat", "--prompt", "What can you do?"]
    if isinstance(cfg.objective, Task):
        values = (value for row in cfg.objective.sample for value in row.values())
        text = next((value for value in values if isinstance(value, str)), "")
        return ["--prompt", getattr(cfg.objective, "prefix", "") + text]
    if cfg.model.encoder_layers:
        return ["--prompt", "Thank you <extra_id_0> me to your party."]
    return ["--prompt", "The ", "--temperature", "0.8"]


def command() -> str:
    """Returns this run's command line, or an empty string if another program runs it."""
    given = sys.argv[1:]
    if given[:1] == ["train"]:
        given = given[1:]
    if not any(arg.startswith("--config") for arg in given):
        return ""
    return _program("train", *invocation.underscored(given))


def _program(command: str, *args: str) -> str:
    """Returns a command line of this package, ready to paste."""
    return f"{invocation.program(command)} {shlex.join(args)}"
