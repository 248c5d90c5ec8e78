"""The commands: their summaries, examples and flags.

Each is implemented by `run` in the file of its name. This one imports no jax, so that `--help`
takes 0.1 CPU seconds; to import the file of a command takes 1.2 (on an AMD EPYC).
"""

import argparse
import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

from flaxformer_lite.cli import command_line
from flaxformer_lite.config.choices import CACHES, DTYPES, HELD
from flaxformer_lite.plan import environment
from flaxformer_lite.runtime import invocation

CONFIG_HELP = "a page (gpt2_tiny, gpt2_tiny:rope) or your own file; add --help to list its fields"
MOST_DEVICES = 512  # simulated devices; each starts its own threads
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


class Command(NamedTuple):
    """One command, whose errors failures.py explains.

    Attributes:
      summary: its line in the list of commands.
      add_arguments: declares its flags; its docstring is the command's description.
      examples: its arguments, or a line for a shell.
      takes_config: whether it has --config and its fields.
      environment: variables that must be set before jax is imported.
    """

    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    examples: tuple[str, ...]
    takes_config: bool
    environment: Callable[[argparse.Namespace], Mapping[str, str]]


COMMANDS: dict[str, Command] = {}


def command(
    summary: str,
    *examples: str,
    takes_config: bool = False,
    environment: Callable[[argparse.Namespace], Mapping[str, str]] = lambda _: {},
) -> Callable:
    """Registers a function that declares the flags of the command of its name."""

    def register(add_arguments: Callable) -> Callable:
        name = add_arguments.__name__.replace("_", "-")
        COMMANDS[name] = Command(summary, add_arguments, examples, takes_config, environment)
        return add_arguments

    return register


def examples(*names: str, most: int | None = None) -> str:
    """Returns examples of commands, at most `most` of each, as this program was started."""
    shown = ["examples:"]
    for name in names:
        program = invocation.program(name)
        for example in COMMANDS[name].examples[:most]:
            spelled = f"flaxformer_lite {name}"
            line = example if spelled in example else f"{spelled} {example}"
            shown.append(f"  {line}".replace(spelled, program))
    return "\n".join(shown)


def _made_up_devices(args: argparse.Namespace) -> Mapping[str, str]:
    flag = f"--xla_force_host_platform_device_count={args.devices}"
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flag}"}


@command(
    "train a model, or continue a run that was stopped",
    "--config=gpt2_tiny --workdir=runs/gpt2",
    "--config=gpt2_tiny:rope --workdir=runs/own --config.data.path=my_text.txt",
    "--config=gpt2_tiny --help",
    takes_config=True,
)
def train(parser: argparse.ArgumentParser) -> None:
    """Trains a model; the same command continues a run that was stopped.

    --config.FIELD=VALUE overrides any field of the config. On a TPU pod, or under Slurm or OpenMPI,
    run the same command in every process; docs/clusters.md has the recipes.
    """
    add = parser.add_argument
    add(
        "--workdir",
        type=command_line.place,
        help="folder, or gs:// or s3:// address, for everything the run writes",
    )
    add(
        "--coordinator",
        metavar="HOST:PORT",
        help="address of process 0, if no cluster is detected",
    )
    add(
        "--num_processes",
        type=int,
        help="number of processes; 1 trains alone, even inside a cluster",
    )
    add("--process_id", type=int, help="number of this process, from 0")
    add(
        "--start_timeout",
        type=command_line.integer(1),
        default=300,
        help="seconds to wait for all processes to start (default: %(default)s)",
    )
    add(
        "--peer_timeout",
        type=command_line.integer(5),
        default=60,
        help="seconds until a process that does not answer counts as lost (default: %(default)s)",
    )
    add(
        "--stopped_code",
        type=command_line.integer(0, 255),
        default=0,
        metavar="CODE",
        help="exit code, for schedulers, when SIGTERM or SIGHUP stopped the run and its state was"
        " saved (default: %(default)s)",
    )


@command(
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
    integer = command_line.integer(-command_line.INT32)
    _add_model(parser, "directory of published weights, or the --workdir of train")
    _add_adapter(parser)
    add(
        "--quantize",
        choices=HELD[1:],
        help="hold the layers' matrices in 8 or 4 bits (default: as floats)",
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
        "--literal",
        action="store_true",
        help="read special tokens in the prompt, such as </s>, as plain text",
    )


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
    _add_task(parser, "also write the rows with their predictions: .csv, .tsv or .jsonl")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--retrieval",
        action="store_true",
        help="search the answer of each row among those of all rows and their negatives",
    )
    _add_prompts(parser)


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
    _add_task(parser, "file to write: .csv, .tsv or .jsonl (default: csv on stdout)")


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
    add("dst", metavar="DST", type=command_line.model, help="directory to write")
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
    _add_model(parser, "published weights of a model that writes, or its --workdir")
    _add_adapter(parser)
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
    add("--output_path", type=command_line.path, metavar="DIR", help="folder for its results")
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


@command(
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
    _add_model(parser, "directory of an encoder's published weights, or its --workdir")
    add(
        "--text",
        action="append",
        type=command_line.text,
        default=[],
        help="a text; may be repeated",
    )
    add("--file", type=command_line.path, help="file with one text per line, or - for stdin")
    prompts = parser.add_mutually_exclusive_group()
    prompts.add_argument(
        "--prompt-name",
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


@command(
    "find hard negatives for rows of a query and its answer",
    "--model path/to/minilm --data pairs.jsonl --output mined.jsonl --relative_margin 0.05",
    "--model runs/search --data pairs.jsonl --output mined.jsonl --sampling random --range_max 50",
)
def mine(parser: argparse.ArgumentParser) -> None:
    """Finds hard negatives: documents that a model finds similar to a query and are not its answer.

    The documents are all answers and negatives of the table, and the lines of --corpus. The rows
    that it writes, with `anchor`, `positive` and the list `negatives`, train sentence_embeddings,
    sparse_embeddings and late_interaction. Ranges, scores and margins are those of
    sentence-transformers' mine_hard_negatives; with several answers of a query, margins are from
    the least similar.
    """
    add = parser.add_argument
    _add_model(parser, "directory of a sentence model of any kind, or its --workdir")
    add("--data", required=True, type=command_line.place, help="table of queries and answers")
    add(
        "--output",
        required=True,
        metavar="FILE.jsonl",
        type=command_line.new_file(".jsonl"),
        help="file for the rows",
    )
    add(
        "--columns",
        type=command_line.text,
        metavar="ROLE=NAME,...",
        help="columns of the table: anchor, positive, negatives",
    )
    add("--corpus", type=command_line.path, help="file with further documents, one per line")
    _add_prompts(parser)
    add(
        "--negatives",
        type=command_line.integer(1),
        default=3,
        help="negatives of a query (default: %(default)s)",
    )
    add(
        "--range_min",
        type=command_line.integer(0),
        default=0,
        help="candidates to leave out, the most similar first (default: %(default)s)",
    )
    add(
        "--range_max",
        type=command_line.integer(1),
        help="candidates to choose from (default: as many as are needed)",
    )
    add("--max_score", type=float, help="highest similarity of a negative")
    add("--min_score", type=float, help="lowest similarity of a negative")
    add(
        "--absolute_margin",
        type=float,
        help="a negative is less similar than the answer by at least this",
    )
    add(
        "--relative_margin",
        type=float,
        help="a negative is less similar than the answer by at least this share: 0.05 is 5%%",
    )
    add(
        "--sampling",
        choices=("top", "random"),
        default="top",
        help="which candidates to take (default: %(default)s)",
    )
    add("--seed", type=command_line.integer(0), default=0, help="of the random choice")


@command(
    "predict the masked word of a sentence",
    '--model path/to/bert "The capital of [MASK] is Paris."',
    '--model runs/bert "import [MASK]" --top_k 10',
)
def fill_mask(parser: argparse.ArgumentParser) -> None:
    """Predicts the masked word of a sentence: the most probable tokens and their probabilities.

    [MASK] stands for the model's mask token, which can be given as well (<mask> for RoBERTa). If
    there are several masks, each is predicted independently of the others.
    """
    _add_model(parser, "directory of an encoder with its masked-LM head, or its --workdir")
    parser.add_argument("text", type=command_line.text, help="text that contains [MASK]")
    parser.add_argument(
        "--top_k",
        type=command_line.integer(1),
        default=5,
        help="number of predictions to show (default: %(default)s)",
    )


@command(
    "find the nearest neighbors of words or texts, and score word vectors",
    '--model runs/words --word king --analogy "paris france london"',
    "--model path/to/t5 --questions questions-words.txt --pairs wordsim353.tsv",
    '--model path/to/minilm --text "what falls from the sky?" --file sentences.txt',
)
def similar(parser: argparse.ArgumentParser) -> None:
    """Finds the nearest neighbors of words in a model's token table, and scores the table.

    --analogy "a b c" looks for d in "a is to b as c is to d", the nearest word to b - a + c: "paris
    france london" asks for the country of London. Neighbors are words of one token; a given word of
    several tokens is the mean of their vectors. --questions and --pairs compare the table with
    human judgements.

    --text finds the lines of --file that a sentence model, of whatever kind, finds most similar.
    """
    add = parser.add_argument
    add(
        "--model",
        required=True,
        type=command_line.model,
        help="the --workdir of train, or published weights",
    )
    add(
        "--word",
        action="append",
        type=command_line.text,
        default=[],
        help="word whose neighbors to show; may be repeated",
    )
    add(
        "--analogy",
        action="append",
        type=command_line.text,
        default=[],
        metavar='"A B C"',
        help="three words of an analogy; may be repeated",
    )
    add(
        "--text",
        action="append",
        type=command_line.text,
        default=[],
        help="text whose neighbors among the lines of --file to show; may be repeated",
    )
    add("--file", type=command_line.path, help="file with one text per line, or - for stdin")
    _add_prompts(parser)
    add(
        "--questions",
        type=command_line.path,
        help="file of analogies: four words per line, in sections that begin with ': name'",
    )
    add(
        "--pairs",
        type=command_line.path,
        help="file of word pairs and their similarity, separated by tab or comma (wordsim353)",
    )
    add(
        "--top_k",
        type=command_line.integer(1),
        default=10,
        help="number of words or texts to show (default: %(default)s)",
    )
    command_line.add_family(parser)
    add(
        "--dtype",
        choices=DTYPES,
        default="float32",
        help="dtype of weights and arithmetic, with --text (default: %(default)s)",
    )


@command(
    "show what a model computes on one text, as a page",
    '--model path/to/gpt2 --text "To be, or not to be" --output gpt2.html',
    '--model path/to/t5 --text "translate English to German: I" --output t5.html',
    '--model runs/gpt2 --text "def __init__(self):" --output attention.png',
)
def look(parser: argparse.ArgumentParser) -> None:
    """Shows what a model computes on one text, as a page for any browser.

    The page shows attention, logit lens, losses, hidden states, positions and masks, and needs no
    network. If --output ends in .png, .pdf or .svg, writes a figure of the attention maps instead.
    """
    add = parser.add_argument
    _add_model(parser, "directory of published weights, or the --workdir of train")
    _add_adapter(parser)
    add("--text", required=True, type=command_line.text, help="text that the model reads")
    add(
        "--target",
        type=command_line.text,
        help="text that the decoder reads: the answer of an encoder-decoder (default: the model's"
        " own), or the continuation of a decoder-only model's text",
    )
    add(
        "--output",
        required=True,
        metavar="FILE",
        type=command_line.new_file(".html", ".png", ".pdf", ".svg"),
        help=".html, or .png, .pdf, .svg for attention alone",
    )
    add(
        "--max_tokens",
        type=command_line.integer(1),
        default=64,
        help="maximum length of the text and of the target (default: %(default)s)",
    )
    add(
        "--top_k",
        type=command_line.integer(1),
        default=5,
        help="tokens that the logit lens shows at each position (default: %(default)s)",
    )
    add(
        "--prefix_lm",
        action="store_true",
        help="attend to the text in both directions, as the prefix_lm objective trains decoders",
    )


@command(
    "compare runs: results, curves, and fields that differ",
    "runs/gpt2 runs/wide",
    "runs/* --output compare.html",
)
def compare(parser: argparse.ArgumentParser) -> None:
    """Compares runs: steps, tokens, held-out metrics, speed, and the fields that differ.

    Runs that are still going, or were stopped or killed, are compared as far as they got.
    """
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        type=command_line.place,
        help="the --workdir of a run",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=command_line.new_file(".html", ".png"),
        help="file for the held-out curves: .html or .png",
    )


@command(
    "show the rows of a step of a run, and where they came from",
    "--workdir runs/gpt2 --at 1234",
    '--workdir runs/gpt2 --document "book.txt:1500"',
    '--workdir runs/gpt2 --document "It was a dark and stormy night"',
)
def steps(parser: argparse.ArgumentParser) -> None:
    """Shows the rows of a step, with the file and line of each, or the steps that saw a document.

    Batches are a function of the seed and the step, so this needs no log: only the workdir, and the
    data at the path that the run read.
    """
    add = parser.add_argument
    add("--workdir", required=True, type=command_line.place, help="the --workdir of train")
    add("--at", type=command_line.integer(1), metavar="STEP", help="step whose rows to print")
    add(
        "--document",
        type=command_line.text,
        metavar="X",
        help="FILE:LINE, the number of a document or of a table's row, or words of the text",
    )
    add(
        "--full",
        action="store_true",
        help="print rows in full, with every file and line they came from",
    )


@command(
    "repeat a step of a run, and show the loss of each of its rows",
    "--workdir runs/gpt2 --at 1234",
    "--workdir runs/gpt2 --at 1234 --output runs/gpt2_1234",
)
def replay(parser: argparse.ArgumentParser) -> None:
    """Repeats a step of a run from the nearest earlier checkpoint, and prints the loss of each row.

    On the same devices the numbers equal those of the run bit for bit, which is checked against
    metrics.jsonl. The workdir is only read, so the run may continue meanwhile.
    """
    add = parser.add_argument
    add("--workdir", required=True, type=command_line.place, help="the --workdir of train")
    add(
        "--at",
        required=True,
        type=command_line.integer(1),
        metavar="STEP",
        help="step to repeat",
    )
    add(
        "--output",
        type=command_line.path,
        metavar="DIR",
        help="new workdir for a checkpoint of that step",
    )


@command(
    "show the data of a config, or tokenize it beforehand",
    "stats --config=gpt2_tiny --config.data.path=my_text.txt",
    "show --config=bert_tiny --rows 2",
    'tokenize --config=llama_7b --config.data.path="web/*.zst"',
    takes_config=True,
)
def data(parser: argparse.ArgumentParser) -> None:
    """Shows the data that a config trains on, or tokenizes it beforehand.

    stats prints sizes, lengths and the share of padding; show prints the first training rows as the
    model reads them, with the tokens that have a loss in «»; tokenize fills data.cache with all
    cores, together with other hosts that share the cache and run the same command.
    """
    add = parser.add_argument
    add("what", choices=("stats", "show", "tokenize"))
    add(
        "--rows",
        type=command_line.integer(1, 1000),
        default=3,
        help="number of rows to show (default: %(default)s)",
    )
    add(
        "--seed",
        type=command_line.integer(0),
        help="random seed for order and masking (default: config.seed)",
    )


@command(
    "estimate memory and time of a training run on other machines",
    "--config=llama_7b --topology=v5e:16x16",
    "--config=gpt2_small --topology=h100:8 --search",
    "--config=t5_xxl --topology=v5p-128 --json",
    takes_config=True,
    environment=lambda _: environment.ENVIRONMENT,
)
def plan(parser: argparse.ArgumentParser) -> None:
    """Estimates the memory and time of a training run on a machine, without the machine.

    Compiles the train step of the config for the machine's chips on this CPU: for TPUs with their
    compiler (pip install 'flaxformer_lite[tpu-plan]'), for GPUs with XLA's (pip install
    'flaxformer_lite[cuda]'). Without a compiler the plan is analytic, and says so.

    Machines: v4, v5e, v5p, v6e as grids (v5e:16x16) or by their vendor's names (v5e-256; v5p-128
    counts cores); a100, h100, h200 by number. Exits with 1 if the step does not fit. Times are the
    compiler's estimate, not measured.
    """
    add = parser.add_argument
    add("--topology", required=True, help="v5e:16x16, v5p-128, h100:8, ...")
    add(
        "--search",
        action="store_true",
        help="try meshes, batches and remat policies, and rank them",
    )
    add(
        "--compiles",
        type=command_line.integer(0),
        default=6,
        help="maximum number of compilations of a search (default: %(default)s)",
    )
    add("--analytic", action="store_true", help="use no compiler, even if there is one")
    add("--json", action="store_true", help="print one JSON object on stdout")


@command(
    "compare a step on a mesh with the same step on one device",
    "--config=llama_tiny --config.mesh.fsdp=2 --config.mesh.tensor=2",
    "--config=t5_tiny --config.mesh.context=4 --devices=4 --all",
    "--config=bert_tiny --config.mesh.mode=pmap",
    takes_config=True,
    environment=_made_up_devices,
)
def verify_mesh(parser: argparse.ArgumentParser) -> None:
    """Checks that a config computes the same gradients on a mesh as on one device.

    Compares all gradients of one step on devices that are simulated on this CPU. The text is random
    words, the arithmetic float32, dropout is off and the optimizer is plain gradient descent, so
    only the mesh differs. Give large configs fewer layers and rows with --config.FIELD. Exits with
    1 if a gradient differs by more than rounding.

    Also lists large parameters that are replicated on every device, what the devices exchange, and
    exchanges that the design does not explain.
    """
    parser.add_argument(
        "--devices",
        type=command_line.integer(1, MOST_DEVICES),
        default=8,
        help="number of simulated devices (default: %(default)s)",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="list every parameter, instead of the worst",
    )


@command(
    "print a shell completion script",
    'eval "$(flaxformer_lite completion bash)"',
)
def completion(parser: argparse.ArgumentParser) -> None:
    """Prints a script with which bash or zsh complete commands, flags, pages and choices.

    Evaluate it in ~/.bashrc or ~/.zshrc; each new shell then has that of the installed version.
    """
    parser.add_argument("shell", choices=("bash", "zsh"), help="the shell that reads it")


def _add_task(parser: argparse.ArgumentParser, output: str) -> None:
    """Adds the flags of commands that run a model on a file of examples."""
    add = parser.add_argument
    _add_model(parser, "the --workdir of train, or a directory of published weights")
    add("--data", required=True, type=command_line.place, help="file to read")
    add(
        "--output",
        metavar="FILE",
        type=command_line.new_file(".csv", ".tsv", ".jsonl"),
        help=output,
    )
    add(
        "--columns",
        type=command_line.text,
        metavar="ROLE=NAME,...",
        help="columns of the table, or text=FIELD for text (default: those of the run)",
    )
    add(
        "--length",
        type=command_line.integer(1),
        metavar="INT",
        help="tokens per example (default: that of the run)",
    )
    add(
        "--escape_formulas",
        action="store_true",
        help="in csv and tsv, put an apostrophe before texts that a spreadsheet would compute",
    )
    add(
        "--batch_size",
        type=command_line.integer(1),
        metavar="INT",
        help="examples per batch (default: that of the run)",
    )


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of commands that search documents for queries."""
    for what in ("query", "document"):
        parser.add_argument(
            f"--{what}_prompt",
            type=command_line.text,
            metavar="TEXT",
            help=f"prompt to put before each {what} (default: the model's prompt named {what})",
        )


def _add_model(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--model", required=True, type=command_line.model, help=what)
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default="float32",
        help="dtype of weights and arithmetic (default: %(default)s)",
    )
    command_line.add_family(parser)


def _add_adapter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--adapter",
        metavar="DIR",
        type=command_line.model,
        help="LoRA adapter of the model, as PEFT saves it",
    )
