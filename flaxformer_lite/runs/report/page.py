"""Self-contained HTML pages and the model card, from the templates beside."""

import base64
import functools
import hashlib
import json
import re
from typing import TYPE_CHECKING

from flaxformer_lite.files.read import escape_unprintable
from flaxformer_lite.objectives.tables.breakdown import cell_text

if TYPE_CHECKING:
    import jinja2

NUM_COLORS = 8  # classes c0 .. c7
MARKUP = re.compile(r"[\\`*\[\]<>&|~$]")  # what begins HTML, a link, emphasis, code or a cell
MIN_WRAPPED_CHARACTERS = 24  # characters of a cell from which on it wraps


def render_template(name: str, **values: object) -> str:
    """Renders a template of templates/, if .html as HTML that other templates take as it is.

    Args:
      values: what the template names; in HTML their texts are escaped.
    """
    import markupsafe

    return markupsafe.Markup(make_environment().get_template(name).render(**values))


def render_page(name: str, **values: object) -> bytes:
    """Renders a template to the bytes of a file, with ? for what UTF-8 cannot hold."""
    return render_template(name, **values).encode(errors="replace")


def escape_markdown(value: object) -> str:
    """Returns a text as Markdown that shows it on one line, without HTML, links or emphasis."""
    text = escape_unprintable(" ".join(str(value).split()))
    return MARKUP.sub(lambda match: f"&#{ord(match[0])};", text)


def quote_json(text: str) -> str:
    """Returns a text between double quotes, on one line, as Python and JSON read it."""
    return json.dumps(text, ensure_ascii=False)


def format_number(value: float, digits: int = 4) -> str:
    """Formats a number on an axis: 0.25, 12k, 3M, 3e-08."""
    for least, unit, name in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{value / unit:.{digits}g}{name}"
    return f"{value:.{digits}g}"


@functools.cache
def make_environment() -> "jinja2.Environment":
    """Makes what renders a template of templates/, or one that extends base.html."""
    import jinja2  # takes 50 ms, for which no start should wait
    import markupsafe

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__),
        autoescape=jinja2.select_autoescape(),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    # A browser runs a script whose digest the page's policy names, and no other.
    loader = environment.loader
    assert loader is not None
    script, _, _ = loader.get_source(environment, "pointer.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals |= {
        "COLORS": NUM_COLORS,
        "LONG": MIN_WRAPPED_CHARACTERS,
        "SCRIPT": markupsafe.Markup(script),
        "SCRIPT_DIGEST": digest,
    }
    environment.filters |= {
        "cell_text": cell_text,
        "number": format_number,
        "plain": escape_markdown,
        "quoted": quote_json,
    }
    return environment
