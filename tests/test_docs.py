"""Pages of docs/: their Python runs and prints what they show, commands parse, links and names
exist, the menu has each."""

import json
import re
import shlex
import sys
from pathlib import Path

import jax
import pytest
import yaml

from flaxformer_lite import __main__, axes, pages, registry
from tools import docs

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {str(page.relative_to(ROOT)): page.read_text() for page in PAGES}
NAMES = list(TEXTS)
SLOW = [name for name in NAMES if docs.is_slow(ROOT / name)]
RUN = [name for name in NAMES if docs.blocks(TEXTS[name]) and name != "README.md"]
RUN = [pytest.param(name, marks=[pytest.mark.nightly] * (name in SLOW)) for name in RUN]


@pytest.mark.filterwarnings("ignore:'VariableState' was removed")  # of qwix 0.1.8
@pytest.mark.filterwarnings("ignore:Matplotlib is currently using agg")
@pytest.mark.parametrize("name", RUN)
def test_python_runs_and_prints_what_the_page_shows(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        # answers to exercises run after its blocks, in the same namespace
        docs.check(docs.read(ROOT / name).replace("```py\n", "```python\n"))


@pytest.mark.nightly  # two minutes; `make docs-test` runs it in Jupyter
@pytest.mark.filterwarnings("ignore:Matplotlib is currently using agg")
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
def test_a_notebook_runs_from_top_to_bottom(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    cells = json.loads((ROOT / "docs/notebooks/first_steps.ipynb").read_text())["cells"]
    known = {}
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        for cell in cells:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), known)
    assert set(known["labels"]) == {"numbers", "network", "files"}
    assert known["result"].last["loss"] < 6 and known["tuned"].last["accuracy"] > 0.6


def test_a_page_that_shows_another_result_is_found_and_mended(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = "```python\nprint(1 + 1)\n```\n\n```text\n{}\n```\n"
    docs.check(page.format(2))
    with pytest.raises(AssertionError, match="the page shows\n3\n\nand its code prints\n2"):
        docs.check(page.format(3))
    with pytest.raises(AssertionError, match=r"a\.png, which its code does not draw"):
        docs.check('```python\nname = "a.png"\n```\n\n![a](a.png)\n')
    mended = tmp_path / "page.md"
    rest = "\nWords.\n\n```python\ny = 1\n```\n"
    mended.write_text(f"---\nslow: true\n---\n\n{page.format(3)}{rest}")
    docs.write(mended)
    assert docs.is_slow(mended) and docs.read(mended) == "\n" + page.format(2) + rest


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name):
    page = ROOT / name
    prose = re.sub(r"^```.*?^```$", "", TEXTS[name], flags=re.M | re.S)
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([\w-]+))?\)", prose):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", path.read_text().lower(), re.M)
            anchors = [re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles]
            assert anchor in anchors, anchor


def commands() -> list[str]:
    text = re.sub(r"\\\n\s*", "", "\n".join(TEXTS.values()))
    line = r"^    (?:\w+=\S+ )*flaxformer_lite ([a-z-]+ .*?)(?:\s+#.*)?$"
    return sorted(set(re.findall(line, text, re.M)))


@pytest.mark.filterwarnings("ignore:the load_module")  # of ml_collections
@pytest.mark.parametrize("line", commands())
def test_commands_are_valid(line, capsys, monkeypatch):
    """Checks that the command, its flags and its page exist, and that the config with its overrides
    holds together."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    command, *words = shlex.split(line)
    config = [word for word in words if word.startswith("--config") and "my_module:" not in line]
    with pytest.raises(SystemExit) as end:
        __main__.main([command, *config, "--help"])
    shown, said = capsys.readouterr()
    assert not end.value.code and "usage" in shown, said
    for word in words:
        if word.startswith("--") and not word.startswith("--config."):
            assert word.partition("=")[0].replace("-", "_") in shown.replace("-", "_"), word


@pytest.mark.parametrize("name", NAMES)
def test_named_pages_exist(name):
    for pattern in (r"configs/(\w+)\.py", r"--config=([a-z]\w*)(?=[:\s`])"):
        assert {*re.findall(pattern, TEXTS[name])} <= {*pages.names()}


def test_every_page_is_in_the_menu():
    menu = str(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    names = [name.removeprefix("docs/") for name in NAMES if name.startswith("docs/")]
    missing = [name for name in names if f"'{name}'" not in menu]
    assert not missing, f"add them to `nav` in mkdocs.yml: {missing}"


MIGRATION = (ROOT / "tests" / "flax_classes.txt").read_text()
ROWS = re.findall(r"^\| `Flax(\w+)` \| (\w+) \| `(\w+)` \|$", MIGRATION, re.M)


def test_flax_classes_have_the_heads_that_the_table_names():
    renamed = {"BertForCausalLM": "BertLMHeadModel"}
    assert len(ROWS) == len(set(ROWS)) == 110
    for name, family, head in ROWS:
        heads = registry.resolve("models", family).PUBLISHED.heads
        assert heads[head].architecture == renamed.get(name, name), name


def test_pictures_stay_small():
    files = (ROOT / "docs" / "course").iterdir()
    sizes = [path.stat().st_size for path in files if path.suffix in (".png", ".svg")]
    assert 0 < sum(sizes) < 400_000


CHAPTERS = [name for name in NAMES if name.startswith("docs/course/") and docs.blocks(TEXTS[name])]
CHAPTER_HEAD = re.compile(
    r"^# .+\n\n"
    r"> \*\*(?P<minutes>\d+) minutes\*\*, of which the code takes \d+ s\."
    r" \*\*Number to reproduce:\*\* .+, `(?P<number>.+)`\.$",
    re.M,
)
WORDS_A_MINUTE = 80  # a third of the speed of prose: formulas and code are read slowly
EXERCISE = re.compile(r"^\*\*(\d+)\.\*\* ", re.M)
TITLE = '<details markdown="1">\n<summary>Answer</summary>'
ANSWER = re.compile(rf"^{TITLE}\n\n\S.*?\n\n</details>$", re.M | re.S)


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_tells_its_minutes_and_a_number_to_reproduce(name):
    chapter = docs.read(ROOT / name).partition("## To try\n")[0]
    head = CHAPTER_HEAD.search(chapter)
    assert head is not None
    minutes_to_read = len(chapter.split()) / WORDS_A_MINUTE
    assert abs(int(head["minutes"]) - minutes_to_read) <= 3
    assert f"| {head['minutes']} |" in course_row(name)
    printed = " ".join(block.printed or "" for block in docs.blocks(chapter))
    assert head["number"] in re.split(r"[\s,;]+", printed)


def course_row(name: str) -> str:
    """Returns the row of a chapter in the table of the course's first page."""
    link = f"]({Path(name).name})"
    [row] = [line for line in TEXTS["docs/course/README.md"].splitlines() if link in line]
    return row


@pytest.mark.parametrize("name", CHAPTERS)
def test_each_exercise_of_a_chapter_has_an_answer(name):
    chapter, _, exercises = docs.read(ROOT / name).partition("## To try\n")
    _, *parts = EXERCISE.split(exercises)
    numbers = [int(number) for number in parts[::2]]
    assert len(numbers) >= 2 and numbers == list(range(1, len(numbers) + 1))
    for exercise in parts[1::2]:
        assert len(ANSWER.findall(exercise)) == 1, exercise
    diffs = re.findall(r"^```diff\n(.*?)^```", exercises, re.M | re.S)
    for line in re.findall(r"^-(.+)$", "".join(diffs), re.M):
        assert f"\n{line}\n" in chapter, f"an answer changes a line that is not there: {line}"


def test_letters_of_the_glossary_are_the_axes():
    rows = re.findall(r"^\| `(\w)` \| (\w+) \| (.+) \|$", TEXTS["docs/GLOSSARY.md"], re.M)
    assert rows == [(letter, *axis) for letter, axis in axes.AXES.items()]


def test_code_of_the_course_fits_beside_the_menus_of_the_site():
    """The width is that of docs/course/ruff.toml."""
    for page in (ROOT / "docs" / "course").glob("*.md"):
        code = "".join(re.findall(r"^```py(?:thon)?\n(.*?)^```", page.read_text(), re.M | re.S))
        assert not [line for line in code.splitlines() if len(line) > 76], page


def test_the_site_is_searched_without_a_server_or_network():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert "offline" in config["plugins"] and (ROOT / "docs" / "search_worker.js").exists()
