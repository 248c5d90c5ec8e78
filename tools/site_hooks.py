"""Hooks of mkdocs: pages made from files outside docs/, links to source, equations as MathML.

The same Markdown is read on a code host, in notebooks and on the site. There links lead to files of
the repository and equations stand between dollar signs; here each linked file becomes a page, and
equations need neither script nor network.
"""

import ast
import html
import posixpath
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from latex2mathml.converter import convert
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "flaxformer_lite"
COPIED = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
HOMES = {source: page for page, source in COPIED.items()}
FOLDERS = (
    "functions",
    "attentions",
    "positions",
    "modules",
    "mixers",
    "feed_forwards",
    "adapters",
    "objectives",
)
SHIM = re.compile(r'<script src="?https:[^">]*iframe-worker[^">]*"?></script>')
MATHML = "http://www.w3.org/1998/Math/MathML"
OPERATOR = f"{{{MATHML}}}mo"
NAMES = (f"{{{MATHML}}}mi", OPERATOR)
ROWS = tuple(f"{{{MATHML}}}{name}" for name in ("math", "mrow", "mtd", "mstyle"))
SCRIPTS = tuple(f"{{{MATHML}}}{name}" for name in ("msub", "msup", "msubsup"))
FUNCTIONS = frozenset(("sin", "cos", "tan", "tanh", "exp", "log", "ln", "max", "min", "arg"))
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)(#[\w-]+)?(?=\))")
MATH = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)


def on_files(files: Any, config: Any) -> Any:
    """Adds README, CONTRIBUTING and CHANGELOG, the pages of the API, and a page for each file that
    a page links to."""
    made = {page: (ROOT / source).read_text() for page, source in COPIED.items()} | api_pages()
    texts = {
        file.src_uri: file.content_string for file in files if file.src_uri.endswith(".md")
    } | made
    sources: dict[str, str] = {}
    for page, text in texts.items():
        for target in (outside(page, link[1]) for link in LINK.finditer(text)):
            if target and target not in HOMES:
                sources |= source_pages(target)
    for page, text in {**made, **sources}.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Points links that leave docs/ to the pages made from those files."""

    def moved(link: re.Match[str]) -> str:
        written = posixpath.normpath(posixpath.join(home(page.file.src_uri), link[1]))
        if page.file.src_uri.startswith("source/") or not (ROOT / written).exists():
            return link[0]
        target = (
            written.removeprefix("docs/")
            if written.startswith("docs/")
            else HOMES.get(written) or source_name(written)
        )
        return posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".") + (
            link[2] or ""
        )

    return LINK.sub(moved, markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Writes equations as MathML, which browsers draw by themselves."""

    def drawn(found: re.Match[str]) -> str:
        display = "inline" if found[1] == "span" else "block"
        return spaced(convert(html.unescape(found[2]), display=display))

    return MATH.sub(drawn, content)


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Takes the search's stand-in for workers from the site, where the theme would fetch one."""
    depth = page.url.count("/")
    return SHIM.sub(f'<script src="{"../" * depth}search_worker.js"></script>', output)


def spaced(equation: str) -> str:
    """Returns MathML with TeX's thin space between a function such as sin and what stands beside
    it; browsers put none between two identifiers."""
    ElementTree.register_namespace("", MATHML)
    root = ElementTree.fromstring(equation)
    for row in list(root.iter()):
        if row.tag not in ROWS:
            continue
        children = list(row)
        made = []
        for number, child in enumerate(children):
            made.append(child)
            follower = children[number + 1] if number + 1 < len(children) else None
            if follower is None or OPERATOR in (child.tag, follower.tag):
                continue
            if is_function(child) or is_function(follower):
                made.append(ElementTree.Element(f"{{{MATHML}}}mspace", width="0.167em"))
        row[:] = made
    return ElementTree.tostring(root, encoding="unicode")


def is_function(node: ElementTree.Element) -> bool:
    """Returns whether a node is a name such as sin or log, perhaps with a subscript or power."""
    if node.tag in SCRIPTS:
        return is_function(node[0])
    return node.tag in NAMES and len(node) == 0 and (node.text or "").strip() in FUNCTIONS


def home(page: str) -> str:
    """Returns the folder of the repository in which a page's links begin."""
    if page in COPIED:
        return ""
    return posixpath.join("docs", posixpath.dirname(page))


def outside(page: str, link: str) -> str | None:
    """Returns the path in the repository that a link leads to, or None if it lies in docs/ or is
    none."""
    target = posixpath.normpath(posixpath.join(home(page), link))
    return target if (ROOT / target).exists() and not target.startswith("docs/") else None


def source_name(target: str) -> str:
    return f"source/{target}.md" if (ROOT / target).is_file() else f"source/{target}/index.md"


def source_pages(target: str) -> dict[str, str]:
    """Makes the page of a file; of a folder, the page that lists its files, and those of the
    files."""
    path = ROOT / target
    top = f"---\nsearch:\n  exclude: true\n---\n\n# {target}\n\n"
    if path.is_file():
        return {source_name(target): f"{top}``````{path.suffix[1:]}\n{path.read_text()}\n``````\n"}
    files = sorted(
        file for file in path.iterdir() if file.suffix == ".py" and file.name != "__init__.py"
    )
    rows = [f"* [`{file.name}`]({file.name}.md): {summary(file)}" for file in files]
    pages = {source_name(target): top + "\n".join(rows) + "\n"}
    for file in files:
        pages |= source_pages(f"{target}/{file.name}")
    return pages


def summary(file: Path) -> str:
    """Returns the first line of a file's docstring."""
    said = ast.get_docstring(ast.parse(file.read_text())) or ""
    return said.partition("\n")[0]


def api_pages() -> dict[str, str]:
    """Makes a page of the names that users import, by the file that defines them, and one for each
    folder of parts."""
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    public = ["# flaxformer_lite", "Names that are imported from the package itself."]
    groups: dict[str, list[str]] = {}
    for node in stub.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            groups.setdefault(node.module.split(".")[1], []).extend(
                name.name for name in node.names
            )
    for group, names in groups.items():
        public += [
            f"## {group.replace('_', ' ').capitalize()}",
            *(f"::: flaxformer_lite.{name}" for name in names),
        ]
    pages = {"api/index.md": "\n\n".join(public) + "\n"}
    for folder in FOLDERS:
        files = [
            file for file in sorted((PACKAGE / folder).glob("*.py")) if file.name != "__init__.py"
        ]
        parts = [f"# {folder}", *(f"::: flaxformer_lite.{folder}.{file.stem}" for file in files)]
        pages[f"api/{folder}.md"] = "\n\n".join(parts) + "\n"
    return pages
