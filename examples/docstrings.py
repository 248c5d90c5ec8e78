"""Questions and choices about the docstrings of installed packages, read without importing them.

    # what a function returns, what an argument is, when it raises
    python examples/docstrings.py questions runs/questions
    flaxformer_lite train --config=qa --workdir=runs/questions/run \
        --config.data.path=runs/questions/train.jsonl \
        --config.data.eval_path=runs/questions/dev.jsonl

    # which of four summaries belongs to a signature
    python examples/docstrings.py choices runs/choices
    flaxformer_lite train --config=choose --workdir=runs/choices/run \
        --config.data.path=runs/choices/train.jsonl --config.data.eval_path=runs/choices/dev.jsonl

    # a summary and its signature, to search functions in words
    python examples/docstrings.py pairs runs/pairs
    flaxformer_lite train --config=sentences --workdir=runs/pairs/run \
        --config.data.path=runs/pairs/train.jsonl --config.data.eval_path=runs/pairs/dev.jsonl

Without `--config.train.init_from=DIR` a small model starts from random weights.
"""

import argparse
import ast
import importlib.util
import itertools
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGES = ("numpy", "scipy", "sklearn", "jax", "flax", "optax")
SENTENCE = re.compile(r"\S.*?(?:[.!?](?=\s|$)|$)")
TITLES = ("Args:", "Returns:", "Raises:")  # as Google's style has them; numpy's are underlined
WORD_ENDS = re.compile(r"_|(?<=[a-z])(?=[A-Z])")
LONGEST = 3000  # characters of a docstring


def functions(package: str) -> Iterator[tuple[str, str]]:
    """Yields signature and docstring of each public function of a package."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        return
    for file in sorted(Path(found.submodule_search_locations[0]).rglob("*.py")):
        nodes = (
            ()
            if "test" in file.as_posix()
            else ast.walk(ast.parse(file.read_text(errors="replace")))
        )
        for node in nodes:
            if (
                isinstance(node, ast.FunctionDef)
                and node.name[0] != "_"
                and (text := ast.get_docstring(node))
            ):
                yield f"{node.name}({', '.join(each.arg for each in node.args.args)})", text


def joined(text: str) -> str:
    """Puts a text on one line."""
    return " ".join(text.split())


def first_sentence(text: str) -> str:
    found = SENTENCE.search(joined(text))
    return found[0] if found else ""


def sections(docstring: str) -> dict[str, list[str]]:
    """Returns the lines below each title."""
    found: dict[str, list[str]] = {}
    title = ""
    lines = docstring.splitlines()
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if after and set(after) == {"-"}:
            title = line.strip()
        elif line in TITLES:
            title = line.removesuffix(":")
        elif line.strip("- "):
            found.setdefault(title, []).append(line)
    return found


def entries(lines: list[str]) -> list[tuple[str, str]]:
    """Returns name and description of each thing that a section lists."""
    edge = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    found: list[tuple[str, str]] = []
    for line in lines:
        if line[edge] != " ":
            name, _, kind = line.strip().partition(":")
            # numpy's style has the type there
            found.append((name.strip(), kind.strip() if edge else ""))
        elif found:
            found[-1] = (found[-1][0], joined(f"{found[-1][1]} {line}"))
    return found


def questions(signature: str, docstring: str, draw: random.Random) -> Iterator[dict[str, Any]]:
    """Yields questions that a docstring answers, and now and then one that it does not."""
    name = signature.partition("(")[0]
    context = joined(docstring)
    has = sections(docstring)
    listed = {
        title: entries(has[title]) for title in ("Parameters", "Args", "Raises") if title in has
    }
    asked = {}
    if returned := has.get("Returns"):
        whole = returned[0].startswith(" ")
        asked[f"What does {name} return?"] = (
            joined(" ".join(returned)) if whole else entries(returned)[0][1]
        )
    for title in ("Parameters", "Args"):
        if listed.get(title):
            argument, told = draw.choice(listed[title])
            asked[f"What is {argument}, an argument of {name}?"] = told
    if listed.get("Raises"):
        asked[f"When does {name} raise {listed['Raises'][0][0]}?"] = listed["Raises"][0][1]
    yield from (
        {"question": question, "context": context, "answers": answer}
        for question, told in asked.items()
        if (answer := first_sentence(told)) and answer in context
    )
    if asked and "Raises" not in has and draw.random() < 0.4:
        yield {"question": f"When does {name} raise ValueError?", "context": context, "answers": ""}


def choices(found: list[tuple[str, str]], draw: random.Random) -> Iterator[dict[str, Any]]:
    """Yields each signature with its summary among those of three other functions."""
    summaries = [first_sentence(docstring) for _, docstring in found]
    for (signature, _), summary in zip(found, summaries, strict=True):
        others = draw.sample([text for text in summaries if text != summary], 3)
        label = draw.randrange(4)
        yield {
            "question": signature,
            "choices": [*others[:label], summary, *others[label:]],
            "label": label,
        }


def pairs(found: list[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Yields each summary with its signature, the name cut into words."""
    for signature, docstring in found:
        yield {
            "anchor": first_sentence(docstring),
            "positive": joined(WORD_ENDS.sub(" ", signature)),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("questions", "choices", "pairs"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=6000)
    args = parser.parse_args()
    draw = random.Random(0)
    unique = {
        text: (signature, text) for package in PACKAGES for signature, text in functions(package)
    }
    found = [each for each in unique.values() if 40 < len(each[1]) < LONGEST]
    draw.shuffle(found)
    asked = (row for each in found for row in questions(*each, draw))
    made = {"choices": choices(found, draw), "pairs": pairs(found), "questions": asked}[args.kind]
    rows = list(itertools.islice(made, args.rows))
    args.folder.mkdir(parents=True, exist_ok=True)
    # rows of one docstring stand together, so that no other question about it is held out
    last = len(rows) * 9 // 10
    for name, part in (("train", rows[:last]), ("dev", rows[last:])):
        (args.folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    print(f"{args.folder}: {last:,} rows to train on, {len(rows) - last:,} held out")


if __name__ == "__main__":
    main()
