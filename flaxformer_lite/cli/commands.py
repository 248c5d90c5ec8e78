"""The commands: their summaries, flags and examples, light enough that `--help` imports no jax."""

import argparse
import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

from flaxformer_lite.cli import arguments
from flaxformer_lite.plan import environment
from flaxformer_lite.runtime import invocation


def _simulated_devices(args: argparse.Namespace) -> Mapping[str, str]:
    flag = f"--xla_force_host_platform_device_count={args.devices}"
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flag}"}


def _no_variables(_: argparse.Namespace) -> Mapping[str, str]:
    return {}


class Command(NamedTuple):
    """A command, implemented by `run` in the module of its name; failures.py explains its errors.

    Attributes:
      summary: its line in the list of commands.
      add_arguments: declares its flags; its docstring is the command's description.
      takes_config: whether it has --config and the flags of its fields.
      environment: returns the variables to set before jax is imported, given the parsed flags.
    """

    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    takes_config: bool = False
    environment: Callable[[argparse.Namespace], Mapping[str, str]] = _no_variables


COMMANDS = {
    "train": Command("train a model, or continue a run that was stopped", arguments.train, True),
    "generate": Command("write text with a model", arguments.generate),
    "evaluate": Command("measure a model on held-out data", arguments.evaluate),
    "predict": Command("predict labels, spans or texts for the rows of a table", arguments.predict),
    "convert": Command("write any checkpoint as published weights", arguments.convert),
    "inspect": Command("describe a directory of weights", arguments.inspect),
    "embed": Command("turn sentences into vectors and compare them", arguments.embed),
    "fill-mask": Command("predict the masked word of a sentence", arguments.fill_mask),
    "similar": Command(
        "find the nearest neighbors of words, and score word vectors", arguments.similar
    ),
    "look": Command("show what a model computes on one text, as a page", arguments.look),
    "compare": Command("compare runs: results, curves, and fields that differ", arguments.compare),
    "steps": Command("show the rows of a step of a run, and where they came from", arguments.steps),
    "replay": Command(
        "repeat a step of a run, and show the loss of each of its rows", arguments.replay
    ),
    "data": Command("show the data of a config, or tokenize it beforehand", arguments.data, True),
    "plan": Command(
        "estimate memory and time of a training run on other machines",
        arguments.plan,
        True,
        lambda _: environment.ENVIRONMENT,
    ),
    "verify-mesh": Command(
        "compare a step on a mesh with the same step on one device",
        arguments.verify_mesh,
        True,
        _simulated_devices,
    ),
    "completion": Command("print a shell completion script", arguments.completion),
}
EXAMPLES = """
flaxformer_lite train --config=gpt2_tiny --workdir=runs/gpt2
flaxformer_lite train --config=gpt2_tiny:rope --workdir=runs/own --config.data.path=my_text.txt
flaxformer_lite train --config=gpt2_tiny --help
flaxformer_lite generate --model path/to/gpt2 --prompt "Once upon a time" --temperature 0.8 --stream
flaxformer_lite generate --model runs/gpt2 --prompt "def " --temperature 0.8 --top_p 0.95
flaxformer_lite generate --model path/to/t5 --prompt "translate English to German: I" --num_beams 4
flaxformer_lite generate --model path/to/llama_chat --chat --prompt "Why is the sky blue?" --stream
echo "Dear diary," | flaxformer_lite generate --model path/to/gpt2 --prompt - --stop "."
flaxformer_lite evaluate --model runs/spam --data test.csv
flaxformer_lite evaluate --model path/to/sst2 --data dev.tsv --columns text=sentence --json
flaxformer_lite evaluate --model path/to/gpt2 --data book.txt --length 1024
flaxformer_lite predict --model runs/spam --data new.csv --output predictions.csv
flaxformer_lite predict --model path/to/sst2 --data new.jsonl
flaxformer_lite convert runs/gpt2 published/gpt2
flaxformer_lite convert old/flax_bert published/bert --dtype bfloat16
flaxformer_lite convert path/to/llama published/llama --shard_size 2GB
flaxformer_lite convert path/to/bert published/bert_body --head none
flaxformer_lite convert --adapter runs/tuned published/adapter
flaxformer_lite inspect path/to/bert
flaxformer_lite inspect runs/gpt2 --all
flaxformer_lite embed --model path/to/minilm --text "A cat sleeps." --text "A kitten naps."
flaxformer_lite embed --model path/to/minilm --file sentences.txt --out vectors.npy
flaxformer_lite fill-mask --model path/to/bert "The capital of [MASK] is Paris."
flaxformer_lite fill-mask --model runs/bert "import [MASK]" --top_k 10
flaxformer_lite similar --model runs/words --word king --analogy "paris france london"
flaxformer_lite similar --model path/to/t5 --questions questions-words.txt --pairs wordsim353.tsv
flaxformer_lite look --model path/to/gpt2 --text "To be, or not to be" --output gpt2.html
flaxformer_lite look --model path/to/t5 --text "translate English to German: I" --output t5.html
flaxformer_lite look --model runs/gpt2 --text "def __init__(self):" --output attention.png
flaxformer_lite compare runs/gpt2 runs/wide
flaxformer_lite compare runs/* --output compare.html
flaxformer_lite steps --workdir runs/gpt2 --at 1234
flaxformer_lite steps --workdir runs/gpt2 --document "book.txt:1500"
flaxformer_lite steps --workdir runs/gpt2 --document "It was a dark and stormy night"
flaxformer_lite replay --workdir runs/gpt2 --at 1234
flaxformer_lite replay --workdir runs/gpt2 --at 1234 --output runs/gpt2_1234
flaxformer_lite data stats --config=gpt2_tiny --config.data.path=my_text.txt
flaxformer_lite data show --config=bert_tiny --rows 2
flaxformer_lite data tokenize --config=llama_7b --config.data.path="web/*.zst"
flaxformer_lite plan --config=llama_7b --topology=v5e:16x16
flaxformer_lite plan --config=gpt2_small --topology=h100:8 --search
flaxformer_lite plan --config=t5_xxl --topology=v5p-128 --json
flaxformer_lite verify-mesh --config=llama_tiny --config.mesh.fsdp=2 --config.mesh.tensor=2
flaxformer_lite verify-mesh --config=t5_tiny --config.mesh.context=4 --devices=4 --all
flaxformer_lite verify-mesh --config=bert_tiny --config.mesh.mode=pmap
eval "$(flaxformer_lite completion bash)"
"""


def examples(*names: str, most: int | None = None) -> str:
    """Returns examples of commands, at most `most` of each, spelled as this program was started."""
    shown = ["examples:"]
    for name in names:
        command = f"flaxformer_lite {name}"
        program = invocation.program(name)
        lines = [line for line in EXAMPLES.splitlines() if f"{command} " in line]
        for line in lines[:most]:
            shown.append(f"  {line.replace(command, program)}")
    return "\n".join(shown)
