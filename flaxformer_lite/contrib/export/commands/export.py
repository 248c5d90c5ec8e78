"""The command `export`: its flags."""

import argparse

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.commands.declare import Flags, add_shared, declare_command


@declare_command(
    "write a model as files that run without this package",
    "--model path/to/minilm --output exported/model.onnx",
    "--model runs/gpt2 --output exported/model.stablehlo",
    "--model path/to/minilm --output exported/model.onnx --dtype int8",
    runs="flaxformer_lite.contrib.export.run_export",
)
def export(parser: argparse.ArgumentParser, rarely: Flags) -> None:
    """Exports a model to ONNX or StableHLO, for batches and lengths of any size.

    A sentence model becomes its encoder with pooling and normalization, a decoder one program that
    reads and writes a cache of keys and values, and a model that reads and then writes two files.
    Beside them are the tokenizer, config.json, and test cases, on which the files have just been
    run; docs/export.md has the lines that run them.
    """
    add = parser.add_argument
    add_shared(parser, "model")
    add(
        "--output",
        required=True,
        metavar="FILE",
        type=command_line.file_of(".onnx", ".stablehlo"),
        help="file in a folder of its own: .onnx, or .stablehlo for jax alone",
    )
    add(
        "--task",
        choices=("auto", "encode", "embed"),
        default="auto",
        help="what an encoder's file computes: hidden states or what its head does (encode), or the"
        " vector of a text (embed); auto embeds if the model has modules.json",
    )
    add(
        "--dtype",
        choices=("float32", "float16", "int8"),
        default="float32",
        help="what the file stores; arithmetic is in float32 (default: %(default)s)",
    )
