# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Saved states on the real machine: `pytest tests/lab/test_saved.py` as root; it brings up an instance of its own and removes it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

LAB = Path(__file__).resolve().parents[2] / "tools/lab/lab"
NAME = os.environ.get("GPUSHARE_LAB_TEST_NAME", "saved")
STATE = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "gpushare-lab" / NAME
NODES = ("cp1", "gpu1")
DEADLINE_S = 600

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="a lab needs root"), pytest.mark.timeout(3600)]


def lab(*words: str, stdin: str | None = None) -> str:
    """What a command of the lab prints."""
    done = subprocess.run([sys.executable, LAB, "--name", NAME, *words], input=stdin, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rejected(*words: str) -> str:
    """What a command of the lab says that fails."""
    done = subprocess.run([sys.executable, LAB, "--name", NAME, *words], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stderr


def killed_when(reached: Path, *words: str) -> None:
    """Begin a command of the lab and kill it, with its children, as soon as a path is there."""
    with subprocess.Popen([sys.executable, LAB, "--name", NAME, *words], start_new_session=True, stderr=subprocess.DEVNULL) as child:
        while not reached.exists():
            assert child.poll() is None, f"{words} ended before {reached} was there"
            time.sleep(0.001)
        os.killpg(child.pid, signal.SIGKILL)


def run_pod(name: str) -> None:
    """Have a pod on gpu1 through scheduler, controllers and kubelet, until it runs."""
    spec = {"nodeSelector": {"kubernetes.io/hostname": "gpu1"}, "terminationGracePeriodSeconds": 0}
    container = {"name": "c", "image": "localhost/gpushare-lab/test:1", "imagePullPolicy": "IfNotPresent", "command": ["sleep", "infinity"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {**spec, "containers": [container]}}
    lab("kubectl", "create", "-f", "-", stdin=json.dumps(pod))
    lab("kubectl", "wait", f"pod/{name}", "--for=condition=Ready", f"--timeout={DEADLINE_S}s")


def identity() -> list[str]:
    """What tells the nodes from others: machine id, address, host key, and the node's object in the cluster."""
    script = "cat /etc/machine-id /etc/ssh/ssh_host_ed25519_key.pub; ip -4 -o address show eth0 | awk '{print $4}'; ls /dev | grep nvidia"
    return [lab("exec", node, "sh", "-c", f"{script} || true") for node in NODES] + [
        lab("kubectl", "get", "nodes", "-o", "jsonpath={.items[*].metadata.uid}"),
        lab("gpu", "gpu1"),
    ]


def names(kind: str) -> list[str]:
    """The names of all objects of a kind in the namespace default."""
    return lab("kubectl", "get", kind, "-o", "name").split()


def sandboxes() -> list[str]:
    """The containers that containerd runs on gpu1."""
    return lab("exec", "gpu1", "ctr", "-n", "k8s.io", "tasks", "list", "-q").split()


@pytest.fixture(scope="module")
def bare() -> Iterator[list[str]]:
    """An instance with one GPU node, saved as `bare`; gives its identity."""
    lab("down")
    try:
        lab("up", "--gpu-nodes", "1", "--gpus", "gpu1=2x16")
        before = identity()
        lab("save", "bare")
        assert identity() == before
        yield before
    finally:
        lab("down")


@pytest.fixture
def changed(bare: list[str]) -> list[str]:
    """The same, with a file on each node changed, one removed and one added, other GPUs, a ConfigMap and a pod."""
    for node in NODES:
        lab("exec", node, "sh", "-c", "echo changed > /etc/motd; rm -rf /usr/share/doc/systemd; echo new > /root/new; sync")
    lab("gpu", "gpu1", "--gpus", "80")
    lab("kubectl", "create", "configmap", "later")
    run_pod("later")
    assert sandboxes()
    return bare


def assert_bare(before: list[str]) -> None:
    """All is as it was when it was saved, and the cluster works."""
    assert identity() == before
    for node in NODES:
        assert "changed" not in lab("exec", node, "cat", "/etc/motd")
        assert lab("exec", node, "sh", "-c", "ls -d /usr/share/doc/systemd; ls -A /root | grep new || true") == "/usr/share/doc/systemd\n"
    assert names("pods") == []
    assert names("configmaps") == ["configmap/kube-root-ca.crt"]
    assert sandboxes() == []
    run_pod("new")
    lab("kubectl", "delete", "pod", "new", "--now")


def test_everything_is_as_it_was(changed: list[str]) -> None:
    lab("restore", "bare")
    assert_bare(changed)


def test_connections_that_ansible_keeps_open_end_with_the_nodes_that_they_lead_to(bare: list[str]) -> None:
    with tempfile.TemporaryDirectory() as sockets:
        # Longer than any restore takes: a connection must not go by itself.
        options = f"-o ControlMaster=auto -o ControlPersist=1800 -o ControlPath={sockets}/%h"
        environment = {**os.environ, "ANSIBLE_SSH_ARGS": options}
        ansible = ["ansible", "-i", lab("inventory").strip(), "all", "-m", "ping"]
        subprocess.run(ansible, check=True, capture_output=True, timeout=DEADLINE_S, env=environment)
        assert len(os.listdir(sockets)) == len(NODES)
        lab("restore", "bare")
        assert os.listdir(sockets) == []
        done = subprocess.run(ansible, capture_output=True, text=True, timeout=DEADLINE_S, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        lab("restore", "bare")


def test_a_restore_that_is_killed_is_finished_by_up(changed: list[str]) -> None:
    killed_when(STATE / "trash", "restore", "bare")
    assert "was interrupted" in rejected("exec", "gpu1", "true")
    assert "was interrupted" in rejected("save", "other")
    lab("up")
    assert_bare(changed)


@pytest.mark.parametrize("reached", ["unfinished.json", "saved/.other.partial", "layers/other.0"])
def test_a_save_that_is_killed_leaves_the_lab_as_it_was_and_no_state(changed: list[str], reached: str) -> None:
    killed_when(STATE / reached, "save", "other")
    lab("up")
    status = lab("status")
    assert "saved state bare" in status
    assert "other" not in status
    assert lab("exec", "gpu1", "cat", "/etc/motd") == "changed\n"
    assert "configmap/later" in names("configmaps")
    lab("save", "other")
    lab("restore", "bare")
    assert_bare(changed)
    lab("restore", "other")
    assert lab("exec", "gpu1", "cat", "/etc/motd", "/root/new") == "changed\nnew\n"
    assert "configmap/later" in names("configmaps")
    lab("forget", "other")
    lab("restore", "bare")
    assert_bare(changed)
    assert [path.name for path in (STATE / "layers").iterdir()] == ["bare.0"]


def test_a_node_that_came_later_goes_and_one_that_went_comes_back(bare: list[str]) -> None:
    lab("up", "--gpu-nodes", "2")
    lab("save", "two")
    lab("restore", "bare")
    assert_bare(bare)
    assert "gpu2" not in lab("status").split("saved state")[0]
    lab("restore", "two")
    assert lab("kubectl", "get", "nodes", "-o", "name").split() == ["node/cp1", "node/gpu1", "node/gpu2"]
    lab("restore", "bare")
    lab("forget", "two")
    assert_bare(bare)


def test_what_cannot_be_restored_is_rejected(bare: list[str]) -> None:
    assert "has no saved state other; it has bare" in rejected("restore", "other")
    assert "has a state bare" in rejected("save", "bare")
    assert "expected 1 to 40" in rejected("save", "../bare")
    description = STATE / "saved/bare/state.json"
    right = description.read_text()
    for wrong, said in (("recipe", "other sources of the lab"), ("kubernetes", "Kubernetes 1.0.0")):
        description.write_text(json.dumps({**json.loads(right), wrong: "1.0.0"}))
        assert said in rejected("restore", "bare")
    description.write_text(right)
    assert "Ready" in lab("status")
