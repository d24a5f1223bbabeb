"""docs/operating.md on one machine: its addresses are of the loopback, its places below one directory."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.integration.waiting import wait_for

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "operating.md").read_text()
EXAMPLE = (DOCS / "configuration.md").read_text().split("```toml\n")[1].split("```")[0]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def block(what: str, kind: str = "") -> str:
    """The one of the page in which that stands."""
    found = [
        text
        for text in (textwrap.dedent(each) for _, said, each in FENCE.findall(PAGE) if said == kind)
        if what in text
    ]
    assert len(found) == 1, f"{len(found)} blocks with {what!r}"
    return found[0]


def prose() -> str:
    """The page without its blocks, wherever its lines end."""
    return re.sub(r"\s+", " ", FENCE.sub("", PAGE))


class Machines:
    """What is pasted runs in one directory, where each node has a place of its own, and its file ``<id>.toml``."""

    def __init__(self, directory: Path) -> None:
        dice = random.SystemRandom()
        self._network = f"127.{dice.randint(10, 250)}.{dice.randint(1, 250)}."
        self._at = directory
        self._places: dict[str, Path] = {}
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._groups: list[int] = []
        self.said = {"/backups/": f"{directory}/backups/"}
        """What the page names, and what that is here."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LOGBOOM_")}
        self.environment = {**clean, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def here(self, text: str) -> str:
        """What the page says, as it is on this machine."""
        for said, meant in self.said.items():
            text = text.replace(said, meant)
        return text.replace("10.0.0.", self._network)

    def data(self, node: str) -> Path:
        return self._places[node]

    def log(self, node: str) -> str:
        return (self._at / f"{node}.log").read_text()

    def configure(
        self, node: str, *, more: str = "", rows: str = "", last: str = "", address: str = "", anew: bool = False
    ) -> None:
        """As in docs/configuration.md, the same on all but for the id. ``more`` of ``[node]``, ``rows`` of the members.

        ``address``: it is elsewhere. ``anew``: its data are.
        """
        self._places[node] = self._at / f"{node}{'-anew' if anew else ''}"
        number = address or f"10.0.0.{node[1:]}"
        text = EXAMPLE.replace('id = "n1"\n', f'id = "{node}"\n{more}').replace("]\n\n[node]", f"{rows}]\n\n[node]")
        text = re.sub(rf'(id = "{node}", .*?)10\.0\.0\.\d(.*?)10\.0\.0\.\d', rf"\g<1>{number}\g<2>{number}", text)
        text = text.replace("/var/lib/logboom", str(self._places[node])).replace("/etc/logboom/tls", "tls")
        (self._at / f"{node}.toml").write_text(self.here(f"{text}\n{last}"))

    def paste(self, text: str, *, status: int = 0, within: str = ".") -> str:
        """As into a terminal: it is not in the command line of the shell. What came, stderr too."""
        shown = self._at / "shown"
        with shown.open("wb") as output:
            shell = subprocess.Popen(
                ["bash", "-e", "-s"], cwd=self._at / within, env=self.environment, stdin=subprocess.PIPE, stdout=output,
                stderr=output, start_new_session=True,
            )  # fmt: skip
            if re.search(r"&$", text, re.MULTILINE):  # it leaves something in the background
                self._groups.append(shell.pid)
            shell.communicate(self.here(text).encode(), timeout=120)
        came = shown.read_text()
        assert shell.returncode == status, f"{text}\nended with {shell.returncode}:\n{came}"
        return came

    def succeeds(self, text: str) -> bool:
        with suppress(AssertionError):
            self.paste(text)
            return True
        return False

    def start(self, node: str) -> None:
        with (self._at / f"{node}.log").open("ab") as output:
            self._nodes[node] = subprocess.Popen(
                ["logboom", "node", "--config", f"{node}.toml"], cwd=self._at, env=self.environment, stderr=output,
                stdin=subprocess.DEVNULL, executable=str(Path(sys.executable).with_name("logboom")),
            )  # fmt: skip

    def pid(self, node: str) -> int:
        return self._nodes[node].pid

    def stop(self, node: str) -> None:
        self._nodes[node].terminate()
        self.forget(node)

    def forget(self, node: str) -> None:
        """It ends; somebody has asked it to."""
        assert self._nodes.pop(node).wait(60) == 0

    def healthy(self) -> None:
        """``logboom status`` ends with 0, in time."""
        wait_for(lambda: self.succeeds("logboom status"))

    def end(self) -> None:
        """Nothing is left."""
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        for process in self._nodes.values():
            process.kill()
            process.wait()


@contextmanager
def machines(directory: Path) -> Iterator[Machines]:
    made = Machines(directory)
    try:
        yield made
    finally:
        made.end()
