"""Commands that convert, describe and evaluate models."""

import argparse

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.commands.declare import (
    add_adapter,
    add_model,
    add_prompts,
    add_task,
    command,
)
from flaxformer_lite.config.choices import DTYPES


@command(
    "measure a model on held-out data",
    "--model runs/spam --data test.csv",
    "--model path/to/sst2 --data dev.tsv --columns text=sentence --json",
    "--model path/to/gpt2 --data book.txt --length 1024",
    "--model path/to/minilm --data beir/scifact",
    "--model path/to/minilm --data pairs.jsonl --retrieval",
)
def evaluate(parser: argparse.ArgumentParser) -> None:
    """Evaluates a model on held-out data, and compares it with a trivial baseline.

    The task is that of the run, or of the published model's head. Tasks read a table (csv, tsv,
    json, jsonl, parquet, or a `datasets` folder), language models read text.

    Sentence models also search: a folder with corpus.jsonl, queries.jsonl and qrels/test.tsv, as
    BEIR has them, or with --retrieval all answers and negatives of a table's rows. nDCG, MAP, MRR
    and recall are those of sentence-transformers.
    """
    add_task(parser, "also write the rows with their predictions: .csv, .tsv or .jsonl")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--retrieval",
        action="store_true",
        help="search the answer of each row among those of all rows and their negatives",
    )
    add_prompts(parser)


@command(
    "predict labels, spans or texts for the rows of a table",
    "--model runs/spam --data new.csv --output predictions.csv",
    "--model path/to/sst2 --data new.jsonl",
)
def predict(parser: argparse.ArgumentParser) -> None:
    """Writes the rows of a table with the model's predictions.

    Each row has the columns of the table, then `prediction` and the probabilities. The task is that
    of the run, or of the published model's head. The table need not have the predicted column.
    """
    add_task(parser, "file to write: .csv, .tsv or .jsonl (default: csv on stdout)")


@command(
    "write any checkpoint as published weights",
    "runs/gpt2 published/gpt2",
    "old/flax_bert published/bert --dtype bfloat16",
    "path/to/llama published/llama --shard_size 2GB",
    "path/to/bert published/bert_body --head none",
    "--adapter runs/tuned published/adapter",
)
def convert(parser: argparse.ArgumentParser) -> None:
    """Converts any checkpoint to published weights: config.json, safetensors and tokenizer.

    transformers can read the result. SRC is the --workdir of train (its best or newest checkpoint),
    or a directory of safetensors, of Flax's old msgpack, or of another program's checkpoint
    (docs/migration/lost-homes.md). DST must not
    exist; it appears once it is complete. If the run trained an adapter, it is merged into the
    weights.
    """
    add = parser.add_argument
    add("src", metavar="SRC", type=command_line.model, help="directory to read")
    add("dst", metavar="DST", type=command_line.new_model, help="directory to write")
    add("--dtype", choices=DTYPES, help="dtype of the weights (default: unchanged)")
    add(
        "--adapter",
        action="store_true",
        help="write only the run's LoRA adapter, in PEFT's format",
    )
    add("--head", help="head of the model, if not the one that config.json names")
    add(
        "--companion",
        action="store_true",
        help="write the second model of a run, such as ELECTRA's generator",
    )
    command_line.add_family(parser)
    add(
        "--shard_size",
        default="5GB",
        help="maximum size of a file, such as 500MB (default: %(default)s)",
    )


@command(
    "write a model as files that run without this package",
    "--model path/to/minilm --output exported/model.onnx",
    "--model runs/gpt2 --output exported/model.stablehlo",
    "--model path/to/minilm --output page.html --weights int8",
    "--check --output exported/model.onnx",
)
def export(parser: argparse.ArgumentParser) -> None:
    """Exports a model to ONNX or StableHLO, for batches and lengths of any size, or to LiteRT.

    A sentence model becomes its encoder with pooling and normalization, a decoder one program that
    reads and writes a cache of keys and values, and a model that reads and then writes two files.
    Beside them are the tokenizer, config.json, README.md with lines that run the files, and test
    cases, on which the files have just been run.

    A page (.html) is one file that runs the model in a browser, without a network: it fills masks,
    classifies or compares the texts that are typed. It takes two libraries of npm: see --runtime.
    """
    add = parser.add_argument
    add("--model", type=command_line.model, help="published weights, or the --workdir of train")
    add(
        "--output",
        required=True,
        metavar="FILE",
        type=command_line.file_of(".onnx", ".stablehlo", ".tflite", ".html"),
        help="file in a folder of its own: .onnx, .stablehlo for jax alone, or .tflite for LiteRT;"
        " or a page, .html",
    )
    add(
        "--task",
        choices=("auto", "encode", "embed"),
        default="auto",
        help="what an encoder's file computes: hidden states or what its head does (encode), or the"
        " vector of a text (embed); auto embeds if the model has modules.json",
    )
    add(
        "--weights",
        choices=("float32", "float16", "int8"),
        default="float32",
        help="what the file stores; arithmetic is in float32 (default: %(default)s)",
    )
    add(
        "--data",
        metavar="FILE",
        type=command_line.path,
        help="texts, one a line, on which the cost of float16 and int8 is measured (default: three"
        " of its own)",
    )
    add("--head", help="head of the model, if not the one that config.json names")
    add(
        "--gradients",
        action="store_true",
        help="of .stablehlo: take the weights as inputs, so that jax can train them; they are"
        " written beside the file, as params.npz",
    )
    add(
        "--length",
        type=int,
        metavar="TOKENS",
        help="of .tflite: how many tokens the file reads, shorter texts padded (default: 128)",
    )
    add(
        "--runtime",
        default="node_modules",
        metavar="DIR",
        type=command_line.path,
        help="of pages: the folder in which `npm install onnxruntime-web @huggingface/tokenizers`"
        " was run (default: the current one)",
    )
    add("--check", action="store_true", help="only run the test cases beside files that are there")
    command_line.add_family(parser)


@command(
    "run EleutherAI's lm-evaluation-harness",
    "--model path/to/smollm2 --tasks lambada_openai,hellaswag --limit 100",
    "--model runs/gpt2 --tasks own_questions --include_path tasks",
    "--model path/to/llama_chat --tasks gsm8k -- --apply_chat_template --log_samples",
)
def lm_eval(parser: argparse.ArgumentParser) -> None:
    """Measures a model that writes on tasks of the harness, with numbers as from transformers.

    The harness prints its own table. Its other flags may follow after --.
    """
    add = parser.add_argument
    add_model(parser, "published weights of a model that writes, or its --workdir")
    add_adapter(parser)
    add(
        "--tasks",
        required=True,
        nargs="+",
        type=command_line.text,
        metavar="TASK",
        help="names of tasks or groups",
    )
    add("--include_path", type=command_line.path, metavar="DIR", help="folder with tasks of yours")
    add("--limit", type=float, help="rows of each task, or a share of them below 1")
    add("--num_fewshot", type=command_line.integer(0), metavar="INT", help="examples in a prompt")
    add(
        "--batch_size",
        type=command_line.integer(1),
        metavar="INT",
        default=8,
        help="rows computed together (default: %(default)s)",
    )
    add(
        "--max_length",
        type=command_line.integer(1),
        metavar="INT",
        help="most tokens that the model sees (default: its own)",
    )
    add("--output_path", type=command_line.new_folder, metavar="DIR", help="folder for its results")
    add("more", nargs="*", metavar="-- FLAGS", help="flags of the harness")


@command(
    "describe a directory of weights",
    "path/to/bert",
    "runs/gpt2 --all",
)
def inspect(parser: argparse.ArgumentParser) -> None:
    """Describes a directory of weights: family, head, sizes, tensors, and a checksum.

    The checksum covers the published names and the contents of all tensors, so a training workdir,
    its conversion to safetensors, and Flax's old msgpack of the same model share one checksum.
    """
    parser.add_argument(
        "directory",
        type=command_line.model,
        help="published weights, Flax msgpack, or the --workdir of train",
    )
    command_line.add_family(parser)
    parser.add_argument(
        "--all",
        action="store_true",
        help="one line per tensor, instead of one for the tensors that all layers have",
    )
