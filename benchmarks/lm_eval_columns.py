"""lm-evaluation-harness on one directory, by transformers' torch model and by this package.

Each log-likelihood, each rolling log-likelihood and each greedy text of both is compared. It takes
its own tasks from the given text, so that nothing is downloaded; `--tasks` adds others of the
harness, such as RULER's niah_single_1. It needs torch and transformers beside the extra lm-eval.

    python -m benchmarks.lm_eval_columns --model path/to/llama --text book.txt
    python -m benchmarks.lm_eval_columns --model path/to/llama --text book.txt --tasks niah_single_1
"""

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

import lm_eval
import yaml
from lm_eval.tasks import TaskManager

import flaxformer_lite.contrib.lm_eval.model  # noqa: F401  # registers the model

CLOSE = 1e-3  # nats
CHOICES = 4
TASKS = {
    "choice": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{start}}",
        "doc_to_choice": "options",
        "doc_to_target": "answer",
    },
    "rolling": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    },
    "until": {
        "output_type": "generate_until",
        "doc_to_text": "{{start}}",
        "doc_to_target": "{{rest}}",
        "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 32},
        "metric_list": [{"metric": "exact_match"}],
    },
}


def rows_of(text: str, rows: int) -> dict[str, list[dict]]:
    """Makes the rows of each task from the lines and passages of a text."""
    rng = random.Random(0)
    lines = [line for line in text.splitlines() if 60 < len(line) < 160 and line[0].isalpha()]
    chosen = rng.sample(lines, rows * CHOICES)
    choice = []
    for first in range(0, len(chosen), CHOICES):
        options = [line[40:] for line in chosen[first : first + CHOICES]]
        right = options[0]
        rng.shuffle(options)
        row = {"start": chosen[first][:40], "options": options, "answer": options.index(right)}
        choice.append(row)
    rolling = []
    for number in range(rows):
        length = 400 if number % 2 else 2000  # the longer are read in several windows
        start = rng.randrange(max(1, len(text) - length))
        rolling.append({"text": text[start : start + length]})
    until = [{"start": line[:40], "rest": line[40:]} for line in rng.sample(lines, rows)]
    return {"choice": choice, "rolling": rolling, "until": until}


def write_tasks(folder: Path, text: str, rows: int) -> None:
    for name, made in rows_of(text, rows).items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(f"{json.dumps(row)}\n" for row in made))
        task = {
            "task": f"own_{name}",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": str(data)},
            "test_split": "train",
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(task | TASKS[name]))


def compare(theirs: list[dict], ours: list[dict]) -> tuple[int, float, int]:
    """Returns the number of answers, the largest difference in nats, and of unequal texts."""
    count = 0
    largest = 0.0
    unequal = 0
    ours_by_doc = {sample["doc_id"]: sample for sample in ours}
    for sample in theirs:
        other = ours_by_doc[sample["doc_id"]]
        for want, got in zip(sample["resps"], other["resps"], strict=True):
            count += 1
            want = want[0]
            got = got[0]
            if isinstance(want, str):
                unequal += want != got
                continue
            if isinstance(want, tuple | list):  # log-likelihood and whether it is greedy
                unequal += bool(want[1]) != bool(got[1])
                want = want[0]
                got = got[0]
            largest = max(largest, abs(float(want) - float(got)))
    return count, largest, unequal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True, type=Path)
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--limit", type=int, help="rows of the tasks of the harness")
    parser.add_argument("--tasks", nargs="*", default=[])
    parser.add_argument("--length", type=int, default=1024, help="tokens of RULER's prompts")
    parser.add_argument("--batch_size", type=int, default=8)
    args = parser.parse_args()
    results = {}
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        write_tasks(Path(folder), args.text.read_text(), args.rows)
        names = [f"own_{name}" for name in TASKS] + args.tasks
        for model, more in (("hf", ",dtype=float32"), ("flaxformer_lite", "")):
            start = time.process_time()
            metadata = {"pretrained": args.model, "max_seq_lengths": [args.length]}
            results[model] = lm_eval.simple_evaluate(
                model,
                f"pretrained={args.model}{more}",
                tasks=names,
                limit=args.limit,
                batch_size=args.batch_size,
                device="cpu",
                bootstrap_iters=0,
                task_manager=TaskManager(include_path=folder, metadata=metadata),
            )
            seconds[model] = time.process_time() - start
    far = 0
    print(
        "| task | metric | HFLM, torch | flaxformer_lite | answers | largest difference | unequal |"
    )
    print("|---|---|---:|---:|---:|---:|---:|")
    for name in names:
        count, largest, unequal = compare(
            results["hf"]["samples"][name], results["flaxformer_lite"]["samples"][name]
        )
        far += largest > CLOSE or unequal > 0
        theirs = results["hf"]["results"][name]
        ours = results["flaxformer_lite"]["results"][name]
        for metric, value in theirs.items():
            shown = "," in metric and "stderr" not in metric and value != -1
            if shown:
                print(
                    f"| {name} | {metric.split(',')[0]} | {value:.4f} | {ours[metric]:.4f} |"
                    f" {count} | {largest:.1e} | {unequal} |"
                )
    print(", ".join(f"{model}: {spent:.0f} CPU s" for model, spent in seconds.items()))
    sys.exit(bool(far))


if __name__ == "__main__":
    main()
