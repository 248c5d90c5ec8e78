"""The command `lm-eval`: its flags."""

import argparse

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.commands.declare import add_adapter, add_model, declare_command


@declare_command(
    "run EleutherAI's lm-evaluation-harness",
    "--model path/to/smollm2 --tasks lambada_openai,hellaswag --limit 100",
    "--model runs/gpt2 --tasks own_questions --include_path tasks",
    "--model path/to/llama_chat --tasks gsm8k -- --apply_chat_template --log_samples",
    runs="flaxformer_lite.contrib.lm_eval.run_lm_eval",
)
def lm_eval(parser: argparse.ArgumentParser) -> None:
    """Measures a model that writes on tasks of the harness, with numbers as from transformers.

    The harness prints its own table. Its other flags may follow after --.
    """
    add = parser.add_argument
    add_model(parser, "published weights of a model that writes, or its --workdir")
    add_adapter(parser)
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
    add("--output_path", type=command_line.new_folder, metavar="DIR", help="folder for its results")
    add("more", nargs="*", metavar="-- FLAGS", help="flags of the harness")
