"""The page beside an exported model: its inputs and outputs, and lines that run it."""

from collections.abc import Sequence
from pathlib import Path

from flaxformer_lite.export.onnx import INT64
from flaxformer_lite.export.programs import ExportProgram

TEXTS = """\
import numpy as np
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")
text = tokenizer.encode("How fast does light travel?")
session = onnxruntime.InferenceSession("{file}")
arrays = {{
    "input_ids": np.array([text.ids]),
    "attention_mask": np.array([text.attention_mask]),
    "token_type_ids": np.array([text.type_ids]),
}}
inputs = {{x.name: arrays[x.name] for x in session.get_inputs()}}
for spec, output in zip(session.get_outputs(), session.run(None, inputs)):
    print(spec.name, output.shape, output.ravel()[:8])
"""
DECODE = """\
import numpy as np
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")
session = onnxruntime.InferenceSession("{file}")
tokens = tokenizer.encode("Once upon a time").ids
inputs = {{"input_ids": np.array([tokens])}}
for x in session.get_inputs()[2:]:
    sizes = [size if isinstance(size, int) else 0 for size in x.shape[1:]]
    inputs[x.name] = np.zeros((1, *sizes), np.float32)
for _ in range(20):
    inputs["attention_mask"] = np.ones((1, len(tokens)), np.int64)
    logits, *present = session.run(None, inputs)
    tokens.append(int(logits[0, -1].argmax()))
    inputs = {{x.name: y for x, y in zip(session.get_inputs()[2:], present)}}
    inputs["input_ids"] = np.array([tokens[-1:]])
print(tokenizer.decode(tokens))
"""
TWO = """\
import numpy as np
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")
encode, decode = (onnxruntime.InferenceSession(f) for f in ("{encode}", "{decode}"))
ids = np.array([tokenizer.encode("translate English to German: It is late.").ids])
mask = np.ones_like(ids)
_, *source = encode.run(None, {{"input_ids": ids, "attention_mask": mask}})
names = [x.name for x in decode.get_inputs()]
inputs = dict(zip([name for name in names if name.startswith("source")], source))
past = [x for x in decode.get_inputs() if x.name.startswith("past")]
for x in past:
    sizes = [size if isinstance(size, int) else 0 for size in x.shape[1:]]
    inputs[x.name] = np.zeros((1, *sizes), np.float32)
tokens = [{start}]
for _ in range(20):
    inputs |= {{"input_ids": np.array([tokens[-1:]]), "encoder_attention_mask": mask}}
    logits, *present = decode.run(None, inputs)
    tokens.append(int(logits[0, -1].argmax()))
    inputs |= {{x.name: y for x, y in zip(past, present)}}
print(tokenizer.decode(tokens))
"""
TFLITE = """\
import numpy as np
from ai_edge_litert.interpreter import Interpreter
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")
tokenizer.enable_truncation({length})
tokenizer.enable_padding(length={length})
text = tokenizer.encode("How fast does light travel?")
arrays = {{
    "input_ids": np.array([text.ids], np.int32),
    "attention_mask": np.array([text.attention_mask], np.int32),
    "token_type_ids": np.array([text.type_ids], np.int32),
}}
interpreter = Interpreter("{file}")
signature = interpreter.get_signature_runner()
inputs = {{name: arrays[name] for name in signature.get_input_details()}}
for name, output in signature(**inputs).items():
    print(name, output.shape, output.ravel()[:8])
"""
STABLEHLO = """\
from pathlib import Path

import jax
import numpy as np

program = jax.export.deserialize(bytearray(Path("{file}").read_bytes()))
with np.load("test_cases.npz") as arrays:  # or arrays of your own, of the shapes above
    cases = dict(arrays)
first = "0/{program}/input/"
inputs = {{name.removeprefix(first): cases[name] for name in cases if name.startswith(first)}}
print(program.call(**inputs))
"""
GRADIENTS = """\
from pathlib import Path

import jax
import numpy as np

program = jax.export.deserialize(bytearray(Path("{file}").read_bytes()))
with np.load("params.npz") as arrays:
    weights = dict(arrays)
with np.load("test_cases.npz") as arrays:  # or arrays of your own, of the shapes above
    cases = dict(arrays)
first = "{case}/{program}/input/"
inputs = {{name.removeprefix(first): cases[name] for name in cases if name.startswith(first)}}


def loss(weights):
    outputs = program.call(weights, inputs)
    return outputs["{output}"].mean()  # or a loss of your own


value, gradients = jax.value_and_grad(loss)(weights)
weights = {{name: x - 1e-3 * gradients[name] for name, x in weights.items()}}
print(value, loss(weights))
"""


def readme(
    files: dict[str, Path],
    programs: Sequence[ExportProgram],
    weights: str,
    start: int,
    *,
    longest: int | None = None,
    gradients: bool = False,
) -> str:
    """Returns the text of README.md.

    Args:
      files: the file of each program, by its name.
      programs: the programs.
      weights: what the weights are stored as.
      start: the first token of an encoder-decoder's target.
      longest: tokens that the model has positions for; None for any number.
      gradients: whether the files have gradients by their weights.
    """
    lines = ["# An exported model", ""]
    lines.append(f"Written by flaxformer_lite; weights in {weights}, arithmetic in float32.")
    for program in programs:
        lines += [
            "",
            f"## {files[program.name].name}",
            "",
            "| input | shape | dtype |",
            "|---|---|---|",
        ]
        for name, spec in program.inputs.items():
            shape = ", ".join(str(size) for size in spec.shape)
            dtype = str(spec.dtype)
            if files[program.name].suffix == ".onnx":
                dtype = INT64.get(dtype, dtype)
            lines.append(f"| `{name}` | [{shape}] | {dtype} |")
        lines += ["", f"Outputs: {', '.join(f'`{name}`' for name in program.outputs)}."]
    if longest is not None:
        lines += ["", f"The model has positions for {longest:,} tokens; more of them give NaN."]
    example = _example(files, programs, start)
    if gradients:
        number = len(programs) - 1  # of the last program's first case, after those of the others
        example = GRADIENTS.format(
            file=files[programs[-1].name].name,
            case=number,
            program=programs[-1].name,
            output=programs[-1].outputs[0],
        )
    lines += [
        "",
        "## Run it",
        "",
        "```python",
        *example.splitlines(),
        "```",
        "",
    ]
    lines.append(
        "`test_cases.npz` has inputs and what the model computed for them, with keys such as"
        " `0/encode/input/input_ids`; `flaxformer_lite export --check --output FILE` runs them."
    )
    return "\n".join(lines) + "\n"


def _example(files: dict[str, Path], programs: Sequence[ExportProgram], start: int) -> str:
    names = {name: file.name for name, file in files.items()}
    first = next(iter(files.values()))
    if first.suffix == ".stablehlo":
        return STABLEHLO.format(file=first.name, program=next(iter(files)))
    if first.suffix == ".tflite":
        return TFLITE.format(file=first.name, length=programs[0].length)
    if len(files) > 1:
        return TWO.format(start=start, **names)
    return (DECODE if "decode" in files else TEXTS).format(file=first.name)
