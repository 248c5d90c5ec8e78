"""Self-contained HTML pages: no network, no script, light or dark by the reader's system."""

import html
from collections.abc import Iterable, Sequence

LONG = 24  # characters of a cell from which on it wraps
COLORS = 8  # classes c0 .. c7
STYLE = (
    """
:root{color-scheme:light dark;--ink:#1d2530;--dim:#626d7c;--line:#dfe3e9;--page:#fff;
  --card:#f6f7f9;--mark:#fff3d1;--c0:#b8434a;--c1:#3a6fb0;--c2:#2d8659;--c3:#b06a10;
  --c4:#7d55b0;--c5:#168390;--c6:#b03f85;--c7:#6b6f2a;--train:#8fa8c8}
@media(prefers-color-scheme:dark){
:root{--ink:#e4e8ee;--dim:#9aa5b4;--line:#343c48;--page:#14181e;--card:#1c222a;--mark:#453a17;
  --c0:#f07f85;--c1:#79acee;--c2:#63c596;--c3:#e5a54f;--c4:#b796ea;--c5:#55c3d0;--c6:#ea86c2;
  --c7:#bcc168;--train:#5f7ca6}
}
*{box-sizing:border-box}
body{margin:0 auto;padding:20px 16px 60px;max-width:1100px;background:var(--page);
  color:var(--ink);font:15px/1.5 system-ui,sans-serif}
h1{font-size:24px;margin:0;overflow-wrap:anywhere}
h2{font-size:17px;margin:36px 0 10px}
h3{font-size:14px;margin:18px 0 4px;color:var(--dim)}
p{margin:2px 0;color:var(--dim);overflow-wrap:anywhere}
summary{cursor:pointer;margin:5px 0}
pre,code,.code td{font:13px/1.45 ui-monospace,monospace}
pre{margin:4px 0 10px;padding:8px 12px;background:var(--card);border-radius:6px;
  white-space:pre-wrap;overflow-wrap:anywhere}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
th,td{padding:3px 18px 3px 0;text-align:left;vertical-align:top;
  border-bottom:1px solid var(--line)}
th{font-weight:400;color:var(--dim);white-space:nowrap}
td{overflow-wrap:anywhere;min-width:4em}
.many td{white-space:nowrap}
.many td.long,th.long{white-space:normal;overflow-wrap:anywhere;min-width:11em}
.beside{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr));
  gap:0 32px}
.beside>*{min-width:0}
.flow{display:flex;flex-wrap:wrap;gap:0 48px}
.flow>*{min-width:0;max-width:100%}
.grid-of{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(300px,100%),1fr));
  gap:8px 24px}
figure{margin:10px 0;min-width:0;font-size:12px}
figcaption{margin-bottom:10px;color:var(--dim)}
figcaption b{color:var(--ink);font-size:13px;font-weight:600}
.tall{grid-column:1/-1}
.plot{position:relative;height:150px;margin:0 10px 22px 52px}
.tall .plot{height:300px}
svg{position:absolute;width:100%;height:100%;overflow:visible}
path{fill:none;vector-effect:non-scaling-stroke;stroke-width:1.6;stroke-linejoin:round}
.grid{stroke:var(--line);stroke-width:1}
.level{stroke:var(--dim);stroke-dasharray:5 4;stroke-width:1.2}
.dot{stroke-width:7;stroke-linecap:round}
.x,.y{position:absolute;color:var(--dim);white-space:nowrap}
.y{right:100%;margin-right:7px;transform:translateY(-50%)}
.x{top:100%;margin-top:4px;transform:translateX(-50%)}
.key{display:inline-block;margin-left:14px;overflow-wrap:anywhere}
.key:before{content:"";display:inline-block;width:16px;margin-right:5px;vertical-align:middle;
  border-top:3px solid var(--c)}
.key.level:before{border-top:2px dashed var(--dim)}
.train{--c:var(--train)}
mark{background:var(--mark);color:inherit}
"""
    + "".join(f".c{i}{{--c:var(--c{i})}}" for i in range(COLORS))
    + "path[class*=c],path.train{stroke:var(--c)}"
)
# A browser fetches and runs nothing, whatever the texts in the page contain.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(title: str, lines: Sequence[str], sections: Iterable[tuple[str, str]]) -> bytes:
    """Renders a page of sections.

    Args:
      title: its title.
      lines: lines of text below the title.
      sections: titles, and HTML from this file and chart.py; empty titles and sections without
        content are omitted.
    """
    body = ""
    for name, content in sections:
        if name and content:
            body += f"<h2>{html.escape(name)}</h2>"
        body += content
    under = "".join(f"<p>{html.escape(line)}</p>" for line in lines)
    head = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport"'
        ' content="width=device-width"><meta http-equiv="Content-Security-Policy"'
        f' content="{POLICY}"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    )
    return f"{head}<h1>{html.escape(title)}</h1>{under}{body}</html>\n".encode(errors="replace")


def table(
    rows: Iterable[Sequence[str]],
    head: Sequence[str] = (),
    *,
    marked: Sequence[str] = (),
    code: bool = False,
) -> str:
    """Renders a table of texts with names in the first column.

    Args:
      rows: the cells.
      head: titles of the columns.
      marked: names of rows to highlight.
      code: whether the cells are code.
    """
    lines = []
    if head:
        titles = "".join(f"<th>{html.escape(cell)}" for cell in head)
        lines.append(f"<tr>{titles}")
    for name, *cells in rows:
        texts = "".join(_cell("td", text, name in marked) for text in cells)
        lines.append(f"<tr>{_cell('th', name)}{texts}")
    if not lines:
        return ""
    kind = "code " * code + "many" * bool(head)
    return f'<div class="wide"><table class="{kind}">{"".join(lines)}</table></div>'


def _cell(tag: str, text: str, is_marked: bool = False) -> str:
    """Renders a cell; long text wraps, so that it does not squeeze the others."""
    content = html.escape(text)
    if is_marked:
        content = f"<mark>{content}</mark>"
    kind = " class=long" if len(text) > LONG else ""
    return f"<{tag}{kind}>{content}"


def beside(parts: Iterable[tuple[str, str]]) -> str:
    """Renders parts (title, HTML) in two columns if the page is wide enough; omits empty ones."""
    sections = ""
    for title, content in parts:
        if content:
            sections += f"<section><h2>{html.escape(title)}</h2>{content}</section>"
    return f'<div class="beside">{sections}</div>'


def texts(pairs: Iterable[tuple[str, str]]) -> str:
    """Renders titles, each above a preformatted text."""
    parts = []
    for title, text in pairs:
        parts.append(f"<h3>{html.escape(title)}</h3><pre>{html.escape(text)}</pre>")
    return "".join(parts)


def folded(title: str, content: str) -> str:
    """Renders content that opens on a click on its title."""
    if not content:
        return ""
    return f"<details><summary>{html.escape(title)}</summary>{content}</details>"
