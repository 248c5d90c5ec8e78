"""The command `lm-eval`: its flags."""

import argparse

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.commands.declare import Flags, add_shared, declare_command


@declare_command(
    "run EleutherAI's lm-evaluation-harness",
    "--model path/to/smollm2 --tasks lambada_openai,hellaswag -- --limit 100",
    "--model runs/gpt2 --tasks own_questions -- --include_path tasks",
    "--model path/to/llama_chat --tasks gsm8k -- --apply_chat_template --log_samples",
    runs="flaxformer_lite.contrib.lm_eval.run_lm_eval",
)
def lm_eval(parser: argparse.ArgumentParser, rarely: Flags) -> None:
    """Measures a model that writes on tasks of the harness, with numbers as from transformers.

    The harness prints its own table. Its other flags may follow after --, such as --limit,
    --num_fewshot, --include_path and --output_path.
    """
    add_shared(parser, "model")
    parser.add_argument(
        "--tasks",
        required=True,
        nargs="+",
        type=command_line.text,
        metavar="TASK",
        help="names of tasks or groups",
    )
    add_shared(parser, "batch_size", default=8, help="rows computed together (default: 8)")
    parser.add_argument(
        "more", nargs="*", default=[], metavar="-- FLAGS", help="flags of the harness"
    )
    add_shared(rarely, "length", help="most tokens that the model sees (default: its own)")
    add_shared(rarely, "dtype", "adapter")
