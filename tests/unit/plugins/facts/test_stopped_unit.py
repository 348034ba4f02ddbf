# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Why no kubelet runs, by its service, and the cure that follows."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.node import NodeFacts, gather
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.stopped_unit import (
    COMPLAINT_OF_RUNTIME,
    StoppedUnit,
    kubelet_complaint,
    kubelet_unit,
    proxy_of_kubelet,
    restless,
    start_again,
    stopped,
    unit_of,
    unreached,
)
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host

from unit.fakes.plugins.fake_root import FakeRoot, debian, kubelet
from unit.golden import Golden

JOURNAL = """\
I1129 11:00:00.000000       1 server.go:206] "Kubelet version" kubeletVersion="v1.36.3"
E1129 11:00:00.000001       1 run.go:72] "command failed" err="failed to load kubelet config file\x1b[2J"
systemd's own words
"""


def look(tmp_path: Path, **properties: str) -> StoppedUnit:
    root = FakeRoot(tmp_path)
    root.program("/usr/bin/systemctl", "".join(f"{key}={value}\n" for key, value in properties.items()))
    root.program("/usr/bin/journalctl", JOURNAL)
    return kubelet_unit(Host(str(root)))


UNREACHED = """\
E1130 11:00:00.000000       1 node_status.go:108] "Unable to register" err="Post \\"https://192.0.2.1:6443/api/v1/nodes\\": i/o timeout"
E1130 11:00:01.000000       1 event.go:374] "Unable to write event" err="Post \\"https://192.0.2.1:6443/api/v1/events\\": i/o timeout"
E1130 11:00:02.000000       1 kubelet.go:3596] "Unable to register mirror pod because node is not registered yet"
"""


def test_what_a_kubelet_says_of_its_api_server_is_found_before_what_follows(tmp_path: Path, golden: Golden) -> None:
    root = FakeRoot(tmp_path)
    root.program("/usr/bin/journalctl", UNREACHED)
    golden(kubelet_complaint(Host(str(root))))
    golden(unreached(Host(str(root))))


@pytest.mark.parametrize(
    ("environment", "proxy"),
    [("A=b", ""), ("A=b\0https_proxy=http://user:secret@192.0.2.9:3128\0B=c", "http://***@192.0.2.9:3128"), ("HTTPS_PROXY=", "")],
)
def test_the_proxy_of_kubelet_is_read_without_its_password(tmp_path: Path, environment: str, proxy: str) -> None:
    root = debian(FakeRoot(tmp_path))
    kubelet(root)
    (pid,) = (process.pid for process in Host(str(root)).processes if process.argv[0].endswith("kubelet"))
    root.file(f"/proc/{pid}/environ", environment)
    assert proxy_of_kubelet(Host(str(root))) == proxy


@pytest.mark.parametrize("distribution", ["k3s", "rke2", "k0s", "microk8s"])
def test_kubelet_of_a_distribution_in_one_program_is_its_own_service(tmp_path: Path, distribution: str) -> None:
    """Which may fail again and again, and logs in the forms of both."""
    root, name = debian(FakeRoot(tmp_path)), {"k3s": "k3s-agent", "rke2": "rke2-agent", "k0s": "k0sworker"}.get(distribution)
    name = f"{name or 'snap.microk8s.daemon-kubelite'}.service"
    there = (
        f"LoadState=loaded\nActiveState=failed\nResult=exit-code\nInvocationID={'a1' * 16}\nNRestarts=9\nExecMainStartTimestampMonotonic=1"
    )
    root.at("/usr/bin/systemctl").write_text(f"#!/bin/sh\n[ $2 = {name} ] && echo '{there}' || echo LoadState=not-found\n")
    root.at("/usr/bin/systemctl").chmod(0o755)
    root.program("/usr/bin/journalctl", 'level=fatal msg="invalid token"\nlevel=info msg=down')
    root.file("/proc/uptime", "5.0 1.0\n")
    found = kubelet_unit(Host(str(root)), distribution)
    assert (found.name, found.says) == (name, 'level=fatal msg="invalid token"')
    again = restless(Host(str(root)), distribution)
    assert again is not None
    assert (again.name, again.says) == (name, 'level=fatal msg="invalid token"')


def test_a_masked_kubelet_is_unmasked(tmp_path: Path, golden: Golden) -> None:
    found = look(tmp_path, LoadState="masked", ActiveState="inactive", SubState="dead", Result="success", InvocationID="")
    seen, cure = stopped(found)
    golden(seen)
    golden(cure)


def test_a_kubelet_that_fails_is_quoted_by_the_error_of_its_last_start(tmp_path: Path, golden: Golden) -> None:
    found = look(
        tmp_path, LoadState="loaded", ActiveState="activating", SubState="auto-restart", Result="exit-code", InvocationID="a1" * 16
    )
    seen, cure = stopped(found)
    golden(seen)
    golden(cure)


def test_a_kubelet_that_was_stopped_has_no_last_words_of_a_start_before(tmp_path: Path, golden: Golden) -> None:
    found = look(tmp_path, LoadState="loaded", ActiveState="inactive", SubState="dead", Result="success", InvocationID="")
    golden(stopped(found)[0])


@pytest.mark.parametrize(
    ("state", "cure"),
    [
        ({"result": "start-limit-hit"}, "systemctl reset-failed kubelet; systemctl restart kubelet"),
        ({"load": "not-found"}, "install the package that brings kubelet.service; then: systemctl enable --now kubelet"),
        ({"name": "k3s.service", "load": "not-found"}, "start the service of k3s: systemctl list-units --all '*k3s*' names it"),
        ({"name": "rke2-agent.service"}, "systemctl restart rke2-agent"),
        ({"name": "x; rm -r /.service"}, "systemctl restart kubelet"),
        ({"name": "snap.kubelet.service"}, "systemctl restart snap.kubelet"),
        ({}, "systemctl restart kubelet"),
    ],
)
def test_the_cure_of_each_state(state: dict[str, str], cure: str) -> None:
    assert stopped(StoppedUnit(**state))[1] == cure


@pytest.mark.parametrize(
    ("state", "cure"),
    [
        (StoppedUnit("containerd.service", load="masked"), "systemctl unmask containerd; systemctl start containerd"),
        (StoppedUnit("$(reboot)"), "systemctl restart crio"),
    ],
)
def test_the_cure_of_a_container_runtime(state: StoppedUnit, cure: str) -> None:
    assert start_again(state, "crio.service") == cure


@pytest.mark.parametrize(
    ("active", "result", "journal", "says"),
    [
        ("inactive", "success", "level=info msg=down", ""),
        ("inactive", "success", "level=fatal msg=no", "level=fatal msg=no"),
        ("failed", "signal", "level=info msg=down", "level=info msg=down"),
        # kubelet says so of each worker node, again and again.
        ("inactive", "success", "level=fatal msg=no\nfailed to read: path does not exist, ignoring", "level=fatal msg=no"),
        ("active", "success", "level=fatal msg=no", ""),
    ],
)
def test_the_last_words_of_a_service_that_does_not_run(tmp_path: Path, active: str, result: str, journal: str, says: str) -> None:
    """One that was told to end has none, unless it complained, and those of one that is active explain nothing."""
    root = FakeRoot(tmp_path)
    root.program("/usr/bin/systemctl", f"ActiveState={active}\nResult={result}\nInvocationID={'a1' * 16}\n")
    root.program("/usr/bin/journalctl", f"{journal}\n")
    assert unit_of(Host(str(root)), "containerd.service", COMPLAINT_OF_RUNTIME).says == says


STARTS = {"NRestarts": "7", "ExecMainStartTimestampMonotonic": "90000000"}


@pytest.mark.parametrize(
    ("change", "uptime", "seen"),
    [
        ({}, "100.5 1.0\n", True),
        ({}, "151.0 1.0\n", False),
        ({}, None, False),
        ({"NRestarts": "2"}, "100.5 1.0\n", False),
        ({"NRestarts": "many", "ExecMainStartTimestampMonotonic": ""}, "100.5 1.0\n", False),
    ],
    ids=["fails again and again", "stays", "without a clock", "twice", "no numbers"],
)
def test_a_kubelet_that_does_not_stay_does_not_run(
    tmp_path: Path, golden: Golden, change: dict[str, str], uptime: str | None, seen: bool
) -> None:
    root = kubelet(debian(FakeRoot(tmp_path)))
    if uptime is not None:
        root.file("/proc/uptime", uptime)
    root.program("/usr/bin/systemctl", "".join(f"{key}={value}\n" for key, value in {"LoadState": "loaded", **STARTS, **change}.items()))
    root.program("/usr/bin/journalctl", JOURNAL)
    facts = gather(Host(str(root)), ())
    assert (facts.kubelet.running, facts.kubelet_unit is not None) == (not seen, seen)
    if facts.kubelet_unit is not None:
        golden(stopped(facts.kubelet_unit)[0])


def test_the_host_cannot_write_a_long_or_broken_line(tmp_path: Path) -> None:
    seen, _cure = stopped(StoppedUnit(active="a" * 10**6, says="b\n" * 10**6))
    assert len(seen) < 1000
    assert seen.isprintable()


def test_the_service_is_the_one_that_the_device_plugins_unit_names(tmp_path: Path) -> None:
    FakeRoot(tmp_path).file("/etc/systemd/system/gpushare-device-plugin.service", "[Unit]\nBefore=snap.kubelet.service\n")
    assert look(tmp_path).name == "snap.kubelet.service"


@pytest.mark.parametrize("question", ["--version", "--version=raw", "--help"])
def test_a_kubelet_that_is_asked_for_its_version_does_not_run(tmp_path: Path, question: str) -> None:
    root = kubelet(debian(FakeRoot(tmp_path)))
    facts = gather(Host(str(root)), ())
    assert (facts.kubelet.running, facts.kubelet_unit) == (True, None)
    root.file("/proc/30/cmdline", f"/usr/bin/kubelet\0{question}\0".encode())
    facts = gather(Host(str(root)), ())
    assert (facts.kubelet.running, facts.kubelet_unit) == (False, StoppedUnit())
    assert NodeFacts.from_dict(facts.as_dict()) == facts


def test_a_containerd_that_prints_its_configuration_does_not_run(tmp_path: Path) -> None:
    root = kubelet(debian(FakeRoot(tmp_path)))
    assert Host(str(root)).process("containerd") is not None
    root.file("/proc/20/cmdline", b"/usr/bin/containerd\0config\0dump\0")
    assert Host(str(root)).process("containerd") is None
