"""Flags of every command, light enough that `--help` imports no jax."""

import argparse

from flaxformer_lite.cli import command_line
from flaxformer_lite.config.choices import DTYPES

CONFIG_HELP = "a page (gpt2_tiny, gpt2_tiny:rope) or a file of yours; with --help, lists its fields"
MOST_DEVICES = 512  # simulated; each has its own threads
SETTINGS = (  # of generate: name, type, help
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


def train(parser: argparse.ArgumentParser) -> None:
    """Trains a model, or continues a run that was stopped, by the same command.

    --config.FIELD=VALUE overrides any field of the config. On a TPU pod, under Slurm or OpenMPI,
    run the same command in every process; docs/clusters.md has the recipes.
    """
    add = parser.add_argument
    seconds = "seconds for all processes to appear (default %(default)s)"
    silent = "seconds until a silent process counts as lost (default %(default)s)"
    again = (
        "exit code after SIGTERM or SIGHUP stopped the run and it was saved, for schedulers"
        " (default %(default)s)"
    )
    add(
        "--workdir",
        type=command_line.place,
        help="folder or gs:// or s3:// address for all that the run writes",
    )
    add(
        "--coordinator", metavar="HOST:PORT", help="address of process 0, if no cluster is detected"
    )
    add(
        "--num_processes",
        type=int,
        help="number of processes; 1 trains alone, even inside a cluster",
    )
    add("--process_id", type=int, help="number of this process, from 0")
    add("--start_timeout", type=command_line.integer(1), default=300, help=seconds)
    add("--peer_timeout", type=command_line.integer(5), default=60, help=silent)
    add("--stopped_code", type=command_line.integer(0, 255), default=0, metavar="CODE", help=again)


def generate(parser: argparse.ArgumentParser) -> None:
    """Writes text with a decoder or an encoder-decoder; only what the model wrote goes to stdout.

    The defaults are the settings in the directory's generation_config.json or config.json; without
    any, each token is the likeliest one, as always with --temperature 0 --num_beams 1.
    """
    add = parser.add_argument
    text = command_line.text
    # generate explains values that are too small
    integer = command_line.integer(-command_line.INT32)
    _add_model(parser, "directory of published weights, or the --workdir of train")
    add(
        "--adapter",
        metavar="DIR",
        type=command_line.place,
        help="LoRA adapter of the model, as PEFT saves it",
    )
    add(
        "--prompt",
        required=True,
        action="append",
        type=text,
        help="may be given several times; - reads stdin",
    )
    add(
        "--max_new_tokens",
        type=integer,
        metavar="INT",
        help="the most tokens to write (default: 64, or what fits)",
    )
    for name, kind, what in SETTINGS:
        add(
            f"--{name}",
            type=integer if kind is int else kind,
            metavar=kind.__name__.upper(),
            help=what,
        )
    add(
        "--stop",
        action="append",
        type=text,
        metavar="TEXT",
        help="ends the text; may be given several times",
    )
    add("--stream", action="store_true", help="print the text as it is written")
    add(
        "--chat",
        action="store_true",
        help="format the prompt as a user's message, by the chat template",
    )
    add("--system", metavar="TEXT", type=text, help="with --chat, the system message")
    add(
        "--literal",
        action="store_true",
        help="special tokens that the prompt spells, such as </s>, are text",
    )


def convert(parser: argparse.ArgumentParser) -> None:
    """Writes any checkpoint as published weights: config.json, safetensors and tokenizer, which
    transformers reads too.

    SRC is the --workdir of train (its best or newest checkpoint), or a directory of Flax's old
    msgpack or of safetensors. DST must not exist yet; it appears once it is complete. An adapter of
    the run is merged into the weights.
    """
    add = parser.add_argument
    add("src", metavar="SRC", type=command_line.place, help="directory to read")
    add("dst", metavar="DST", type=command_line.place, help="directory to write")
    add("--dtype", choices=DTYPES, help="dtype of the weights (default: unchanged)")
    add(
        "--adapter",
        action="store_true",
        help="write the run's LoRA adapter alone, in the form of PEFT",
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
        help="largest size of a file, like 500MB (default: %(default)s)",
    )


def evaluate(parser: argparse.ArgumentParser) -> None:
    """Computes the metrics of a model on held-out data, beside a trivial baseline.

    The task is the run's, or that of a published model's head; the data is a table for tasks (csv,
    tsv, json, jsonl, parquet, a `datasets` folder), and text for language models.
    """
    _add_applied(parser, "also write the rows with their predictions: .csv, .tsv or .jsonl")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def predict(parser: argparse.ArgumentParser) -> None:
    """Writes the rows of a table with what a model predicts for each: its columns, then
    `prediction` and its probabilities.

    The task is the run's, or that of a published model's head. The column to be predicted may be
    missing.
    """
    _add_applied(parser, "file to write: .csv, .tsv or .jsonl (default: csv on stdout)")


def _add_applied(parser: argparse.ArgumentParser, output: str) -> None:
    _add_model(parser, "the --workdir of train, or a directory of published weights")
    add = parser.add_argument
    positive = command_line.integer(1)
    add("--data", required=True, type=command_line.place, help="file to read")
    add(
        "--output",
        metavar="FILE",
        type=command_line.new_file(".csv", ".tsv", ".jsonl"),
        help=output,
    )
    columns = "columns, or text=FIELD of text (default: the run's)"
    add("--columns", type=command_line.text, metavar="ROLE=NAME,...", help=columns)
    add("--length", type=positive, metavar="INT", help="tokens of an example (default: the run's)")
    add(
        "--escape_formulas",
        action="store_true",
        help="in csv and tsv, put an apostrophe before texts that a spreadsheet would compute",
    )
    add(
        "--batch_size", type=positive, metavar="INT", help="examples at a time (default: the run's)"
    )


def inspect(parser: argparse.ArgumentParser) -> None:
    """Describes a directory of weights: family, head, sizes, every tensor, and a checksum over
    names and contents.

    Tensors have their published names, so a training workdir, its conversion to safetensors, and
    Flax's old msgpack of the same model have the same checksum.
    """
    published = "published weights, Flax msgpack, or the --workdir of train"
    parser.add_argument("directory", type=command_line.place, help=published)
    command_line.add_family(parser)
    parser.add_argument(
        "--all",
        action="store_true",
        help="one line per layer, instead of one for all that are alike",
    )


def embed(parser: argparse.ArgumentParser) -> None:
    """Turns each text into a vector: the normalized mean of the encoder's last hidden states, or as
    the directory says.

    Prints the cosine similarities of the texts; with --out writes the vectors to a .npy file.
    """
    add = parser.add_argument
    _add_model(parser, "directory of an encoder's published weights, or its --workdir")
    add(
        "--text",
        action="append",
        type=command_line.text,
        default=[],
        help="may be given several times",
    )
    add("--file", type=command_line.path, help="one text per line; - is stdin")
    prompts = parser.add_mutually_exclusive_group()
    prompts.add_argument(
        "--prompt-name",
        metavar="NAME",
        type=command_line.text,
        help="which of the model's prompts is put before each text, such as query; by default the"
        " one that config_sentence_transformers.json names, if any",
    )
    prompts.add_argument(
        "--prompt", type=command_line.text, help="a prompt of your own; '' is none"
    )
    add(
        "--out",
        metavar="FILE.npy",
        type=command_line.new_file(".npy"),
        help="file for the vectors, float32 [texts, width]",
    )


def fill_mask(parser: argparse.ArgumentParser) -> None:
    """Guesses the hidden word of a sentence: the likeliest tokens with their probabilities.

    [MASK] stands for the model's own mask token, which works as well (<mask> for RoBERTa). Several
    masks are guessed independently of each other.
    """
    _add_model(parser, "directory of an encoder with its masked-LM head, or its --workdir")
    parser.add_argument("text", type=command_line.text, help="text that contains [MASK]")
    parser.add_argument(
        "--top_k",
        type=command_line.integer(1),
        default=5,
        help="number of guesses to show (default: %(default)s)",
    )


def similar(parser: argparse.ArgumentParser) -> None:
    """Shows which words a model's token table has near each other, or scores it by people's
    judgements.

    --analogy "a b c" finds d in "a is to b as c is to d", the nearest word to b - a + c: "paris
    france london" asks for the country of London. Found are words that are one token; a given word
    of several tokens is the mean of their vectors.
    """
    add = parser.add_argument
    text = command_line.text
    add(
        "--model",
        required=True,
        type=command_line.place,
        help="the --workdir of train, or published weights",
    )
    add("--word", action="append", type=text, default=[], help="may be given several times")
    add(
        "--analogy",
        action="append",
        type=text,
        default=[],
        metavar='"A B C"',
        help="may be given several times",
    )
    add(
        "--questions",
        type=command_line.path,
        help="file of analogies, four words a line in sections (: name)",
    )
    add(
        "--pairs",
        type=command_line.path,
        help="file of pairs with their similarity, tab or comma between: wordsim353",
    )
    add(
        "--top_k",
        type=command_line.integer(1),
        default=10,
        help="number of words to show (default: %(default)s)",
    )
    command_line.add_family(parser)


def look(parser: argparse.ArgumentParser) -> None:
    """Shows the inside of a model on one text: attention, logit lens, losses, hidden states,
    positions and masks.

    Writes one page that needs no network, for any browser; or, by the suffix of --output, a figure
    of the attention maps.
    """
    add = parser.add_argument
    least = command_line.integer(1)
    _add_model(parser, "directory of published weights, or the --workdir of train")
    add(
        "--adapter",
        metavar="DIR",
        type=command_line.place,
        help="LoRA adapter of the model, as PEFT saves it",
    )
    add("--text", required=True, type=command_line.text, help="what the model reads")
    add(
        "--target",
        type=command_line.text,
        help="an answer (default: the model's own); a decoder's continuation",
    )
    output = command_line.new_file(".html", ".png", ".pdf", ".svg")
    add(
        "--output",
        required=True,
        metavar="FILE",
        type=output,
        help=".html, or .png, .pdf, .svg for attention alone",
    )
    add(
        "--max_tokens",
        type=least,
        default=64,
        help="longest text and target (default: %(default)s)",
    )
    add(
        "--top_k",
        type=least,
        default=5,
        help="tokens of the logit lens at each place (default: %(default)s)",
    )
    add(
        "--prefix_lm",
        action="store_true",
        help="the text sees itself both ways, as decoders of prefix_lm are trained",
    )


def compare(parser: argparse.ArgumentParser) -> None:
    """Lays runs beside each other: steps, tokens, the best and the last held-out value, speed, and
    the fields that differ.

    Runs that go on, were killed or stopped are compared as far as they came.
    """
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", type=command_line.place, help="the --workdir of a run"
    )
    output = command_line.new_file(".html", ".png")
    parser.add_argument(
        "--output", metavar="FILE", type=output, help="file for the held-out curves: .html or .png"
    )


def steps(parser: argparse.ArgumentParser) -> None:
    """Shows the rows that a step of a run saw, with the file and line of each, and the steps that
    saw a document.

    Batches are a function of the seed and the step, so this needs no log: only the workdir, and the
    data where they were.
    """
    add = parser.add_argument
    add("--workdir", required=True, type=command_line.place, help="the --workdir of train")
    add("--at", type=command_line.integer(1), metavar="STEP", help="the step whose rows to print")
    looked = "FILE:LINE, the number of a document or of a table's row, or words of the text"
    add("--document", type=command_line.text, metavar="X", help=looked)
    add(
        "--full",
        action="store_true",
        help="print whole rows, and all the places that they came from",
    )


def replay(parser: argparse.ArgumentParser) -> None:
    """Runs a run again from the nearest checkpoint to one of its steps, and prints the loss of each
    row, the largest first.

    On the same devices the numbers are those of the run bit for bit, which is checked where
    metrics.jsonl has them. The workdir is only read, so that the run may go on meanwhile.
    """
    add = parser.add_argument
    add("--workdir", required=True, type=command_line.place, help="the --workdir of train")
    add(
        "--at",
        required=True,
        type=command_line.integer(1),
        metavar="STEP",
        help="the step to look at",
    )
    add(
        "--output",
        type=command_line.path,
        metavar="DIR",
        help="new workdir for a checkpoint of that step",
    )


def data(parser: argparse.ArgumentParser) -> None:
    """Looks at what a config trains on, or tokenizes it beforehand.

    stats prints sizes, lengths and the share of padding; show prints the first training rows as the
    model reads them, with the tokens that have a loss in «»; tokenize fills data.cache, by all
    cores, and together with other hosts that share it and run the same command.
    """
    add = parser.add_argument
    add("what", choices=("stats", "show", "tokenize"))
    add(
        "--rows",
        type=command_line.integer(1, 1000),
        default=3,
        help="rows to show (default %(default)s)",
    )
    add("--seed", type=command_line.integer(0), help="of order and masking (default: config.seed)")


def plan(parser: argparse.ArgumentParser) -> None:
    """Says whether a training run fits a machine, and what it will cost, without the machine.

    The train step of the config is compiled for the machine's chips on this CPU: for TPUs by their
    compiler (pip install 'flaxformer_lite[tpu-plan]'), for GPUs by XLA's (pip install
    'flaxformer_lite[cuda]'). Without a compiler the plan is analytic, and says so.

    Machines: v4, v5e, v5p, v6e as grids (v5e:16x16) or by their makers' names (v5e-256; v5p-128
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
        help="most compilations of a search (default 6)",
    )
    add("--analytic", action="store_true", help="use no compiler, even if there is one")
    add("--json", action="store_true", help="print one JSON object on stdout")


def verify_mesh(parser: argparse.ArgumentParser) -> None:
    """Checks that a config computes the same on a mesh as on one device, by comparing all gradients
    of one step.

    The devices are simulated on this CPU. The text is random words, the arithmetic float32, dropout
    is off and the optimizer is plain gradient descent, so only the mesh differs. Give large configs
    fewer layers and rows with --config.FIELD. Exits with 1 if a gradient differs by more than
    rounding.

    Also lists the large parameters that every device holds whole, what the devices exchange, and
    exchanges that the design does not explain.
    """
    number = command_line.integer(1, MOST_DEVICES)
    parser.add_argument(
        "--devices", type=number, default=8, help="simulated devices (default %(default)s)"
    )
    parser.add_argument(
        "--all", action="store_true", help="list every parameter, instead of the worst"
    )


def _add_model(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--model", required=True, type=command_line.place, help=what)
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="default: %(default)s")
    command_line.add_family(parser)


def completion(parser: argparse.ArgumentParser) -> None:
    """Prints a script by which bash or zsh complete commands, flags, pages and choices with Tab.

    A line in ~/.bashrc or ~/.zshrc evaluates it anew in each shell, so that it is never older than
    the package.
    """
    parser.add_argument("shell", choices=("bash", "zsh"), help="the shell that reads it")
