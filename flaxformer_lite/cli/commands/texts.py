"""Commands that write texts and search them."""

import argparse

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.commands.declare import (
    add_adapter,
    add_model,
    add_size,
    declare_command,
)
from flaxformer_lite.config.choices import CACHES, QUANTIZATIONS

# Flags of `generate` that are settings of the library's `generate`: name, type, help.
SETTINGS = (
    ("temperature", float, "above 0 to sample; 1 leaves the model's distribution as it is"),
    ("top_k", int, "sample from the k most probable tokens"),
    ("top_p", float, "sample from the most probable tokens with this total probability"),
    ("min_p", float, "sample from tokens with at least this fraction of the highest probability"),
    ("repetition_penalty", float, "above 1 to make repeated tokens less probable"),
    ("no_repeat_ngram_size", int, "never repeat an n-gram of this size"),
    ("min_new_tokens", int, "write at least this many tokens before a stop token"),
    ("num_beams", int, "number of beams of beam search"),
    ("length_penalty", float, "for beam search; above 0 favors longer texts"),
    ("num_return_sequences", int, "number of texts per prompt"),
    ("seed", int, "random seed for sampling"),
)


@declare_command(
    "write text with a model",
    '--model path/to/gpt2 --prompt "Once upon a time" --temperature 0.8 --stream',
    '--model runs/gpt2 --prompt "def " --temperature 0.8 --top_p 0.95',
    '--model path/to/t5 --prompt "translate English to German: I" --num_beams 4',
    '--model path/to/llama_chat --chat --prompt "Why is the sky blue?" --stream',
    '--model path/to/smollm2 --prompt "def " --prompt-lookup 8',
    'echo "Dear diary," | flaxformer_lite generate --model path/to/gpt2 --prompt - --stop "."',
)
def generate(parser: argparse.ArgumentParser) -> None:
    """Generates text with a decoder or an encoder-decoder; prints nothing else to stdout.

    The defaults are the settings in the directory's generation_config.json or config.json; if it
    has none, decoding is greedy. --temperature 0 --num_beams 1 is always greedy.
    """
    add = parser.add_argument
    # `generate` itself explains values that are too small.
    integer = command_line.integer(-command_line.MAX_INT32)
    add_model(parser, "directory of published weights, or the --workdir of train")
    add_adapter(parser)
    add(
        "--quantize",
        choices=QUANTIZATIONS[1:],
        help="hold the layers' matrices in 8 or 4 bits (default: as floats)",
    )
    add(
        "--matmul",
        choices=("int8",),
        help="with --quantize int8, round inputs to 8 bits, too (default: floats)",
    )
    add("--cache", choices=CACHES[1:], help="keep keys and values in 8 bits (default: as floats)")
    add(
        "--prompt",
        required=True,
        action="append",
        type=command_line.text,
        help="text to continue, or - for stdin; may be repeated",
    )
    add(
        "--max_new_tokens",
        type=integer,
        metavar="INT",
        help="maximum number of tokens to generate (default: 64, or what the model has room for)",
    )
    for name, kind, what in SETTINGS:
        parse = integer if kind is int else kind
        add(f"--{name}", type=parse, metavar=kind.__name__.upper(), help=what)
    add(
        "--stop",
        action="append",
        type=command_line.text,
        metavar="TEXT",
        help="stop before this text; may be repeated",
    )
    add(
        "--draft",
        metavar="DIR",
        type=command_line.model,
        help="a smaller model with the same tokenizer, whose guesses are read several at a time",
    )
    add(
        "--draft_tokens",
        dest="num_assistant_tokens",
        type=integer,
        metavar="INT",
        help="tokens that the draft guesses at a time (default: 4)",
    )
    add(
        "--prompt_lookup",
        dest="prompt_lookup_num_tokens",
        type=integer,
        metavar="INT",
        help="guess up to this many tokens at a time from the text so far",
    )
    add("--stream", action="store_true", help="print the text while it is generated")
    add(
        "--chat",
        action="store_true",
        help="format the prompt as a user's message with the chat template",
    )
    add(
        "--system",
        metavar="TEXT",
        type=command_line.text,
        help="system message, with --chat",
    )
    add(
        "--chat_variable",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        type=command_line.text,
        help="variable of the chat template, such as enable_thinking=false; may be repeated",
    )
    add(
        "--answer",
        metavar="TEXT",
        type=command_line.text,
        help="beginning of the answer, which the model goes on with, with --chat",
    )
    add(
        "--literal",
        action="store_true",
        help="read special tokens in the prompt, such as </s>, as plain text",
    )


@declare_command(
    "turn sentences into vectors and compare them",
    '--model path/to/minilm --text "A cat sleeps." --text "A kitten naps."',
    "--model path/to/minilm --file sentences.txt --out vectors.npy",
)
def embed(parser: argparse.ArgumentParser) -> None:
    """Computes a vector for each text, as sentence-transformers does for the same directory.

    By default it is the normalized mean of the encoder's last hidden states. Prints the
    similarities of the texts, or with --out writes the vectors: those of dense models to a .npy
    file, sparse ones (SPLADE, scipy's save_npz) and those of each token (ColBERT: `vectors` of all
    texts, and `lengths`) to a .npz file.
    """
    add = parser.add_argument
    add_model(parser, "directory of an encoder's published weights, or its --workdir")
    add(
        "--text",
        action="append",
        type=command_line.text,
        default=[],
        help="a text; may be repeated",
    )
    add("--file", type=command_line.path, help="file with one text per line, or - for stdin")
    add_size(parser)
    prompts = parser.add_mutually_exclusive_group()
    prompts.add_argument(
        "--prompt_name",
        metavar="NAME",
        type=command_line.text,
        help="name of the model's prompt to put before each text, such as query (default: the one"
        " that config_sentence_transformers.json names, if any)",
    )
    prompts.add_argument(
        "--prompt",
        type=command_line.text,
        help="prompt to put before each text instead; '' for none",
    )
    add(
        "--out",
        metavar="FILE",
        type=command_line.new_file(".npy", ".npz"),
        help="file for the vectors, float32",
    )
    add(
        "--task",
        choices=("query", "document"),
        default="",
        help="what the texts are, for models that treat the two differently; its prompt is put"
        " before each text",
    )


@declare_command(
    "predict the masked word of a sentence",
    '--model path/to/bert "The capital of [MASK] is Paris."',
    '--model runs/bert "import [MASK]" --top_k 10',
)
def fill_mask(parser: argparse.ArgumentParser) -> None:
    """Predicts the masked word of a sentence: the most probable tokens and their probabilities.

    [MASK] stands for the model's mask token, which can be given as well (<mask> for RoBERTa). If
    there are several masks, each is predicted independently of the others.
    """
    add_model(parser, "directory of an encoder with its masked-LM head, or its --workdir")
    parser.add_argument("text", type=command_line.text, help="text that contains [MASK]")
    parser.add_argument(
        "--top_k",
        type=command_line.integer(1),
        default=5,
        help="number of predictions to show (default: %(default)s)",
    )
