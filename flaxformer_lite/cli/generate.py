"""Writes text with a decoder or an encoder-decoder; only what the model wrote goes to stdout.

Settings that the directory brings in generation_config.json or config.json are the defaults; without any, each token is the
likeliest. --temperature 0 --num_beams 1 is always that.
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, integer = (
        parser.add_argument,
        command_line.integer(-command_line.INT32),
    )  # generate says more of what is too small
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
    add("--max_new_tokens", type=integer, metavar="INT", help="tokens to write at most; else 64, or what fits")
    for name, kind, what in SETTINGS:
        add(f"--{name}", type=integer if kind is int else kind, metavar=kind.__name__.upper(), help=what)
    add(
        "--stop",
        action="append",
        type=command_line.text,
        metavar="TEXT",
        help="ends the text; may be given several times",
    )
    command_line.add_family(parser)
    add("--stream", action="store_true", help="print the text as it is written")
    add("--chat", action="store_true", help="ask as a user would, by the model's chat template")
    add("--system", metavar="TEXT", type=command_line.text, help="with --chat, what the assistant is told beforehand")
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="default: %(default)s")


def run(args: argparse.Namespace) -> None:
    from flaxformer_lite.cli import _generate

    names = ("max_new_tokens", *(name for name, *_ in SETTINGS))
    _generate.write(args, {name: value for name in names if (value := getattr(args, name)) is not None})
