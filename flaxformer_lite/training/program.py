"""Builds the steps of an experiment on a mesh, with their shapes and shardings.

No data are opened, no arrays are made and nothing is compiled.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.extend.core import ClosedJaxpr
from jax.sharding import Mesh

from flaxformer_lite import sharding
from flaxformer_lite.analysis import flops
from flaxformer_lite.config import ConfigError, ExperimentConfig, MeshConfig, ModelConfig
from flaxformer_lite.config.parts import PartitionRules
from flaxformer_lite.nn.functions.quantized import RECIPES
from flaxformer_lite.nn.functions.sharding import ActivationSharding
from flaxformer_lite.objectives.rows import PACKING, TOKEN_IDS, Example
from flaxformer_lite.objectives.sums import LOAD, losses_of_routers
from flaxformer_lite.training import bound_models, optimizer, state, step
from flaxformer_lite.training.bound_models import LOADS, LOSSES, ROUTED, Models
from flaxformer_lite.types import Batch, Params


@dataclasses.dataclass(frozen=True)
class Program:
    """The computations of an experiment; a run adds data to it, a plan only compiles it.

    Attributes:
      cfg: the config, with the vocabulary size and the number of steps filled in.
      models: the models for use outside the steps, without a mesh.
      mesh: the mesh; its devices may be descriptions, as for plans.
      rules: the partition rules of all parameters.
      target: shapes, dtypes and shardings of the train state.
      batch: shapes and dtypes of a global batch, of the most frequent packing.
      create: jaxpr without arguments that makes the initial state, which
        `runs/start/initial_state.py` runs.
      train_step, eval_step: jitted functions, compiled at their first call.
      tokens_per_step: number of input tokens that a step computes, including padding.
      packed: by the name of a step, the shapes of the batches that it is compiled for, the most
        frequent first; only for steps whose batches are not all like `batch`.
      frozen_base: paths of the parameters that stay as the run's start read them, and that
        checkpoints do not hold (checkpoints/frozen_base.py).
    """

    cfg: ExperimentConfig
    models: Models
    mesh: Mesh
    rules: PartitionRules
    target: state.TrainState
    batch: Batch
    create: ClosedJaxpr
    train_step: sharding.Jitted
    eval_step: sharding.Jitted
    tokens_per_step: int
    packed: Mapping[str, tuple[Batch, ...]] = dataclasses.field(default_factory=dict)
    frozen_base: frozenset[str] = frozenset()

    @property
    def model(self) -> nn.Module:
        """The linen module that is trained."""
        return self.models.model

    def saved_params(self, params: Params) -> Params:
        """Returns the parameters that checkpoints hold: all but those read at every start."""
        own = self.models.own_params(params)
        if not self.frozen_base:
            return own
        flat = flatten_dict(own, sep="/")
        saved = {path: leaf for path, leaf in flat.items() if path not in self.frozen_base}
        return unflatten_dict(saved, sep="/")

    def saved(self, state: state.TrainState) -> state.TrainState:
        """Returns the part of a train state that checkpoints hold."""
        return state.replace(params=self.saved_params(state.params))

    def without_saving(self, paths: Iterable[str]) -> "Program":
        """Leaves parameters out of what checkpoints hold."""
        return dataclasses.replace(self, frozen_base=self.models.own_paths(paths))

    def shapes(self, name: str) -> tuple[Batch, ...]:
        """Returns the shapes of the batches that a step is compiled for, the most frequent first.

        Args:
          name: "train_step" or "eval_step".
        """
        return self.packed.get(name, (self.batch,))

    @functools.cached_property
    def flops_per_step(self) -> int:
        """FLOPs of the model per step, forward and backward, traced on first use.

        Attention counts all pairs of positions, whether masked or not, a mixture of experts those
        that tokens use, and frozen matrices no gradients of their own.
        """
        counted = self.models.rebuild(attention="dense", sharding=_NoPlatform(tuned=True))
        params = self.target.params
        trained = state.param_count(optimizer.trained(self.cfg.optimizer, params))
        return flops.per_step(
            eval_step(self.cfg, counted),
            params,
            self.batch,
            trained=trained / state.param_count(params),
        )


class _NoPlatform(ActivationSharding):
    """A device that nothing is tuned for: a CPU would count the rows that pad groups to blocks."""

    @property
    def platform(self) -> str:
        return "none"


def build(
    cfg: ExperimentConfig, mesh: Mesh, example: Example, models: Models | None = None
) -> Program:
    """Builds the steps of an experiment.

    Args:
      cfg: the config, with the vocabulary size filled in.
      mesh: the mesh of devices, or of descriptions of devices.
      example: shapes and dtypes of an example, as `make_example` returns it.
      models: the models of the experiment; needed if the config of one is in a directory, which
        `runs/start/referenced_weights.py` reads.

    Raises:
      ConfigError: model, mesh and rules do not fit each other; names the field to change.
    """
    _check_example(example, mesh)
    models = models or bound_models.build(cfg)
    tx = update_rule(cfg)
    # The other half is for dropout, in `train_step`.
    init_key, _ = jax.random.split(jax.random.key(cfg.seed))
    # Has the same parameters, and no kernel that this machine may lack.
    plain = models.rebuild(attention="dense")

    def create():
        zeros = {}
        for name, x in example["inputs"].items():
            # One row is enough: no parameter depends on the size of the batch.
            zeros[name] = jnp.zeros((1, *x.shape), x.dtype)
        return state.create(lambda: plain.init(init_key, zeros), tx)

    # The jaxpr is kept, so that initialization is traced once for its shapes and its run.
    created, shapes = jax.make_jaxpr(create, return_shape=True)()
    if cfg.model.adapter is not None:
        leaves = jax.tree_util.tree_leaves_with_path(shapes.params)
        # An adapter names the matrix, which a quantized base holds as codes.
        paths = [sharding.path_of(keys).removesuffix("/codes") for keys, _ in leaves]
        cfg.model.adapter.check(paths)
    rules = models.rules(shapes.params)
    over_data = cfg.mesh.shard_over_data
    shardings = sharding.state_shardings(shapes, rules, mesh, over_data=over_data)
    batch = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((cfg.train.batch_size, *x.shape), x.dtype), example
    )
    make_sharding: Callable[..., sharding.MeshSharding] = sharding.MeshSharding
    if over_data:
        make_sharding = functools.partial(sharding.GatheringSharding, rules=rules)
    outside = make_sharding(
        mesh,
        tuned=cfg.train.cpu_tuning,
        context_attention=cfg.mesh.context_attention,
        expert_dispatch=cfg.mesh.expert_dispatch,
    )
    over = None
    inside: ActivationSharding = outside
    if cfg.mesh.mode != "jit":
        over = sharding.DATA
        # Inside shard_map or pmap, arrays are a device's own, and no constraint may name the mesh's
        # axes.
        inside = outside.inside_shard()
    stepped = train_step(cfg, models.rebuild(sharding=inside), over)
    evaluated = eval_step(cfg, models.rebuild(sharding=outside))
    return Program(
        cfg=cfg,
        models=models,
        mesh=mesh,
        rules=rules,
        target=jax.tree.map(
            lambda s, h: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=h), shapes, shardings
        ),
        batch=batch,
        create=created,
        train_step=sharding.jit_step(stepped, shardings, mesh, cfg.mesh.mode),
        eval_step=sharding.jit_eval(evaluated, shardings, mesh),
        tokens_per_step=tokens(batch),
    )


def tokens(batch: Batch) -> int:
    """Counts the input tokens that a batch computes, including padding."""
    inputs = batch["inputs"]
    if PACKING in inputs:
        return inputs[PACKING].size
    return sum(inputs[name].size for name in TOKEN_IDS if name in inputs)


def executed_flops(program: Program) -> int:
    """Counts the FLOPs that a step runs, including recomputation and the optimizer."""
    cfg = program.cfg
    logical = dataclasses.replace(
        cfg, mesh=MeshConfig(), train=dataclasses.replace(cfg.train, accumulate=1)
    )
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (program.target, program.batch)
    )
    leaves, tree = jax.tree.flatten(shapes)
    # Dense, as a trace does not show how often the blocks of other kinds of attention run.
    models = program.models.rebuild(attention="dense")
    return _executed_flops(logical, models, tuple(leaves), tree)


@functools.lru_cache(maxsize=64)
def _executed_flops(
    cfg: ExperimentConfig, models: Models, leaves: tuple, tree: jax.tree_util.PyTreeDef
) -> int:
    """Counts the FLOPs of one microbatch.

    Tracing takes a second, so the result is cached; it does not depend on the mesh.
    """
    return flops.count(train_step(cfg, models), *tree.unflatten(leaves))


def loss(cfg: ExperimentConfig, models: Models) -> Callable[[Params, Batch], jax.Array]:
    """Builds the function (params, batch) -> the loss that a step minimizes, without dropout."""
    outputs = _outputs(cfg, models)

    def minimized(params: Params, batch: Batch) -> jax.Array:
        out, extra_losses = outputs(params, batch["inputs"], None)
        sums = cfg.objective.loss(out, batch["targets"], chunks=cfg.train.loss_chunks)
        losses = {}
        for name, value in extra_losses.items():
            if not name.startswith(step.LOAD):
                losses[name] = value
        return sums.with_auxiliary(losses).mean()

    return minimized


def with_vocabulary(cfg: ExperimentConfig, size: int) -> ExperimentConfig:
    """Fills in a missing vocabulary size: the tokenizer's, rounded up so that meshes divide it."""
    if cfg.model.vocab_size:
        return cfg
    rounded = math.ceil(size / 64) * 64
    return dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, vocab_size=rounded))


def with_steps(cfg: ExperimentConfig, examples: int, held: int | None = None) -> ExperimentConfig:
    """Converts `train.epochs` to `train.steps`, and the share of them that warms up to a number.

    Args:
      cfg: the experiment.
      examples: the number of examples per epoch.
      held: the number of examples that the data have for all epochs together; the last ones are
        dropped if they do not fill a batch. None: unlimited.
    """
    train = cfg.train
    if train.epochs:
        # A float, as epochs may be a fraction.
        exact = train.epochs * examples / train.batch_size
        # 1e-6: for products that are integers but for rounding
        steps = max(1, math.ceil(exact - 1e-6))
        if held is not None:
            steps = min(steps, held // train.batch_size)
        train = dataclasses.replace(train, steps=steps, epochs=0.0)
    warmup = cfg.optimizer.warmup(train.steps)
    optimizer = dataclasses.replace(cfg.optimizer, warmup_steps=warmup, warmup_share=0.0)
    return dataclasses.replace(cfg, train=train, optimizer=optimizer)


def _check_example(example: object, mesh: Mesh) -> None:
    """Checks the form of an example, and that the axis `context` of the mesh divides its lengths.

    Raises:
      ConfigError: either is not so.
    """
    if not isinstance(example, dict) or set(example) != {"inputs", "targets"}:
        returned = sorted(example) if isinstance(example, dict) else type(example).__name__
        raise ConfigError(
            f"the objective's make_example returned {returned}: must return"
            " {'inputs': ..., 'targets': ...}."
        )
    parts = mesh.shape["context"]
    for name, field in zip(TOKEN_IDS, ("length", "target_length"), strict=True):
        if name not in example["inputs"]:
            continue
        length = example["inputs"][name].shape[-1]
        if length % parts:
            padded = -(-length // parts) * parts
            raise ConfigError(
                f"mesh.context={parts}: {name} has {length} positions, which is not a multiple; try"
                f" data.{field}={padded}."
            )


def train_step(cfg: ExperimentConfig, models: Models, axis_name: str | None = None) -> Callable:
    """Builds the function (state, batch) -> (state, metrics), which is not compiled.

    Args:
      cfg: the experiment.
      models: its models.
      axis_name: the mesh axis over which gradients are summed, inside shard_map or pmap.
    """
    # The first half initializes the parameters, in `build`.
    _, dropout_key = jax.random.split(jax.random.key(cfg.seed))
    draws = uses_rng(cfg.model)
    return step.train_step(
        _outputs(cfg, models),
        cfg.objective,
        update_rule(cfg),
        optimizer.schedule(cfg.optimizer, cfg.train.steps, cfg.objective.updates_per_step),
        dropout_key=dropout_key if draws else None,
        accumulate=cfg.train.accumulate,
        chunks=cfg.train.loss_chunks,
        axis_name=axis_name,
        compares_rows=cfg.objective.compares_rows,
        is_trained=functools.partial(optimizer.are_trained, bound_models.optimizer_config(cfg)),
    )


def uses_rng(cfg: ModelConfig) -> bool:
    """Returns whether a training step of the model draws random numbers."""
    rounds_at_random = cfg.matmul != "float" and RECIPES[cfg.matmul].draws
    drops = cfg.dropout or getattr(cfg.adapter, "dropout", 0)
    differs = any(part.differs_in_training for part in cfg.feed_forwards)
    return bool(drops) or rounds_at_random or differs


def update_rule(cfg: ExperimentConfig) -> optax.GradientTransformation:
    """Builds the optimizer of an experiment."""
    model = cfg.model
    feed_forwards = [model.feed_forward, *(kind.feed_forward for kind in model.kinds)]
    update_rates = [getattr(part, "router_bias_update_rate", 0.0) for part in feed_forwards]
    return optimizer.build(
        bound_models.optimizer_config(cfg),
        cfg.train.steps,
        updates=cfg.objective.updates_per_step,
        width=model.width_ratio if model.width_rule == "mup" else None,
        skip_spikes=cfg.train.skip_spikes,
        router_bias_update_rate=max(update_rates),
    )


def eval_step(cfg: ExperimentConfig, models: Models) -> Callable:
    """Builds the function (params, batch) -> (sums, predictions), without dropout; not compiled."""
    return step.eval_step(_outputs(cfg, models), cfg.objective, chunks=cfg.train.loss_chunks)


def _outputs(cfg: ExperimentConfig, models: Models) -> step.Outputs:
    def outputs(params, inputs, key):
        out, sown = models.apply(params, inputs, key)
        return out, auxiliary_losses(sown) | _loads(sown.get(LOADS, {}), len(cfg.model.kinds))

    return outputs


def auxiliary_losses(sown: Params) -> dict[str, jax.Array]:
    """Returns the losses that layers have sown, by name, each summed over layers and stacks.

    Args:
      sown: the collections that `Models.apply` returns.
    """
    losses: dict[str, jax.Array] = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(sown.get(LOSSES, {})):
        name = _names(keys)[-1]
        losses[name] = losses.get(name, 0.0) + jnp.sum(leaf)
    sums: dict[str, dict[str, jax.Array]] = {}  # of the layers of a stack
    for keys, leaf in jax.tree_util.tree_leaves_with_path(sown.get(ROUTED, {})):
        *above, name = _names(keys)
        if "layers" in above:  # a scan stacks layers of a kind
            leaf = leaf.sum(axis=0)
        stack = "/".join(itertools.takewhile(lambda part: not part.startswith("layer"), above))
        of_stack = sums.setdefault(stack, {})
        of_stack[name] = of_stack.get(name, 0.0) + leaf
    for of_stack in sums.values():
        for name, loss in losses_of_routers(of_stack).items():
            losses[name] = losses.get(name, 0.0) + loss
    return losses


def _names(keys: jax.tree_util.KeyPath) -> list[str]:
    """Returns the names on the path of a sown value, without its number."""
    return [key.key for key in keys if hasattr(key, "key")]


def _loads(sown: Params, kinds: int) -> dict[str, jax.Array]:
    """Returns the load of experts [X] by the name of a metric, such as `load/decoder/layer_3`."""
    loads: dict[str, jax.Array] = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(sown):
        above = _names(keys)[:-2]  # of the feed-forward
        rows = {"/".join(above): leaf}
        if "layers" in above:  # a scan stacks layers of a kind
            side = "/".join(above[: above.index("layers")])
            first = int(above[-1].removeprefix("block_"))
            rows = {f"{side}/layer_{first + i * kinds}": row for i, row in enumerate(leaf)}
        for layer, count_X in rows.items():
            name = LOAD + (layer or "model")
            loads[name] = loads.get(name, 0.0) + count_X
    return loads
