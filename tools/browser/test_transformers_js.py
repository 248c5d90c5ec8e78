"""transformers.js reads exported folders, and computes what we do. `make browser` runs it."""

import json
import os
import subprocess

import jax
import numpy as np
import pytest

from flaxformer_lite import generate, load_pretrained, load_tokenizer, save_pretrained
from flaxformer_lite.__main__ import main
from tests.cli import models
from tests.models.tiny import built, small

pytest.importorskip("jax2onnx", reason="pip install 'flaxformer_lite[export]'")
NPM = os.environ.get("NPM", "runs/browser/npm")
TEXT = "one two three naïve 日本"
NEW = 12
SCRIPT = """
import * as T from "@huggingface/transformers";
const [root, text, count] = process.argv.slice(1);
T.env.allowRemoteModels = false;
T.env.localModelPath = root;
const options = {subfolder: "", dtype: "fp32"};
const found = {};
const classify = await T.pipeline("text-classification", "classes", options);
found.classes = await classify(text, {top_k: null});
const embed = await T.pipeline("feature-extraction", "vectors", options);
found.vectors = (await embed(text, {pooling: "mean", normalize: true})).tolist()[0];
for (const name of ["gpt2", "llama"]) {
  const tokenizer = await T.AutoTokenizer.from_pretrained(name);
  const model = await T.AutoModelForCausalLM.from_pretrained(name, options);
  const settings = {max_new_tokens: Number(count), do_sample: false, eos_token_id: -1};
  const ids = await model.generate({...tokenizer(text), ...settings});
  found[name] = ids.tolist()[0].map(Number);
}
console.log(JSON.stringify(found));
"""


def llama(folder):
    model, params = built(small("llama", 1, num_kv_heads=2, vocab_size=448))
    folder.mkdir(parents=True)
    save_pretrained(folder, model, jax.tree.map(lambda x: 3 * x, params))
    (folder / "tokenizer.json").write_bytes(models.tokenizer().definition)
    return folder


def test_transformers_js_computes_the_same(tmp_path):
    folders = {
        "classes": models.directory(tmp_path / "classes", "bert", "sequence_classification"),
        "vectors": models.directory(tmp_path / "vectors", "bert", "none"),
        "gpt2": models.directory(tmp_path / "gpt2", "gpt2"),
        "llama": llama(tmp_path / "llama"),
    }
    root = tmp_path / "exported"
    for name, folder in folders.items():
        main(["export", "--model", str(folder), "--output", str(root / name / "model.onnx")])
    command = ["node", "--input-type=module", "--eval", SCRIPT, f"{root}/", TEXT, str(NEW)]
    done = subprocess.run(command, cwd=NPM, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    table = tmp_path / "texts.jsonl"
    table.write_text(json.dumps({"text": TEXT}) + "\n")
    out = tmp_path / "predicted.jsonl"
    args = ["--model", str(folders["classes"]), "--data", str(table), "--output", str(out)]
    main(["predict", *args])
    predicted = json.loads(out.read_text())
    for one in found["classes"]:
        assert one["score"] == pytest.approx(predicted[f"probability_{one['label']}"], abs=1e-4)
    vectors = tmp_path / "vectors.npy"
    main(["embed", "--model", str(folders["vectors"]), "--text", TEXT, "--output", str(vectors)])
    np.testing.assert_allclose(found["vectors"], np.load(vectors)[0], atol=1e-4)
    for name in ("gpt2", "llama"):
        model, params = load_pretrained(folders[name])
        ids = np.asarray([load_tokenizer(folders[name]).encode(TEXT)])
        due = generate(model, params, ids, ids > 0, max_new_tokens=NEW, eos_token_id=None)
        assert found[name] == np.asarray(due)[0].tolist()
