"""Pages that run a model in a browser: one HTML file, which needs no network.

It holds the model as ONNX, its tokenizer, and two libraries of npm: onnxruntime-web, which runs
the model, and @huggingface/tokenizers. They are read from a folder that `npm install` made.
"""

import base64
import dataclasses
import gzip
import hashlib
import html
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.special import expit, softmax

from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.export.cases import pad_texts
from flaxformer_lite.contrib.export.programs import ExportProgram
from flaxformer_lite.contrib.export.weights import Quantized, StoredWeights
from flaxformer_lite.files.read import Json
from flaxformer_lite.types import Params

MOST_BYTES = 30_000_000  # of a model, so that browsers open the page
PACKAGES = ("onnxruntime-web", "@huggingface/tokenizers")
RUNTIME = "onnxruntime-web/dist/ort.wasm.bundle.min.mjs"
WASM = "onnxruntime-web/dist/ort-wasm-simd-threaded.wasm"
TOKENIZERS = "@huggingface/tokenizers/dist/tokenizers.min.mjs"
TOP = 5  # guesses for a mask


class Libraries(NamedTuple):
    """The libraries from npm that a page contains.

    Attributes:
      runtime, wasm: onnxruntime-web as a module, and its compiled part.
      tokenizers: @huggingface/tokenizers as a module.
      versions: names with versions and licenses, for the reader of the page.
    """

    runtime: bytes
    wasm: bytes
    tokenizers: bytes
    versions: str


def load_libraries(folder: str | Path) -> Libraries:
    """Reads the libraries from a folder of npm: node_modules, or the one in which it is.

    Raises:
      ConfigError: one is missing; the message has the command that fetches them.
    """
    modules = Path(folder)
    if modules.name != "node_modules":
        modules /= "node_modules"
    files = (RUNTIME, WASM, TOKENIZERS)
    for name in (*files, *(f"{package}/package.json" for package in PACKAGES)):
        if not (modules / name).is_file():
            raise ConfigError(
                f"{modules / name}: is missing; a page holds two libraries of npm: run `npm install"
                f" {' '.join(PACKAGES)}`, and pass its folder as --runtime."
            )
    versions = []
    for package in PACKAGES:
        described = json.loads((modules / package / "package.json").read_text(encoding="utf-8"))
        versions.append(f"{package} {described['version']} ({described['license']} license)")
    runtime, wasm, tokenizers = ((modules / name).read_bytes() for name in files)
    return Libraries(runtime, wasm, tokenizers, " and ".join(versions))


@dataclass(frozen=True)
class PageTask:
    """The task of a page, and the tokens and labels that it needs.

    Attributes:
      task: `fill`, `classify` or `embed`.
      tokenizer: tokenizer.json, as the command of this task reads texts.
      before, after: ids of the special tokens around each text.
      limit: the most tokens of a text, special ones included; None is any number.
      cuts: whether longer texts are cut there, or refused.
      side: which end of a long text is cut, "right" or "left".
      words: the spelling of each id, of fill.
      mask: id and spelling of the mask, of fill.
      labels: names of the classes, of classify.
      kind: `single`, `multiple` or `number`, of classify.
      prompt: what is put before each text, of embed.
    """

    task: str
    tokenizer: str
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    limit: int | None = None
    cuts: bool = True
    side: str = "right"
    words: tuple[str, ...] = ()
    mask: tuple[int, str] | None = None
    labels: tuple[str, ...] = ()
    kind: str = "single"
    prompt: str = ""

    def numbers(self, ids: Sequence[int], output: np.ndarray) -> np.ndarray:
        """Returns the numbers that the page shows for a text, in one row.

        Args:
          ids: the text's.
          output: what the program computed for it, without a batch.
        """
        if self.task == "embed":
            return output
        x = output.astype(np.float64)
        if self.task == "fill":
            assert self.mask is not None, "given for this task"
            at = np.asarray(ids) == self.mask[0]
            shares_MV = softmax(x[at], axis=-1)[:, : len(self.words)]
            return np.sort(shares_MV, axis=-1)[:, ::-1][:, :TOP].ravel()
        if self.kind == "number":
            return x[:1]
        return expit(x) if self.kind == "multiple" else softmax(x)


class Example(NamedTuple):
    """A text whose ids and numbers the page compares with its own when it is opened."""

    text: str
    ids: list[int]
    numbers: list[float]


def check_size(stored: StoredWeights) -> None:
    """Checks that a model fits into a page.

    Raises:
      ConfigError: its weights take more than 30 MB.
    """
    size = 0
    for x in stored.values():
        size += sum(array.nbytes for array in x) if isinstance(x, Quantized) else x.nbytes
    if size > MOST_BYTES:
        raise ConfigError(
            f"the weights take {size / 1e6:,.0f} MB, and a page holds {MOST_BYTES / 1e6:.0f}:"
            " --weights int8 makes them four times smaller; or write .onnx, and serve it."
        )


def output_of(program: ExportProgram) -> str:
    """Returns the name of the output that a page shows.

    Raises:
      ConfigError: the program has none.
    """
    for name in ("sentence_embedding", "logits", "prediction_logits"):
        if name in program.outputs:
            return name
    raise ConfigError(
        f"a page shows vectors of texts, classes or words for masks, and this model computes"
        f" {', '.join(program.outputs)}; write .onnx instead."
    )


def make_examples(
    program: ExportProgram, params: Params, task: PageTask, texts: Sequence[tuple[str, list[int]]]
) -> list[Example]:
    """Computes what a page is to show for texts and their ids.

    Args:
      program, params: the model as its file has it.
      task: of the page.
      texts: texts, each with its ids.
    """
    name = output_of(program)
    examples = []
    for text, ids in texts:
        inputs = {key: jnp.asarray(x) for key, x in pad_texts(program, [ids]).items()}
        output = program.function(params, inputs)[name]
        numbers = task.numbers(ids, np.asarray(output)[0])
        examples.append(Example(text, ids, [float(number) for number in numbers]))
    return examples


def render_page(
    model: bytes,
    task: PageTask,
    examples: Sequence[Example],
    libraries: Libraries,
    *,
    output: str,
    title: str,
    facts: str,
    text: str,
) -> str:
    """Renders a page.

    Args:
      model: the .onnx file.
      task: what the page does.
      examples: texts with the numbers that the page must show.
      libraries: from `load_libraries`.
      output: the name of the model's output.
      title: title of the page.
      facts: a line about the model.
      text: what stands in the box at first.
    """
    page = _settings(task) | {
        "output": output,
        "facts": facts,
        "text": text,
        "examples": [example._asdict() for example in examples],
        "contents": f"All is in this file; it asks for no network. It holds {libraries.versions}.",
    }
    template = (
        resources.files("flaxformer_lite.contrib.export")
        .joinpath("page.html")
        .read_text(encoding="utf-8")
    )
    (script,) = re.findall(r"<script>(.*?)</script>", template, re.S)
    # Only this script may run, and the libraries that it makes from the file.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    values = {
        "title": html.escape(title),
        "digest": digest,
        "page": json.dumps(page, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c"),
        "tokenizer": _packed(task.tokenizer.encode()),
        "model": _packed(model),
        "wasm": _packed(libraries.wasm),
        "runtime": _packed(libraries.runtime),
        "tokenizers": _packed(libraries.tokenizers),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)


def _settings(task: PageTask) -> Json:
    fields: dict[str, Any] = dataclasses.asdict(task)
    del fields["tokenizer"]
    mask = fields.pop("mask")
    return fields | {"mask": mask and {"id": mask[0], "token": mask[1]}, "top": TOP}


def _packed(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()
