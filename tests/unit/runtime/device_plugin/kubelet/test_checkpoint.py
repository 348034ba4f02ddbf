# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kubelet's checkpoint in all the states in which it is found on a host."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Set
from pathlib import Path
from typing import Any

import pytest

from gpushare_runtime.core.quantity import GIB, UNITS
from gpushare_runtime.device_plugin.kubelet.checkpoint import CheckpointError, CheckpointFile, changed_unit, parse
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry

MEMORY = "aliyun.com/gpu-mem"
IDS = ["GPU-a-_-0", "GPU-a-_-1"]
ENTRY = {"PodUID": "u", "ContainerName": "c", "ResourceName": MEMORY, "DeviceIDs": {"-1": IDS}, "AllocResp": "CgA="}
PARSED = CheckpointEntry("u", "c", MEMORY, frozenset(IDS))


def document(*entries: dict[str, Any]) -> bytes:
    return json.dumps({"Data": {"PodDeviceEntries": list(entries), "RegisteredDevices": {MEMORY: IDS}}, "Checksum": 7}).encode()


def entries_in(data: bytes) -> tuple[CheckpointEntry, ...]:
    return tuple(entry for _, entry in parse({}, data, [MEMORY]).values())


def test_the_form_of_today() -> None:
    assert entries_in(document(ENTRY)) == (PARSED,)


def test_ids_of_several_numa_nodes_are_one_set() -> None:
    assert entries_in(document(ENTRY | {"DeviceIDs": {"0": IDS[:1], "1": IDS[1:]}})) == (PARSED,)


def test_the_list_of_kubelets_before_1_20_and_the_document_without_a_wrapper() -> None:
    old = ENTRY | {"DeviceIDs": IDS}
    assert entries_in(document(old)) == (PARSED,)
    assert entries_in(json.dumps({"PodDeviceEntries": [old]}).encode()) == (PARSED,)


def test_other_resources_are_left_out() -> None:
    assert entries_in(document(ENTRY | {"ResourceName": "nvidia.com/gpu", "DeviceIDs": 5})) == ()


def test_no_entries_is_null_in_the_file() -> None:
    assert entries_in(b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}') == ()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (document(ENTRY)[:40], "not JSON"),
        (b"", "not JSON"),
        (b"[]", "no list Data.PodDeviceEntries"),
        (b'{"Data":{"PodDeviceEntries":{"a":1}}}', "no list Data.PodDeviceEntries"),
        (document({"ResourceName": MEMORY, "PodUID": "u"}), "has no ContainerName"),
        (document(ENTRY | {"DeviceIDs": {"-1": "x"}}), "must be lists of ids, found str"),
        (document(ENTRY | {"DeviceIDs": "x"}), "must be lists of ids, found str"),
        (document(ENTRY | {"DeviceIDs": {"-1": IDS, "0": [1]}}), "must be lists of ids, found list"),
        (document({"ResourceName": MEMORY, "ContainerName": "c"}), f"an entry of {MEMORY} has no PodUID"),
        (document({"ResourceName": MEMORY, "ContainerName": "c", "PodUID": "u"}), f"an entry of {MEMORY} has no DeviceIDs"),
        (b'{"Data":[]}', "no list Data.PodDeviceEntries"),
        (document(ENTRY | {"PodUID": ["u"]}), "PodUID or ContainerName that is not a string"),
        (document(ENTRY | {"ContainerName": {}}), "PodUID or ContainerName that is not a string"),
    ],
)
def test_what_is_none_is_said(data: bytes, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        entries_in(data)


def test_it_is_read_again_only_when_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    file = CheckpointFile(path, [MEMORY])
    assert not file.refresh()
    assert file.entries == ()
    path.write_bytes(document(ENTRY))
    assert (file.refresh(), file.refresh(), list(file.entries)) == (True, False, [PARSED])
    newer = path.with_name("new")
    newer.write_bytes(document())
    os.replace(newer, path)
    assert (file.refresh(), list(file.entries)) == (True, [])


def test_half_a_file_leaves_what_was_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(document(ENTRY))
    file = CheckpointFile(path, [MEMORY])
    file.refresh()
    path.write_bytes(document(ENTRY)[:50])
    assert not file.refresh()
    assert not file.refresh()
    assert list(file.entries) == [PARSED]
    assert "not JSON" in file.problem
    assert len(caplog.records) == 1
    path.write_bytes(document())
    assert file.refresh()
    assert (list(file.entries), file.problem) == ([], "")


def test_a_lost_file_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(document(ENTRY))
    file = CheckpointFile(path, [MEMORY])
    file.refresh()
    path.unlink()
    assert (file.refresh(), list(file.entries), file.refresh()) == (True, [], False)


def test_what_is_no_entry_is_passed_over_and_the_last_word_on_a_container_counts() -> None:
    entries = [
        None,
        "x",
        {"ResourceName": [MEMORY]},
        {"ResourceName": {}},
        ENTRY | {"DeviceIDs": {}},
        ENTRY,
        ENTRY | {"ContainerName": "d"},
        ENTRY | {"PodUID": "v"},
    ]
    assert entries_in(document(*entries)) == (
        PARSED,
        CheckpointEntry("u", "d", MEMORY, PARSED.ids),
        CheckpointEntry("v", "c", MEMORY, PARSED.ids),
    )  # type: ignore[arg-type]


def test_what_has_not_changed_is_the_same_object(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    file = CheckpointFile(path, iter([MEMORY]))
    path.write_bytes(document(ENTRY, ENTRY | {"PodUID": "v"}))
    file.refresh()
    before = file.entries
    path.write_bytes(document(ENTRY, ENTRY | {"PodUID": "v", "DeviceIDs": {"-1": IDS[:1]}}, ENTRY | {"PodUID": "w"}))
    assert file.refresh()
    assert file.entries[0] is before[0]
    assert [entry.ids for entry in file.entries] == [PARSED.ids, frozenset(IDS[:1]), PARSED.ids]


def test_a_change_is_seen_by_size_time_or_file(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(document(ENTRY))
    file = CheckpointFile(path, [MEMORY])
    file.refresh()
    stat = path.stat()
    other = document(ENTRY | {"PodUID": "v"})
    path.write_bytes(other)
    os.utime(path, ns=(0, stat.st_mtime_ns + 1))
    assert (file.refresh(), file.refresh()) == (True, False)
    path.write_bytes(document())
    os.utime(path, ns=(0, stat.st_mtime_ns + 1))
    assert (file.refresh(), file.refresh()) == (True, False)
    newer = path.with_name("new")
    newer.write_bytes(document())
    os.utime(newer, ns=(0, stat.st_mtime_ns + 1))
    os.replace(newer, path)
    assert (file.refresh(), file.refresh()) == (True, False)


def test_each_trouble_is_said_once_and_ends_with_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "checkpoint"
    file = CheckpointFile(path, [MEMORY])
    for text, records in ((b"", 1), (b"", 1), (b"[]", 2), (document(ENTRY), 2), (b"[]", 3)):
        path.write_bytes(text)
        assert file.refresh() == (text == document(ENTRY))
        assert (len(caplog.records), bool(file.problem)) == (records, text != document(ENTRY))
    path.unlink()
    assert (file.refresh(), file.entries, file.problem) == (True, (), "")
    path.mkdir()
    assert (file.refresh(), "directory" in file.problem) == (False, True)


def test_a_trouble_ends_with_a_file_that_is_gone_or_still_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(b"[]")
    file = CheckpointFile(path, [MEMORY])
    assert (file.refresh(), bool(file.problem)) == (False, True)
    path.unlink()
    assert (file.refresh(), file.entries, file.problem) == (False, (), "")
    path.write_bytes(document(ENTRY))
    assert file.refresh()
    with monkeypatch.context() as patched:

        def full(*_: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        patched.setattr(Path, "open", full)
        assert (file.refresh(), bool(file.problem)) == (False, True)
    assert (file.refresh(), file.entries, file.problem) == (False, (PARSED,), "")


# A unit that running pods contradict: by its name, whatever the GPUs are like now.


def everybody(uids: Set[str]) -> Set[str]:
    return uids


def test_another_unit_is_rejected_while_such_a_pod_runs() -> None:
    assert changed_unit(UNITS["64MiB"], "GiB", {"a", "b"}, lambda uids: uids & {"b", "other"}) == (
        "1 pods run with memory in units of GiB (UID b), this plugin should allocate units of 64MiB: "
        "delete these pods first, or start with --memory-unit GiB"
    )
    many = changed_unit(GIB, "MiB", set("dcba"), everybody)
    assert many.startswith("4 pods run with memory in units of MiB (UID a, b, c and 1 more)")
    assert len(changed_unit(GIB, "x" * 10_000, {"a"}, everybody)) < 400


@pytest.mark.parametrize(("before", "holders"), [("GiB", {"a"}), ("", {"a"}), ("64MiB", set())], ids=["the same", "unknown", "nobody"])
def test_nobody_looks_at_processes_without_need(before: str, holders: set[str]) -> None:
    def live(uids: Set[str]) -> Set[str]:
        raise AssertionError("it looked")

    assert changed_unit(GIB, before, holders, live) == ""


def test_pods_that_have_ended_are_no_hindrance() -> None:
    assert changed_unit(UNITS["64MiB"], "GiB", {"a"}, lambda uids: set()) == ""
