"""Commands that write texts and search them."""

import argparse

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.commands.declare import Flags, add_shared, declare_command
from flaxformer_lite.config.choices import CACHES, QUANTIZATIONS


@declare_command(
    "write text with a model, or guess its masked words",
    '--model path/to/gpt2 --prompt "Once upon a time" --temperature 0.8 --stream',
    '--model path/to/t5 --prompt "translate English to German: I" --num_beams 4',
    '--model path/to/llama_chat --chat --prompt "Why is the sky blue?" --stream',
    '--model path/to/smollm2 --prompt "def " --set prompt_lookup_num_tokens=8',
    '--model path/to/bert --prompt "The capital of [MASK] is Paris."',
    'echo "Dear diary," | flaxformer_lite generate --model path/to/gpt2 --prompt - --stop "."',
)
def generate(parser: argparse.ArgumentParser, rarely: Flags) -> None:
    """Generates text with a decoder or an encoder-decoder; prints nothing else to stdout.

    The defaults are the settings in the directory's generation_config.json or config.json; if it
    has none, decoding is greedy. --temperature 0 --num_beams 1 is always greedy.

    An encoder with a masked-LM head guesses each [MASK] of the prompt by itself: the --top_k most
    probable tokens, and their probabilities.
    """
    # `generate` itself explains values that are too small.
    integer = command_line.integer(-command_line.MAX_INT32)
    add = parser.add_argument
    add_shared(parser, "model")
    add(
        "--prompt",
        required=True,
        metavar="TEXT",
        action="append",
        type=command_line.text,
        help="text to continue, or - for stdin; may be repeated",
    )
    add(
        "--max_new_tokens",
        type=integer,
        metavar="INT",
        help="maximum number of tokens to write (default: 64, or what the model has room for)",
    )
    add(
        "--temperature",
        type=float,
        metavar="FLOAT",
        help="above 0 to sample; 1 leaves the model's distribution as it is",
    )
    add("--top_k", type=integer, metavar="INT", help="sample from the k most probable tokens")
    add(
        "--top_p",
        type=float,
        metavar="FLOAT",
        help="sample from the most probable tokens with this total probability",
    )
    add("--seed", type=integer, metavar="INT", help="random seed for sampling")
    add("--num_beams", type=integer, metavar="INT", help="number of beams of beam search")
    add(
        "--stop",
        action="append",
        type=command_line.text,
        metavar="TEXT",
        help="stop before this text; may be repeated",
    )
    add("--stream", action="store_true", help="print the text while it is generated")
    add(
        "--chat",
        action="store_true",
        help="format the prompt as a user's message with the chat template",
    )
    add("--system", metavar="TEXT", type=command_line.text, help="system message, with --chat")
    rarely.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=command_line.text,
        help="another setting of `generate` in Python, such as min_p=0.1, repetition_penalty=1.2,"
        " num_return_sequences=3; may be repeated",
    )
    rarely.add_argument(
        "--chat_variable",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        type=command_line.text,
        help="variable of the chat template, such as enable_thinking=false; may be repeated",
    )
    rarely.add_argument(
        "--draft",
        metavar="DIR",
        type=command_line.model,
        help="a smaller model with the same tokenizer, whose guesses are read several at a time",
    )
    rarely.add_argument(
        "--quantize",
        choices=QUANTIZATIONS[1:],
        help="hold the layers' matrices in 8 or 4 bits (default: as floats)",
    )
    rarely.add_argument(
        "--matmul",
        choices=("int8",),
        help="with --quantize int8, round inputs to 8 bits, too (default: floats)",
    )
    rarely.add_argument(
        "--cache",
        choices=CACHES[1:],
        help="keep keys and values in 8 bits (default: as floats)",
    )
    add_shared(rarely, "dtype", "adapter", "family")


@declare_command(
    "turn sentences into vectors and compare them",
    '--model path/to/minilm --text "A cat sleeps." --text "A kitten naps."',
    "--model path/to/minilm --file sentences.txt --output vectors.npy",
)
def embed(parser: argparse.ArgumentParser, rarely: Flags) -> None:
    """Computes a vector for each text, as sentence-transformers does for the same directory.

    By default it is the normalized mean of the encoder's last hidden states. Prints the
    similarities of the texts, or with --output writes the vectors: those of dense models to a .npy
    file, sparse ones (SPLADE, scipy's save_npz) and those of each token (ColBERT: `vectors` of all
    texts, and `lengths`) to a .npz file.
    """
    add_shared(parser, "model", "text", "file")
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=command_line.new_file(".npy", ".npz"),
        help="file for the vectors, float32",
    )
    parser.add_argument(
        "--task",
        choices=("query", "document"),
        default="",
        help="what the texts are, for models that treat the two differently; its prompt is put"
        " before each text",
    )
    rarely.add_argument(
        "--prompt",
        metavar="TEXT",
        type=command_line.text,
        help="what is put before each text instead: the name of a prompt of the model, or a text;"
        " '' for nothing",
    )
    add_shared(rarely, "size", "dtype")
