"""mlx-lm reads what is written here, in an environment that pip makes."""

import argparse
import json

import pytest

from flaxformer_lite import save_pretrained
from tests.cli import models
from tests.models.tiny import built, small
from tools.opens import ours
from tools.opens.__main__ import run_engine
from tools.opens.compare import EQUAL, compare

# ids up to the vocabulary of the tests' tokenizer; heads as wide as engines have kernels for
SIZES = {"vocab_size": 448, "num_heads": 2, "num_kv_heads": 1, "head_dim": 32, "max_length": 512}
TEMPLATE = "{% for turn in messages %}{{ turn['role'] }}: {{ turn['content'] }}\n{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("opens")
    for family in ("llama", "qwen3"):
        at = root / "ours/causal" / family
        at.parent.mkdir(parents=True, exist_ok=True)
        save_pretrained(at, *built(small(family, head="lm", **SIZES)))
        (at / "tokenizer.json").write_bytes(models.tokenizer().definition)
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
        (at / "tokenizer_config.json").write_text(json.dumps(config))
        ours.expect("causal", at)
    return root


@pytest.mark.nightly  # installs it
def test_mlx_lm_reads_a_folder_as_we_do(folder, tmp_path_factory):
    environments = tmp_path_factory.getbasetemp() / "engines"
    args = argparse.Namespace(environments=environments, folder=folder)
    if not run_engine("mlx-lm", args, "ours", ""):
        pytest.skip("the engine could not be installed")
    for family in ("llama", "qwen3"):
        assert compare(folder, "mlx-lm", "causal", family).word == EQUAL, family
