"""What stands in an exported page; tools/browser runs pages."""

import base64
import gzip
import json
import re

import numpy as np
import pytest
from scipy.special import expit, softmax

from flaxformer_lite import ConfigError
from flaxformer_lite.contrib.export import page
from flaxformer_lite.contrib.export.page import Example, Libraries, PageTask
from flaxformer_lite.contrib.export.weights import stored_as


def test_libraries_are_read_from_npm_or_asked_for(tmp_path):
    with pytest.raises(ConfigError, match=r"npm install onnxruntime-web .*--runtime"):
        page.load_libraries(tmp_path)
    for name in (page.RUNTIME, page.WASM, page.TOKENIZERS):
        file = tmp_path / "node_modules" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    for package, version in zip(page.PACKAGES, ("1.30.0", "0.2.0"), strict=True):
        described = {"version": version, "license": "MIT"}
        (tmp_path / "node_modules" / package / "package.json").write_text(json.dumps(described))
    for folder in (tmp_path, tmp_path / "node_modules"):
        libraries = page.load_libraries(folder)
        assert libraries.wasm == page.WASM.encode()
        assert libraries.versions.startswith("onnxruntime-web 1.30.0 (MIT license) and @hugging")


def test_a_page_holds_its_parts_and_escapes_texts():
    attack = "</script><img src=x>"
    task = PageTask(task="classify", tokenizer="{}", labels=(attack, "{{model}}"), limit=8)
    examples = [Example(attack, [1, 2], [0.25, 0.75])]
    libraries = Libraries(b"runtime", b"wasm", b"tokenizers", "versions")
    texts = {"output": "logits", "title": attack, "facts": "bert", "text": attack}
    rendered = page.render_page(b"model", task, examples, libraries, **texts)
    assert "<img" not in rendered
    parts = dict(re.findall(r'<script type="[^"]*" id="(\w+)">(.*?)</script>', rendered, re.S))
    for name in ("model", "wasm", "runtime", "tokenizers"):
        assert gzip.decompress(base64.b64decode(parts[name])) == name.encode()
    settings = json.loads(parts["page"])
    assert settings["labels"] == [attack, "{{model}}"]
    assert settings["examples"] == [{"text": attack, "ids": [1, 2], "numbers": [0.25, 0.75]}]
    assert "http:" not in rendered and "https:" not in rendered


def test_numbers_are_those_of_the_commands():
    rng = np.random.default_rng(0)
    logits_TV = rng.normal(size=(4, 9)).astype(np.float32)
    fill = PageTask(task="fill", tokenizer="", words=tuple("abcdefgh"), mask=(7, "[MASK]"))
    shares_V = softmax(logits_TV[2].astype(np.float64))[:8]
    numbers = fill.numbers([1, 2, 7, 3], logits_TV)
    np.testing.assert_allclose(numbers, sorted(shares_V, reverse=True)[:5])
    logits_C = logits_TV[0]
    dues = {"single": softmax(logits_C), "multiple": expit(logits_C), "number": logits_C[:1]}
    for kind, due in dues.items():
        task = PageTask(task="classify", tokenizer="", kind=kind)
        np.testing.assert_allclose(task.numbers([1], logits_C), due, rtol=1e-6)


def test_a_large_model_is_refused():
    params = {"kernel": np.zeros((4000, 2000), np.float32)}
    with pytest.raises(ConfigError, match=r"32 MB.*--weights int8"):
        page.check_size(stored_as("float32", params))
    page.check_size(stored_as("int8", params))
