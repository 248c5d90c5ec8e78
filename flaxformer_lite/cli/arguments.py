"""Flags, help and examples of every command, light enough that `--help` imports no jax."""

import argparse
import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

from flaxformer_lite.cli import command_line
from flaxformer_lite.config.choices import DTYPES
from flaxformer_lite.plan import environment

CONFIG_HELP = "a page (gpt2_tiny, gpt2_tiny:rope) or a file of yours; with --help, lists its fields"
MOST_DEVICES = 512  # to make up: each has threads of its own
SETTINGS = (  # of generate: name, type, help
    ("temperature", float, "above 0 draws tokens; 1 is the model's own distribution"),
    ("top_k", int, "draw from the k likeliest"),
    ("top_p", float, "draw from the likeliest that together have this probability"),
    ("min_p", float, "draw from those with at least this fraction of the highest probability"),
    ("repetition_penalty", float, "above 1 makes tokens that occurred less likely"),
    ("no_repeat_ngram_size", int, "no n tokens appear twice"),
    ("min_new_tokens", int, "write no stop token before"),
    ("num_beams", int, "beam search with so many beams"),
    ("length_penalty", float, "of beam search; above 0 favours long texts"),
    ("num_return_sequences", int, "texts for each prompt"),
    ("seed", int, "of the draws"),
)


def train(parser: argparse.ArgumentParser) -> None:
    """Trains a model, or goes on with a run that was stopped: the same command continues it.

    --config.FIELD=VALUE overrides any field of the config. On a TPU pod, under Slurm or OpenMPI, run the same command in
    every process; docs/launch.md has the recipes.
    """
    add, seconds = parser.add_argument, "seconds for all processes to appear (default %(default)s)"
    silent = "seconds until a silent process counts as lost (default %(default)s)"
    add("--workdir", type=command_line.path, help="folder for checkpoints, metrics and the loss curve")
    add("--coordinator", metavar="HOST:PORT", help="of process 0, where no cluster is detected")
    add("--num_processes", type=int, help="of all; 1 trains alone, also inside a cluster")
    add("--process_id", type=int, help="of this process, from 0")
    add("--start_timeout", type=command_line.integer(1), default=300, help=seconds)
    add("--peer_timeout", type=command_line.integer(5), default=60, help=silent)


def generate(parser: argparse.ArgumentParser) -> None:
    """Writes text with a decoder or an encoder-decoder; only what the model wrote goes to stdout.

    Settings that the directory brings in generation_config.json or config.json are the defaults; without any, each token is
    the likeliest. --temperature 0 --num_beams 1 is always that.
    """
    add, text = parser.add_argument, command_line.text
    integer = command_line.integer(-command_line.INT32)  # generate says more of what is too small
    _add_model(parser, "directory of published weights, or the --workdir of train")
    add("--prompt", required=True, action="append", type=text, help="may be given several times; - reads stdin")
    add("--max_new_tokens", type=integer, metavar="INT", help="tokens to write at most; else 64, or what fits")
    for name, kind, what in SETTINGS:
        add(f"--{name}", type=integer if kind is int else kind, metavar=kind.__name__.upper(), help=what)
    add("--stop", action="append", type=text, metavar="TEXT", help="ends the text; may be given several times")
    add("--stream", action="store_true", help="print the text as it is written")
    add("--chat", action="store_true", help="ask as a user would, by the model's chat template")
    add("--system", metavar="TEXT", type=text, help="with --chat, what the assistant is told beforehand")


def convert(parser: argparse.ArgumentParser) -> None:
    """Writes any checkpoint as published weights: config.json, safetensors and tokenizer, which transformers reads too.

    SRC is the --workdir of train (its newest checkpoint), a directory of Flax's old msgpack, or one of safetensors. DST must
    not exist yet; it appears when it is whole.
    """
    add = parser.add_argument
    add("src", metavar="SRC", type=command_line.path, help="what to read")
    add("dst", metavar="DST", type=command_line.path, help="directory to make")
    add("--dtype", choices=DTYPES, help="of the weights; else as they are")
    add("--head", help="of the model, where it is not the one that config.json names")
    command_line.add_family(parser)
    add("--shard_size", default="5GB", help="most that one file holds, like 500MB (default: %(default)s)")


def inspect(parser: argparse.ArgumentParser) -> None:
    """Says what a directory holds: family, head, sizes, every tensor, and a checksum over names and contents."""
    published = "published weights, Flax msgpack, or the --workdir of train"
    parser.add_argument("directory", type=command_line.path, help=published)
    command_line.add_family(parser)
    parser.add_argument(
        "--all", action="store_true", help="a line for each layer, instead of one for all that are alike"
    )


def embed(parser: argparse.ArgumentParser) -> None:
    """Makes a vector of each text: the mean of the encoder's last hidden states, of length one.

    Prints how alike the texts are (cosine similarity); with --out writes the vectors as a .npy file.
    """
    add, path = parser.add_argument, command_line.path
    _add_model(parser, "directory of an encoder's published weights, or its --workdir")
    add("--text", action="append", type=command_line.text, default=[], help="may be given several times")
    add("--file", type=path, help="one text a line; - is stdin")
    add("--out", metavar="FILE.npy", type=path, help="where the vectors go, float32 [texts, width]")


def fill_mask(parser: argparse.ArgumentParser) -> None:
    """Guesses the hidden word of a sentence: the likeliest tokens with their probabilities."""
    _add_model(parser, "directory of an encoder with its masked-LM head, or its --workdir")
    parser.add_argument("text", type=command_line.text, help="with [MASK] in it")
    parser.add_argument("--top_k", type=int, default=5, help="guesses to show (default: %(default)s)")


def plan(parser: argparse.ArgumentParser) -> None:
    """Says whether a training run fits a machine, and what it will cost, before there is one.

    The train step of the config is compiled for the machine's chips on this CPU: for TPUs by their compiler (pip install
    'flaxformer_lite[tpu-plan]'), for GPUs by XLA's (pip install 'flaxformer_lite[cuda]'). Without it the plan is analytic,
    and says so.
    """
    add = parser.add_argument
    add("--topology", required=True, help="v5e:16x16, v5p-128, h100:8, ...")
    add("--search", action="store_true", help="try meshes, batches and remat policies, and rank them")
    add("--compiles", type=command_line.integer(0), default=6, help="of a search, at most (default 6)")
    add("--analytic", action="store_true", help="no compiler, even where there is one")
    add("--json", action="store_true", help="one JSON object on stdout")


def verify_mesh(parser: argparse.ArgumentParser) -> None:
    """Says whether a config computes the same on a mesh as on one device: one step of both, gradient by gradient.

    The devices are made up, on this CPU. The text is random words, the arithmetic float32, dropout off and the optimizer
    plain gradient descent, so that what differs is the mesh. Give large configs fewer layers and rows with --config.FIELD.
    """
    number = command_line.integer(1, MOST_DEVICES)
    parser.add_argument("--devices", type=number, default=8, help=f"to make up, {MOST_DEVICES} at most (default 8)")
    parser.add_argument("--all", action="store_true", help="every parameter, instead of the worst")


def _add_model(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--model", required=True, type=command_line.path, help=what)
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="default: %(default)s")
    command_line.add_family(parser)


def _made_up_devices(args: argparse.Namespace) -> Mapping[str, str]:
    flag = f"--xla_force_host_platform_device_count={args.devices}"
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flag}"}


class Command(NamedTuple):
    """One command, which `run` of the file of its name carries out.

    Attributes:
      summary: in the list of commands.
      add_arguments: declares its flags; its docstring is the command's description.
      examples: below the help of its flags.
      takes_config: whether it has --config and the fields below it.
      environment: variables that have to be set before jax is imported.
    """

    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    examples: str
    takes_config: bool = False
    environment: Callable[[argparse.Namespace], Mapping[str, str]] = lambda _: {}


COMMANDS = {
    "train": Command(
        "train a model, or go on with a run that was stopped",
        train,
        """examples:
  flaxformer_lite train --config=gpt2_tiny --workdir=runs/gpt2
  flaxformer_lite train --config=gpt2_tiny:rope --workdir=runs/own --config.data.path=my_text.txt
  flaxformer_lite train --config=gpt2_tiny --help
""",
        takes_config=True,
    ),
    "generate": Command(
        "write text with a model",
        generate,
        """examples:
  flaxformer_lite generate --model path/to/gpt2 --prompt "Once upon a time" --max_new_tokens 40
  flaxformer_lite generate --model runs/gpt2 --prompt "def " --temperature 0.8 --top_p 0.95 --stream
  flaxformer_lite generate --model path/to/t5 --prompt "translate English to German: Good day." --num_beams 4
  flaxformer_lite generate --model path/to/llama_chat --chat --prompt "Why is the sky blue?" --stream
  echo "Dear diary," | flaxformer_lite generate --model path/to/gpt2 --prompt - --stop "."
""",
    ),
    "convert": Command(
        "write any checkpoint as published weights",
        convert,
        """examples:
  flaxformer_lite convert runs/gpt2 published/gpt2
  flaxformer_lite convert old/flax_bert published/bert --dtype bfloat16
  flaxformer_lite convert path/to/llama published/llama --shard_size 2GB
  flaxformer_lite convert path/to/bert published/bert_body --head none
""",
    ),
    "inspect": Command(
        "say what a directory holds",
        inspect,
        """examples:
  flaxformer_lite inspect path/to/bert
  flaxformer_lite inspect runs/gpt2 --all

Tensors have their published names, so a training workdir, its conversion to safetensors, and Flax's old msgpack of the
same model have the same checksum.
""",
    ),
    "embed": Command(
        "make vectors of sentences and compare them",
        embed,
        """examples:
  flaxformer_lite embed --model path/to/minilm --text "A cat sleeps." --text "A kitten naps." --text "Stocks fell."
  flaxformer_lite embed --model path/to/minilm --file sentences.txt --out vectors.npy
""",
    ),
    "fill-mask": Command(
        "guess the hidden word of a sentence",
        fill_mask,
        """examples:
  flaxformer_lite fill-mask --model path/to/bert "The capital of [MASK] is Paris."
  flaxformer_lite fill-mask --model runs/bert "import [MASK]" --top_k 10

[MASK] stands for the model's own mask token, which may be written as well (<mask> for RoBERTa). Several are guessed one by
one, none knowing the others' guess.
""",
    ),
    "plan": Command(
        "say what a training run needs of machines that are not there",
        plan,
        """examples:
  flaxformer_lite plan --config=llama_7b --topology=v5e:16x16 --config.mesh.fsdp=16
  flaxformer_lite plan --config=gpt2_small --topology=h100:8 --search
  flaxformer_lite plan --config=t5_xxl --topology=v5p-128 --json

Machines: v4, v5e, v5p, v6e as grids (v5e:16x16) or as their makers call them (v5e-256; v5p-128 counts cores);
a100, h100, h200 by number. Exits with 1 where it does not fit. Times are the compiler's estimate, not measured.
""",
        takes_config=True,
        environment=lambda _: environment.ENVIRONMENT,
    ),
    "verify-mesh": Command(
        "compare a step on a mesh with the same step on one device",
        verify_mesh,
        """examples:
  flaxformer_lite verify-mesh --config=llama_tiny --config.mesh.fsdp=2 --config.mesh.tensor=2
  flaxformer_lite verify-mesh --config=t5_tiny --config.mesh.context=4 --devices=4 --all
  flaxformer_lite verify-mesh --config=bert_tiny --config.mesh.mode=pmap

Exits with 1 where a gradient differs by more than rounding. Also lists the large parameters that every device holds
whole, what the devices exchange, and which of it nothing in the design explains.
""",
        takes_config=True,
        environment=_made_up_devices,
    ),
}
