"""Adapters that PEFT wrote give PEFT's logits here, and those written here have the tensors that
PEFT reads."""

import dataclasses
import json
import re
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from safetensors.numpy import load_file, save_file

from flaxformer_lite import (
    LoraConfig,
    build_model,
    load_pretrained,
    merge_adapter,
    save_adapter,
    save_pretrained,
)
from flaxformer_lite.config import ConfigError
from flaxformer_lite.nn.adapters.dora import DoraConfig
from flaxformer_lite.nn.adapters.ia3 import Ia3Config
from flaxformer_lite.pretrained.adapter_layout import shortest_endings
from flaxformer_lite.pretrained.load_adapter import ROWS
from flaxformer_lite.pretrained.safetensors import WeightsError
from tests.marks import daily
from tests.models.tiny import built, small
from tests.pretrained.fixtures import ROOT, loaded, outputs, part

FOLDERS = sorted(path for path in (ROOT / "adapters").iterdir())
IDS = [path.name for path in FOLDERS]
WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"


def base_of(folder):
    return folder.name.partition("-")[0]


def logits_of(model, params, name):
    return np.asarray(outputs(model, params, part(name, "default/in/")).logits)


# the fused matrices of two families, and sizes that make theirs unequal
FUSED = {
    "phi3": ({"num_kv_heads": 1}, ("self_attn.qkv_proj", "mlp.gate_up_proj")),
    "falcon": ({"num_kv_heads": 2}, ("self_attention.query_key_value",)),
}


@pytest.mark.parametrize("family", FUSED)
def test_an_adapter_of_joined_matrices_adds_to_their_tensor(family, tmp_path):
    """As in PEFT, which knows nothing of what the rows of a fused tensor are."""
    sizes, modules = FUSED[family]
    model, params = built(small(family, head="lm", num_heads=4, head_dim=4, **sizes))
    save_pretrained(tmp_path / "base", model, params)
    before = load_file(tmp_path / "base" / "model.safetensors")
    draw = np.random.default_rng(0)
    factors = {}
    for name, tensor in before.items():
        module = name.removesuffix(".weight")
        if module.endswith(modules):
            outs, ins = tensor.shape
            for letter, shape in (("A", (3, ins)), ("B", (outs, 3))):
                values = draw.standard_normal(shape).astype(np.float32)
                factors[f"base_model.model.{module}.lora_{letter}.weight"] = values
    folder = tmp_path / "adapter"
    folder.mkdir()
    save_file(factors, folder / WEIGHTS)
    last = [module.rpartition(".")[2] for module in modules]
    written = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "target_modules": last}
    (folder / CONFIG).write_text(json.dumps(written))
    tuned = load_pretrained(tmp_path / "base", adapter=folder)
    save_pretrained(tmp_path / "merged", *merge_adapter(*tuned))
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    for name, tensor in before.items():
        key = f"base_model.model.{name.removesuffix('.weight')}.lora_"
        if f"{key}A.weight" in factors:
            tensor = tensor + 2 * factors[f"{key}B.weight"] @ factors[f"{key}A.weight"]
        np.testing.assert_allclose(merged[name], tensor, atol=1e-5, err_msg=name)
    save_adapter(tmp_path / "again", *tuned)
    again = load_file(tmp_path / "again" / WEIGHTS)
    assert again.keys() == factors.keys()
    for name, factor in factors.items():
        np.testing.assert_array_equal(again[name], factor, err_msg=name)


SCAN = [pytest.param(False, id="loop"), pytest.param(True, id="scan", marks=pytest.mark.nightly)]


def gap(got, due, name):
    inputs = part(name, "default/in/")
    mask = inputs.get("decoder_attention_mask", inputs["attention_mask"]).astype(bool)
    kept = mask if due.ndim == 3 else slice(None)
    return np.abs(got - due)[kept].max() / np.abs(due[kept]).max()


# Of each kind one over fused matrices, and what only others have.
DAILY = (
    "gpt2_lm",
    "gpt2_lm-dora",
    "gpt2_lm-ia3",
    "llama_lm-tokens",  # float32 rows in a table of float16
    "llama_lm-uneven",
    "t5_conditional_generation",
)


@pytest.mark.parametrize("scan", SCAN)
@pytest.mark.parametrize("one", daily(IDS, DAILY))
def test_logits_are_those_of_peft(one, scan):
    folder = ROOT / "adapters" / one
    name = base_of(folder)
    with np.load(folder / "expected.npz") as file:
        due = file["logits"]
    model, params = load_pretrained(ROOT / name, adapter=folder, scan=scan)
    assert gap(logits_of(model, params, name), due, name) < 1e-5
    assert gap(logits_of(*merge_adapter(model, params), name), due, name) < 1e-5
    assert gap(logits_of(*loaded(name), name), due, name) > 0.1


# The uneven one comes back with its ranks and scales made equal, rows with their whole table.
SAME = [f for f in FOLDERS if not f.name.endswith(("-uneven", "-tokens"))]


@pytest.mark.parametrize("folder", SAME, ids=[folder.name for folder in SAME])
def test_written_again_the_file_has_the_same_tensors_and_says_the_same(folder, tmp_path):
    model, params = load_pretrained(ROOT / base_of(folder), adapter=folder)
    save_adapter(tmp_path / "again", model, params)
    was, now = (load_file(path / WEIGHTS) for path in (folder, tmp_path / "again"))
    was = {name: tensor for name, tensor in was.items() if ".base_layer." not in name}
    assert set(was) == set(now)
    for name, tensor in was.items():
        np.testing.assert_array_equal(tensor, now[name], err_msg=name)
    was, now = (json.loads((path / CONFIG).read_text()) for path in (folder, tmp_path / "again"))
    assert set(now) <= set(was)
    for name in (
        "r",
        "lora_alpha",
        "lora_dropout",
        "use_rslora",
        "task_type",
        "fan_in_fan_out",
        "bias",
        "peft_type",
        "use_dora",
    ):
        # Of a Conv1D and a Linear PEFT keeps what the last one set.
        if (folder.name, name) != ("gpt2_lm-head", "fan_in_fan_out"):
            assert now.get(name) == was.get(name), name
    for name in ("target_modules", "feedforward_modules"):
        ends = zip(sorted(now.get(name, ())), sorted(was.get(name, ())), strict=True)
        assert folder.name.endswith("lm") or all(a.endswith(b) for a, b in ends), name
    if folder.name.endswith("-saved"):  # PEFT computes with what it reads of these
        for stem in was["modules_to_save"]:
            assert any(one.endswith(stem) for one in now["modules_to_save"]), stem
    assert now["base_model_name_or_path"] == str(ROOT / base_of(folder))


@pytest.mark.parametrize("name", ["llama_lm-tokens", "gpt2_lm-tokens"])
def test_trained_rows_of_a_table_are_written_again_with_it(name, tmp_path):
    base = ROOT / base_of(ROOT / name)
    model, params = load_pretrained(base, adapter=ROOT / "adapters" / name)
    save_adapter(tmp_path / "again", model, params)
    again = load_pretrained(base, adapter=tmp_path / "again")
    np.testing.assert_array_equal(logits_of(*again, base.name), logits_of(model, params, base.name))


@pytest.mark.parametrize("numbers", [[5, 17, 1 << 20], ["5"]])
def test_rows_that_are_no_rows_of_the_table_are_rejected(numbers, tmp_path):
    shutil.copytree(ROOT / "adapters/llama_lm-tokens", tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / CONFIG).read_text())
    written = json.dumps(config | {"trainable_token_indices": numbers})
    (tmp_path / "adapter" / CONFIG).write_text(written)
    with pytest.raises((ConfigError, WeightsError), match="trainable_token_indices"):
        load_pretrained(ROOT / "llama_lm", adapter=tmp_path / "adapter")


def test_tied_logits_may_have_rows_of_their_own(tmp_path):
    """PEFT then unties them: rows of the table are not theirs."""
    folder = tmp_path / "adapter"
    shutil.copytree(ROOT / "adapters/gpt2_lm-tokens", folder)
    config = json.loads((folder / CONFIG).read_text())
    numbers = config["trainable_token_indices"]
    if isinstance(numbers, list):
        numbers = {"wte": numbers}
    written = config | {"trainable_token_indices": numbers | {"lm_head": [2]}}
    (folder / CONFIG).write_text(json.dumps(written))
    tensors = load_file(folder / WEIGHTS)
    (rows,) = [tensor for name, tensor in tensors.items() if name.endswith(ROWS)]
    tensors[f"base_model.model.lm_head{ROWS}"] = rows[:1]
    save_file(tensors, folder / WEIGHTS)
    _, base = load_pretrained(ROOT / "gpt2_lm")
    model, params = load_pretrained(ROOT / "gpt2_lm", adapter=folder)
    table = np.array(base["token_embed"]["embedding"])
    logits = table.copy()
    logits[2] = rows[0]
    table[next(iter(numbers.values()))] = rows
    assert not model.cfg.tie_embeddings
    np.testing.assert_array_equal(params["token_embed"]["embedding"], table)
    np.testing.assert_array_equal(params["lm_head"]["kernel"], logits)


# what shares the table of the tokens
SHARED = {
    "gpt2_lm": ["lm_head.weight"],
    "bert_masked_lm": ["cls.predictions.decoder.bias", "cls.predictions.decoder.weight"],
    "t5_conditional_generation": [
        "decoder.embed_tokens.weight",
        "encoder.embed_tokens.weight",
        "lm_head.weight",
    ],
}


@pytest.mark.parametrize("name", SHARED)
def test_a_trained_table_is_written_for_each_module_that_shares_it(name, tmp_path):
    """PEFT computes with the table of the base wherever it reads no other."""
    adapter = LoraConfig(rank=2, targets=("query",), trained=("^token_embed/",))
    model, params = noisy(name, adapter)
    save_adapter(tmp_path / "adapter", model, params)
    written = load_file(tmp_path / "adapter" / WEIGHTS)
    saved = json.loads((tmp_path / "adapter" / CONFIG).read_text())["modules_to_save"]
    for tensor in SHARED[name]:
        assert f"base_model.model.{tensor}" in written
        assert tensor.rpartition(".")[0] in saved
    again = load_pretrained(ROOT / name, adapter=tmp_path / "adapter")
    assert again[0].cfg.tie_embeddings
    np.testing.assert_array_equal(logits_of(*again, name), logits_of(model, params, name))


def noisy(name, adapter, **options):
    """A published model with noise for factors and for what is trained whole."""
    model, params = load_pretrained(ROOT / name, adapter=adapter, **options)
    return model, with_noise(params, adapter)


def with_noise(params, adapter):
    draw = np.random.default_rng(0)

    def fill(path, leaf):
        if path[-1] in adapter.factors or adapter.trains("/".join(path)):
            return jnp.asarray(0.3 * draw.standard_normal(leaf.shape), leaf.dtype)
        return leaf

    flat = flatten_dict(params)
    return unflatten_dict({path: fill(path, leaf) for path, leaf in flat.items()})


@pytest.mark.parametrize(
    ("name", "targets", "ranks"),
    [
        ("gpt2_lm", ("query", "value", "down"), {"attn.c_attn": 4, "mlp.c_proj": 2}),
        pytest.param(
            "gpt_neox_lm",
            (".",),
            {"query_key_value": 6, "attention.dense": 2},
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "roberta_sequence_classification",
            ("query",),
            {"self.query": 2},
            marks=pytest.mark.nightly,
        ),
        (
            "t5_conditional_generation",
            ("encoder/.*query", "cross_attention/value"),
            {"EncDecAttention.v": 2},
        ),
    ],
)
@pytest.mark.parametrize("scan", SCAN)
def test_one_of_ours_comes_back(name, targets, ranks, scan, tmp_path):
    model, params = noisy(name, LoraConfig(rank=2, alpha=3.0, targets=targets), scan=scan)
    save_adapter(tmp_path / "adapter", model, params, base="its/base")
    due = logits_of(model, params, name)
    assert (
        gap(logits_of(*load_pretrained(ROOT / name, adapter=tmp_path / "adapter"), name), due, name)
        < 1e-5
    )
    tensors = load_file(tmp_path / "adapter" / WEIGHTS)
    for module, rank in ranks.items():
        sizes = {
            tensor.shape[0]
            for key, tensor in tensors.items()
            if key.endswith(f"{module}.lora_A.weight")
        }
        assert sizes == {rank}, module
    assert {key for key in tensors if "lora_" not in key} == {
        f"base_model.model.classifier.{layer}.{leaf}"
        for layer in ("dense", "out_proj")
        for leaf in ("weight", "bias")
        if "classification" in name
    }
    assert (
        json.loads((tmp_path / "adapter" / CONFIG).read_text())["base_model_name_or_path"]
        == "its/base"
    )
    save_pretrained(tmp_path / "merged", model, params)
    assert gap(logits_of(*load_pretrained(tmp_path / "merged"), name), due, name) < 1e-5


def test_a_classifier_may_come_from_the_adapter_alone(tmp_path):
    name = "bert_sequence_classification"
    adapter = ROOT / "adapters" / "bert_sequence_classification"
    model, params = load_pretrained(ROOT / name, head="none")
    save_pretrained(tmp_path / "body", model, params)
    model, params = load_pretrained(tmp_path / "body", adapter=adapter)
    assert model.cfg.head == "sequence_classification" and model.cfg.num_labels == 3
    with np.load(adapter / "expected.npz") as file:
        assert gap(logits_of(model, params, name), file["logits"], name) < 1e-5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Doubled(LoraConfig):
    def apply(self, layer, x, kernel, y, bias):
        return 2 * super().apply(layer, x, kernel, y, bias)


def test_what_peft_would_compute_otherwise_is_not_written(tmp_path):
    model, params = noisy("gpt2_lm", Doubled(rank=2))
    with pytest.raises(ConfigError, match=r"Doubled.*save_pretrained, which merges"):
        save_adapter(tmp_path / "out", model, params)
    model, params = noisy("gpt2_lm", DoraConfig(rank=2, targets=("query",)))
    with pytest.raises(ConfigError, match=r"adapter.targets: .*c_attn holds 3 .* of which 1"):
        save_adapter(tmp_path / "out", model, params)
    model, params = noisy("gpt2_lm", Ia3Config(targets=("query",), on_inputs=("query",)))
    with pytest.raises(ConfigError, match=r"adapter.on_inputs: .*c_attn .* share"):
        save_adapter(tmp_path / "out", model, params)


def test_scales_of_some_fused_matrices_come_back(tmp_path):
    model, params = noisy("gpt2_lm", Ia3Config())
    save_adapter(tmp_path / "out", model, params)
    again = load_pretrained(ROOT / "gpt2_lm", adapter=tmp_path / "out")
    np.testing.assert_allclose(
        logits_of(*again, "gpt2_lm"), logits_of(model, params, "gpt2_lm"), rtol=1e-5, atol=1e-5
    )


def test_the_table_of_tied_logits_is_not_adapted_by_itself():
    adapter = LoraConfig(rank=2, targets=("lm_head",))
    with pytest.raises(ConfigError, match=r"adapter.targets=.*model.tie_embeddings=False"):
        noisy("gpt2_lm", adapter)
    model, _ = noisy("llama_lm", adapter)
    with pytest.raises(ConfigError, match="only lora adapts"):
        noisy("llama_lm", DoraConfig(rank=2, targets=("lm_head",)))
    assert model.cfg.adapter.adapts_table("lm_head/kernel")
    assert not LoraConfig(targets=(".",)).adapts_table("lm_head/kernel")


def test_a_copy_of_the_base_that_is_none_is_refused(tmp_path):
    folder = shutil.copytree(ROOT / "adapters" / "gpt2_lm-head", tmp_path / "changed")
    tensors = load_file(folder / WEIGHTS)
    name = "base_model.model.lm_head.base_layer.weight"
    save_file(tensors | {name: tensors[name] + 1}, folder / WEIGHTS)
    with pytest.raises(WeightsError, match=r"lm_head.base_layer.weight is not lm_head.weight of"):
        load_pretrained(ROOT / "gpt2_lm", adapter=folder)


def test_endings_that_tell_names_apart():
    assert shortest_endings(["a/q", "b/q"], ["a/q", "b/q", "a/k"], "/") == ["q"]
    assert shortest_endings(["a/q"], ["a/q", "b/q"], "/") == ["a/q"]
    assert shortest_endings(["q"], ["q", "b/q"], "/") == ["q"]


@pytest.fixture
def changed(tmp_path):
    """An adapter for gpt2_lm of which a test may change the files."""
    return shutil.copytree(ROOT / "adapters" / "gpt2_lm", tmp_path / "changed")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"lora_bias": True},
            "lora_bias=True changes the numbers, and only its absence is supported here",
        ),
        ({"use_dora": True}, "lacks lora_A or lora_B or lora_magnitude_vector"),
        ({"bias": "lora_only"}, "bias='lora_only' changes the numbers, and only 'none'"),
        (
            {"peft_type": "LOHA"},
            "peft_type='LOHA' changes the numbers, and only 'LORA' or 'IA3'",
        ),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa' changes the numbers"),
        ({"layer_replication": [[0, 1]]}, "layer_replication="),
        ({"lora_alpha": "16"}, "lora_alpha='16': must be a number"),
        ({"lora_alpha": 0}, "alpha=0"),
        ({"alpha_pattern": {"(": 3}}, "alpha_pattern"),
        ({"alpha_pattern": {"c_attn": "3"}}, "alpha_pattern"),
    ],
)
def test_what_peft_computes_and_we_do_not_is_refused(changed, fields, said):
    edit(changed, fields)
    with pytest.raises((ConfigError, WeightsError)) as caught:
        load_pretrained(ROOT / "gpt2_lm", adapter=changed)
    assert said in str(caught.value)


def edit(folder, fields):
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | fields))


def test_fields_of_other_versions_are_reported(changed, caplog):
    edit(changed, {"a_new_field": 3, "lora_alpha": None})
    load_pretrained(ROOT / "gpt2_lm", adapter=changed)
    assert caplog.messages == ["adapter_config.json: a_new_field: not known here, so ignored."]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda t: (
                t
                | {
                    "base_model.model.score.lora_A.weight": t[A],
                    "base_model.model.score.lora_B.weight": t[B],
                }
            ),
            "adapts score, which is no matrix of this gpt2",
        ),
        (
            lambda t: t | {"base_model.model.transformer.wte.lora_embedding_A": t[A]},
            "only the factors of dense layers",
        ),
        (
            lambda t: t | {A.replace("lora_A.weight", "lora_magnitude_vector"): t[B][:, 0]},
            "c_attn lacks lora_A or lora_B, or has another factor",
        ),
        (
            lambda t: {k: v for k, v in t.items() if k != B},
            "transformer.h.0.attn.c_attn lacks lora_A or lora_B",
        ),
        (
            lambda t: t | {A: t[A][:, :8]},
            r"c_attn.lora_A.weight has shape [3, 8], its model and rank imply [3, 16]",
        ),
        (
            lambda t: t | {"base_model.model.transformer.new.weight": t[A]},
            "tensor new.weight has no place",
        ),
        (lambda t: {}, "it lacks lora_A or lora_B"),
    ],
)
def test_tensors_without_a_place_are_refused(changed, change, said):
    save_file(
        {k: np.ascontiguousarray(v) for k, v in change(load_file(changed / WEIGHTS)).items()},
        changed / WEIGHTS,
    )
    with pytest.raises(WeightsError) as caught:
        load_pretrained(ROOT / "gpt2_lm", adapter=changed)
    assert said in str(caught.value)


A, B = (f"base_model.model.transformer.h.0.attn.c_attn.lora_{x}.weight" for x in "AB")


def test_directories_that_are_no_adapter(changed, tmp_path):
    with pytest.raises(WeightsError, match=r"gpt2_lm: no adapter_config.json"):
        load_pretrained(ROOT / "gpt2_lm", adapter=ROOT / "gpt2_lm")
    with pytest.raises(WeightsError, match="an adapter alone; pass its model's directory"):
        load_pretrained(changed)
    (changed / WEIGHTS).unlink()
    with pytest.raises(WeightsError, match=r"no adapter_model.safetensors"):
        load_pretrained(ROOT / "gpt2_lm", adapter=changed)


def test_models_without_an_adapter_and_directories_that_exist(tmp_path):
    model, params = load_pretrained(ROOT / "gpt2_lm")
    with pytest.raises(ConfigError, match="adapter: this model has none"):
        save_adapter(tmp_path / "new", model, params)
    model, params = load_pretrained(ROOT / "gpt2_lm", adapter=ROOT / "adapters" / "gpt2_lm")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(ConfigError, match="taken"):
        save_adapter(tmp_path / "taken", model, params)
    with pytest.raises(WeightsError, match="lora_a is missing"):
        save_adapter(tmp_path / "new", model, load_pretrained(ROOT / "gpt2_lm")[1])


def test_a_family_without_a_published_form(tmp_path):
    model = build_model("transformer", "tiny", vocab_size=32, adapter=LoraConfig())
    with pytest.raises(ConfigError, match="has no published form"):
        save_adapter(tmp_path / "new", model, {})


@pytest.mark.parametrize("scan", SCAN)
def test_a_new_adapter_starts_as_its_base(scan):
    adapter = DoraConfig(rank=2, targets=("query",))
    model, params = load_pretrained(ROOT / "bert_base", adapter=adapter, scan=scan)
    base = flatten_dict(load_pretrained(ROOT / "bert_base", scan=scan)[1], sep="/")
    flat = flatten_dict(params, sep="/")
    assert model.cfg.adapter == adapter and set(base) < set(flat)
    for name, magnitude in flat.items():
        if name.endswith("dora_magnitude"):
            kernel = np.asarray(flat[name.replace("dora_magnitude", "kernel")])
            lengths = np.sqrt(np.square(kernel).sum(axis=-3))
            np.testing.assert_allclose(magnitude, lengths, rtol=1e-6)
    with pytest.raises(ConfigError, match=r"targets='quary'.*called .*query"):
        load_pretrained(ROOT / "bert_base", adapter=LoraConfig(targets=("quary",)))


def test_modules_that_scale_their_inputs_are_among_the_targets(tmp_path):
    """PEFT refuses others, though both patterns match the same modules."""
    adapter = Ia3Config(targets=("layer.*kernel",))
    save_adapter(tmp_path / "new", *load_pretrained(ROOT / "bert_base", adapter=adapter))
    written = json.loads((tmp_path / "new" / CONFIG).read_text())
    assert set(written["feedforward_modules"]) < set(written["target_modules"])


# every method, over all matrices; and one where a bias of an adapted module is trained whole
EVERYWHERE = {
    "lora": LoraConfig(rank=2, targets=(".",)),
    "dora": DoraConfig(rank=2, targets=(".",)),
    "ia3": Ia3Config(targets=(".",), on_inputs=("down",)),
    "bias": LoraConfig(rank=2, targets=(".",), trained=("^classifier/", "layer.*/query/bias$")),
}
# with layers of the head outside of `classifier` in our tree or in the file
HEADED = (
    "albert",
    "big_bird",
    "deberta",
    "deberta_v2",
    "distilbert",
    "electra",
    "esm",
    "modernbert",
    "mpnet",
    "roberta",
)
REFUSED = {("deberta", "ia3")}  # as its biases are apart
FACTOR = re.compile(r"\.(lora_[AB]|lora_magnitude_vector|ia3_l)")
DAILY_HEADS = {("distilbert", method) for method in ("lora", "ia3", "bias")}


@pytest.mark.parametrize("scan", SCAN)
@pytest.mark.parametrize(
    ("family", "method"),
    daily([(family, method) for family in HEADED for method in EVERYWHERE], DAILY_HEADS),
)
def test_no_module_is_saved_whole_and_adapted(family, method, scan, tmp_path):
    """PEFT drops the factors of what it saves whole; each was loaded and compared in PEFT 0.21."""
    model, params = built(small(family, head="sequence_classification"))
    save_pretrained(tmp_path / "base", model, params)
    adapter = EVERYWHERE[method]
    model, params = load_pretrained(tmp_path / "base", adapter=adapter, scan=scan)
    params = with_noise(params, adapter)
    folder = tmp_path / "adapter"
    if (family, method) in REFUSED:
        with pytest.raises(ConfigError, match=r"PEFT's IA3 .*save_pretrained, which merges"):
            save_adapter(folder, model, params)
        return
    save_adapter(folder, model, params)
    whole = json.loads((folder / CONFIG).read_text())["modules_to_save"]
    for name in load_file(folder / WEIGHTS):
        factor = FACTOR.search(name)
        if factor:
            module = name[: factor.start()]
            # as peft.tuners.tuners_utils.check_target_module_exists looks for it
            assert not any(re.match(rf"(^|.*\.){one}($|\..*)", module) for one in whole), name
    ids = np.array([[5, 7, 9, 8, 6, 2], [5, 6, 7, 8, 2, 1]], np.int32)
    due = outputs(model, params, {"input_ids": ids}).logits
    again, back = load_pretrained(tmp_path / "base", adapter=folder)
    got = outputs(again, back, {"input_ids": ids}).logits
    np.testing.assert_allclose(got, due, rtol=0, atol=3e-5 * np.abs(due).max())
