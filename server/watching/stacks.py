"""What every thread and task is doing, as text: for ``/debug/stacks``."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import traceback
from typing import Final

TASKS_MAX: Final = 1_000
FRAMES_MAX: Final = 32


def stacks() -> str:
    """Threads first, the loop's tasks after them. Called on the loop."""
    out = io.StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - there is no other way to see other threads
        out.write(f"thread {names.get(ident, ident)}\n")
        out.writelines(traceback.format_stack(frame, FRAMES_MAX))
        out.write("\n")
    tasks = asyncio.all_tasks()
    for task in sorted(tasks, key=lambda each: each.get_name())[:TASKS_MAX]:
        out.write(f"task {task.get_name()}\n")
        task.print_stack(limit=FRAMES_MAX, file=out)
        out.write("\n")
    if len(tasks) > TASKS_MAX:
        out.write(f"and {len(tasks) - TASKS_MAX} more tasks\n")
    return out.getvalue()
