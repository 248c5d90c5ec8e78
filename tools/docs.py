"""Runs the Python of documentation pages, and turns pages into notebooks.

python -m tools.docs run docs/course/*.md          # checks each page in an empty folder
python -m tools.docs write docs/course/masks.md    # puts its output and figures into it
python -m tools.docs write docs/notebooks/*.ipynb  # likewise
python -m tools.docs notebooks FOLDER              # the course as executed notebooks
"""

import contextlib
import functools
import io
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).parents[1]
# A block of Python, and what it prints where a block without a language follows at once.
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```(?:text)?\n(?P<printed>.*?)^```\n)?", re.M | re.S
)
PICTURE = re.compile(r"^!\[.*?\]\((\w[\w-]*\.(?:png|svg))\)\n", re.M)
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)(?=[)#])")
FRONT_MATTER = re.compile(r"\A---\n(.*?)^---\n", re.M | re.S)


class Block(NamedTuple):
    """A block of Python, and the text that the page says it prints, or None."""

    code: str
    printed: str | None


def read(page: Path) -> str:
    """Returns the text of a page without its front matter."""
    return FRONT_MATTER.sub("", page.read_text(), count=1)


def is_slow(page: Path) -> bool:
    """Tells whether `slow: true` in the page's front matter keeps it out of the tests that run each
    time."""
    front = FRONT_MATTER.match(page.read_text())
    return front is not None and "slow: true" in front[1]


def blocks(text: str) -> list[Block]:
    return [Block(found["code"], found["printed"]) for found in BLOCK.finditer(text)]


def pictures(text: str) -> list[str]:
    """Lists the pictures beside the page that a block of it saves, by their file names."""
    code = "".join(block.code for block in blocks(text))
    return [name for name in PICTURE.findall(text) if f'"{name}"' in code]


def run(text: str, scope: dict | None = None) -> Iterator[tuple[Block, str]]:
    """Executes the blocks of a page in one namespace and the current folder, and yields what each
    printed."""
    scope = {"__name__": "__main__"} if scope is None else scope
    with np.printoptions():  # given back as they were, like the figures
        for block in blocks(text):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(block.code, "<page>", "exec"), scope)
            yield block, printed.getvalue()
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


def check(text: str) -> dict:
    """Executes a page and returns its namespace.

    Raises:
      AssertionError: a block prints something else than the page shows, or a picture was not drawn.
    """
    scope: dict = {"__name__": "__main__"}
    for block, printed in run(text, scope):
        if block.printed is not None and printed != block.printed:
            raise AssertionError(
                f"the page shows\n{block.printed}\nand its code prints\n{printed}\nin\n{block.code}"
            )
    missing = [name for name in pictures(text) if not Path(name).exists()]
    if missing:
        raise AssertionError(f"the page shows {', '.join(missing)}, which its code does not draw.")
    return scope


def write(page: Path) -> None:
    """Executes a page, and replaces the printed text that it shows and the pictures beside it."""
    text = read(page)
    front = FRONT_MATTER.match(page.read_text())
    with _empty_folder() as folder:
        printed = iter([said for _, said in run(text)])
        for name in pictures(text):
            (page.parent / name).write_bytes((folder / name).read_bytes())

    def shown(found: re.Match[str]) -> str:
        said = next(printed)
        return f"```python\n{found['code']}```\n" + (f"\n```text\n{said}```\n" if said else "")

    page.write_text((front[0] if front else "") + BLOCK.sub(shown, text))


def notebook(text: str) -> dict:
    """Turns a page into a notebook; what the page shows as printed and drawn is left to the
    cells."""
    import nbformat.v4 as nb

    drawn = pictures(text)
    cells = []
    at = 0
    for found in [*BLOCK.finditer(text), None]:
        words = text[at : found.start() if found else None]
        words = PICTURE.sub(
            lambda picture: "" if picture[1] in drawn else picture[0], words
        ).strip()
        cells += [nb.new_markdown_cell(words)] if words else []
        if found:
            cells.append(nb.new_code_cell(found["code"].rstrip()))
            at = found.end()
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"  # the same notebook from the same page
    return nb.new_notebook(
        cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    )


def notebooks(folder: Path) -> None:
    """Writes the course as notebooks that have run from top to bottom."""
    import nbformat

    folder.mkdir(parents=True, exist_ok=True)
    for page in sorted((ROOT / "docs" / "course").glob("*.md")):
        made = notebook(LINK.sub(functools.partial(_moved, page, folder), read(page)))
        if any(cell["cell_type"] == "code" for cell in made["cells"]):
            _execute(made)
        nbformat.write(made, folder / f"{page.stem}.ipynb")
        print(f"{folder / page.stem}.ipynb, {len(made['cells'])} cells", flush=True)


def run_notebook(path: Path, *, saves: bool) -> None:
    """Runs a notebook in an empty folder; `saves` puts what it prints and draws into it."""
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    _execute(notebook)
    if not saves:
        return
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of day
    text = nbformat.writes(notebook)
    command = f"{Path(sys.executable).parent}/"
    path.write_text(text.replace(f"{command}python -m ", "").replace(command, "") + "\n")


def _execute(notebook: Any) -> None:
    from jupyter_client import AsyncKernelManager
    from nbclient import NotebookClient

    with _empty_folder():
        kernel = AsyncKernelManager(kernel_name="python3", transport="ipc")  # not over the network
        NotebookClient(notebook, km=kernel, timeout=600).execute()


def _moved(page: Path, folder: Path, link: re.Match[str]) -> str:
    """Points a link of a page to the notebook of another chapter, or from the notebooks' folder to
    its file."""
    target = (page.parent / link[1]).resolve()
    if target.parent == page.parent and target.suffix == ".md":
        return f"{target.stem}.ipynb"
    return (
        os.path.relpath(target, folder)
        if target.exists() and target.suffix not in (".png", ".svg")
        else link[1]
    )


@contextlib.contextmanager
def _empty_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield Path(folder)


def main(command: str, *words: str) -> None:
    paths = [Path(word).resolve() for word in words]
    if command == "notebooks":
        return notebooks(*paths)
    os.environ.setdefault("MPLBACKEND", "agg")
    for page in paths:
        begin = time.process_time()
        if page.suffix == ".ipynb":
            run_notebook(page, saves=command == "write")
            print(f"{page.relative_to(ROOT)}: ran", flush=True)
            continue
        if command == "write":
            write(page)
        else:
            with _empty_folder():
                check(read(page))
        print(
            f"{page.relative_to(ROOT)}: {len(blocks(read(page)))} blocks,"
            f" {time.process_time() - begin:.1f} s of CPU",
            flush=True,
        )
    return None


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main(*sys.argv[1:])
