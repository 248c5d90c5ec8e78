"""A step on any mesh is the step on one device, and what devices exchange is what the design
says."""

import dataclasses
import functools
import importlib
import os

import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from flaxformer_lite import __main__ as door
from flaxformer_lite.config import ExperimentConfig, MeshConfig, from_config_dict
from flaxformer_lite.contrib.verify import mesh as meshes
from flaxformer_lite.models import deepseek_v3
from flaxformer_lite.nn.adapters.lora import LoraConfig
from flaxformer_lite.nn.attentions.context_parallel import gather
from flaxformer_lite.sharding import activations
from tests.marks import daily
from tests.training import tiny_runs

SMALL = {"d_model": 32, "num_heads": 4, "head_dim": 8, "mlp_dim": 48}
MESHES = {
    "data": {"data": 8},
    "fsdp": {"data": 2, "fsdp": 4},
    "tensor": {"data": 4, "tensor": 2},
    "context": {"data": 2, "context": 4},
    "fsdp_tensor": {"data": 2, "fsdp": 2, "tensor": 2},
    "ring": {"data": 2, "context": 4, "context_attention": "ring"},
    "all_to_all": {"data": 2, "context": 4, "context_attention": "all_to_all"},
    "expert": {"data": 1, "expert": 2, "fsdp": 2, "tensor": 2},
    "expert_context": {"data": 1, "expert": 4, "context": 2},
    "context_tensor": {"data": 2, "context": 2, "tensor": 2},
    "fsdp_context_tensor": {"data": 1, "fsdp": 2, "context": 2, "tensor": 2},
    "over_data": {"data": 2, "fsdp": 2, "tensor": 2, "shard_over_data": True},
    "over_data_expert": {"data": 2, "fsdp": 2, "expert": 2, "shard_over_data": True},
}
EVERYTHING = "fsdp_context_tensor"
for WAY in ("ring", "all_to_all"):
    MESHES[f"{EVERYTHING}_{WAY}"] = {**MESHES[EVERYTHING], "context_attention": WAY}
for NAME in ("expert", "expert_context"):
    MESHES[f"{NAME}_all_to_all"] = {**MESHES[NAME], "expert_dispatch": "all_to_all"}
ALL_WAYS = (EVERYTHING, f"{EVERYTHING}_ring", f"{EVERYTHING}_all_to_all")
CASES_OF = {
    "bert_tiny": ("fsdp", EVERYTHING, "ring", "over_data"),
    "gpt2_tiny": ("data", "fsdp_tensor", EVERYTHING, "over_data"),
    "t5_tiny": ("tensor", *ALL_WAYS, "over_data"),
    "llama_tiny": ("context", "ring", *ALL_WAYS, "over_data"),
    "moe_tiny": ("over_data_expert", "expert", "expert_all_to_all", "expert_context_all_to_all"),
}
# every family on three axes at once, and each axis by itself in one; `make meshes` runs them all
CASES = [(name, mesh) for name, its in CASES_OF.items() for mesh in its]


@functools.cache
def small(name):
    """A shrunken copy of a shipped config, one layer deep and in two microbatches."""
    config = importlib.import_module(f"configs.{name}").get_config()
    config.model.update({**SMALL, "num_kv_heads": 2 if config.model.num_kv_heads else 0})
    for stack in ("encoder_layers", "decoder_layers"):
        config.model[stack] = min(config.model[stack], 1)
    config.data.length = 40
    config.data.target_length = 0
    config.data.tokenizer.name = "bytes"
    if name == "electra_tiny":
        config.objective.generator_size = 0.5  # its heads too are divided by two
    config.train.update(batch_size=16, accumulate=2)
    return from_config_dict(ExperimentConfig, config)


@functools.cache
def reference(name):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meshes, "initial_state", tiny_runs.any_state)
        return meshes.reference(small(name))


# Each axis but `data`, which tests/sharding has. Rings:
# tests/nn/attentions/test_context_parallel.py.
DAILY = (("llama_tiny", EVERYTHING), ("llama_tiny", "over_data"))


@pytest.mark.parametrize(("name", "mesh"), daily(CASES, DAILY))
def test_a_step_on_a_mesh_is_the_step_on_one_device(name, mesh):
    verdict = meshes.verify(reference(name), MeshConfig(**MESHES[mesh]))
    assert verdict.equal, verdict.gradients[:3]
    assert not verdict.strange
    axes = {axis for exchange in verdict.exchanges for axis in exchange.axes}
    sizes = {axis: size for axis, size in MESHES[mesh].items() if isinstance(size, int)}
    assert axes == {axis for axis, size in sizes.items() if size != 1}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kv_heads", "mesh"),
    [
        (1, {"data": 2, "tensor": 4}),
        (2, {"data": 1, "fsdp": 2, "tensor": 4}),
        (2, {"data": 1, "context": 2, "tensor": 4}),
    ],
)
def test_key_heads_that_do_not_divide_are_whole_on_every_device(kv_heads, mesh):
    cfg = small("llama_tiny")
    model = dataclasses.replace(cfg.model, num_kv_heads=kv_heads, bias_at=("query", "key", "value"))
    one = meshes.reference(dataclasses.replace(cfg, model=model))
    verdict = meshes.verify(one, MeshConfig(**mesh))
    assert verdict.equal, verdict.gradients[:3]
    assert not verdict.strange
    specs = {one.path.rpartition("attention/")[2]: one.spec for one in verdict.gradients}
    assert specs["query/kernel"][-2:] == specs["query/bias"][-2:] == ("tensor", None)
    assert specs["key/kernel"][-2:] == specs["value/bias"][-2:] == (None, None)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "mesh", ["expert_all_to_all", "expert_context_all_to_all", "context_tensor"]
)
def test_latent_attention_and_experts_in_groups_on_a_mesh_are_those_on_one_device(mesh):
    verdict = meshes.verify(deepseek(), MeshConfig(**MESHES[mesh]))
    assert verdict.equal, verdict.gradients[:3]
    assert not verdict.strange


@functools.cache
def deepseek():
    cfg = small("moe_tiny")
    experts = dataclasses.replace(deepseek_v3.SMALL_MOE, mlp_dim=24, shared_dim=16, balance=0.01)
    sizes = {"d_model": 32, "num_heads": 4, "mlp_dim": 48, "decoder_layers": 1}
    sizes["vocab_size"] = cfg.model.vocab_size
    model = deepseek_v3.config("tiny", feed_forward=experts, **sizes)
    return meshes.reference(dataclasses.replace(cfg, model=model))


@pytest.mark.nightly
def test_a_model_and_its_auxiliary_model_on_a_mesh_are_those_on_one_device():
    """Their exchanges are not checked: drawing tokens gathers the probabilities of a chunk over
    `tensor`."""
    verdict = meshes.verify(reference("electra_tiny"), MeshConfig(**MESHES[EVERYTHING]))
    assert verdict.equal, verdict.gradients[:3]
    assert any(gradient.path.startswith("generator/") for gradient in verdict.gradients)


@pytest.mark.nightly
def test_a_model_with_an_adapter_is_compared_by_what_is_trained():
    cfg = small("gpt2_tiny")
    model = dataclasses.replace(cfg.model, adapter=LoraConfig(rank=2))
    wanted = meshes.reference(dataclasses.replace(cfg, model=model))
    verdict = meshes.verify(wanted, MeshConfig(**MESHES["data"]))
    assert verdict.equal and all("/lora_" in one.path for one in verdict.gradients)


def test_a_mesh_that_computes_something_else_is_found(monkeypatch):
    real = gather._gather
    monkeypatch.setattr(gather, "_gather", lambda *args: jnp.roll(real(*args), 1, axis=1))
    verdict = meshes.verify(reference("llama_tiny"), MeshConfig(**MESHES["context"]))
    assert not verdict.equal and verdict.gradients[0].difference > 0.01


def test_one_wrong_gradient_is_enough():
    right = meshes.Gradient("a/kernel", (2, 2), PartitionSpec(), 1.0, 1e-7)
    wrong = right._replace(path="b/kernel", difference=1e-2)
    verdict = meshes.Verdict((1.0, 1.0), [wrong, right], [], [], [])
    assert not verdict.equal
    assert verdict._replace(gradients=[right]).equal
    assert not verdict._replace(gradients=[right], losses=(1.0, 1.1)).equal


@pytest.mark.nightly
def test_activations_that_are_gathered_are_named(monkeypatch):
    monkeypatch.setitem(activations.ACTIVATIONS, "mlp", ("data", "fsdp"))
    monkeypatch.setitem(activations.ACTIVATIONS, "batch", None)
    verdict = meshes.verify(reference("llama_tiny"), MeshConfig(**MESHES["data"]))
    assert verdict.equal and any("over data" in what for what in verdict.strange)


LOADED = pytest.mark.filterwarnings("ignore:the load_module")  # how ml_collections reads a config


@pytest.fixture
def command(monkeypatch):
    sizes = {"model.d_model": 16, "model.num_heads": 2, "model.mlp_dim": 16}
    sizes |= {"model.decoder_layers": 1, "data.length": 16, "train.batch_size": 8}
    smallest = [f"--config.{name}={size}" for name, size in sizes.items()]

    def run(*flags):
        argv = ["verify", "--checks=mesh", "--config=configs/gpt2_tiny.py", *smallest, *flags]
        argv.append("--config.data.tokenizer.name=bytes")
        # where ml_collections looks for --config.FIELD
        monkeypatch.setattr("sys.argv", ["flaxformer_lite", *argv])
        for name in ("XLA_FLAGS", "JAX_PLATFORMS"):
            monkeypatch.setenv(name, os.environ[name])  # put back afterwards
        door.main(argv)

    return run


@pytest.mark.nightly
@LOADED
def test_the_command_prints_a_table_and_what_is_exchanged(command, capsys):
    command("--config.mesh.mode=pmap", "--config.model.matmul=int8", "--all")
    said = capsys.readouterr().out
    assert "mesh        data 8, by pmap" in said and "token_embed/embedding" in said
    assert "without model.matmul=int8" in said and "1 properties hold, 0 faults" in said
    (line,) = (line for line in said.splitlines() if line.startswith("all-reduce"))
    assert line.split()[1] == "data"
