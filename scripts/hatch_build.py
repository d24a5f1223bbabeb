"""Ships the server's folders inside the wheel as ``logboom/_server/``.

Names like ``partitions`` must not land in users' site-packages. An editable install needs none of
this: there the checkout itself is on the path, and copies would only grow stale.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOR_SPARK = "pyspark_logboom.py"
"""Spark finds it by its name: next to ``logboom``."""
SERVER_FOLDERS = ("ports", "raftlog", "partitions", "dispatcher", "snapshots", "server", "chaos", "bench")


class ServerFolders(BuildHookInterface[Any]):
    """Adds the server's folders to a standard wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name each folder that exists, and where it goes."""
        if version != "standard":
            return
        build_data["force_include"][str(Path(self.root) / FOR_SPARK)] = FOR_SPARK
        for folder in SERVER_FOLDERS:
            path = Path(self.root) / folder
            if path.is_dir():
                build_data["force_include"][str(path)] = f"logboom/_server/{folder}"
