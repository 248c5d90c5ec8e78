"""The terminal output of a run.

A terminal shows a live bar, a notebook one line that is written over, anything else a plain line
per interval.
"""

import contextlib
import logging
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from flaxformer_lite.files.read import escape_controls
from flaxformer_lite.objectives.base import LOSS, Metric
from flaxformer_lite.runs.report.metrics import Record
from flaxformer_lite.runtime.log import capture_logs
from flaxformer_lite.runtime.progress import in_notebook, make_console

COMPILING = "compiling"


class Terminal:
    """Prints to stdout.

    Args:
      metrics: metrics of the objective, its headline first.
    """

    def __init__(
        self,
        steps: int,
        metrics: Sequence[Metric],
        *,
        quiet: bool = False,
        console: Console | None = None,
    ):
        self.console = console or make_console(soft_wrap=True, quiet=quiet)
        self._in_notebook = in_notebook()
        self._written_over = ""  # the line of a notebook that the next one replaces
        self._steps = steps
        self._bar: tuple[Progress, TaskID] | None = None
        self._pending: list[str] | None = []  # messages until training begins; then None
        self._headline, *others = metrics
        self._live = [self._headline, *(metric for metric in others if metric.live)]
        self._in_training = [metric for metric in others if metric.in_training]

    def rows(self, title: str, rows: Iterable[tuple[str, str]], *, copied: bool = False) -> None:
        """Prints a title and aligned pairs under it.

        On a terminal long values are wrapped, unless users will copy them (`copied`).
        """
        rows = list(rows)
        width = max(len(name) for name, _ in rows)
        room = max(20, self.console.width - width - 4)
        with self.console:  # written at once: a notebook may make an output of each writing
            self.console.print(f"\n[bold]{title}[/bold]")
            for name, value in rows:
                value = escape_controls(value)
                lines = [value]
                if self.console.is_terminal and not copied:
                    lines = textwrap.wrap(
                        value, room, break_long_words=False, break_on_hyphens=False
                    )
                indent = " " * (width + 4)
                text = f"\n{indent}".join(lines)
                self.console.print(f"  {name:{width}}  {text}", markup=False)

    def sample(self, texts: Iterable[tuple[str, str]]) -> None:
        """Prints texts of the model, each below its title."""
        with self.console:
            self.console.print("\n[bold]sample[/bold]")
            for title, text in texts:
                self.console.print(f"  --- {title}", style="dim")
                lines = escape_controls(text).splitlines()
                self.console.print("\n".join(f"  {line}" for line in lines), markup=False)

    def note(self, text: str) -> None:
        """Prints one line above the bar."""
        self._end_line()
        self.console.print(escape_controls(text), markup=False)

    def listening(self) -> contextlib.AbstractContextManager[None]:
        """Prints the package's log messages, such as the choice of attention, within the block.

        Messages before the start of training are printed when it begins.
        """
        return capture_logs(logging.INFO, self._log)

    def _log(self, line: str) -> None:
        if self._pending is None:
            self.note(line)
        else:
            self._pending.append(line)

    @contextlib.contextmanager
    def training(self, start: int) -> Iterator[None]:
        """Shows the bar within the block, from step `start` on."""
        columns = (
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
        )
        with contextlib.ExitStack() as stack:
            if self.console.is_interactive:  # a dumb terminal is not
                progress = stack.enter_context(Progress(*columns, console=self.console))
                self._bar = (
                    progress,
                    progress.add_task("", total=self._steps, completed=start, text=COMPILING),
                )
            pending = self._pending
            self._pending = None
            for line in pending or ():
                self.note(line)
            yield
            self._bar = None
            self._end_line()

    def advance(self, step: int) -> None:
        """Advances the bar to a finished step."""
        if self._bar:
            progress, task = self._bar
            text = progress.tasks[task].fields["text"]
            progress.update(task, completed=step, text="" if text == COMPILING else text)

    def train_record(self, record: Record) -> None:
        """Prints the figures of an interval."""
        headline = self._headline if self._headline.name in record else LOSS
        shown = [headline, *(metric for metric in self._in_training if metric.name in record)]
        text = "  ".join(_shown(metric, record) for metric in shown)
        if "tokens_per_second" in record:
            left = record["step_seconds"] * (self._steps - record["step"])
            text += f"  {record['tokens_per_second']:,.0f} tokens/s  eta {format_clock(left)}"
        if "mfu" in record:
            text += f"  {record['mfu']:.0%} of peak"
        if self._bar:
            progress, task = self._bar
            progress.update(task, completed=record["step"], text=text)
        elif self._in_notebook:
            self._write_over(f"step {record['step']}/{self._steps}  {text}")
        else:
            grad = f"  gradient {record['grad_norm']:.2f}  rate {record['learning_rate']:.1e}"
            self.note(f"step {record['step']}/{self._steps}  {text}{grad}")

    def _write_over(self, line: str) -> None:
        """Replaces the line that it wrote before."""
        if not self.console.quiet:
            self.console.file.write(f"\r{line:{len(self._written_over)}}")
            self._written_over = line

    def _end_line(self) -> None:
        """Leaves the line that would be written over."""
        if self._written_over:
            self.console.file.write("\n")
            self._written_over = ""

    def eval_record(self, record: Record) -> None:
        """Prints the figures of an evaluation."""
        text = "  ".join(_shown(metric, record) for metric in self._live if metric.name in record)
        self.note(f"step {record['step']}/{self._steps}  held out: {text}")


def _shown(metric: Metric, record: Record) -> str:
    return f"{metric.words} {metric.show(record[metric.name])}"


def format_clock(seconds: float) -> str:
    """Formats seconds as `1:02:03` or `2:03`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
