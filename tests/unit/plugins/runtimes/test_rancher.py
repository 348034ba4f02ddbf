# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""k3s and RKE2 on a host, with files in the form in which they write them: one restart, the image, and what is refused."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.gpushare.kubernetes.plugins.action import gpushare_host_runtime
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import Outcome
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.rancher import ADDRESS, PROGRAMS, Rancher, RancherError, knows

from unit.fakes.plugins.fake_root import FakeRoot
from unit.fakes.plugins.runtimes.k3s_config import FOUND_V2, FOUND_V3, V2, V3
from unit.golden import Golden

IMAGE = "localhost/gpushare:0.1.0"


class Machine:
    """A host with one of the two, which writes containerd's configuration when its service starts."""

    def __init__(self, folder: Path, name: str, unit: str, kill_mode: str = "process", writes_at: float = 0.0) -> None:
        self.root, self.unit, self.kill_mode, self.writes_at = FakeRoot(folder), unit, kill_mode, writes_at
        self.images: list[str] = []
        self.asked: list[list[str]] = []
        self.now = 0.0
        self.root.program("/usr/local/bin/k3s" if name == "k3s" else "/var/lib/rancher/rke2/bin/ctr")
        self.root.socket(ADDRESS)
        self.rancher = Rancher(Host(str(self.root)), name, self._run, lambda: self.now, self._sleep)
        self.root.file(self.rancher.config, V3)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        self._write()

    def _write(self) -> None:
        if self.now >= self.writes_at:
            has = any(self.root.at(path).exists() for path in PROGRAMS)
            self.root.file(self.rancher.config, V3 + (FOUND_V3 if has else ""))

    def _run(self, argv: list[str], timeout: float) -> Outcome:
        if argv[:2] == ["systemctl", "show"]:
            active = "active" if argv[2] == self.unit else "inactive"
            return Outcome(argv, 0, f"ActiveState={active}\n" if "ActiveState" in argv[3] else f"KillMode={self.kill_mode}\n")
        self.asked.append(argv)
        if argv[:2] == ["systemctl", "restart"]:
            self._write()
        elif "import" in argv:
            self.images.append(IMAGE)
        return Outcome(argv, 0, "\n".join(self.images))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [(V3, False), (V2, False), (V3 + FOUND_V3, True), (V2 + FOUND_V2, True), ("", False), ("[", False), ("plugins = 3", False)],
)
def test_its_configuration_says_whether_containerd_knows_the_runtime(text: str, wanted: bool) -> None:
    assert knows(text) is wanted


@pytest.mark.parametrize(
    ("name", "unit", "ctr"),
    [
        ("k3s", "k3s.service", ["/usr/local/bin/k3s", "ctr"]),
        ("k3s", "k3s-agent.service", ["/usr/local/bin/k3s", "ctr"]),
        ("rke2", "rke2-agent.service", ["/var/lib/rancher/rke2/bin/ctr"]),
    ],
)
def test_one_restart_makes_it_see_the_runtime_and_its_own_ctr_imports(tmp_path: Path, name: str, unit: str, ctr: list[str]) -> None:
    machine = Machine(tmp_path, name, unit)
    machine.root.program("/usr/bin/nvidia-container-runtime")
    state = machine.rancher.state(IMAGE)
    assert (state.unit, state.is_due, state.has_image) == (unit, True, False)
    machine.rancher.restart(state.unit, True, 60)
    machine.rancher.bring()
    assert [call for call in machine.asked if call[0] == "systemctl"] == [["systemctl", "restart", unit]]
    assert machine.asked[-1] == [*ctr, "--address", ADDRESS, "--namespace", "k8s.io", "images", "import", machine.rancher.image]
    # Again: nothing to do.
    state = machine.rancher.state(IMAGE)
    assert (state.is_due, state.has_image) == (False, True)
    # The toolkit goes, and one restart makes it forget.
    machine.root.at("/usr/bin/nvidia-container-runtime").unlink()
    state = machine.rancher.state()
    assert (state.program, state.is_due) == ("", True)
    machine.rancher.restart(state.unit, False, 60)
    assert not machine.rancher.state().is_due


def test_a_data_dir_of_ones_own_has_its_files_and_its_ctr(tmp_path: Path) -> None:
    root = FakeRoot(tmp_path)
    root.file("/etc/rancher/rke2/config.yaml", "data-dir: /data/rke2\n")
    machine = Machine(tmp_path, "rke2", "rke2-agent.service")
    root.program("/data/rke2/bin/ctr")
    machine.rancher.bring()
    assert machine.rancher.config == "/data/rke2/agent/etc/containerd/config.toml"
    assert machine.asked == [
        ["/data/rke2/bin/ctr", "--address", ADDRESS, "--namespace", "k8s.io", "images", "import", "/data/rke2/agent/images/gpushare.tar"]
    ]


def test_the_operators_toolkit_is_one_too(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "rke2", "rke2-server.service")
    machine.root.program(PROGRAMS[0])
    assert machine.rancher.state().program == PROGRAMS[0]


def test_a_restart_that_would_end_containers_is_refused(tmp_path: Path, golden: Golden) -> None:
    machine = Machine(tmp_path, "k3s", "k3s.service", kill_mode="control-group")
    with golden.raised(RancherError):
        machine.rancher.restart("k3s.service", True, 60)
    assert machine.asked == []


@pytest.mark.parametrize(("writes_at", "in_time"), [(30.0, True), (62.0, True), (64.0, False)])
def test_its_configuration_is_waited_for(tmp_path: Path, writes_at: float, in_time: bool) -> None:
    machine = Machine(tmp_path, "k3s", "k3s.service", writes_at=writes_at)
    machine.root.program("/usr/bin/nvidia-container-runtime")
    with nullcontext() if in_time else pytest.raises(RancherError):
        machine.rancher.restart("k3s.service", True, 60)
    assert machine.rancher.knows() is in_time


def test_a_template_of_the_administrator_is_named(tmp_path: Path, golden: Golden) -> None:
    machine = Machine(tmp_path, "k3s", "k3s.service", writes_at=float("inf"))
    machine.root.program("/usr/bin/nvidia-container-runtime")
    with golden.raised(RancherError):
        machine.rancher.restart("k3s.service", True, 60)


def test_a_host_where_it_does_not_run(tmp_path: Path, golden: Golden) -> None:
    with golden.raised(RancherError):
        Machine(tmp_path, "rke2", "other.service").rancher.state()


def test_the_archive_takes_its_place_whole_or_not_at_all(tmp_path: Path) -> None:
    machine, sent = Machine(tmp_path / "root", "k3s", "k3s.service"), tmp_path / "sent"
    assert machine.rancher.archived() == ""
    for content in (b"one", b"two"):
        sent.write_bytes(content)
        machine.rancher.archive(str(sent), hashlib.sha256(content).hexdigest())
        assert machine.rancher.archived() == hashlib.sha256(content).hexdigest()
    sent.write_bytes(b"damaged")
    with pytest.raises(RancherError, match=r"arrived with SHA-256 .*, expected 0000; run again"):
        machine.rancher.archive(str(sent), "0000")
    place = machine.root.at(machine.rancher.image)
    assert (place.read_bytes(), [path.name for path in place.parent.iterdir()]) == (b"two", ["gpushare.tar"])
    assert machine.rancher.has_archive()
    machine.rancher.remove_archive()
    machine.rancher.remove_archive()
    assert machine.rancher.archived() == ""
    assert not machine.rancher.has_archive()


def test_the_archive_is_sent_only_to_a_host_that_lacks_it(tmp_path: Path) -> None:
    archive, sent, asked = tmp_path / "gpushare.tar", [], []
    archive.write_bytes(b"image")
    told: list[dict[str, object]] = [
        {"changed": False, "restarted": "", "imported": [], "missing": True},
        {"changed": True, "restarted": "", "imported": [IMAGE]},
        {"changed": False, "restarted": "", "imported": []},
    ]
    arguments = {"what": "rancher", "distribution": "k3s", "archive": str(archive)}
    task = SimpleNamespace(args=arguments, action="gpushare_host_runtime", async_val=0, check_mode=False)
    shell = SimpleNamespace(tmpdir="/remote", join_path=lambda *parts: "/".join(parts))
    connection = SimpleNamespace(_shell=shell, has_pipelining=True, become=None)
    made = gpushare_host_runtime.ActionModule(task, connection, SimpleNamespace(), None, None, None)
    made._early_needs_tmp_path = lambda: False
    made._execute_module = lambda module_args, **_more: (asked.append((module_args["sha256"], module_args.get("received"))), told.pop(0))[1]
    made._find_needle = lambda folder, name: name
    made._transfer_file = lambda *names: sent.append(names)
    made._fixup_perms2 = lambda names: None
    assert made.run(None, {}) == {"changed": True, "restarted": "", "imported": [IMAGE]}
    assert made.run(None, {})["changed"] is False
    assert sent == [(str(archive), "/remote/gpushare.tar")]
    sha256 = hashlib.sha256(b"image").hexdigest()
    assert asked == [(sha256, None), (sha256, {"path": "/remote/gpushare.tar", "sha256": sha256}), (sha256, None)]
