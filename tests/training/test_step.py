import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from flaxformer_lite import sharding
from flaxformer_lite.config import ConfigError, MeshConfig, OptimizerConfig
from flaxformer_lite.data import dummy
from flaxformer_lite.objectives.sums import LossSums
from flaxformer_lite.objectives.tables.sentence_embeddings import SentenceEmbeddings
from flaxformer_lite.runs.start.initial_state import initial_state
from flaxformer_lite.training import optimizer, program, state, step
from tests.marks import daily
from tests.training import tiny_runs, toy


def build(accumulate=1, dropout=0.0, tx=None, name="adamw", objective=None):
    model = toy.Toy(dropout)
    cfg = OptimizerConfig(name=name, learning_rate=1e-2, warmup_steps=1, schedule="constant")
    tx = tx or optimizer.build(cfg, 10)
    key = jax.random.key(1) if dropout else None
    fn = step.train_step(
        toy.features(model),
        objective or toy.NextToken(),
        tx,
        optimizer.schedule(cfg, 10),
        dropout_key=key,
        accumulate=accumulate,
        chunks=1,
    )
    return jax.jit(fn), jax.jit(lambda: state.create(toy.init, tx))()


def norm(tree):
    return np.linalg.norm(
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(jax.device_get(tree))])
    )


def test_loss_and_gradient_norm_are_those_of_the_whole_batch():
    train, start = build()
    batch = toy.batch(8)

    def mean_loss(params):
        logits = toy.Toy().apply({"params": params}, batch["inputs"]["input_ids"]).logits
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]["labels"])
        return jnp.average(losses, weights=batch["targets"]["weights"])

    _, metrics = train(start, batch)
    loss, grads = jax.device_get(jax.jit(jax.value_and_grad(mean_loss))(start.params))
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-6)
    np.testing.assert_allclose(metrics["grad_norm"], norm(grads), rtol=1e-5)


@pytest.mark.parametrize("accumulate", daily([2, 4], [4]))
def test_microbatches_with_uneven_weights_add_up_to_the_batch(accumulate):
    sgd = optax.sgd(1.0)
    whole, start = build(tx=sgd)
    pieces, _ = build(accumulate, tx=sgd)
    one, one_metrics = whole(start, toy.batch(8))
    many, many_metrics = pieces(start, toy.batch(8))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), one, many)
    assert one_metrics.keys() == many_metrics.keys()
    for name in one_metrics:
        np.testing.assert_allclose(one_metrics[name], many_metrics[name], rtol=1e-5)


@dataclasses.dataclass(frozen=True)
class TwoTerms(toy.NextToken):
    """As BERT's pairs do, a second term with another weight, whose name sorts before the
    tokens'."""

    def loss(self, features, targets, *, chunks):
        sums = toy.NextToken().loss(features, targets, chunks=chunks)
        weights = targets["pair_weights"]
        second = (jnp.square(features.logits).mean(axis=(1, 2)) * weights).sum()
        return LossSums(
            {**sums.loss, "pair_weights": second},
            {**sums.weight, "pair_weights": weights.sum()},
            {},
        )


@pytest.mark.parametrize("accumulate", daily([1, 2], [2]))
def test_two_terms_are_each_over_their_own_weight_in_the_gradient_too(accumulate):
    batch = toy.batch(8)
    batch["targets"]["pair_weights"] = np.linspace(0, 3, 8, dtype=np.float32)
    train, start = build(accumulate, tx=optax.sgd(1.0), objective=TwoTerms())

    def mean_loss(params):
        features = toy.Toy().apply({"params": params}, batch["inputs"]["input_ids"])
        sums = TwoTerms().loss(features, batch["targets"], chunks=1)
        return (
            sums.loss["weights"] / sums.weight["weights"]
            + sums.loss["pair_weights"] / sums.weight["pair_weights"]
        )

    after, metrics = train(start, batch)
    loss, grads = jax.jit(jax.value_and_grad(mean_loss))(start.params)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-6)
    for new, old, grad in zip(
        *map(jax.tree.leaves, jax.device_get((after.params, start.params, grads))), strict=True
    ):
        np.testing.assert_allclose(old - new, grad, atol=2e-6)


@dataclasses.dataclass(frozen=True)
class OtherName(toy.NextToken):
    """The sums of somebody's own objective: one term, over weights of another name."""

    def loss(self, features, targets, *, chunks):
        sums = toy.NextToken().loss(
            features, {**targets, "weights": targets["mine"]}, chunks=chunks
        )
        return LossSums({"mine": sums.loss["weights"]}, {"mine": sums.weight["weights"]}, {})


def test_an_objective_may_name_its_weights_as_it_likes():
    batch = toy.batch(8)
    train, start = build(tx=optax.sgd(1.0))
    renamed, _ = build(tx=optax.sgd(1.0), objective=OtherName())
    after, _ = train(start, batch)
    targets = {"labels": batch["targets"]["labels"], "mine": batch["targets"]["weights"]}
    same, _ = renamed(start, {**batch, "targets": targets})
    chex.assert_trees_all_close(after.params, same.params, rtol=1e-7, atol=2e-06)


def test_rows_without_targets_neither_count_nor_break():
    train, start = build()
    batch = toy.batch(8)
    batch["targets"]["weights"][:] = 0
    after, metrics = train(start, batch)
    assert metrics["loss"] == 0 and np.isfinite(metrics["param_norm"])
    assert after.step == 1


def test_dropout_differs_by_step_and_repeats_by_seed():
    train, start = build(dropout=0.5)
    batch = toy.batch(8)
    once = train(start, batch)[1]["loss"]
    again = train(start, batch)[1]["loss"]
    later = train(start.replace(step=start.step + 1), batch)[1]["loss"]
    assert once == again
    assert once != later


def test_dropout_differs_between_microbatches():
    one = jax.tree.map(lambda x: x[:1], toy.batch(8))
    one["targets"]["weights"][:] = 1
    twice = jax.tree.map(lambda x: np.repeat(x, 2, axis=0), one)
    whole, start = build(dropout=0.5)
    pieces, _ = build(accumulate=2, dropout=0.5)
    # Without dropout they are equal, as test_microbatches_with_uneven_weights_add_up_to_the_batch.
    assert pieces(start, twice)[1]["loss"] != whole(start, one)[1]["loss"], (
        "both microbatches dropped the same"
    )


def test_parts_of_a_batch_add_up_and_drop_each_for_itself():
    """Each of four devices draws a number; the sums over devices tell whether it was the same."""

    class Draw(toy.NextToken):
        def loss(self, draw, targets, *, chunks):
            weight = targets["weights"].sum()
            return LossSums(
                {"weights": draw * weight},
                {"weights": weight},
                {"square": (draw**2 * weight, weight)},
            )

    def draw(params, inputs, key):
        return jax.random.uniform(key) + 0 * params, {}

    fn = step.train_step(
        draw,
        Draw(),
        optax.sgd(0.1),
        lambda count: count,
        dropout_key=jax.random.key(0),
        accumulate=1,
        chunks=1,
        axis_name="d",
    )
    start = state.create(lambda: jnp.zeros(()), optax.sgd(0.1))
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:4]), ("d",))
    over = jax.shard_map(fn, mesh=mesh, in_specs=(P(), P("d")), out_specs=P(), check_vma=False)
    _, metrics = jax.jit(over)(start, {"inputs": {}, "targets": {"weights": jnp.ones((8, 3))}})
    keys = jax.vmap(
        functools.partial(jax.random.fold_in, jax.random.fold_in(jax.random.key(0), 0))
    )(np.arange(4))
    draws = np.asarray(jax.vmap(jax.random.uniform)(keys))
    np.testing.assert_allclose(metrics["loss"], np.mean(draws), rtol=1e-6)
    np.testing.assert_allclose(metrics["square"], np.mean(np.square(draws)), rtol=1e-6)


def test_param_norm_is_that_of_the_new_parameters():
    train, start = build()
    after, metrics = train(start, toy.batch(8))
    np.testing.assert_allclose(metrics["param_norm"], norm(after.params), rtol=1e-6)
    assert abs(metrics["param_norm"] - norm(start.params)) > 1e-4


def test_eval_step_turns_dropout_off_and_gives_sums():
    model = toy.Toy(0.5)
    evaluate = jax.jit(step.eval_step(toy.features(model), toy.NextToken(), chunks=1))
    sums, predictions = evaluate(toy.init(model), toy.batch(4))
    assert predictions == {}
    assert sums.weight["weights"] == toy.batch(4)["targets"]["weights"].sum()
    still = jax.jit(step.eval_step(toy.features(toy.Toy()), toy.NextToken(), chunks=1))
    assert jax.device_get(sums) == jax.device_get(still(toy.init(model), toy.batch(4))[0])


@pytest.mark.parametrize(
    "name", daily(["adamw", "lion", "sgd", "adafactor", "muon"], ["adamw", "adafactor"])
)
def test_weights_of_bfloat16_stay_so_and_the_optimizer_is_float32(tmp_path, name):
    cfg = tiny_runs.config(tmp_path, mesh=MeshConfig(data=1), optimizer=OptimizerConfig(name=name))
    cfg = dataclasses.replace(
        cfg, model=dataclasses.replace(cfg.model, vocab_size=384, param_dtype="bfloat16")
    )
    ready = program.build(cfg, sharding.build_mesh(cfg.mesh), dummy.example(cfg))
    after, _ = jax.eval_shape(ready.train_step, ready.target, ready.batch)
    assert jax.tree.map(lambda x: x.dtype, after) == jax.tree.map(lambda x: x.dtype, ready.target)
    assert {x.dtype.name for x in jax.tree.leaves(ready.target.params)} == {"bfloat16"}
    assert {x.dtype.name for x in jax.tree.leaves(ready.target.opt_state)} <= {"float32", "int32"}


@pytest.mark.nightly
def test_training_in_bfloat16_alone_learns(tmp_path):
    cfg = tiny_runs.config(tmp_path, mesh=MeshConfig(data=1))
    model = dataclasses.replace(
        cfg.model, vocab_size=384, param_dtype="bfloat16", dtype="bfloat16", dropout=0.0
    )
    cfg = dataclasses.replace(
        cfg, model=model, optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=0)
    )
    ready = program.build(cfg, sharding.build_mesh(cfg.mesh), dummy.example(cfg))
    batch = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), ready.batch)
    now = initial_state(ready)
    losses = []
    for _ in range(4):
        now, metrics = ready.train_step(now, batch)
        losses.append(float(metrics["loss"]))
    assert losses[-1] < losses[0] - 0.5


def test_a_loss_that_is_no_sum_is_refused():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Mean(toy.NextToken):
        def loss(self, outputs, targets, *, chunks):
            return super().loss(outputs, targets, chunks=chunks).mean()

    train, start = build(objective=Mean())
    with pytest.raises(
        ConfigError, match=r"the objective's loss returned .*: must return LossSums"
    ):
        train(start, toy.batch(8))


@pytest.mark.parametrize(
    "example", [np.zeros(4), {"inputs": {}, "labels": {}}], ids=["array", "keys"]
)
def test_an_example_of_another_form_is_refused(example, tmp_path):
    cfg = tiny_runs.config(tmp_path, "gpt2")
    with pytest.raises(ConfigError, match=r"make_example returned .*: must return"):
        program.build(cfg, sharding.build_mesh(cfg.mesh), example)


def sentences(dropout):
    """A model of a table and a layer with dropout; vectors of pairs, [B, 2, D], and an auxiliary
    loss that differs by microbatch."""

    def outputs(params, inputs, key):
        h_BCD = jnp.tanh(params["table"][inputs["input_ids"]].mean(axis=2) @ params["kernel"])
        if key is not None:
            h_BCD = jnp.where(jax.random.bernoulli(key, dropout, h_BCD.shape), 0, h_BCD)
        unit_BCD = h_BCD / jnp.linalg.norm(h_BCD, axis=-1, keepdims=True)
        return unit_BCD, {"balance": jnp.mean(h_BCD**2)}

    rng = np.random.default_rng(0)
    params = {
        "table": jnp.asarray(rng.normal(size=(40, 16)), jnp.float32),
        "kernel": jnp.asarray(rng.normal(size=(16, 16)) / 4, jnp.float32),
    }
    texts = jnp.arange(64, dtype=jnp.int32).reshape(32, 2)
    # with dropout also uneven over microbatches and devices
    weights = jnp.asarray(np.arange(32) % 8 > np.arange(32) // 16 if dropout else np.ones(32))
    targets = {"texts": texts, "weights": weights.astype(jnp.float32)}
    ids = jnp.asarray(rng.integers(0, 40, (32, 2, 6)), jnp.int32)
    return outputs, params, {"inputs": {"input_ids": ids}, "targets": targets}


@pytest.mark.parametrize(
    ("devices", "dropout", "counts"),
    daily([(1, 0.0, (1, 2, 8)), (1, 0.3, (4,)), (2, 0.3, (1,)), (2, 0.3, (2,))], [(2, 0.3, (2,))]),
)
def test_cached_gradients_are_those_of_the_whole_batch(devices, dropout, counts):
    """For any number of microbatches; with dropout, of the same draws without a cache."""
    task = SentenceEmbeddings(whole_batch=True)
    outputs, params, batch = sentences(dropout)

    def updated(accumulate):
        fn = step.train_step(
            outputs,
            task,
            optax.sgd(1.0),
            lambda count: count,
            dropout_key=jax.random.key(1) if dropout else None,
            accumulate=accumulate,
            chunks=1,
            axis_name="d" if devices > 1 else None,
            compares_rows=task.compares_rows,
        )
        if devices > 1:
            mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:devices]), ("d",))
            fn = jax.shard_map(
                fn, mesh=mesh, in_specs=(P(), P("d")), out_specs=P(), check_vma=False
            )
        after, metrics = fn(state.create(lambda: params, optax.sgd(1.0)), batch)
        return jax.tree.map(jnp.subtract, params, after.params), metrics["loss"]

    def due(accumulate):
        """The loss of the concatenated outputs of all parts, differentiated at once."""
        rows = np.arange(32).reshape(devices, -1)
        shares = batch["targets"]["weights"] / batch["targets"]["weights"].sum()

        def loss(params):
            parts = []
            balance = 0.0
            for device in range(devices):
                key = jax.random.fold_in(jax.random.key(1), 0)
                if devices > 1:
                    key = jax.random.fold_in(key, device)
                own = batch["inputs"]["input_ids"].reshape(devices, -1, 2, 6)[device]
                for index in range(accumulate):
                    folded = jax.random.fold_in(key, index) if accumulate > 1 else key
                    inputs = {"input_ids": own[index::accumulate]}
                    vectors, auxiliary = outputs(params, inputs, folded if dropout else None)
                    parts.append(vectors)
                    part = shares[rows[device, index::accumulate]]
                    balance += part.sum() * auxiliary["balance"]
            order = [own[index::accumulate] for own in rows for index in range(accumulate)]
            targets = {
                name: value[np.concatenate(order)] for name, value in batch["targets"].items()
            }
            sums = task.loss(jnp.concatenate(parts), targets, chunks=1)
            return sums.mean() + balance

        value, grads = jax.value_and_grad(loss)(params)
        return grads, value

    # without dropout all are one
    dues = counts if dropout else counts[:1]
    got, expected = jax.jit(lambda: (list(map(updated, counts)), list(map(due, dues))))()
    for one, other in zip(got, expected * (len(counts) // len(dues)), strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), one, other)
