"""The ``logboom`` command. Each command's module is loaded when it is used."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from importlib import import_module, metadata
from typing import Any, Final

import click

from logboom.errors import LogboomError

COMMANDS: Final = {
    "node": ("logboom.cli.node", "node"),
    "local": ("logboom.cli.node", "local"),
    "demo": ("logboom.cli.node", "demo"),
    "certs": ("logboom.cli.node", "make_certs"),
    "submit": ("logboom.cli.submit", "submit"),
    "get": ("logboom.cli.read", "get"),
    "scan": ("logboom.cli.read", "scan"),
    "tail": ("logboom.cli.read", "tail"),
    "cursors": ("logboom.cli.cursors", "cursors"),
    "barrier": ("logboom.cli.waits", "barrier"),
    "watermarks": ("logboom.cli.waits", "watermarks"),
    "status": ("logboom.cli.operate", "status"),
    "top": ("logboom.cli.top", "top"),
    "partitions": ("logboom.cli.partitions", "partitions"),
    "members": ("logboom.cli.members", "members"),
    "snapshot": ("logboom.cli.snapshots", "snapshot"),
    "backup": ("logboom.cli.backup", "backup"),
    "restore": ("logboom.cli.backup", "restore"),
    "recover": ("logboom.cli.backup", "recover"),
    "verify": ("logboom.cli.offline", "verify"),
    "inspect": ("logboom.cli.offline", "inspect"),
    "bench": ("logboom.cli.bench", "bench"),
    "chaos": ("logboom.cli.chaos", "chaos"),
}
SECTIONS: Final = {
    "node": "Start nodes",
    "submit": "Write, read, wait",
    "status": "Look after a cluster",
    "restore": "Files of a node, or of a backup",
    "bench": "Load and faults",
}
"""Of the list of commands: the first one of each, and its heading."""
SUBMITTED: Final = {each: each for each in ("put", "delete", "cas", "add", "record", "delete-prefix")} | {
    "del": "delete"
}
"""What others call commands of the program, and what of it is submitted."""
FOLLOWED: Final = frozenset(("watch", "consume"))
STDOUT, STDERR = 1, 2
EXIT_FAILED, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_SERVER = 1, 2, 3, 4
EXIT_TERMINATED: Final = 128 + signal.SIGTERM
USAGE_CODES: Final = frozenset(("config", "wrong_node", "incompatible_version"))
UNREACHABLE_CODES: Final = frozenset(("unavailable", "unknown_outcome", "deadline_exceeded", "not_leader"))
SERVER_CODES: Final = frozenset(("corrupt_data", "protocol", "error"))


PORTS: Final = "in the examples nodes answer clients at port 7701, other nodes at 7801; 7901 is the status page"
HELP: Final = """Start, use and look after a logboom cluster: replicated keys and logs, written exactly once.

\b
Try it, in two terminals:
  logboom local                               1: three nodes; it prints an `export` line
  export LOGBOOM_ENDPOINTS=...                2: that line
  logboom submit -p 0 put greeting hello      2: a key and its value, into partition 0
  logboom get -p 0 greeting

\b
LOGBOOM_ENDPOINTS: addresses of nodes, host:port,host:port
LOGBOOM_TLS_DIR: a directory with ca.pem, client.pem and client.key

\b
Exit status: 0 ok, 1 failed, 2 usage, 3 unreachable, 4 server error, 5 unhealthy.
"""


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = "" if ctx.resilient_parsing else args[0]
        if word in SUBMITTED:
            raise click.UsageError(
                f"no such command {word!r}: `logboom submit -p PARTITION {SUBMITTED[word]} ...` does that", ctx
            )
        if word in FOLLOWED:
            raise click.UsageError(f"no such command {word!r}: `logboom tail -p PARTITION --follow` follows a log", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[str, list[tuple[str, str]]] = {}
        title = ""
        width = max(map(len, COMMANDS))
        for name in self.list_commands(ctx):
            title = SECTIONS.get(name, title)
            command = self.get_command(ctx, name)
            if command is not None:
                short = command.get_short_help_str(formatter.width - 6 - width)
                rows.setdefault(title, []).append((name.ljust(width), short))
        for each, found in rows.items():
            with formatter.section(each):
                formatter.write_dl(found)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # `| head` has what it wanted; click would call it a failure
            nobody_reads(STDOUT)
            raise click.exceptions.Exit(0) from None
        except click.UsageError as error:
            name = ctx.invoked_subcommand
            command = None if error.ctx is not None or name is None else self.get_command(ctx, name)
            if name is not None and command is not None:  # click does not always say whose help to look at
                error.ctx = click.Context(command, ctx, name)
            raise


@click.group(cls=_Lazy, help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="logboom")
def cli() -> None:
    """See HELP."""


def nobody_reads(stream: int) -> None:
    """What is left in the buffer of STDOUT or STDERR goes nowhere, as does what comes."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def talk(message: str) -> None:
    """To the human: stderr. Where nobody reads that (`2>&1 | head`) the exit status tells."""
    try:
        click.echo(message, err=True)
    except BrokenPipeError:
        nobody_reads(STDERR)


def exit_status(error: LogboomError) -> int:
    """1 failed, 2 usage, 3 unreachable, 4 server error."""
    if error.code in USAGE_CODES or error.code in ("invalid_request", "no_such_partition", "record_too_large"):
        return EXIT_USAGE
    if error.code in UNREACHABLE_CODES:
        return EXIT_UNREACHABLE
    return EXIT_SERVER if error.code in SERVER_CODES else EXIT_FAILED


def _hint(error: LogboomError) -> str:
    """What to look at, where the error itself cannot say it."""
    if "port for clients" in error.message:  # somebody is there, and does not speak as nodes do to clients
        return f" ({PORTS})"
    if error.code == "not_leader" and not error.fields.get("leader"):  # whoever was asked leads no more, or not yet
        return "; in all this time no node has led: `logboom status` says which can be reached"
    if error.code == "unavailable" and error.fields.get("addresses"):
        asked = ", ".join(map(str, error.fields["addresses"]))
        return f"; asked were {asked}: is that where nodes run? (--endpoints, LOGBOOM_ENDPOINTS)"
    if error.code == "deadline_exceeded" or (error.code == "unavailable" and "no leader" in error.message):
        return "; `logboom status` says which nodes can be reached, and who leads"
    if error.code == "no_such_partition":
        return "; `logboom partitions list` says which there are"
    if error.code == "overloaded":
        return "; what that is, and what to do about it: docs/operating.md, Overload"
    return ""


def _extra_with(package: str) -> str | None:
    """The extra of this package that brings another; clients are installed without any."""
    try:
        wanted = metadata.requires("logboom") or ()
    except metadata.PackageNotFoundError:  # not installed: files on the path
        return None
    for line in wanted:
        found = re.match(r"""([\w.-]+).*;.*\bextra == ["']([\w-]+)["']""", line)
        if found is not None and found[1].replace("-", "_") == package:
            return found[2]
    return None


def main(args: list[str] | None = None) -> Any:
    """Entry point: typed errors become one line on stderr and an exit status."""
    # Of numpy, which nobody needs for matrices here: else it begins a thread for each CPU, and each looks for work for
    # a tenth of a second. A state machine that wants them says so in the environment.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if os.getpid() == 1:  # alone in a container: the kernel keeps from it what it has no handler for
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # where the locale has no such character
    try:
        cli.main(args, prog_name="logboom", standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        talk(error.format_message())
        sys.exit(EXIT_USAGE)
    except click.UsageError as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "logboom"
        talk(f"logboom: {' '.join(error.format_message().split())} (see `{command} --help`) [usage]")
        sys.exit(EXIT_USAGE)
    except click.ClickException as error:
        talk(f"logboom: {error.format_message()} [failed]")
        sys.exit(EXIT_FAILED)
    except click.Abort:
        sys.exit(130)
    except LogboomError as error:
        talk(f"logboom: {error}{_hint(error)} [{error.code}]")
        sys.exit(exit_status(error))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = _extra_with(package)
        if extra is None:
            raise
        say = f"{package} is not installed, and this command needs it: pip install 'logboom[{extra}]' [config]"
        talk(f"logboom: {say}")
        sys.exit(EXIT_USAGE)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        talk(f"logboom: {where}{error.strerror or error} [io]")
        sys.exit(EXIT_FAILED)
    sys.exit(0)
