"""Tables on the terminal, in which no text is taken for markup."""

from collections.abc import Collection, Iterable, Sequence

from rich.console import Console
from rich.table import Table

from flaxformer_lite.files.read import printable

WIDTH = 200  # columns of a file or pipe


def console() -> Console:
    return Console(
        width=None if Console().is_terminal else WIDTH, highlight=False, markup=False, emoji=False
    )


def print_table(
    titles: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[int]
) -> None:
    """Prints a table; the columns whose numbers are in `right` are aligned there."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for number, title in enumerate(titles):
        title = printable(title)
        table.add_column(title, justify="right" if number in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))
    console().print(table)
