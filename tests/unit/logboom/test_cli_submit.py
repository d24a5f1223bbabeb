"""``logboom submit``: what it reads, what it sends, and what it says of lines that are wrong."""

from __future__ import annotations

import io
import json
import sys
from codecs import BOM_UTF8
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click import UsageError

from logboom.cli.rows import command_of, partition_of_row, read_rows, words_row
from logboom.cli.submit import CHUNK_RECORDS
from logboom.commands import Add, Cas, Delete, Put, to_record
from logboom.errors import InvalidRequest, UnknownOutcome
from logboom.types import KIB, KV_TXN, Record, Status
from logboom.wire import Kind
from tests.unit.logboom.command_line import run
from tests.unit.logboom.fake_server import FakeNode, Session

PUT = {"key": "c", "value": "v"}


def test_submit_prints_where_it_landed(node: FakeNode, capsys) -> None:
    status, out, _ = run(capsys, "submit", "-p", "2", "put", "k", "v", "-o", "json")
    assert status == 0
    assert json.loads(out) == [
        {"partition": 2, "records": 1, "first_index": 1, "last_index": 1, "global_index": 1, "duplicate": 0,
         "results": {"ok": 1}}
    ]  # fmt: skip
    assert node.log[2] == [Put(b"k", b"v").record().payload]
    status, out, _ = run(capsys, "submit", "-p", "2", "add", "k", "1", "2")
    assert out.splitlines()[1].split() == ["2", "1", "2", "2", "2", "0", "ok=1"]


def test_submit_from_stdin_and_by_key(node: FakeNode, capsys, monkeypatch) -> None:
    text = io.TextIOWrapper(io.BytesIO(b"put 'a b' 1\n\nadd n 5\n"))
    monkeypatch.setattr(sys, "stdin", text)
    status, out, _ = run(capsys, "submit", "--by-key", "-o", "json")
    assert status == 0
    assert sum(row["records"] for row in json.loads(out)) == 2


def test_a_bad_line_is_named_and_what_went_before_is_in_order(node: FakeNode, capsys, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"key": "a", "value": "1"}\n{"key": \n')
    status, _, err = run(capsys, "submit", "-p", "0", "-f", str(path))
    assert status == 2
    assert "line 2" in err


def test_once_takes_effect_once(node: FakeNode, capsys, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("key,value,partition\na,1,0\nb,2,1\nc,3,0\n")
    for _ in range(2):
        status, out, _ = run(capsys, "submit", "-f", str(path), "--once", "load-1", "-o", "json")
        assert status == 0
    assert [(row["partition"], row["records"], row["duplicate"]) for row in json.loads(out)] == [(0, 2, 2), (1, 1, 1)]
    assert (len(node.log[0]), len(node.log[1])) == (2, 1)


def test_nothing_is_written_between_the_positions_of_consumers(node: FakeNode, capsys, tmp_path: Path) -> None:
    """What is no position there ends `logboom cursors list`, and whoever reads the one that it replaces."""
    rows = [[0, "kv", "write_ahead"], [7, "kv", "write_ahead", "cursors"]]
    node.answers[Kind.ADMIN] = lambda s, f: s.send(f, Kind.ADMIN_REPLY, {"partitions": rows, "key_partitions": 1})
    path = tmp_path / "x.csv"
    path.write_text("key,value,partition\na,1,0\nb,2,7\n")
    for words in (["-p", "7", "put", "a", "b"], ["-f", str(path)]):
        status, _, err = run(capsys, "submit", *words)
        assert "partition 7 holds the positions of all named consumers" in err
        assert status == 2
        assert "line 3: " in err or "-p" in words
    assert not node.of(Kind.SUBMIT)


def test_what_a_name_was_used_for_before_is_told(node: FakeNode, capsys) -> None:
    """Other input under a used name takes no effect, and only a column said so."""
    assert "before" not in run(capsys, "submit", "-p", "0", "--once", "load-1", "put", "a", "1")[2]
    status, _, err = run(capsys, "submit", "-p", "0", "--once", "load-1", "put", "b", "2")
    assert status == 0
    assert "1 of 1 commands were submitted as 'load-1' before" in err


@pytest.mark.parametrize(
    ("once", "how"),
    [([], "submit it again"), (["--once", "clean-1"], "submit it under another name, or without --once,")],
)
def test_how_the_rest_of_many_keys_is_removed_is_told(node: FakeNode, capsys, once: list[str], how: str) -> None:
    """Again, under its name it removes nothing: it is done once."""

    def more(session: Session, frame: Any) -> None:
        ((*where, _),) = node.submit(frame)
        rows = [[*where, bytes((Status.MORE,))]]
        session.send(frame, Kind.SUBMITTED, {"parts": rows, "commit_index": node.global_index})

    node.answers[Kind.SUBMIT] = more
    node.features = [KV_TXN]
    for before in (False, bool(once)):
        status, _, err = run(capsys, "submit", "-p", "0", *once, "delete-prefix", "user/")
        assert status == 0
        assert err.splitlines()[-1] == f"logboom: not all keys were removed at once (`more`): {how} for the rest"
        assert ("1 of 1 commands were submitted as 'clean-1' before" in err) == before


def test_raw_lines_are_payloads(node: FakeNode, capsys, tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(b"one\n\xff\xfe\r\n")
    assert run(capsys, "submit", "-p", "1", "-f", str(path), "--raw")[0] == 0
    assert node.log[1] == [b"one", b"\xff\xfe"]


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv", "x.parquet"])
def test_what_is_raw_is_no_command_whatever_the_file_is_called(
    node: FakeNode, capsys, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(b'{"op": "delete", "key": "a"}\n')
    assert run(capsys, "submit", "-p", "1", "-f", str(path), "--raw", "--format", "lines")[0] == 0
    assert run(capsys, "submit", "-p", "1", "-f", str(path), "--raw")[0] == 0
    assert node.log[1] == [b'{"op": "delete", "key": "a"}'] * 2


@pytest.mark.parametrize("tail", [b"x", b"x\r", b"x\n"])
def test_of_a_raw_line_only_its_end_is_cut_off(node: FakeNode, capsys, tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\ra\r\r\n\n\r\n \n" + tail)
    assert run(capsys, "submit", "-p", "1", "-f", str(path), "--raw")[0] == 0
    assert node.log[1] == [b"\ra\r", b"", b"", b" ", tail.removesuffix(b"\n")]


def test_large_files_go_in_several_requests(node: FakeNode, capsys, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps({"key": f"k{k}", "value": "v" * 500}) + "\n" for k in range(3000)))
    assert run(capsys, "submit", "-p", "0", "-f", str(path))[0] == 0
    assert len(node.log[0]) == 3000
    assert len(node.of(Kind.SUBMIT)) > 2


@pytest.mark.parametrize(
    ("row", "command"),
    [
        ({"key": "k", "value": "v"}, Put(b"k", b"v")),
        ({"op": "DELETE", "key": "k"}, Delete(b"k")),
        ({"op": "cas", "key": "k", "value": "v"}, Cas(b"k", None, b"v")),
        ({"key": "k", "numbers": [1, 2]}, Add(b"k", 1, 2)),
        ({"op": "add", "key": "k", "value": "1 2.5"}, Add(b"k", 1.0, 2.5)),
        ({"op": "record", "value": b"raw"}, Record(b"raw")),
        ({"key": "k", "value": {"a": 1}}, Put(b"k", b'{"a": 1}')),
        ({"op": "add", "key": "k", "value": 3, "numbers": None}, Add(b"k", 3)),
        ({"op": "delete", "key": "k", "value": None, "expected": None, "end": None, "partition": 3}, Delete(b"k")),
    ],
)
def test_rows_become_commands(row, command) -> None:
    assert to_record(command_of(row, "text")) == to_record(command)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"key": "k", "value": "new", "expected": "old"}, "put takes no 'expected', which is for cas"),
        ({"op": "put", "key": "k", "value": "new", "expected": ""}, "put takes no 'expected', which is for cas"),
        ({"op": "delete", "key": "k", "expected": "old"}, "delete takes no 'expected', which is for cas"),
        ({"op": "put", "key": "k", "value": "v", "numbers": [1]}, "put takes no 'numbers', which is for add"),
        ({"op": "put", "key": "k", "value": "v", "end": "l"}, "put takes no 'end', which is for delete_range"),
        ({"op": "delete", "key": "k", "value": "v"}, "delete takes no 'value', which is for put, cas, add, record"),
        ({"op": "delete_prefix", "key": "k", "end": "l"}, "delete_prefix takes no 'end', which is for delete_range"),
        ({"op": "delete_range", "key": "k", "value": "l"}, "delete_range takes no 'value'"),
        ({"op": "cas", "key": "k", "value": "v", "numbers": [1]}, "cas takes no 'numbers', which is for add"),
        ({"op": "record", "value": "v", "expected": "w"}, "record takes no 'expected', which is for cas"),
        ({"key": "k", "numbers": [1], "expected": "old"}, "add takes no 'expected', which is for cas"),
        ({"key": "k", "numbers": [1], "value": "new"}, "not both"),
        ({"op": "txn", "then": [{"key": "k", "value": "new", "expected": "old"}]}, "put takes no 'expected'"),
        ({"op": "txn", "otherwise": [{"op": "delete", "key": "k", "expected": "old"}]}, "delete takes no 'expected'"),
        ({"op": "txn", "compares": [{"key": "k", "numbers": [1], "value": "v"}]}, "not both"),
    ],
)
def test_a_field_that_the_op_does_not_take_is_refused(row: dict[str, Any], says: str) -> None:
    """A condition that nobody looks at would be a write without one."""
    with pytest.raises(UsageError, match=says):
        command_of(row, "text")


def test_a_column_that_has_a_value_where_the_op_takes_none_is_named(node: FakeNode, capsys, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("op,key,expected,value\ncas,a,1,2\nput,b,,2\nput,c,1,2\n")
    status, out, err = run(capsys, "submit", "-p", "0", "-f", str(path))
    assert (status, out) == (2, "")
    assert err.startswith("logboom: line 4: put takes no 'expected', which is for cas")
    assert not node.of(Kind.SUBMIT)


def test_words_and_parquet_say_the_same(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"op": ["put", "add"], "key": [b"a", b"b"], "value": [b"1", None], "numbers": [None, [1, 2]]})
    parquet.write_table(table, tmp_path / "x.parquet")
    with (tmp_path / "x.parquet").open("rb") as file:
        rows = [command_of(row, "text") for _, row in read_rows(file, "parquet", raw=False)]
    assert rows == [command_of(words_row(words.split()), "text") for words in ("put a 1", "add b 1 2")]


@pytest.mark.parametrize("whole", [Decimal(3), Decimal("3.00"), Decimal(2**62)])
def test_a_decimal_that_is_whole_is_that_number(whole: Decimal) -> None:
    row = {"op": "add", "key": "k", "numbers": [whole]}
    assert to_record(command_of(row, "text")) == to_record(Add(b"k", int(whole)))


def test_a_value_may_be_as_large_as_a_record(node: FakeNode, capsys, tmp_path: Path) -> None:
    value = "v" * 200 * KIB
    path = tmp_path / "x.csv"
    path.write_text(f"key,value,,\nk,{value},,\n")
    assert run(capsys, "submit", "-p", "0", "-f", str(path))[0] == 0
    assert node.log[0] == [Put(b"k", value.encode()).record().payload]


# -- lines that are wrong


GOOD = {"lines": "put k{k} v\n", "jsonl": '{{"key": "k{k}", "value": "v"}}\n', "csv": "k{k},v,put\n"}


@pytest.mark.parametrize(
    ("form", "bad"),
    [
        ("lines", "putt k v"),
        ("lines", "put 'k"),
        ("lines", "add k 99999999999999999999"),
        ("jsonl", '{"key": "k", "op": "frob"}'),
        ("jsonl", '{"key": "k", "vale": "v"}'),
        ("jsonl", '{"key": '),
        ("csv", "k,v,frob"),
        ("csv", "k,v,put,more"),
        ("csv", 'k,"v"v",put'),
    ],
)
def test_what_went_in_before_a_bad_line_is_told(node: FakeNode, capsys, tmp_path: Path, form: str, bad: str) -> None:
    head = "key,value,op\n" if form == "csv" else ""
    good = [GOOD[form].format(k=k) for k in range(CHUNK_RECORDS + 10)]
    path = tmp_path / f"x.{form}"
    path.write_text(head + "".join(good) + bad + "\n" + good[0])
    status, out, err = run(capsys, "submit", "-p", "1", "-f", str(path), "-o", "json")
    assert status == 2
    assert [row["records"] for row in json.loads(out)] == [CHUNK_RECORDS] == [len(node.log[1])]
    first = CHUNK_RECORDS + 1 + bool(head)
    told, error = err.splitlines()
    assert told == f"logboom: {CHUNK_RECORDS} commands were submitted before line {first}, none from there on"
    assert error.startswith(f"logboom: line {first + 10}: ")
    assert error.endswith("[usage]")


def test_of_a_short_input_with_a_bad_line_nothing_is_sent(node: FakeNode, capsys, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"key": "a", "value": "1"}\n{"key": "b", "op": "frob"}\n')
    status, out, err = run(capsys, "submit", "-p", "0", "-f", str(path), "-o", "json")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "line 2: unknown op 'frob'" in err
    assert not node.of(Kind.SUBMIT)


@pytest.mark.parametrize("column", ["numbers", "value"])
def test_no_decimal_is_cut_to_an_integer(node: FakeNode, capsys, tmp_path: Path, column: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    amounts = pyarrow.array([Decimal("2.00"), Decimal("1.99")], pyarrow.decimal128(10, 2))
    parquet.write_table(pyarrow.table({"op": ["add"] * 2, "key": ["a", "b"], column: amounts}), tmp_path / "x.parquet")
    status, out, err = run(capsys, "submit", "-p", "0", "-f", str(tmp_path / "x.parquet"))
    assert (status, out) == (2, "")
    assert "row 2: add takes integer and floating-point numbers, not decimals like 1.99" in err
    assert not node.of(Kind.SUBMIT)


def test_a_column_that_is_named_twice_is_refused(node: FakeNode, capsys, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "x.csv"
    path.write_text("key,value,value\nk,first,second\n")
    status, out, err = run(capsys, "submit", "-p", "0", "-f", str(path))
    assert (status, out) == (2, "")
    assert err.startswith("logboom: line 1: it names the column value twice")
    table = pyarrow.Table.from_arrays([pyarrow.array([each]) for each in "kab"], ["key", "value", "value"])
    parquet.write_table(table, tmp_path / "x.parquet")
    status, out, err = run(capsys, "submit", "-p", "0", "-f", str(tmp_path / "x.parquet"))
    assert (status, out) == (2, "")
    assert err.startswith("logboom: it has more than one column value")
    assert not node.of(Kind.SUBMIT)


def test_a_row_of_parquet_is_named(node: FakeNode, capsys, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"op": ["put", "frob"], "key": ["a", "b"], "value": ["1", "2"]})
    parquet.write_table(table, tmp_path / "x.parquet")
    status, _, err = run(capsys, "submit", "-p", "0", "-f", str(tmp_path / "x.parquet"))
    assert status == 2
    assert "row 2: unknown op 'frob'" in err


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (InvalidRequest("no"), 2, "{n} commands were submitted before line {next}, none from there on"),
        (UnknownOutcome("?"), 3, "{n} commands were submitted before line {next}; lines {next} to {last} may be, too"),
    ],
)
def test_what_a_failed_request_leaves_is_told(
    node: FakeNode, capsys, tmp_path: Path, error: Exception, status: int, told: str
) -> None:
    def once_is_enough(session: Session, frame: Any) -> None:
        if node.global_index:
            session.fail(frame, error)
        else:
            session.usual(frame)

    node.answers[Kind.SUBMIT] = once_is_enough
    path = tmp_path / "x"
    path.write_text("".join(f"put k{k} v\n" for k in range(CHUNK_RECORDS + 10)))
    found, out, err = run(capsys, "submit", "-p", "0", "-f", str(path), "-o", "json", "--timeout", "1s")
    assert found == status
    assert json.loads(out)[0]["records"] == CHUNK_RECORDS
    line = told.format(n=CHUNK_RECORDS, next=CHUNK_RECORDS + 1, last=CHUNK_RECORDS + 10)
    assert err.splitlines()[0] == f"logboom: {line}"


def test_under_a_name_partitions_of_a_request_may_differ(node: FakeNode, capsys, tmp_path: Path) -> None:
    def one_only(session: Session, frame: Any) -> None:
        if frame.header["parts"][0][0] == 1:
            session.fail(frame, InvalidRequest("not there"))
        else:
            session.usual(frame)

    node.answers[Kind.SUBMIT] = one_only
    path = tmp_path / "x.csv"
    path.write_text("key,value,partition\na,1,0\nb,2,1\n")
    status, out, err = run(capsys, "submit", "-f", str(path), "--once", "load-1", "-o", "json")
    assert status == 2
    assert [row["partition"] for row in json.loads(out)] == [0]
    assert "0 commands were submitted before line 2; lines 2 to 3 may be, too" in err


def test_lines_of_blanks_are_skipped_but_not_raw(node: FakeNode, capsys, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("put a 1\n \t \nput b 2\n")
    assert run(capsys, "submit", "-p", "0", "-f", str(path))[0] == 0
    assert len(node.log[0]) == 2
    assert run(capsys, "submit", "-p", "1", "-f", str(path), "--raw")[0] == 0
    assert node.log[1] == [b"put a 1", b" \t ", b"put b 2"]


@pytest.mark.parametrize(
    "line",
    [
        '{"key": "a", "numbers": [null]}',
        '{"key": "a", "numbers": {"x": 1}}',
        '{"key": "a", "numbers": [[1]]}',
        '{"key": "a", "numbers": [true]}',
        '{"key": "a", "numbers": [0.5, 1' + "0" * 400 + "]}",
        '{"key": "a", "numbers": [1' + "0" * 30 + "]}",
        '{"key": "a", "numbers": [0.5, 9007199254740993]}',
        '{"key": "a", "numbers": "9007199254740993 0.5"}',
        '{"op": "txn", "then": [{"key": "a", "numbers": [0.5, 9007199254740993]}]}',
        '{"op": "txn", "compares": [{"key": "a", "numbers": [0.5, 9007199254740993]}]}',
        '{"key": "a", "value": "v", "partition": 1.7}',
        '{"key": "a", "value": "v", "partition": true}',
        '{"key": "a", "value": "v", "partition": Infinity}',
        '{"key": "a", "value": "v", "partition": NaN}',
        '{"key": "a", "value": "v", "partition": -1}',
        '{"key": "a", "value": "v", "partition": 4294967296}',
        '{"key": "a", "value": "v", "partition": "²"}',
        '{"key": "a", "value": "v", "partition": [1]}',
        '{"key": "\\ud800", "value": "v"}',
        '{"key": "a", "value": "\\udcff"}',
        '{"key": "a", "value": {"b": ["\\ud800"]}}',
        '{"key": "a", "value": ' + "[" * 100_000,
        '{"op": "cas", "key": "a", "expected": "1", "expected": "2", "value": "v"}',
        '{"key": "a", "value": {"b": 1, "b": 2}}',
        '{"op": "txn", "compares": [{"key": "a", "key": "b"}], "then": [{"key": "c", "value": "v"}]}',
        '{"key": "a", "value": {"": 1, "": 2}}',
        *(json.dumps({"op": "txn", "compares": no, "then": [PUT]}) for no in ({}, "", 0, False)),
        *(json.dumps({"op": "txn", "then": [PUT], "otherwise": no}) for no in ({}, "", 0, False)),
        *(json.dumps({"op": no, **PUT}) for no in ({}, [], 0, False)),
    ],
)
def test_json_that_is_no_command_is_a_usage_error(node: FakeNode, capsys, tmp_path: Path, line: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(line + "\n")
    status, out, err = run(capsys, "submit", "-p", "0", "-f", str(path))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("logboom: line 1: ")
    assert not node.of(Kind.SUBMIT)


def test_what_json_names_twice_is_told(node: FakeNode, capsys, tmp_path: Path) -> None:
    """The last one counted, without a word."""
    path = tmp_path / "x.jsonl"
    path.write_text('{"key": "a", "value": "1"}\n{"key": "a", "value": "1", "value": "2"}\n')
    assert "line 2: it names 'value' twice in one object" in run(capsys, "submit", "-p", "0", "-f", str(path))[2]


def test_every_line_of_json_may_begin_with_a_mark(node: FakeNode, capsys, tmp_path: Path) -> None:
    """As files that were put behind each other leave it."""
    path = tmp_path / "x.jsonl"
    path.write_bytes((BOM_UTF8 + b'{"key": "a", "value": "1"}\n') * 2)
    assert run(capsys, "submit", "-p", "0", "-f", str(path))[0] == 0
    assert node.log[0] == [Put(b"a", b"1").record().payload] * 2


def test_values_that_are_neither_text_nor_bytes_are_refused() -> None:
    with pytest.raises(UsageError, match="'value' is no text"):
        command_of({"key": "k", "value": object()}, "text")


@pytest.mark.parametrize("partition", [3, 3.0, "3", " 3 ", "03"])
def test_partitions_of_rows(partition: Any) -> None:
    assert partition_of_row({"partition": partition}) == 3


def test_submit_without_a_stdin_says_so(node: FakeNode, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    status, out, err = run(capsys, "submit", "-p", "0")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "stdin is closed" in err


@pytest.mark.parametrize("words", [[], ["put", "a", "1"]])
def test_a_file_without_a_name_is_not_stdin(node: FakeNode, capsys, monkeypatch, words: list[str]) -> None:
    """A variable that was not set, as in ``-f "$FILE"``: commands came from wherever stdin was."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"put a 1\n")))
    status, out, err = run(capsys, "submit", "-p", "0", "-f", "", *words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert not node.of(Kind.SUBMIT)
