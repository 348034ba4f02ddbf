# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The report of a host that is a folder: what the journal says, against what is there now."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.journal import FOLDER, Journal
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import Transaction
from ansible_collections.gpushare.kubernetes.plugins.module_utils._removal.plan import Layout
from ansible_collections.gpushare.kubernetes.plugins.module_utils._removal.report import report, words

from unit.fakes.plugins.fake_root import FakeRoot
from unit.golden import Golden

ENVIRONMENT = "/opt/gpushare/0.1.0-0123456789ab"
MARKER = {"version": "0.1.0", "python": "3.11", "wheel_sha256": "ab" * 32, "requirements_sha256": "cd" * 32}


@pytest.fixture
def root(tmp_path: Path) -> FakeRoot:
    return FakeRoot(tmp_path / "host")


def systemctl(argv: list[str]) -> tuple[int, str, str]:
    assert argv[:2] == ["systemctl", "show"]  # reads only
    if argv[2] != "gpushare-extender.service":
        return 0, "LoadState=not-found\nActiveState=inactive\n", ""
    return 0, "LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nFragmentPath=/etc/systemd/system/x\n", ""


def change(root: FakeRoot, owner: str, path: str, content: bytes) -> None:
    transaction = Transaction(owner, str(root))
    transaction.write(path, content)
    transaction.apply()


def states(root: FakeRoot) -> dict[str, str]:
    return {one["path"]: one["state"] for one in report(Layout(root=str(root)), systemctl)["files"]}


def test_each_file_of_the_journal_has_its_state(root: FakeRoot) -> None:
    for name in ("kept", "edited", "removed", "between", "back"):
        root.file(f"/etc/{name}", "before")
    for name in ("kept", "edited", "removed", "between", "back", "new", "new-edited", "new-removed"):
        change(root, "scheduler", f"/etc/{name}", b"ours")
    root.file("/etc/between", "theirs")
    change(root, "scheduler", "/etc/between", b"ours again")
    for name in ("edited", "new-edited"):
        root.file(f"/etc/{name}", "theirs")
    for name in ("removed", "new-removed"):
        root.at(f"/etc/{name}").unlink()
    root.file("/etc/back", "before")
    root.file("/etc/odd")
    change(root, "scheduler", "/etc/odd", b"ours")
    root.at("/etc/odd").unlink()
    root.at("/etc/odd").mkdir()
    assert states(root) == {
        "/etc/kept": "as we left it",
        "/etc/edited": "changed by others since",
        "/etc/removed": "removed by others since",
        "/etc/between": "changed by others since",
        "/etc/back": "as it was before us",
        "/etc/new": "as we left it",
        "/etc/new-edited": "changed by others since",
        "/etc/new-removed": "removed by others since",
        "/etc/odd": "changed by others since",
    }


def test_when_others_have_written_is_said(root: FakeRoot) -> None:
    root.file("/etc/x", "before")
    change(root, "scheduler", "/etc/x", b"ours")
    root.file("/etc/x", "theirs")
    os.utime(root.at("/etc/x"), (0, 86400))
    found = report(Layout(root=str(root)), systemctl)
    assert found["files"][0]["written"] == "1970-01-02T00:00:00Z"
    assert words(found)[-1].endswith("changed by others since, last at 1970-01-02T00:00:00Z")


def test_a_change_that_a_run_has_not_proven_is_said(root: FakeRoot, golden: Golden) -> None:
    root.file("/etc/x", "before")

    def die(point: str) -> None:
        if point.startswith("written"):
            raise KeyboardInterrupt

    transaction = Transaction("scheduler", str(root), point=die)
    transaction.write("/etc/x", b"ours")
    with pytest.raises(KeyboardInterrupt):
        transaction.apply()
    found = report(Layout(root=str(root)), systemctl)
    assert found["unproven"] == ["scheduler"]
    assert [one["state"] for one in found["files"]] == ["written by a run that did not end"]
    golden(words(found)[-1])


def test_what_is_installed_and_runs(root: FakeRoot) -> None:
    root.file(f"{ENVIRONMENT}/.gpushare-complete.json", json.dumps(MARKER))
    root.program(f"{ENVIRONMENT}/bin/python")
    root.file("/opt/gpushare/0.0.9-ba9876543210/x")
    root.link("/opt/gpushare/current", "0.1.0-0123456789ab")
    root.link("/usr/local/bin/kubectl-inspect-gpushare", "/opt/gpushare/current/bin/kubectl-inspect-gpushare")
    root.file("/etc/x", "before")
    change(root, "container_runtime", "/etc/x", b"ours")
    found = report(Layout(root=str(root)), systemctl)
    assert found["runtime"] == {
        "environment": ENVIRONMENT,
        "state": "whole",
        "version": "0.1.0",
        "python": "3.11",
        "wheel_sha256": "ab" * 32,
        "older": ["0.0.9-ba9876543210"],
    }
    assert [one["name"] for one in found["units"]] == ["gpushare-extender.service"]
    assert words(found) == [
        f"runtime: 0.1.0 in {ENVIRONMENT}, whole",
        "older runtimes: 0.0.9-ba9876543210",
        "kubectl plugins: /usr/local/bin/kubectl-inspect-gpushare",
        "",
        "UNIT                       STATE   AT BOOT",
        "gpushare-extender.service  active  enabled",
        "",
        "FILE    CHANGED FOR        BEFORE US           NOW",
        "/etc/x  container_runtime  6 bytes, mode 0644  as we left it",
    ]
    assert json.loads(json.dumps(found)) == found


def test_what_is_no_file_is_listed_apart(root: FakeRoot) -> None:
    Journal(str(root)).record("configmap:kube-system/kubeadm-config/ClusterConfiguration", "scheduler", None, b"x")
    found = report(Layout(root=str(root)), systemctl)
    assert found["files"] == []
    assert found["settings"] == [{"what": "configmap:kube-system/kubeadm-config/ClusterConfiguration", "owner": "scheduler"}]
    assert words(found)[-1].split() == ["configmap:kube-system/kubeadm-config/ClusterConfiguration", "scheduler"]


def test_files_of_ours_without_an_entry_are_named(root: FakeRoot) -> None:
    ours = "# Copyright: gpushare.kubernetes contributors\n"
    unit, settings = "/etc/systemd/system/gpushare-device-plugin.service", "/etc/gpushare/gpushare-device-plugin.env"
    root.file(unit, ours)
    root.file(settings, ours)
    root.file("/etc/systemd/system/gpushare-extender.service", "[Unit]\n")
    found = report(Layout(root=str(root)), systemctl)
    assert found["unrecorded"] == [unit, settings]
    assert words(found)[-1].startswith(f"not in the journal, although they are ours: {unit}, {settings}; the journal was lost")
    Journal(str(root)).record(unit, "device_plugin", None, ours.encode())
    assert report(Layout(root=str(root)), systemctl)["unrecorded"] == [settings]
    of_a_gpu = "/etc/systemd/system/gpushare-mps-GPU-0.service"
    root.file(of_a_gpu, ours)
    assert report(Layout(root=str(root)), systemctl)["unrecorded"] == [of_a_gpu, settings]


def test_a_host_with_nothing_of_ours(root: FakeRoot) -> None:
    root.file("/etc/hosts")
    nothing = report(Layout(root=str(root)), lambda _argv: (0, "LoadState=not-found\n", ""))
    assert nothing == {"runtime": None, "units": [], "files": [], "settings": [], "kubectl_plugins": [], "unproven": [], "unrecorded": []}
    assert words(nothing) == ["runtime: none", "kubectl plugins: none"]
    assert not root.at(f"/{FOLDER}").exists()


def test_everything_about_a_unit_and_a_file(root: FakeRoot) -> None:
    def run(argv: list[str]) -> tuple[int, str, str]:
        known = {
            "gpushare-pki.timer": "LoadState=loaded\n",
            "gpushare-extender.service": "LoadState=masked\nActiveState=failed\nUnitFileState=\nFragmentPath=/dev/null\n",
            "gpushare-device-plugin.service": "",
        }
        return 0, known.get(argv[2], "LoadState=not-found\n"), ""

    root.file("/etc/x", "before")
    os.chmod(root.at("/etc/x"), 0o4640)
    change(root, "scheduler", "/etc/x", b"ours")
    change(root, "container_runtime", "/etc/y", b"ours")
    found = report(Layout(root=str(root)), run)
    assert found["units"] == [
        {"name": "gpushare-pki.timer", "active": "unknown", "enabled": "no unit file", "file": ""},
        {"name": "gpushare-extender.service", "active": "failed", "enabled": "no unit file", "file": "/dev/null"},
    ]
    assert found["files"] == [
        {"path": "/etc/x", "owner": "scheduler", "before": "6 bytes, mode 4640", "state": "as we left it", "written": None},
        {"path": "/etc/y", "owner": "container_runtime", "before": "not there", "state": "as we left it", "written": None},
    ]


def test_a_file_that_we_removed_and_one_that_never_was(root: FakeRoot) -> None:
    root.file("/etc/x", "before")
    for path in ("/etc/x", "/etc/y"):
        change(root, "scheduler", path, b"ours")
        transaction = Transaction("scheduler", str(root))
        transaction.remove(path)
        transaction.apply()
    assert states(root) == {"/etc/x": "as we left it", "/etc/y": "as it was before us"}


def test_the_marker_of_an_environment_is_read_as_far_as_it_goes(root: FakeRoot) -> None:
    for name in ("0.1.0-0123456789ab", "0.2.0-0123456789ab"):
        root.file(f"/opt/gpushare/{name}/bin/python")
    root.file("/opt/gpushare/notes/x")
    marker = "/opt/gpushare/0.2.0-0123456789ab/.gpushare-complete.json"
    unknown = {"version": "unknown", "python": "unknown", "wheel_sha256": "unknown"}
    without = {"environment": "no environment in use", "state": "not whole: run site.yml again"}
    older = {"older": ["0.1.0-0123456789ab", "0.2.0-0123456789ab"]}
    for content in ("[]", "{}", '"x"', "["):
        root.file(marker, content)
        assert report(Layout(root=str(root)), systemctl)["runtime"] == {**without, **unknown, **older}
    root.file(marker, '{"version": "0.2.0"}')
    assert report(Layout(root=str(root)), systemctl)["runtime"] == {**without, **unknown, **older, "version": "0.2.0"}
    root.link("/opt/gpushare/current", "0.1.0-0123456789ab")
    found = report(Layout(root=str(root)), systemctl)
    used = {"environment": ENVIRONMENT, "older": ["0.2.0-0123456789ab"], "state": without["state"]}
    assert found["runtime"] == {**unknown, **used}
    root.file("/usr/local/bin/kubectl-inspect-gpushare")
    assert words(report(Layout(root=str(root)), systemctl))[:3] == [
        f"runtime: unknown in {ENVIRONMENT}, not whole: run site.yml again",
        "older runtimes: 0.2.0-0123456789ab",
        "kubectl plugins: none",
    ]


def test_the_only_runtime_is_told_without_older_ones(root: FakeRoot, golden: Golden) -> None:
    root.file(f"{ENVIRONMENT}/.gpushare-complete.json", json.dumps(MARKER))
    root.link("/opt/gpushare/current", "0.1.0-0123456789ab")
    golden(words(report(Layout(root=str(root)), systemctl))[1])
