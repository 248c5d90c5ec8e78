"""Writes text with a decoder or an encoder-decoder; only what the model wrote goes to stdout.

The defaults are the settings in the directory's generation_config.json or config.json; without any, each token is the
likeliest one, as always with --temperature 0 --num_beams 1.
"""

import argparse

from flaxformer_lite.cli import command_line

EXAMPLES = """examples:
  flaxformer_lite generate --model path/to/gpt2 --prompt "Once upon a time" --max_new_tokens 40
  flaxformer_lite generate --model runs/gpt2 --prompt "def " --temperature 0.8 --top_p 0.95 --stream
  flaxformer_lite generate --model path/to/t5 --prompt "translate English to German: Good day." --num_beams 4
  flaxformer_lite generate --model path/to/llama_chat --chat --prompt "Why is the sky blue?" --stream
  echo "Dear diary," | flaxformer_lite generate --model path/to/gpt2 --prompt - --stop "."
"""
SETTINGS = (
    ("temperature", float, "above 0 samples tokens; 1 is the model's own distribution"),
    ("top_k", int, "sample from the k likeliest"),
    ("top_p", float, "sample from the likeliest tokens with this total probability"),
    ("min_p", float, "sample from tokens with at least this fraction of the highest probability"),
    ("repetition_penalty", float, "above 1 makes repeated tokens less likely"),
    ("no_repeat_ngram_size", int, "no n-gram of this size appears twice"),
    ("min_new_tokens", int, "write no stop token before this many tokens"),
    ("num_beams", int, "beam search with this many beams"),
    ("length_penalty", float, "for beam search; above 0 favors long texts"),
    ("num_return_sequences", int, "number of texts per prompt"),
    ("seed", int, "seed of the samples"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, integer = (
        parser.add_argument,
        command_line.integer(-command_line.INT32),
    )  # generate explains values that are too small
    add(
        "--model",
        required=True,
        type=command_line.path,
        help="directory of published weights, or the --workdir of train",
    )
    add(
        "--prompt",
        required=True,
        action="append",
        type=command_line.text,
        help="may be given several times; - reads stdin",
    )
    add("--max_new_tokens", type=integer, metavar="INT", help="the most tokens to write (default: 64, or what fits)")
    for name, kind, what in SETTINGS:
        add(f"--{name}", type=integer if kind is int else kind, metavar=kind.__name__.upper(), help=what)
    add(
        "--stop",
        action="append",
        type=command_line.text,
        metavar="TEXT",
        help="ends the text; may be given several times",
    )
    add("--stream", action="store_true", help="print the text as it is written")
    add("--chat", action="store_true", help="format the prompt as a user's message, by the chat template")
    add("--system", metavar="TEXT", type=command_line.text, help="with --chat, the system message")
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="default: %(default)s")


def run(args: argparse.Namespace) -> None:
    from flaxformer_lite.cli import _generate

    names = ("max_new_tokens", *(name for name, *_ in SETTINGS))
    _generate.write(args, {name: value for name in names if (value := getattr(args, name)) is not None})
