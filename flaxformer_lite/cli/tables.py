"""Tables on the terminal, whose texts are never parsed as markup."""

from collections.abc import Collection, Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table

from flaxformer_lite.files.read import escape_controls

PIPE_COLUMNS = 200  # columns of a file or pipe
MAX_WRAPPED_ROWS = 1000  # rows above which wrapping cells to a terminal's width takes seconds


def make_console() -> Console:
    width: int | None = PIPE_COLUMNS
    if Console().is_terminal:
        width = None
    return Console(width=width, highlight=False, markup=False, emoji=False)


def print_table(
    titles: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[int]
) -> None:
    """Prints a table; columns whose numbers are in `right` are right-aligned."""
    titles = list(map(escape_controls, titles))
    cells = [list(map(escape_controls, row)) for row in rows]
    if len(cells) > MAX_WRAPPED_ROWS:
        _print_plain(titles, cells, right)
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for number, title in enumerate(titles):
        justify: JustifyMethod = "left"
        if number in right:
            justify = "right"
        table.add_column(title, justify=justify, overflow="fold")
    for row in cells:
        table.add_row(*row)
    make_console().print(table)


def _print_plain(
    titles: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int]
) -> None:
    """Prints a table without wrapping its cells."""
    widths = [max(map(cell_len, column)) for column in zip(titles, *rows, strict=True)]
    for row in (titles, *rows):
        line = []
        for number, (cell, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - cell_len(cell))
            if number in right:
                line.append(space + cell)
            else:
                line.append(cell + space)
        print("  ".join(line).rstrip())
