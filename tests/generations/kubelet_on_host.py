# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Runs on a host with systemd, containerd and a real kubelet without a cluster: gates are switched on, proven, rejected, put back, removed.

Kubelets of today have no gate that decides about device plugins. So two alpha gates that this one lists take that part, and a name that
no kubelet knows.
"""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, sys.argv[1])

from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import TransactionError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet import converge, gates, plan

WANTED, OTHER, UNKNOWN = "CRIListStreaming", "ContainerStopSignals", "NoSuchGate"
CONFIG, ENVIRONMENT = Path("/var/lib/kubelet/config.yaml"), Path("/etc/default/kubelet")
UNIT, DROP_IN = Path("/usr/lib/systemd/system/kubelet.service"), Path("/etc/systemd/system/kubelet.service.d/10-kubeadm.conf")
TIMEOUT = 120.0
UNIT_TEXT = "[Unit]\nDescription=kubelet\n[Service]\nExecStart=/usr/local/bin/kubelet\nRestart=always\nRestartSec=2\nStartLimitInterval=0\n"
CONFIG_TEXT = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {webhook: {enabled: false}, anonymous: {enabled: true}}
authorization: {mode: AlwaysAllow}
failSwapOn: false
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock  # of this host
"""
DROP_IN_TEXT = """\
[Service]
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/local/bin/kubelet $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"""
#: Name to (drop-in, environment file or None, the file that gets the gate, the gates that kubelet has before).
STATES: dict[str, tuple[str, str | None, Path, dict[str, bool]]] = {
    "configuration": (DROP_IN_TEXT, None, CONFIG, {}),
    "environment file": (DROP_IN_TEXT, f'KUBELET_EXTRA_ARGS="--v=1 --feature-gates={OTHER}=true"\n', ENVIRONMENT, {OTHER: True}),
    "drop-in": (
        DROP_IN_TEXT.replace("ExecStart=\n", f'Environment="KUBELET_EXTRA_ARGS=--feature-gates={OTHER}=true"\nExecStart=\n', 1),
        None,
        DROP_IN,
        {OTHER: True},
    ),
}


def systemctl(*words: str) -> str:
    return subprocess.run(["systemctl", *words], capture_output=True, text=True, check=False).stdout.strip()


def running() -> dict[str, bool]:
    """The gates that the running kubelet itself reports."""
    context = ssl._create_unverified_context()
    with urllib.request.urlopen("https://127.0.0.1:10250/configz", context=context, timeout=10) as reply:
        return dict(json.load(reply)["kubeletconfig"].get("featureGates") or {})


def start(drop_in: str, environment: str | None) -> None:
    systemctl("stop", "kubelet")
    shutil.rmtree("/var/lib/gpushare", ignore_errors=True)
    ENVIRONMENT.unlink(missing_ok=True)
    for path, text in ((UNIT, UNIT_TEXT), (DROP_IN, drop_in), (CONFIG, CONFIG_TEXT), (ENVIRONMENT, environment)):
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            path.write_text(text)
    systemctl("daemon-reload")
    systemctl("restart", "kubelet")
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            running()
            return
        except OSError:
            assert time.monotonic() < deadline, subprocess.run(
                ["journalctl", "-u", "kubelet", "-n", "20"], capture_output=True, check=False
            )
            time.sleep(0.5)


def files() -> dict[str, str]:
    return {str(path): path.read_text() for path in (CONFIG, ENVIRONMENT, *sorted(DROP_IN.parent.iterdir())) if path.exists()}


def run(state: str = "present", gate: str = WANTED, check: bool = False, timeout: float = TIMEOUT) -> Any:
    return converge.converge(converge.WantedGates(state, (gate,), "kubelet.service", timeout, False), check)


def pid() -> str:
    return systemctl("show", "-P", "MainPID", "kubelet")


def switched_on_and_given_back(name: str) -> None:
    drop_in, environment, path, had = STATES[name]
    start(drop_in, environment)
    before, process = files(), pid()
    predicted = run(check=True)
    assert (files(), pid()) == (before, process)
    done = run()
    assert (done.files, done.diff) == ([str(path)], predicted.diff)
    assert running() == {**had, WANTED: True}
    after, process = files(), pid()
    assert not run().changed
    assert (files(), pid()) == (after, process)
    run("absent")
    assert (files(), running()) == (before, had)
    assert not run("absent").changed


def failure(call: Callable[[], Any]) -> Exception | None:
    """What the call raises."""
    try:
        call()
    except Exception as error:
        return error
    return None


def main() -> None:
    for name in (WANTED, OTHER, UNKNOWN):
        gates.TABLE[name] = gates.Gate(name, 30, None, None, None)  # type: ignore[index]
    for name in STATES:
        switched_on_and_given_back(name)
        print(f"{name}: switched on and given back")
    start(DROP_IN_TEXT, None)
    before = files()
    found = failure(lambda: run(gate=UNKNOWN))
    assert isinstance(found, plan.Rejected), found
    assert "does not list the feature gate NoSuchGate" in str(found)
    print("unknown gate: rejected")
    # Without the list of the program itself: kubelet ends at its start, and the file goes back.
    converge.settable = lambda *_words: None  # type: ignore[assignment]
    found = failure(lambda: run(gate=UNKNOWN, timeout=60.0))
    assert isinstance(found, TransactionError), found
    assert found.restored, found
    assert "unrecognized feature gate: NoSuchGate" in str(found), found
    print("kubelet that fails: restored")
    assert (files(), running()) == (before, {})
    assert not os.path.exists("/var/lib/gpushare/journal/kubelet.pending")
    print("done")


main()
