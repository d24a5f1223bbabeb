"""When certificates end: read from the files, said in time, and not too often."""

from __future__ import annotations

import contextlib
import datetime
import re
import time
from pathlib import Path

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from logboom import certs
from server.watching.certificates import Certificates, _end, first_end
from tests.unit.logboom.command_line import run

DAY_MS = 86_400_000


class Clock:
    def __init__(self) -> None:
        self.ms = int(datetime.datetime.now(datetime.UTC).timestamp() * 1000)

    def monotonic(self) -> float:
        return self.ms / 1000

    def wall_ms(self) -> int:
        return self.ms


def test_it_is_what_the_certificate_says(tmp_path: Path) -> None:
    for days in (1, 400, 36_500):  # the last in the other form, of four digits
        directory = tmp_path / str(days)
        certs.make_test_authority(directory, ["n1"], days=days)
        for name in ("n1.pem", "ca.pem", "client-ca.pem"):
            ends = x509.load_pem_x509_certificate((directory / name).read_bytes()).not_valid_after_utc
            assert first_end(directory / name) == ends.timestamp()


def test_of_several_in_a_file_the_first_counts_and_of_none_nothing(tmp_path: Path) -> None:
    for days in (10, 20):
        certs.make_test_authority(tmp_path / str(days), ["n1"], days=days)
    both = tmp_path / "both.pem"
    both.write_bytes((tmp_path / "20" / "ca.pem").read_bytes() + (tmp_path / "10" / "ca.pem").read_bytes())
    assert first_end(both) == first_end(tmp_path / "10" / "ca.pem")
    assert first_end(tmp_path / "10" / "n1.key") is None
    assert first_end(tmp_path / "none.pem") is None
    both.write_text("-----BEGIN CERTIFICATE-----\nMAAA\n-----END CERTIFICATE-----\n")
    assert first_end(both) is None


@pytest.mark.parametrize("word", ["X509 ", "TRUSTED "])
def test_it_is_found_by_each_of_the_names_that_tls_takes(tmp_path: Path, word: str) -> None:
    certs.make_test_authority(tmp_path, ["n1"], days=30)
    other = tmp_path / "other.pem"
    other.write_text((tmp_path / "ca.pem").read_text().replace(" CERTIFICATE", f" {word}CERTIFICATE"))
    assert first_end(other) == first_end(tmp_path / "ca.pem") is not None


@given(st.binary(max_size=200))
def test_whatever_a_file_holds_nothing_worse_comes_of_it(raw: bytes) -> None:
    with contextlib.suppress(ValueError, IndexError, OverflowError):
        _end(raw)


def test_it_is_said_once_a_day_from_the_day_on_that_the_settings_say(tmp_path: Path) -> None:
    certs.make_test_authority(tmp_path, ["n1"], days=32)
    clock = Clock()
    looking = Certificates(str(tmp_path), "n1", warn_days=30, clock=clock)

    def said(days: float = 0.0) -> list[tuple[str, str, int]]:
        clock.ms += int(days * DAY_MS)
        with capture_logs() as lines:
            looking.look()
        return [(line["event"], line["file"], line["days"]) for line in lines]

    files = ("n1.pem", "ca.pem", "client-ca.pem")
    assert said() == []
    assert set(looking.ends) == set(files)
    assert said(2.5) == [("certificate_ends_soon", file, 29) for file in files]
    assert said() == said(0.9) == []
    assert said(0.2) == [("certificate_ends_soon", file, 28) for file in files]
    assert {event for event, _, _ in said(29)} == {"certificate_has_ended"}
    for file in tmp_path.iterdir():
        file.unlink()
    clock.ms = Clock().ms
    certs.make_test_authority(tmp_path, ["n1"], days=400)
    assert said() == []  # they have been replaced


def test_a_clock_that_was_ahead_for_a_moment_silences_nothing(tmp_path: Path) -> None:
    certs.make_test_authority(tmp_path, ["n1"], days=32)
    clock = Clock()
    looking = Certificates(str(tmp_path), "n1", warn_days=30, clock=clock)
    for days in (20, -15):
        clock.ms += days * DAY_MS
        with capture_logs() as lines:
            looking.look()
        assert [line["event"] for line in lines] == ["certificate_ends_soon"] * 3


@pytest.mark.parametrize("directory", ["", "/nonexistent"])
def test_without_any_nothing_is_said(directory: str) -> None:
    looking = Certificates(directory, "n1", warn_days=30, clock=Clock())
    with capture_logs() as lines:
        looking.look()
    assert lines == []
    assert looking.ends == {}


def test_it_is_said_before_a_start_that_one_ends_or_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`logboom node --check` found all well, and then no node took a link of this one."""
    certs.make_test_authority(tmp_path / "tls", ["n1"], days=40)
    file = tmp_path / "n1.toml"
    file.write_text(
        '[cluster]\nmembers = "n1=a:1@a:2"\n[node]\nid = "n1"\ndata_dir = "d"\n[tls]\n'
        f'directory = "{tmp_path / "tls"}"\n'
    )
    check = ("node", "--config", str(file), "--check")
    assert run(capsys, *check) == (0, "", "configuration is fine\n")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 20 * 86_400)
    status, _, err = run(capsys, *check)
    assert status == 0
    assert re.search(r"^n1\.pem ends on 2\d{3}-\d\d-\d\d", err, re.MULTILINE)
    monkeypatch.setattr(time, "time", lambda: now + 41 * 86_400)
    status, _, err = run(capsys, *check)
    assert status == 2
    assert re.search(r"n1\.pem has ended on .*docs/operating\.md, Certificates", err)
