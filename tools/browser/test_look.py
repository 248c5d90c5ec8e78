"""The page of `look` in a real browser: what it draws, says, and asks for. `make browser` runs it;
see runs/browser."""

import re
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite import capture, load_pretrained, load_tokenizer
from flaxformer_lite.__main__ import main
from tests.cli import models
from tools.browser.contrast import lowest_contrast

SHOTS = Path("runs/browser")
ATTACK = "zero one </script><img src=x onerror=alert(1)> two three"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Pages of the three kinds of model, and their directories."""
    where = tmp_path_factory.mktemp("pages")
    made = {}
    for name, head in (("bert", "masked_lm"), ("gpt2", None), ("t5", None)):
        folder = models.directory(where / name, name, head)
        main(
            [
                "look",
                "--model",
                str(folder),
                "--text",
                ATTACK,
                "--output",
                str(where / f"{name}.html"),
                "--length",
                "24",
            ]
        )
        made[name] = where / f"{name}.html"
    return made


@pytest.fixture
def visit(browser, pages):
    """Opens a page of one of the models, and refuses errors, dialogs and requests when the test
    ends."""
    contexts = []
    troubles = []

    def opened(name, width=1280, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda message: troubles.append(message.text))
        page.on("dialog", lambda dialog: troubles.append("dialog") or dialog.dismiss())
        page.on(
            "request",
            lambda request: (
                None if request.url == pages[name].as_uri() else troubles.append(request.url)
            ),
        )
        page.goto(pages[name].as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not troubles


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_it_fits_and_can_be_read(visit, name, width, scheme):
    page = visit(name, width, scheme)
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}_{width}_{scheme}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert lowest_contrast(page, ".text button, .lens td, p, h2, th, dt") >= 4.5
    assert "</script><img src=x onerror=alert(1)>" in page.title() and not page.query_selector(
        "img"
    )
    sections = [section.get_attribute("id") for section in page.query_selector_all("section")]
    masks = [] if name == "bert" else ["masks"]
    assert sections == ["attention", "lens", "loss", "norms", "positions", *masks]


CENTRES = """selector => [...document.querySelectorAll(selector)].map(node => {
  const box = node.getBoundingClientRect();
  return box.left + box.width / 2;
})"""


@pytest.mark.parametrize("width", [1280, 400])
def test_labels_of_few_heads_stand_over_their_maps(visit, width):
    page = visit("gpt2", width)
    labels = page.evaluate(CENTRES, ".heads thead th:not(:first-child)")
    maps = page.evaluate(CENTRES, ".heads tbody tr:first-child button")
    np.testing.assert_allclose(labels, maps, atol=2)


def test_it_opens_on_a_head_and_not_on_the_mean(visit):
    page = visit("gpt2")
    chosen = page.get_attribute(".heads [aria-pressed=true]", "aria-label")
    assert re.fullmatch(r"layer \d, head \d", chosen)
    assert page.text_content("#attention .pair h3 >> nth=1") == chosen


def cell(page, row, column):
    """Returns the words of the attention map for a cell that is reached by the arrow keys."""
    page.focus("#attention .plot")
    for key, times in (
        ("ArrowUp", 99),
        ("ArrowLeft", 99),
        ("ArrowDown", row),
        ("ArrowRight", column),
    ):
        for _ in range(times):
            page.keyboard.press(key)
    return page.text_content("#attention .heat + output")


def test_weights_are_those_of_the_model(visit, pages):
    model, params = load_pretrained(pages["gpt2"].with_suffix(""))
    ids = load_tokenizer(pages["gpt2"].with_suffix("")).encode(ATTACK)[:24]
    _, values = capture(model, params, np.asarray([ids]), "attention/weights")
    weights_TS = np.asarray(values["decoder/layer_1/attention/weights"])[0, 1]
    page = visit("gpt2")
    page.click("[aria-label='layer 1, head 1']")
    assert page.text_content("#attention .pair h3 >> nth=1") == "layer 1, head 1"
    for row, column in ((5, 2), (9, 9), (20, 13)):
        said = float(re.search(r": ([\d.]+)%", cell(page, row, column))[1])
        assert abs(said / 100 - weights_TS[row, column]) < 0.006
    assert "may not be attended to" in cell(page, 3, 4)
    page.hover("#attention .text button >> nth=7")
    assert page.text_content("#attention > div > output").startswith(
        f"“{page.text_content('#attention .text button >> nth=7')}” (7) attends most to "
        f"“{page.text_content(f'#attention .text button >> nth={weights_TS[7].argmax()}')}”"
    )


def test_a_click_holds_a_token_and_both_directions_are_shown(visit):
    page = visit("gpt2")
    page.click("#attention .text button >> nth=4")
    page.hover("#attention .text button >> nth=2")
    assert "(4) attends most to" in page.text_content("#attention > div > output")
    page.select_option("#attention .bar select >> nth=-1", "1")
    assert "(4) is attended to most by" in page.text_content("#attention > div > output")


def test_the_keyboard_reaches_heads_tokens_and_the_lens(visit):
    page = visit("gpt2")
    page.focus("[aria-label='layer 0, mean']")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.get_attribute("[aria-label='layer 1, head 0']", "aria-pressed") == "true"
    page.focus("#lens td >> nth=0")
    page.keyboard.press("ArrowRight")
    assert re.match(r"layer 1, “.*” \(1\): .* [\d.]+%", page.text_content("#lens output"))
    assert page.evaluate("document.querySelectorAll('#lens td[tabindex=\"0\"]').length") == 1


def test_cross_attention_joins_two_texts(visit):
    page = visit("t5", 400)
    page.select_option("#attention .bar select", "2")
    box = page.query_selector("#attention .bar select").bounding_box()
    assert box["x"] + box["width"] <= 400 - 12, "inside the margin"
    groups = page.query_selector_all("#attention .text")
    assert len(groups) == 2
    groups[0].query_selector_all("button")[3].hover()
    assert "(3) attends most to" in page.text_content("#attention > div > output")
    groups[1].query_selector_all("button")[5].hover()
    assert "(5) is attended to most by" in page.text_content("#attention > div > output")


def test_the_scheme_may_change(visit):
    page = visit("bert")
    shade = "document.querySelector('#attention canvas').toDataURL()"
    light = page.evaluate(shade), page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(200)
    dark = page.evaluate(shade), page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert light[0] != dark[0] and light[1] != dark[1]


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_lines_between_words_are_drawn_on_demand_as_dark_as_the_weights(visit, name):
    page = visit(name, 400)
    web = page.locator("details.lines").first
    assert web.locator("path").count() == 0
    web.locator("summary").click()
    web.locator("path").first.wait_for(state="attached")
    web.locator("text").nth(3 if name == "t5" else 1).hover()
    drawn = web.locator("path").evaluate_all("all => all.map(line => Number(line.dataset.weight))")
    assert 0.9 < sum(drawn) < 1.02, "of one token; the page keeps weights to 8 bits"
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    SHOTS.mkdir(parents=True, exist_ok=True)
    web.screenshot(path=SHOTS / f"{name}_lines.png")
