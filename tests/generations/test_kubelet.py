# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The role kubelet's core on a host with real systemd, containerd and kubelet, alone and without a cluster."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet.config_file import with_gates
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight import kubernetes_ends as ends

from gpushare_lab import components, debian
from gpushare_lab.prepare import the_cache
from tree import REPOSITORY

NAME = "gpushare-test-kubelet"
LIMITS = '[containers]\ndefault_ulimits=["nofile=20000:20000","nproc=4096:4096"]\n'


def podman(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"CONTAINERS_CONF": str(folder / "containers.conf")}
    return subprocess.run(["podman", "--runtime", "runc", *words], env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Path]:
    """A container with systemd, without a network; the folder of its settings."""
    (tmp_path / "containers.conf").write_text(LIMITS)
    (tmp_path / "containerd").mkdir()
    rootfs = debian.root_file_system(the_cache())
    kubelet = components.kubernetes(the_cache(), components.KUBERNETES) / "kubernetes"
    podman(tmp_path, "rm", "--force", "--time", "1", NAME)
    volumes = (f"{kubelet}:/usr/local/bin/kubelet:ro", f"{REPOSITORY}:/src:ro", f"{tmp_path / 'containerd'}:/var/lib/containerd")
    options = ["--network=none", "--systemd=false", "--privileged", "--cgroupns=private", "--tmpfs=/run:mode=755", "--tmpfs=/tmp"]
    more = [*(f"--volume={volume}" for volume in volumes), "--env=container=podman", "--stop-signal=SIGRTMIN+3"]
    started = podman(tmp_path, "run", "--detach", f"--name={NAME}", *options, *more, "--rootfs", f"{rootfs}:O", "/sbin/init")
    assert started.returncode == 0, started.stderr
    deadline = time.monotonic() + 120
    while podman(tmp_path, "exec", NAME, "systemctl", "is-active", "containerd").stdout.strip() != "active":
        assert time.monotonic() < deadline
        time.sleep(1)
    yield tmp_path
    podman(tmp_path, "rm", "--force", "--time", "1", NAME)


@pytest.mark.timeout(1800)
def test_gates_are_switched_on_proven_rejected_put_back_and_removed(host: Path) -> None:
    done = podman(host, "exec", NAME, "python3", "-B", "/src/tests/generations/kubelet_on_host.py", "/src/.collections")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "configuration: switched on and given back",
        "environment file: switched on and given back",
        "drop-in: switched on and given back",
        "unknown gate: rejected",
        "kubelet that fails: restored",
        "done",
    ]


KIND = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
JSON = '{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}\n'


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "text",
    [
        KIND,
        f"{KIND}featureGates:\n  NodeSwap: True\n  AllAlpha: no # c\n",
        f"{KIND}featureGates: {{ # c\n  NodeSwap: y,\n  # d\n  'AllAlpha': off}}  # e\n",
        f"{KIND}featureGates: {{}}\n",
        f"{KIND}---\n",
        f"# c\n---\n{KIND}...\nfeatureGates: [\n",
        f"{KIND}featureGates:\n  NodeSwap: true\n".replace("\n", "\r\n"),
        JSON,
        JSON.replace("}", ', "featureGates": {"NodeSwap": true}}'),
    ],
)
def test_kubelet_reads_the_gate_where_it_is_written(tmp_path: Path, text: str) -> None:
    """A gate that it does not know: the kubelet that reads it says so, and any other error would come before."""
    config = tmp_path / "config.yaml"
    config.write_text(with_gates(text, {"NoSuchGate": True}), newline="")
    kubelet = components.kubernetes(the_cache(), components.KUBERNETES) / "kubelet"
    command = [
        "unshare",
        "--net",
        kubelet,
        f"--config={config}",
        f"--root-dir={tmp_path / 'root'}",
        "--container-runtime-endpoint=unix:///nowhere",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "unrecognized feature gate: NoSuchGate" in ended.stderr


def asked(*words: str) -> str:
    """Why this kubelet does not start with the words, and with a configuration that does not exist."""
    program = components.kubernetes(the_cache(), components.KUBERNETES) / "kubelet"
    return subprocess.run([program, "--config=/nonexistent", *words], capture_output=True, text=True, check=False, timeout=120).stderr


@pytest.mark.timeout(1800)
def test_the_real_kubelet_takes_neither_the_gates_nor_the_flags_of_the_table() -> None:
    minor = int(components.KUBERNETES.split(".")[1])
    different = []
    for name, end in ends.GATES.items():
        locked = end.locked is not None and minor >= end.locked
        value = str(not end.value if locked else True).lower()
        words = asked(f"--feature-gates={name}={value}")
        gone = end.gone is not None and minor >= end.gone
        if gone and f"unrecognized feature gate: {name}" not in words:
            different.append(f"{name} is not gone: {words}")
        elif not gone and (f"cannot set feature gate {name} to {value}" in words) is not locked:
            different.append(f"{name} is locked or not, against the table: {words}")
    for since, names in ends.FLAGS_GONE.items():
        for name in names.split():
            if (f"unknown flag: --{name}" in asked(f"--{name}=1")) is not (minor >= since):
                different.append(f"--{name} is there or not, against the table")
    assert not different
