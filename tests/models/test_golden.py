"""Parameter trees as a person reads them: a changed name, shape or dtype shows as a line of the
diff.

`python -m tests.models.test_golden` writes the files anew.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from flaxformer_lite import registry
from flaxformer_lite.config import ModelConfig
from tests.marks import daily

GOLDEN = Path(__file__).parent / "golden"
CASES = {
    "albert": ("albert", {"head": "pretraining"}),
    "bart": ("bart", {}),
    "electra": ("electra", {"head": "pretraining"}),
    "gemma2": ("gemma2", {}),
    "gptj": ("gptj", {}),
    "opt_narrow": ("opt", {"embedding_size": 64, "norm_at": ("out",)}),
    "qwen3": ("qwen3", {}),
    "umt5": ("umt5", {}),
    "bert_pretraining": ("bert", {"head": "pretraining"}),
    "gpt2": ("gpt2", {}),
    "gpt2_scan": ("gpt2", {"scan": True}),
    "llama": ("llama", {}),
    "t5": ("t5", {}),
    "t5_v1_1": ("t5", {"preset": "v1_1_tiny"}),
    "transformer": ("transformer", {}),
}


def config(case: str) -> ModelConfig:
    family, options = CASES[case]
    options = {"preset": "tiny", **options}
    return registry.resolve("models", family).config(**options)


def tree(case: str) -> str:
    cfg = config(case)
    model = registry.resolve("models", cfg.family).Model(cfg)
    ids = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    inputs = {"input_ids": ids} | (
        {"decoder_input_ids": ids} if cfg.skeleton == "encoder_decoder" else {}
    )
    params = jax.eval_shape(model.init, jax.random.key(0), **inputs)["params"]
    lines = [
        f"{'/'.join(key.key for key in path)}  {leaf.dtype}{list(leaf.shape)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("case", daily(CASES, ("bert_pretraining", "gpt2", "gpt2_scan", "t5")))
def test_parameter_tree(case):
    assert tree(case) == (GOLDEN / f"{case}.txt").read_text(), (
        "run `python -m tests.models.test_golden` and read the diff"
    )


if __name__ == "__main__":
    for name in CASES:
        (GOLDEN / f"{name}.txt").write_text(tree(name))
