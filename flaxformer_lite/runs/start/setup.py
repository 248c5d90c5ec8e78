"""Setup of everything that a run needs before anything is compiled: data, model, mesh, steps."""

import dataclasses
import functools

import jax
from jax.experimental.compilation_cache import compilation_cache

from flaxformer_lite import sharding
from flaxformer_lite.config import ExperimentConfig
from flaxformer_lite.data.dataset import Dataset, name_held_out, open_dataset
from flaxformer_lite.runs import padding
from flaxformer_lite.runs.batch_history import BatchHistory
from flaxformer_lite.runs.experiment import Experiment
from flaxformer_lite.runs.start import warm_start
from flaxformer_lite.runs.start.begin import begin_run
from flaxformer_lite.runs.start.initial_state import first_state
from flaxformer_lite.runs.start.referenced_weights import build_program, check_tokenizer
from flaxformer_lite.training import program
from flaxformer_lite.types import Batch


def prepare_experiment(cfg: ExperimentConfig) -> Experiment:
    """Opens the data (tokenizing it if necessary), builds the program, checks that they fit.

    Raises:
      ConfigError: data, model, mesh and batch do not fit; names the field to change.
    """
    compile_anew_on_cpu_groups()
    program.update_rule(cfg)  # refuses what does not fit before texts are tokenized
    mesh = sharding.build_mesh(cfg.mesh)
    sharding.check_batch(cfg.train.batch_size, cfg.train.accumulate, mesh)
    cfg = name_held_out(cfg)  # in the config that the run keeps, by which its rows are found later
    train_data = open_dataset(cfg, "train", labels=warm_start.known_labels(cfg))
    eval_data = dataclasses.replace(train_data, split="eval")
    objective = train_data.objective
    cfg = program.with_vocabulary(cfg, train_data.vocab_size)
    cfg = program.with_steps(cfg, train_data.num_examples, train_data.held)
    model = objective.fit_model(cfg.model, train_data.tokenizer)
    cfg = dataclasses.replace(cfg, objective=objective, model=model)
    built = build_program(cfg, mesh, train_data.example(0, 0, 0))
    check_tokenizer(built, train_data.tokenizer)
    packers, notices = padding.plan_packing(cfg, built.model, mesh.shape, train_data)
    notices = [*notices, *padding.beyond_window(cfg.model, cfg.data.length)]
    packed: dict[str, tuple[Batch, ...]] = {}
    for name, packer in packers.items():
        packed[name] = (built.batch,)
        if packer:
            packed[name] = packer.batch_shapes(built.batch)
    batch = packed.get("train_step", (built.batch,))[0]
    built = dataclasses.replace(
        built, batch=batch, tokens_per_step=program.tokens(batch), packed=packed
    )
    return Experiment(
        built,
        train_data,
        eval_data,
        create_state=functools.partial(first_state, built),
        begin=begin_run,
        name_rows=BatchHistory(cfg, train_data).named,
        packers=packers,
        about_data=(*describe_data(cfg, train_data, eval_data), *notices),
    )


def describe_data(
    cfg: ExperimentConfig, train_data: Dataset, eval_data: Dataset
) -> list[tuple[str, str]]:
    """Describes the text, its files, and how much is held out."""
    corpus = train_data.sources[""].corpus if "" in train_data.sources else None
    if corpus is None:
        return list(train_data.described)
    source = f"{cfg.data.corpus} (built in)"
    if cfg.data.path:
        source = f"{cfg.data.path}: {corpus.source.kinds()}"
    train = corpus.tokens["train"]
    held = corpus.tokens["eval"]
    share = held.num_tokens / (held.num_tokens + train.num_tokens)
    path = ""
    if cfg.data.eval_path:
        path = f"{cfg.data.eval_path}: "
    held_out = (
        f"{path}{eval_data.num_examples:,} examples, of {len(held):,} documents:"
        f" {share:.1%} of the tokens"
    )
    rows = [
        ("data", f"{source}; {train_data.num_examples:,} examples"),
        ("held out", held_out),
    ]
    if corpus.source.left_out:
        rows.append(("notice", corpus.source.unread()))
    return rows


def compile_anew_on_cpu_groups() -> None:
    """Disables JAX's compilation cache if several processes train together on CPU.

    A program that XLA:CPU loads from the cache has lost part of the order of its collectives: each
    loop orders only those inside it, so that they may run before or after those outside
    (xla/backends/cpu/runtime/thunk_proto_serdes.cc, `WhileThunkFromProto`). Between processes Gloo
    pairs messages by their order alone: with microbatches, the wrong arrays meet. Inside one
    process collectives are paired by their ids, and on TPUs and GPUs their order is compiled.
    """
    if jax.process_count() > 1 and jax.default_backend() == "cpu":
        jax.config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()  # jax decides at its first compilation whether to cache
