"""What the demo shows: a progress bar on a terminal, plain lines elsewhere, tables at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

POLL_S: Final = 0.02
LINE_S: Final = 1.0


class Stage:
    """Something that takes a while: says so at once, and how long it took at the end."""

    def __init__(self, console: Console, text: str, *, bar: bool = False) -> None:
        """``bar``: a progress bar is shown meanwhile, so no spinner."""
        self._console = console
        self._text = text
        self._began = time.monotonic()
        self._spinner = console.status(text) if console.is_terminal and not bar else None

    def __enter__(self) -> Self:
        if self._spinner is not None:
            self._spinner.start()
        elif not self._console.is_terminal:
            self._console.print(f"… {self._text}")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._spinner is not None:
            self._spinner.stop()
        took = time.monotonic() - self._began
        mark = "[green]✓[/]" if kind is None else "[red]✗[/]"
        self._console.print(f"{mark} {self._text} [dim]{took:.1f} s[/]")


class Watch:
    """Follows a job: polls how many rows are in, shows it, and tells a listener."""

    def __init__(
        self,
        console: Console,
        text: str,
        total: int,
        poll: Callable[[], int | None],
        heard: Callable[[int], None] = lambda _: None,
    ) -> None:
        """``poll``: rows so far, None while nobody answers; ``heard`` is called with each figure."""
        self._console, self._text, self._total = console, text, total
        self._poll, self._heard = poll, heard
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._error: BaseException | None = None
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("  {task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
            self._bar.add_task(self._text, total=self._total)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self._bar is not None:
            self._bar.stop()
        if self._error is not None and kind is None:
            raise self._error

    def _run(self) -> None:
        said = time.monotonic()
        try:
            while not self._ended.wait(POLL_S):
                rows = self._poll()
                if rows is None:
                    continue
                self._heard(rows)
                shown = min(rows, self._total)
                if self._bar is not None:
                    self._bar.update(self._bar.task_ids[0], completed=shown)
                elif time.monotonic() - said >= LINE_S:
                    said = time.monotonic()
                    self._console.print(f"  {self._text}: {shown:,} of {self._total:,} rows")
        except Exception as error:  # noqa: BLE001 - raised where the job is waited for
            self._error = error


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, left: int = 1) -> Table:
    """Rows of figures under a title; the first ``left`` columns are text."""
    made = Table(title=title, title_justify="left", title_style="bold")
    for k, column in enumerate(columns):
        made.add_column(column, justify="left" if k < left else "right")
    for row in rows:
        made.add_row(*[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row])
    return made
