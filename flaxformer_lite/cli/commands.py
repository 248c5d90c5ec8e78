"""The commands: their help, flags and examples, light enough that `--help` imports no jax."""

import argparse
import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

from flaxformer_lite.cli import arguments
from flaxformer_lite.plan import environment


def _made_up_devices(args: argparse.Namespace) -> Mapping[str, str]:
    flag = f"--xla_force_host_platform_device_count={args.devices}"
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flag}"}


class Command(NamedTuple):
    """One command, implemented by `run` in the file of its name.

    Attributes:
      summary: its line in the list of commands.
      add_arguments: declares its flags; its docstring is the command's description.
      examples: shown below the help of its flags.
      takes_config: whether it has --config and its fields.
      environment: variables that must be set before jax is imported.
    """

    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    examples: str
    takes_config: bool = False
    environment: Callable[[argparse.Namespace], Mapping[str, str]] = lambda _: {}


COMMANDS = {
    "train": Command(
        "train a model, or continue a run that was stopped",
        arguments.train,
        """examples:
  flaxformer_lite train --config=gpt2_tiny --workdir=runs/gpt2
  flaxformer_lite train --config=gpt2_tiny:rope --workdir=runs/own --config.data.path=my_text.txt
  flaxformer_lite train --config=gpt2_tiny --help
""",
        takes_config=True,
    ),
    "generate": Command(
        "write text with a model",
        arguments.generate,
        """examples:
  flaxformer_lite generate --model path/to/gpt2 --prompt "Once upon a time" --max_new_tokens 40
  flaxformer_lite generate --model runs/gpt2 --prompt "def " --temperature 0.8 --top_p 0.95 --stream
  flaxformer_lite generate --model path/to/t5 --prompt "translate English to German: Good day." --num_beams 4
  flaxformer_lite generate --model path/to/llama_chat --chat --prompt "Why is the sky blue?" --stream
  echo "Dear diary," | flaxformer_lite generate --model path/to/gpt2 --prompt - --stop "."
""",
    ),
    "evaluate": Command(
        "measure a model on held-out data",
        arguments.evaluate,
        """examples:
  flaxformer_lite evaluate --model runs/spam --data test.csv
  flaxformer_lite evaluate --model path/to/sst2 --data dev.tsv --columns text=sentence --json
  flaxformer_lite evaluate --model path/to/gpt2 --data book.txt --length 1024
""",
    ),
    "predict": Command(
        "predict labels, spans or texts for the rows of a table",
        arguments.predict,
        """examples:
  flaxformer_lite predict --model runs/spam --data new.csv --output predictions.csv
  flaxformer_lite predict --model path/to/sst2 --data new.jsonl
""",
    ),
    "convert": Command(
        "write any checkpoint as published weights",
        arguments.convert,
        """examples:
  flaxformer_lite convert runs/gpt2 published/gpt2
  flaxformer_lite convert old/flax_bert published/bert --dtype bfloat16
  flaxformer_lite convert path/to/llama published/llama --shard_size 2GB
  flaxformer_lite convert path/to/bert published/bert_body --head none
  flaxformer_lite convert --adapter runs/tuned published/adapter
""",
    ),
    "inspect": Command(
        "describe a directory of weights",
        arguments.inspect,
        """examples:
  flaxformer_lite inspect path/to/bert
  flaxformer_lite inspect runs/gpt2 --all

Tensors have their published names, so a training workdir, its conversion to safetensors, and Flax's old msgpack of the
same model have the same checksum.
""",
    ),
    "embed": Command(
        "turn sentences into vectors and compare them",
        arguments.embed,
        """examples:
  flaxformer_lite embed --model path/to/minilm --text "A cat sleeps." --text "A kitten naps." --text "Stocks fell."
  flaxformer_lite embed --model path/to/minilm --file sentences.txt --out vectors.npy
""",
    ),
    "fill-mask": Command(
        "guess the hidden word of a sentence",
        arguments.fill_mask,
        """examples:
  flaxformer_lite fill-mask --model path/to/bert "The capital of [MASK] is Paris."
  flaxformer_lite fill-mask --model runs/bert "import [MASK]" --top_k 10

[MASK] stands for the model's own mask token, which works as well (<mask> for RoBERTa). Several masks are guessed
independently of each other.
""",
    ),
    "similar": Command(
        "find words with similar vectors, and score word vectors",
        arguments.similar,
        """examples:
  flaxformer_lite similar --model runs/words --word king --word paris --top_k 5
  flaxformer_lite similar --model path/to/bert --analogy "paris france london"
  flaxformer_lite similar --model path/to/t5 --questions questions-words.txt --pairs wordsim353.tsv
""",
    ),
    "look": Command(
        "show the inside of a model on one text, as a page",
        arguments.look,
        """examples:
  flaxformer_lite look --model path/to/bert --text "The river bank was muddy." --output bert.html
  flaxformer_lite look --model runs/gpt2 --text "def __init__(self):" --output gpt2.html
  flaxformer_lite look --model path/to/t5 --text "translate English to German: Good day." --output t5.html
  flaxformer_lite look --model path/to/gpt2 --text "To be, or not to be" --output attention.png
""",
    ),
    "compare": Command(
        "compare runs: results, curves, and the fields that differ",
        arguments.compare,
        """examples:
  flaxformer_lite compare runs/gpt2 runs/wide
  flaxformer_lite compare runs/* --output compare.html
""",
    ),
    "steps": Command(
        "show the rows that a step of a run saw, and where they came from",
        arguments.steps,
        """examples:
  flaxformer_lite steps --workdir runs/gpt2 --at 1234
  flaxformer_lite steps --workdir runs/gpt2 --document "book.txt:1500"
  flaxformer_lite steps --workdir runs/gpt2 --document "It was a dark and stormy night"
""",
    ),
    "replay": Command(
        "run again to a step of a run, and show the loss of each of its rows",
        arguments.replay,
        """examples:
  flaxformer_lite replay --workdir runs/gpt2 --at 1234
  flaxformer_lite replay --workdir runs/gpt2 --at 1234 --output runs/gpt2_1234
""",
    ),
    "data": Command(
        "look at the text or table of a config, or tokenize it beforehand",
        arguments.data,
        """examples:
  flaxformer_lite data stats --config=gpt2_tiny --config.data.path=my_text.txt
  flaxformer_lite data show --config=bert_tiny --rows 2
  flaxformer_lite data tokenize --config=llama_7b --config.data.path="web/*.jsonl.zst" --config.data.cache=/shared/cache
""",
        takes_config=True,
    ),
    "plan": Command(
        "plan a training run for machines that are not at hand",
        arguments.plan,
        """examples:
  flaxformer_lite plan --config=llama_7b --topology=v5e:16x16 --config.mesh.fsdp=16
  flaxformer_lite plan --config=gpt2_small --topology=h100:8 --search
  flaxformer_lite plan --config=t5_xxl --topology=v5p-128 --json

Machines: v4, v5e, v5p, v6e as grids (v5e:16x16) or by their makers' names (v5e-256; v5p-128 counts cores);
a100, h100, h200 by number. Exits with 1 if the step does not fit. Times are the compiler's estimate, not measured.
""",
        takes_config=True,
        environment=lambda _: environment.ENVIRONMENT,
    ),
    "verify-mesh": Command(
        "compare a step on a mesh with the same step on one device",
        arguments.verify_mesh,
        """examples:
  flaxformer_lite verify-mesh --config=llama_tiny --config.mesh.fsdp=2 --config.mesh.tensor=2
  flaxformer_lite verify-mesh --config=t5_tiny --config.mesh.context=4 --devices=4 --all
  flaxformer_lite verify-mesh --config=bert_tiny --config.mesh.mode=pmap

Exits with 1 if a gradient differs by more than rounding. Also lists the large parameters that every device holds
whole, what the devices exchange, and exchanges that the design does not explain.
""",
        takes_config=True,
        environment=_made_up_devices,
    ),
}
