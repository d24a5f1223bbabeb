"""What pages say of the program is so: commands and options, settings, metrics, targets of make, words of its log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import click
import msgspec
import pytest

from logboom.cli import COMMANDS, SECTIONS, cli
from logboom.settings import Settings
from logboom.spark import options
from server.metrics.catalogue import METRICS, PREFIX
from tests.tidy.tree import ROOT, tracked

PAGES = [path for path in tracked() if path.suffix == ".md" and path.name != "FOUND.md"]
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
NO_COMMANDS = {"kv"}
"""``logboom kv 1`` is how a file begins."""
OUTSIDE = re.compile(r"[|<>;&)#]|\s-- |`")
"""There a command ends, or what is its own: pipes, comments, words that may begin with a dash."""


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def codes(page: Path) -> Iterator[str]:
    """Lines of blocks, and what stands between backticks in the text."""
    text = page.read_text()
    for kind, block in FENCE.findall(text):
        if kind not in ("python", "json", "mermaid"):
            yield from block.replace("\\\n", " ").splitlines()
    yield from (" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", FENCE.sub("", text)))


def lines_of(texts: Iterable[str]) -> Iterator[str]:
    """What follows the name of the program."""
    for text in texts:
        yield from re.findall(r"(?<!-u)(?:^|[\s('\"])logboom ((?:[a-z]|--?[a-z]).*)", text, re.MULTILINE)


def words_of(line: str) -> list[str]:
    return OUTSIDE.split(line)[0].replace("'", " ").replace('"', " ").split()


def check(words: list[str]) -> None:
    """A command is one, and has the options that it is given."""
    command: click.Command = cli
    context = click.Context(cli, info_name="logboom")
    said, rest = "logboom", words
    while isinstance(command, click.Group) and rest and re.fullmatch(r"[a-z][a-z-]*", rest[0]):
        inner = command.get_command(context, rest[0])
        assert inner is not None, f"there is no `{said} {rest[0]}`"
        command, said, rest = inner, f"{said} {rest[0]}", rest[1:]
    known = {each for option in command.get_params(context) for each in (*option.opts, *option.secondary_opts)}
    for word in rest:
        option = re.match(r"--?[a-z][a-z-]*", word)
        assert option is None or option[0] in known | {"--help"}, f"`{said}` has no {option[0]}: {' '.join(words)}"


def every(command: click.Command, context: click.Context) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            inner = command.get_command(context, each)
            assert inner is not None
            yield from every(inner, context)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_command_of_a_page_is_one(page: Path) -> None:
    for words in filter(None, map(words_of, lines_of(codes(page)))):
        if words[0] not in NO_COMMANDS and not words[0].endswith(":"):
            check(words)


def test_the_examples_of_the_help_are_commands() -> None:
    for command in every(cli, click.Context(cli, info_name="logboom")):
        for words in filter(None, map(words_of, lines_of((command.epilog or "", command.help or "")))):
            check(words)


def test_lists_of_commands_say_what_each_does_in_a_line() -> None:
    """Of a terminal of 80 columns: click cuts what is longer."""
    for command in every(cli, click.Context(cli, info_name="logboom")):
        if isinstance(command, click.Group):
            shown = command.get_help(click.Context(command, info_name="logboom", terminal_width=80))
            assert re.findall(r"^ .*\.\.\.$", shown.partition("Options:")[2], re.MULTILINE) == []


def test_the_list_of_all_commands_has_each_once_below_a_heading() -> None:
    shown = cli.get_help(click.Context(cli, info_name="logboom", terminal_width=80)).partition("Options:")[2]
    assert re.findall(r"^  ([a-z]+)  ", shown, re.MULTILINE) == list(COMMANDS)
    assert re.findall(r"^([A-Z].*):$", shown, re.MULTILINE) == list(SECTIONS.values())


@cache
def settings() -> frozenset[str]:
    sections = msgspec.structs.fields(Settings)
    return frozenset(f"{each.name}.{field.name}" for each in sections for field in msgspec.structs.fields(each.type))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_setting_is_there(page: Path) -> None:
    sections = "|".join({each.partition(".")[0] for each in settings()})
    found = re.findall(rf"`((?:{sections})\.[a-z_]+)(?: = [^`]*)?`", FENCE.sub("", page.read_text()))
    files = {path.name for path in tracked()}
    assert {each for each in found if each not in settings() and each not in files} == set()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_metric_is_there(page: Path) -> None:
    found = set(re.findall(rf"\b{PREFIX}[a-z_]+[a-z]", page.read_text()))
    known = {f"{PREFIX}{each}" for each in METRICS}
    assert {each for each in found if re.sub("_(bucket|sum|count)$", "", each) not in known} == set()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_make_has_the_target(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    found = {each for code in codes(page) for each in re.findall(r"(?:^|\s)make ([a-z][a-z-]*)", code)}
    assert found <= targets


def test_a_word_that_operators_look_for_is_said_somewhere() -> None:
    """Events of the log, gates, codes of errors, names of fields; of Prometheus, two words of its own."""
    code = "\n".join(path.read_text() for path in tracked() if path.suffix == ".py" and "tests" not in path.parts)
    words = set(re.findall(r"\b[a-z]\w*\b", code))
    page = FENCE.sub("", (ROOT / "docs" / "operating.md").read_text())
    found = {each for each in re.findall(r"`([a-z]+(?:_[a-z0-9]+)+)`", page) if not each.startswith(PREFIX)}
    assert found - words == {"process_resident_memory_bytes", "rule_files"}


def test_what_status_says_is_on_the_page_of_what_one_sees() -> None:
    """Each line that ``logboom status`` may end with 5 for, by words of it."""
    page = " ".join((ROOT / "docs" / "operating.md").read_text().partition("## A cluster of three machines")[0].split())
    shown = (ROOT / "logboom" / "cli" / "operate.py").read_text()
    words = (
        "no majority", "no node leads", "has lost its journal", "is still recovering", "has no link with any other",
        "can take no writes", "damaged on", "the states", "refuses us", "goes by rules of before", "does not return",
        "has not been open for", "is not scrubbed any more", "nodes go by different rules",
    )  # fmt: skip
    for each in words:
        assert each in shown, f"status says {each!r} no more"
        assert each in page, each


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_picture_can_be_drawn(page: Path) -> None:
    """A semicolon ends a statement of mermaid, and what follows in the sentence is none."""
    assert [block for kind, block in FENCE.findall(page.read_text()) if kind == "mermaid" and ";" in block] == []


def test_the_options_of_spark_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "spark.md").read_text().partition("## If you know Kafka")[0]
    rows = {
        each for row in re.findall(r"^\| (`[a-zA-Z`, ]+) \|", page, re.MULTILINE) for each in re.findall(r"\w+", row)
    }
    columns = set(re.findall(r"^\| `(\w+)`[^|]*\| [a-z]", page, re.MULTILINE))
    known = set(options.KNOWN.values())
    assert known - set(options.SPARKS_OWN) - {"pushdown"} <= rows, "an option that nobody is told of"
    assert {each for each in rows if any(map(str.isupper, each))} <= known | columns, "and one that there is not"
