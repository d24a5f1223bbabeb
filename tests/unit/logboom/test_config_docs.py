"""docs/configuration.md says what logboom.settings says."""

from __future__ import annotations

from pathlib import Path

import msgspec

from logboom import config, config_reference
from logboom.settings import Settings

FILE = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"


def test_the_file_is_current() -> None:
    assert FILE.read_text() == config_reference.render(), config_reference.__doc__


def test_every_setting_is_there() -> None:
    text = FILE.read_text()
    for section in msgspec.structs.fields(Settings):
        begin = text.index(f"## [{section.name}]")
        for field in msgspec.structs.fields(section.type):
            assert f"| `{field.name}` |" in text[begin:], f"{section.name}.{field.name}"


def test_the_example_loads(tmp_path: Path) -> None:
    example = FILE.read_text().split("```toml\n")[1].split("```")[0]
    file = tmp_path / "n1.toml"
    file.write_text(example)
    settings = config.load(file, environment={})
    config.check_node(settings)
    assert [member.id for member in settings.cluster.members] == ["n1", "n2", "n3"]
