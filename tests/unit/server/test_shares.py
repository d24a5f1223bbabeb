"""With thousands of partitions each gets its share of the node's memory and addresses."""

from __future__ import annotations

import pytest

from logboom.settings import AdmissionSettings, ApplySettings, LogSettings, Settings
from logboom.types import GIB, MIB
from partitions.machines import LOADED_BYTES_MIN, loaded_bytes
from partitions.machines.kv_apply import LOADED_BYTES_MAX
from server.directory.shares import (
    ADDRESS_BYTES,
    UNSAVED_BYTES_MIN,
    apply_share,
    later_apply_share,
    log_share,
    unread_share,
    within,
)
from server.world.world import OFFLOAD_THREADS


@pytest.mark.parametrize("partitions", [1, 8, 1000])
def test_what_there_is_enough_of_is_not_cut(partitions: int) -> None:
    assert apply_share(ApplySettings(), ["kv"] * partitions).kv_map_bytes == ApplySettings().kv_map_bytes
    assert apply_share(ApplySettings(unsaved_bytes=1), ["kv"] * partitions).unsaved_bytes == 1


@pytest.mark.parametrize("partitions", [2048, 10_000, 100_000])
def test_the_maps_of_all_fit_into_one_process(partitions: int) -> None:
    """2,048 of 64 GiB each do not: the node did not start, and spoke of corrupt data."""
    mapped = apply_share(ApplySettings(), ["kv"] * partitions).kv_map_bytes
    assert mapped * partitions <= ADDRESS_BYTES
    assert mapped % 4096 == 0
    assert mapped > 1 << 28


def test_nobody_saves_at_every_command() -> None:
    assert apply_share(ApplySettings(), ["kv"] * 1_000_000).unsaved_bytes == UNSAVED_BYTES_MIN


def test_logs_leave_their_share_to_those_that_have_state() -> None:
    mixed = apply_share(ApplySettings(), ["kv"] * 8 + ["log"] * 56)
    assert mixed == apply_share(ApplySettings(), ["kv"] * 8)
    assert mixed.unsaved_bytes > apply_share(ApplySettings(), ["kv"] * 64).unsaved_bytes
    assert apply_share(ApplySettings(), ["log"] * 64).unsaved_bytes > 0


def test_recent_batches_of_all_fit_into_the_memory_of_the_node() -> None:
    few, many = (log_share(LogSettings(), p) for p in (1, 1000))
    assert few == LogSettings()
    assert 0 < many.recent_bytes * 1000 <= LogSettings().recent_node_bytes


def test_the_maps_of_those_created_later_fit_too() -> None:
    mapped = 2000 * apply_share(ApplySettings(), ["kv"] * 2000).kv_map_bytes
    mapped += sum(later_apply_share(ApplySettings(), count).kv_map_bytes for count in range(2001, 50_000))
    assert mapped < 2 * ADDRESS_BYTES


def test_without_a_limit_settings_stay_as_they_are() -> None:
    assert within(Settings(), None) == Settings()
    roomy = within(Settings(), 64 * GIB)
    assert roomy == Settings(admission=AdmissionSettings(memory_bytes_max=48 * GIB))


@pytest.mark.parametrize("limit", [64 * MIB, 256 * MIB, GIB])
def test_in_a_small_container_what_is_kept_in_memory_fits(limit: int) -> None:
    """By default it was twice of 256 MiB alone, and nodes were killed."""
    small = within(Settings(), limit)
    assert small.admission.memory_bytes_max == limit * 3 // 4
    kept = 2 * small.apply.unsaved_node_bytes + small.log.recent_node_bytes + small.admission.node_bytes
    kept += small.admission.queue_bytes + small.reads.memory_bytes
    if limit > 256 * MIB:  # one connection may have twice its buffer in the smallest, too
        kept += unread_share(small)
    assert kept <= small.admission.memory_bytes_max
    assert small.admission.node_bytes >= small.net.client_frame_bytes  # or no request fits
    assert OFFLOAD_THREADS * loaded_bytes(small.apply) <= small.admission.memory_bytes_max // 8


def test_without_one_what_each_group_has_looked_at_is_bounded_by_itself() -> None:
    assert loaded_bytes(ApplySettings()) == LOADED_BYTES_MAX == loaded_bytes(ApplySettings(unsaved_node_bytes=8 * GIB))
    assert loaded_bytes(ApplySettings(unsaved_node_bytes=1)) == LOADED_BYTES_MIN


def test_what_clients_do_not_read_has_a_share_and_one_of_them_its_buffer() -> None:
    assert unread_share(within(Settings(), None)) == 0
    assert unread_share(within(Settings(), 2 * GIB)) == 2 * GIB * 3 // 4 // 8
    assert unread_share(within(Settings(), 64 * MIB)) == 2 * Settings().net.client_send_buffer_bytes


def test_what_is_set_counts_before_the_limit() -> None:
    asked = Settings(admission=AdmissionSettings(memory_bytes_max=100 * MIB))
    assert within(asked, GIB).admission.memory_bytes_max == 100 * MIB
    assert within(asked, None).apply.unsaved_node_bytes == 100 * MIB // 8


@pytest.mark.parametrize("limit", [8 * MIB, 16 * MIB, 64 * MIB])
def test_however_small_it_is_what_one_reader_is_given_at_once_fits(limit: int) -> None:
    small = within(Settings(), limit)
    assert small.reads.memory_bytes >= small.reads.window_bytes


def test_each_of_very_many_logs_may_open_a_file() -> None:
    assert log_share(LogSettings(), 1_000_000).open_files_max == 1


def test_what_a_crash_has_each_of_many_repeat_is_shared_out_too() -> None:
    usual = ApplySettings()
    shared = apply_share(usual, ["kv"] * 1000)
    assert UNSAVED_BYTES_MIN <= shared.replay_bytes <= usual.unsaved_node_bytes // 1000 < usual.replay_bytes
