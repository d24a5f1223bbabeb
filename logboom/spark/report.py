"""From what the tasks did to one report; the checks and the barrier at the end of a write."""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any, Final

import msgspec

from logboom.errors import (
    BarrierBlocked,
    BarrierTimeout,
    CommandsRejected,
    InvalidRequest,
    LineageMismatch,
    LogboomError,
    NonDeterministicReplay,
    Outcome,
    UnknownOutcome,
    from_wire,
)
from logboom.spark.connection import session
from logboom.spark.options import Target
from logboom.spark.sink import TaskReport, Went, WritePlan
from logboom.types import GlobalLogIndex, Token, lineage_shown, refusal

Check = Callable[[WritePlan, "Report"], "Report"]
log: Final = logging.getLogger("logboom.spark")
LEVELS: Final = {"committed": "ordered", "durable": "durable", "applied": "applied"}

WHY_MAX: Final = 2_000
"""Characters of what Spark says that are kept."""
WHY_FIRST: Final = 300
"""Characters of these from its beginning; the others are from its end, where Python has the reason."""
FRAMES: Final = re.compile(r"^\tat .*\n?", re.MULTILINE)
"""Lines of Java's stacks, which Spark may put behind that."""
MIXED: Final = "mixed"
"""How ``Went.mixed`` is called in a report: that of an earlier batch, which stays where a commit fails."""
FORM: Final = "crc-"
"""How fingerprints are made; those of another form say nothing of rows."""


@dataclass(frozen=True, slots=True)
class PartitionReceipt:
    """One write's share of one logboom partition."""

    partition_id: int
    rows: int
    duplicate: int
    """Rows that had taken effect before (a repeated task, a repeated job) and took none now."""
    last_index: int
    global_index: int


@dataclass(frozen=True, slots=True)
class Report:
    """A write that is done. ``global_index`` is what any replica has to reach to show it."""

    write_id: str
    rows: int
    global_index: int
    receipts: tuple[PartitionReceipt, ...]
    seconds: float
    duplicates: int
    fingerprint: str
    """Equal for two runs that wrote the same rows in the same order from the same tasks."""
    target: Target = field(repr=False)
    wait: str = "applied"
    rejected: dict[str, int] = field(default_factory=dict)
    """Status name to count, of commands that the state machine refused (``failOnRejected=false``)."""
    unknown: int = 0
    """Duplicates of which nobody remembers whether they were refused."""
    cluster: str = ""
    lineage: str = ""
    """Which history of the cluster the rows are in."""

    @property
    def partitions(self) -> tuple[int, ...]:
        """Logboom partitions that were written to."""
        return tuple(r.partition_id for r in self.receipts)


def combine(plan: WritePlan, tasks: Sequence[TaskReport | None]) -> Report:
    """One report of all tasks. Raises NonDeterministicReplay, LineageMismatch when they do not fit together."""
    done = _consistent(plan, tasks)
    cluster, lineage = _one_history(plan, done)
    rejected = Counter[str]()
    for task in done:
        rejected.update(task.rejected)
    receipts: dict[int, PartitionReceipt] = {}
    digest = hashlib.blake2b(digest_size=16)
    for task in sorted(done, key=lambda t: t.task):
        for part in task.parts:
            digest.update(b"%d/%d/%d/" % (task.task, part.partition_id, part.rows) + part.fingerprint)
            known = receipts.get(part.partition_id, PartitionReceipt(part.partition_id, 0, 0, 0, 0))
            receipts[part.partition_id] = replace(
                known,
                rows=known.rows + part.rows,
                duplicate=known.duplicate + part.duplicate,
                last_index=max(known.last_index, part.last_index),
                global_index=max(known.global_index, part.global_index),
            )
    rows = tuple(receipts[p] for p in sorted(receipts))
    report = Report(
        write_id=plan.write_id,
        rows=sum(r.rows for r in rows),
        global_index=max((r.global_index for r in rows), default=0),
        receipts=rows,
        seconds=0.0,
        duplicates=sum(r.duplicate for r in rows),
        fingerprint=FORM + digest.hexdigest(),
        target=plan.target,
        wait=plan.wait,
        rejected=dict(rejected),
        unknown=sum(task.unknown for task in done),
        cluster=cluster,
        lineage=lineage,
    )
    _tell_repeated(plan, report)
    return report


def _tell_repeated(plan: WritePlan, report: Report) -> None:
    if report.duplicates:
        log.warning(
            "write %s: %d of %d rows had taken effect before, and took none now: a task or a run was repeated, or its "
            "writeId is that of another write",
            plan.write_id,
            report.duplicates,
            report.rows,
        )


def _check_refused(plan: WritePlan, report: Report) -> None:
    if report.unknown:
        log.warning(
            "write %s: nobody remembers what became of %d commands that an earlier attempt had brought: some may have "
            "been refused",
            plan.write_id,
            report.unknown,
        )
    if not report.rejected:
        return
    counts = "; ".join(refusal(name, count) for name, count in sorted(report.rejected.items()))
    refused = (
        f"the state machine refused {sum(report.rejected.values())} of {report.rows} commands of write "
        f"{plan.write_id} ({counts}); all others took effect"
    )
    if not plan.fail_on_rejected:
        log.warning("%s", refused)
        return
    raise CommandsRejected(
        f"{refused}; failOnRejected=false goes on",
        statuses=report.rejected,
        rows=report.rows,
        global_index=report.global_index,
    )


def finish(plan: WritePlan, tasks: Sequence[TaskReport | None], *, began: float, check: Check | None = None) -> Report:
    """The end of a write: check, pass the barrier, leave the report. ``began``: ``time.time()`` at its start."""
    kept: dict[str, Any] = {}
    try:
        report = combine(plan, tasks)
        if check is not None:
            report = check(plan, report)
            kept = {"report": _portable(report)}
        _check_refused(plan, report)
        wait_for(report, timeout=plan.barrier_timeout_ms / 1000, level=plan.barrier_level, scope=plan.barrier_scope)
    except LogboomError as error:
        if plan.report_file is not None:
            if check is not None and not kept:  # what an earlier run left stays beside it, to be compared with again
                before = _left_before(plan.report_file)
                if before and isinstance(error, LineageMismatch):
                    before[MIXED] = True
                kept = {"report": before} if before else {}
            leave_error(plan.report_file, error, **kept)
        raise
    report = replace(report, seconds=time.time() - began)
    if plan.report_file is not None:
        leave(plan.report_file, report)
    return report


def leave(path: str, report: Report) -> None:
    """Write a report for whoever looks there. Raises InvalidRequest, outcome ``applied``."""
    try:
        _leave(path, {"report": _portable(report)})
    except OSError as error:
        raise InvalidRequest(
            f"write {report.write_id}: all {report.rows} rows are in, and no report can be left at {path}: {error}",
            outcome="applied",
        ) from error


def leave_error(path: str, error: LogboomError, **kept: Any) -> None:
    """Write an error in place of a report."""
    try:
        _leave(path, {"error": error.to_wire(), **kept})
    except OSError as full:  # what went wrong before says more
        log.warning("no report can be left at %s: %s", path, full)


@contextmanager
def leaving_errors(path: str | None) -> Iterator[None]:
    """What is wrong before a write has begun is left there, too, in place of the report of an earlier one."""
    try:
        yield
    except LogboomError as error:
        if path is not None:
            leave_error(path, error)
        raise


def leave_begun(path: str, name: str, because: Exception | None = None) -> None:
    """In place of the report of an earlier write, until this one has come to its end; with why it does not, if known.

    Whoever is killed on the way leaves nothing else.
    """
    why = "" if because is None else f" ({_reason(str(because))})"
    story = f"{name} was begun, and has not come to its end{why}; what it wrote stays, and a run under the same writeId"
    leave_error(path, UnknownOutcome(f"{story} completes it"))


def _reason(said: str) -> str:
    """What Spark says of a failure, shortened, with the reason in it."""
    said = FRAMES.sub("", said.partition("JVM stacktrace:")[0]).strip()
    return said if len(said) <= WHY_MAX else f"{said[:WHY_FIRST]} ... {said[WHY_FIRST - WHY_MAX :]}"


def same_as_before(plan: WritePlan, report: Report) -> Report:
    """A batch that Spark runs again has the rows, the order and the tasks that it had. Raises NonDeterministicReplay.

    And one that follows goes where those before it went: raises LineageMismatch. It is compared with the report that
    the last run left, if it left one. The report of a batch without rows, which went nowhere, says where those went.
    """
    if plan.report_file is None:
        return report
    before = _left_before(plan.report_file)
    report = _where_before(plan, _went(before), report)
    known = str(before.get("fingerprint", ""))
    if not known.startswith(FORM):
        return report  # none, or of a release that made others
    if before.get("write_id") == report.write_id and known != report.fingerprint:
        raise NonDeterministicReplay(
            f"write {report.write_id} ran before with {before.get('rows')} rows and now with {report.rows}, or others, "
            "or in another order, or from another number of tasks; what took effect is a mixture",
            write_id=report.write_id,
        )
    return report


def _where_before(plan: WritePlan, went: Went | None, report: Report) -> Report:
    """A second net: rows of the batch are in the other history already, where an earlier batch fences them off."""
    if went is None or not _is_of(went, report.write_id):
        return report
    if not report.cluster:
        return replace(report, cluster=went.cluster, lineage=went.lineage)
    here = report.cluster, report.lineage
    if here != (went.cluster, went.lineage):
        raise _gone(plan, went._replace(mixed=True), here, outcome="unknown")
    return report


def check_where(plan: WritePlan, here: tuple[str, str]) -> None:
    """Before a task writes: where the batches before went. Raises LineageMismatch, outcome ``not_applied``."""
    went = plan.went
    if went is not None and _is_of(went, plan.write_id) and here != (went.cluster, went.lineage):
        raise _gone(plan, went, here, outcome="not_applied")


def _gone(plan: WritePlan, went: Went, here: tuple[str, str], *, outcome: Outcome) -> LineageMismatch:
    anew = "a new checkpoint, with a file of its own,"
    if went.mixed:
        what = (
            f"only {anew} which writes everything again, or another restore is exact, since rows of this batch are in"
        )
    else:
        what = f"put the checkpoint of the backup back and remove {plan.report_file}, and it goes on exactly; {anew} "
        what += "writes everything again"
    return LineageMismatch(
        f"write {plan.write_id}: the batches before it went into {went.cluster!r} ({lineage_shown(went.lineage)}), and "
        f"this is {here[0]!r} ({lineage_shown(here[1])}): of what they had written all is missing that came after the "
        f"backup that was restored: {what}; to go on without what is missing, remove {plan.report_file}",
        outcome=outcome,
        cluster=went.lineage or went.cluster,
        expected=here[1] or here[0],
    )


def went_before(path: str | None) -> Went | None:
    """Where the batches of the stream went that has left its report there; None where it does not say so."""
    return None if path is None else _went(_left_before(path))


def _went(before: Mapping[str, Any]) -> Went | None:
    query, cluster = _query(str(before.get("write_id", ""))), str(before.get("cluster", ""))
    if query is None or not cluster:
        return None  # none, or of a batch, or of a release that did not say it
    return Went(query, cluster, str(before.get("lineage", "")), bool(before.get(MIXED)))


def _is_of(went: Went, write_id: str) -> bool:
    return not went.query or not (query := _query(write_id)) or went.query == query


def _query(write_id: str) -> str | None:
    """Of a stream's batch; empty: no task has said it. None: of a write that is no stream's."""
    query, slash, _ = write_id.rpartition("/")
    return query if slash else None


def _left_before(path: str) -> dict[str, Any]:
    """The report of an earlier run, as ``_portable`` made it; empty where none has left one whole."""
    try:
        kept = msgspec.json.decode(Path(path).read_bytes(), type=dict[str, dict[str, Any]])
    except (OSError, msgspec.MsgspecError):
        return {}
    return kept.get("report", {})


def load(path: str | Path, target: Target) -> Report | None:
    """What ``finish`` left: the report, None if it left nothing; raises the error that it left."""
    raw = Path(path).read_bytes() if Path(path).exists() else b""
    if not raw:
        return None
    content: dict[str, Any] = msgspec.json.decode(raw)
    if "error" in content:
        raise from_wire(content["error"])
    fields = content["report"]
    receipts = tuple(PartitionReceipt(**row) for row in fields.pop("receipts"))
    return Report(**fields, receipts=receipts, target=target)


def _portable(report: Report) -> dict[str, Any]:
    # Without the target: it may hold a token.
    fields = {f.name: getattr(report, f.name) for f in dataclass_fields(report) if f.name != "target"}
    return {**fields, "receipts": [asdict(receipt) for receipt in report.receipts]}


def _leave(path: str, content: dict[str, Any]) -> None:
    # Rename last: whoever sees the file sees all of it.
    whole = Path(f"{path}.part")
    whole.write_bytes(msgspec.json.encode(content))
    whole.replace(path)


def _consistent(plan: WritePlan, tasks: Sequence[TaskReport | None]) -> list[TaskReport]:
    done = [t for t in tasks if t is not None]
    ids = [t.task for t in done]
    why = ""
    if len(done) != len(tasks):
        why = f"{len(tasks) - len(done)} tasks left no report"
    elif len(set(ids)) != len(ids):
        why = "two tasks wrote as the same Spark partition"
    elif any(t.write_id != plan.write_id for t in done):
        why = "a task wrote under another write id"
    for task in done:
        for part in task.parts:
            if part.duplicate > part.rows:
                why = f"partition {part.partition_id} counts {part.duplicate} duplicates of {part.rows} rows"
    if why:
        raise NonDeterministicReplay(f"write {plan.write_id}: {why}", write_id=plan.write_id)
    return done


def _one_history(plan: WritePlan, done: Sequence[TaskReport]) -> tuple[str, str]:
    found = sorted({(task.cluster, task.lineage) for task in done if task.cluster})
    if len(found) > 1:
        raise LineageMismatch(
            f"write {plan.write_id}: tasks wrote on both sides of a restore, and what was written before it is "
            "given up; run it again under the same writeId",
            outcome="unknown",
            cluster=found[0][1],
            expected=found[-1][1],
        )
    return found[0] if found else ("", "")


def wait_for(report: Report, *, timeout: float, level: str | None = None, scope: str = "leader") -> None:
    """Pass one barrier over the partitions of a write. Raises BarrierTimeout, BarrierBlocked, Unavailable.

    Whatever it raises, the rows are in: its outcome says so. But LineageMismatch: the cluster was restored since.
    """
    if not report.receipts:
        return
    index = GlobalLogIndex(report.global_index)
    try:
        session(report.target).run(
            lambda client: client.barrier(
                Token(report.cluster, index, report.lineage) if report.cluster else index,
                partitions=list(report.partitions),
                level=level or LEVELS[report.wait],
                scope=scope,
                timeout=timeout,
            )
        )
    except LineageMismatch as error:
        raise LineageMismatch(f"write {report.write_id}: {error.message}", outcome="unknown", **error.fields) from error
    except LogboomError as error:
        late = isinstance(error, BarrierTimeout) and not isinstance(error, BarrierBlocked)
        raise type(error)(
            f"write {report.write_id}: all {report.rows} rows are in, and "
            + (f"after {timeout:g} s not every partition has reached" if late else "nobody can say who has reached")
            + f" global index {report.global_index} ({error.message}); wait again with "
            f"logboom.spark.barrier{', or raise barrierTimeoutMs' if late else ''}",
            outcome="applied",
            **error.fields,
        ) from error
