"""Commands that convert, describe and evaluate models."""

import argparse

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.commands.declare import Flags, add_shared, declare_command
from flaxformer_lite.config.choices import DTYPES


@declare_command(
    "measure a model on held-out data",
    "--model runs/spam --data test.csv",
    "--model path/to/sst2 --data dev.tsv --columns text=sentence --json",
    "--model path/to/gpt2 --data book.txt --length 1024",
    "--model path/to/minilm --data beir/scifact",
    "--model path/to/minilm --data pairs.jsonl --retrieval",
)
def evaluate(parser: argparse.ArgumentParser, rarely: Flags) -> None:
    """Evaluates a model on held-out data, and compares it with a trivial baseline.

    The task is the run's, or follows from the published model's head. Tasks read a table (csv, tsv,
    json, jsonl, parquet, or a `datasets` folder), language models read text.

    Sentence models also search: a folder with corpus.jsonl, queries.jsonl and qrels/test.tsv, as
    BEIR has them, or with --retrieval all answers and negatives of a table's rows.
    """
    add_shared(parser, "model", "data", "columns", "length", "json")
    parser.add_argument(
        "--retrieval",
        action="store_true",
        help="search the answer of each row among the answers of all rows and their negatives",
    )
    add_shared(rarely, "dtype", "batch_size", "query_prompt", "document_prompt", "size")


@declare_command(
    "predict labels, spans or texts for the rows of a table",
    "--model runs/spam --data new.csv --output predictions.csv",
    "--model path/to/sst2 --data new.jsonl",
    '--model path/to/bart_mnli --data new.csv --labels "billing,refund,other"',
)
def predict(parser: argparse.ArgumentParser, rarely: Flags) -> None:
    """Writes the rows of a table with the model's predictions.

    Each row has the columns of the table, then `prediction` and the probabilities. The task is that
    of the run, or of the published model's head. The table need not have the predicted column.

    With --labels a model of natural-language inference predicts labels that it was not trained for,
    as transformers' pipeline for zero-shot classification does.
    """
    add_shared(parser, "model", "data")
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=command_line.new_file(".csv", ".tsv", ".jsonl"),
        help="file to write: .csv, .tsv or .jsonl (default: csv on stdout)",
    )
    add_shared(parser, "columns", "length")
    parser.add_argument(
        "--labels",
        type=command_line.text,
        metavar="LABEL,...",
        help="labels to choose from, by a model that knows what a text entails",
    )
    rarely.add_argument(
        "--hypothesis",
        type=command_line.text,
        metavar="TEXT",
        help="what is true of a text with a label, {} (default: This example is {}.)",
    )
    rarely.add_argument(
        "--multi_label", action="store_true", help="a text may have several of --labels, or none"
    )
    add_shared(rarely, "dtype", "batch_size")


@declare_command(
    "write any checkpoint as published weights",
    "runs/gpt2 published/gpt2",
    "old/flax_bert published/bert --dtype bfloat16",
    "path/to/bert published/bert_body --head none",
    "--adapter runs/tuned published/adapter",
)
def convert(parser: argparse.ArgumentParser, rarely: Flags) -> None:
    """Converts any checkpoint to published weights: config.json, safetensors and tokenizer.

    transformers can read the result. SRC is the --workdir of train (its best or newest checkpoint),
    or a directory of safetensors, of Flax's old msgpack, or of another program's checkpoint
    (docs/migration.md). DST must not exist; it appears once it is complete. If the run trained an
    adapter, it is merged into the weights.
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
    rarely.add_argument(
        "--auxiliary",
        action="store_true",
        help="write the second model of a run, such as ELECTRA's generator",
    )
    add_shared(rarely, "family", "base")


@declare_command(
    "describe a directory of weights",
    "path/to/bert",
    "runs/gpt2 --all",
)
def inspect(parser: argparse.ArgumentParser, rarely: Flags) -> None:
    """Describes a directory of weights: family, head, sizes, tensors, and a checksum.

    The checksum covers the published names and the contents of all tensors, so a training workdir,
    its conversion to safetensors, and Flax's old msgpack of the same model share one checksum.
    """
    parser.add_argument(
        "src",
        metavar="SRC",
        type=command_line.model,
        help="published weights, Flax msgpack, or the --workdir of train",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="one line per tensor, instead of one for the tensors that all layers have",
    )
    add_shared(rarely, "family")
