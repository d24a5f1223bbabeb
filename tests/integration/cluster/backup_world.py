"""Commands about backups."""

from __future__ import annotations

import json

from click.testing import CliRunner, Result

from logboom.cli import cli


def run(*args: object) -> Result:
    return CliRunner().invoke(cli, [str(arg) for arg in args])


def done(*args: object) -> dict:
    result = run(*args, "-o", "json")
    assert result.exit_code == 0, (result.output, result.exception)
    return dict(json.loads(result.stdout))
