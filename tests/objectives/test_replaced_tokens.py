"""ELECTRA's objective: what is replaced and what counts, through the objective; sharing, resume and
readers, by a run."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

import flaxformer_lite
from flaxformer_lite import load_pretrained, save_pretrained
from flaxformer_lite.checkpoints import run_inputs, workdir
from flaxformer_lite.cli import convert
from flaxformer_lite.config import ConfigError, TokenizerConfig
from flaxformer_lite.models import bert, deberta_v2, electra
from flaxformer_lite.models.skeletons.outputs import Features, Output
from flaxformer_lite.nn.functions.losses import DeferredLogits
from flaxformer_lite.objectives.text.replaced_tokens import Detection, ReplacedTokens, draw
from flaxformer_lite.training import bound_models
from tests.models.tiny import logits_of
from tests.training import tiny_runs

PLAIN = tiny_runs.SIZES | {"d_model": 32, "encoder_layers": 1, "max_length": 32}
PLAIN["head"] = "pretraining"
SIZES = PLAIN | {"embedding_size": 16}


def config(folder, **parts):
    return tiny_runs.config(
        folder, model=electra.config("tiny", **SIZES), objective=ReplacedTokens(), **parts
    )


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    folder = tmp_path_factory.mktemp("electra")
    return tiny_runs.untrained(config(folder), folder / "run")


@pytest.mark.nightly
def test_a_stopped_run_with_dropout_and_draws_ends_as_if_it_had_not_been(tmp_path):
    assert tiny_runs.resumes_exactly(config(tmp_path, train={"accumulate": 2}), tmp_path)


class Certain:
    """A generator that gives one token all the probability, and a discriminator that calls
    everything original."""

    def __init__(self, token, vocab):
        self.token = token
        self.vocab = vocab

    def features(self, ids, *, masked_positions, segment_ids):
        kernel = jnp.zeros((self.vocab, 1)).at[self.token].set(50.0)
        return Features(DeferredLogits(jnp.ones((*masked_positions.shape, 1)), kernel))

    def __call__(self, ids, *, segment_ids):
        self.seen = np.asarray(ids)
        return Output(logits=jnp.full(ids.shape, -1.0))


def test_masked_tokens_are_replaced_and_the_right_guess_counts_as_original(
    create, records_of, generator
):
    objective = create("replaced_tokens")
    records = records_of(objective)
    right = 0
    guess = int(np.bincount(records.ids).argmax())
    for row in range(20):
        example = objective.make_example(records, row, generator(row))
        batch = jax.tree.map(lambda x: x[None], example)
        generated = Certain(guess, records.tokenizer.vocab_size)
        out = objective.outputs(generated, batch["inputs"], generated)
        ids = example["inputs"]["input_ids"]
        masked = example["inputs"]["masked_ids"]
        hidden = masked == records.tokenizer.mask_id
        assert hidden.sum() == example["targets"]["weights"].sum()
        assert (masked == ids)[~hidden].all()
        assert (generated.seen[0] == np.where(hidden, guess, ids)).all()
        assert (np.asarray(out.replaced[0]) == (hidden & (ids != guess))).all()
        sums = objective.loss(out, batch["targets"], chunks=1)
        metrics = {name: float(total) for name, (total, _) in sums.metrics.items()}
        real = (example["inputs"]["segment_ids"] > 0).sum()
        wrong = (hidden & (ids != guess)).sum()
        assert metrics["always_original"] == metrics["detection_accuracy"] == real - wrong
        assert metrics["accuracy"] == hidden.sum() - wrong
        right += hidden.sum() - wrong
    assert right, "else a right guess was never seen"


def test_loss_and_metrics_are_those_of_the_paper(create):
    """One row of four tokens and one of padding, by hand: replaced and found, missed, false alarm,
    right."""
    logits = jnp.asarray([[2.0, -1.0, 0.5, -3.0, 9.0]])
    replaced = jnp.asarray([[True, True, False, False, False]])
    detection = Detection(DeferredLogits(jnp.zeros((1, 1, 2)), jnp.zeros((7, 2))), logits, replaced)
    targets = {"labels": jnp.zeros((1, 1), jnp.int32), "weights": jnp.ones((1, 1))}
    targets["real_weights"] = jnp.asarray([[1.0, 1.0, 1.0, 1.0, 0.0]])
    sums = create("replaced_tokens", detection_weight=50.0).loss(detection, targets, chunks=1)
    p = 1 / (1 + np.exp(-np.asarray(logits[0, :4])))
    wanted = -np.log([p[0], p[1], 1 - p[2], 1 - p[3]]).mean()
    np.testing.assert_allclose(sums.mean(), np.log(7) + 50 * wanted, rtol=1e-6)
    metrics = {name: float(total / weight) for name, (total, weight) in sums.metrics.items()}
    names = ("detection_accuracy", "always_original", "precision", "recall", "f1")
    assert [metrics[name] for name in names] == [0.5, 0.5, 0.5, 0.5, 0.5]
    np.testing.assert_allclose(metrics["detection_loss"], wanted, rtol=1e-6)


def test_draws_are_from_the_softmax_and_a_function_of_the_numbers(generator):
    rng = generator(0)
    logits = rng.normal(size=(1, 1, 6)).astype(np.float32) * 2
    projection = DeferredLogits(jnp.broadcast_to(logits, (1, 30_000, 6)), jnp.eye(6))
    uniforms = rng.random((1, 30_000), np.float32)
    drawn = np.asarray(draw(projection, uniforms))
    shares = np.bincount(drawn[0], minlength=6) / drawn.size
    np.testing.assert_allclose(shares, np.asarray(jax.nn.softmax(logits))[0, 0], atol=0.01)
    assert (drawn == np.asarray(draw(projection, uniforms))).all()
    ends = np.float32([[0, np.nextafter(np.float32(1), 0)]])
    two = DeferredLogits(projection.x[:, :2], projection.kernel_VD)
    assert draw(two, ends).tolist() == [[0, 5]]


def test_the_generator_is_a_fraction_of_the_model(create):
    base = electra.config("base", head="pretraining")
    cfg = create("replaced_tokens", generator_size=1 / 3).auxiliary_model(base).cfg
    sizes = (cfg.d_model, cfg.num_heads, cfg.mlp_dim, cfg.encoder_layers)
    assert sizes == (256, 4, 1024, 12), "table 6"
    assert (cfg.embedding_width, cfg.head) == (768, "masked_lm")


def bound(cfg, **model):
    """Both models of a config, their parameters, and inputs of a batch of two rows."""
    model = dataclasses.replace(cfg.model, vocab_size=362, dropout=0.0, **model)
    both = bound_models.build(dataclasses.replace(cfg, model=model))
    ids = np.random.default_rng(0).integers(6, 60, (2, 16)).astype(np.int32)
    inputs = {"input_ids": ids, "masked_ids": ids, "segment_ids": np.ones_like(ids)}
    inputs["uniforms"] = np.float32([[0.3], [0.9]])
    inputs["masked_positions"] = np.int32([[4], [7]])
    return both, jax.jit(both.init)(jax.random.key(0), inputs), inputs


def gradients_of(both, params, inputs):
    """Gradients of the discriminator's logits, and of the generator's."""

    @jax.jit
    def gradients(params):
        def detection(params):
            return both.apply(params, inputs, None)[0].logits.sum()

        def prediction(params):
            return both.apply(params, inputs, None)[0].projection.logits().var()

        return jax.grad(detection)(params), jax.grad(prediction)(params)

    return gradients(params)


@pytest.mark.nightly
def test_embeddings_are_shared_and_draws_pass_no_gradient(tmp_path):
    """The discriminator's loss alone moves embeddings, but nothing that only the generator has."""
    both, params, inputs = bound(config(tmp_path))
    own = set(flatten_dict(params["generator"], sep="/"))
    assert not any(path.startswith(("token_embed", "embed/position", "embed/norm")) for path in own)
    assert {"embed/project/kernel", "masked_lm/dense/kernel", "masked_lm/vocab/bias"} <= own
    of_detection, of_prediction = gradients_of(both, params, inputs)
    assert np.any(of_detection["token_embed"]["embedding"])
    assert not any(np.any(g) for g in jax.tree.leaves(of_detection["generator"]))
    assert np.any(of_prediction["token_embed"]["embedding"])
    assert not np.any(of_prediction["discriminator"]["output"]["kernel"])


def test_a_workdir_is_the_discriminator_and_its_auxiliary_model_the_generator(begun, tmp_path):
    model, params = load_pretrained(begun)
    assert model.cfg.head == "pretraining" and "generator" not in params
    other = workdir.read_run(begun, auxiliary=True)
    tables = (each["token_embed"]["embedding"] for each in (other.params, params))
    np.testing.assert_array_equal(*tables)
    ids = np.arange(6, 22, dtype=np.int32)[None]
    for head, source, variables in (
        ("pretraining", model, params),
        ("masked_lm", other.model, other.params),
    ):
        options = dict(dtype=None, head=None, auxiliary=head == "masked_lm")
        convert.convert(str(begun), str(tmp_path / head), **options)
        published, stored = load_pretrained(tmp_path / head)
        assert published.cfg.head == head
        due = logits_of(source, variables, input_ids=ids)
        np.testing.assert_array_equal(logits_of(published, stored, input_ids=ids), due)
    with pytest.raises(ConfigError, match=r"one model;.*workdir"):
        convert.convert(str(tmp_path / "masked_lm"), str(tmp_path / "more"), **options)


@pytest.mark.nightly
def test_published_weights_start_the_model_beside_a_new_generator(begun, tmp_path):
    cfg = config(tmp_path, train={"init_from": str(begun), "steps": 1})
    path = str(run_inputs.tokenizer_folder(begun))
    data = dataclasses.replace(cfg.data, tokenizer=TokenizerConfig(path=path))
    sizes = workdir.read_config(begun).model
    flaxformer_lite.run(dataclasses.replace(cfg, model=sizes, data=data), tmp_path / "run")
    assert "generator" not in workdir.read_run(tmp_path / "run").params


def test_a_family_without_a_discriminator_is_refused(tmp_path):
    cfg = tiny_runs.config(tmp_path, model=bert.config("tiny", **PLAIN), objective=ReplacedTokens())
    message = r"model.family='bert': its head 'pretraining'.*not judge"
    with pytest.raises(ConfigError, match=message):
        flaxformer_lite.run(cfg, tmp_path / "run")


DISENTANGLED = ReplacedTokens(
    generator_size=1.0, generator_layers=0.5, detection_weight=10.0, embeddings="disentangled"
)
DEBERTA = PLAIN | {"encoder_layers": 2, "mixer": deberta_v2.TINY_MIXER}


def disentangled(folder):
    model = deberta_v2.config("tiny", **DEBERTA)
    return tiny_runs.config(folder, model=model, objective=DISENTANGLED)


@pytest.mark.nightly
def test_disentangled_embeddings_are_the_generators_without_gradient_plus_an_offset(tmp_path):
    """Each loss moves what equation 5 says."""
    both, params, inputs = bound(disentangled(tmp_path))
    generator = both.auxiliary
    assert (generator.cfg.d_model, generator.cfg.encoder_layers) == (DEBERTA["d_model"], 1)
    assert not params["token_embed"]["embedding"].any()
    assert params["generator"]["token_embed"]["embedding"].any()
    of_detection, of_prediction = gradients_of(both, params, inputs)
    assert np.any(of_detection["token_embed"]["embedding"])
    assert not any(np.any(g) for g in jax.tree.leaves(of_detection["generator"]))
    assert np.any(of_prediction["generator"]["token_embed"]["embedding"])
    del of_prediction["generator"]
    assert not any(np.any(g) for g in jax.tree.leaves(of_prediction))


@pytest.mark.nightly
def test_a_run_with_disentangled_embeddings_is_read_as_one_model_and_its_generator(tmp_path):
    flaxformer_lite.run(disentangled(tmp_path), tmp_path / "run")
    run = workdir.read_run(tmp_path / "run")
    auxiliary = bound_models.build(run.cfg).auxiliary
    ids = np.random.default_rng(0).integers(6, 60, (2, 16)).astype(np.int32)
    raw, _ = workdir._params(tmp_path / "run/checkpoints" / str(run.step))
    offset = raw["token_embed"]["embedding"]
    table = raw["generator"]["token_embed"]["embedding"]
    assert np.any(offset)
    np.testing.assert_array_equal(run.params["token_embed"]["embedding"], table + offset)
    other = workdir.read_run(tmp_path / "run", auxiliary=True)
    np.testing.assert_array_equal(other.params["token_embed"]["embedding"], table)
    save_pretrained(tmp_path / "published", run.model, run.params)
    model, params = load_pretrained(tmp_path / "published")
    assert model.cfg.head == "pretraining"
    apply = jax.jit(lambda params: model.apply({"params": params}, ids).logits)
    np.testing.assert_array_equal(apply(params), apply(run.params))
    initial = auxiliary.initial(raw)  # as of weights that were read
    np.testing.assert_array_equal(initial["generator"]["token_embed"]["embedding"], offset)
