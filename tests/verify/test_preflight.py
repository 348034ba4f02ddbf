# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""preflight names what would make a run fail halfway, all of it at once and on its host, before anything is changed."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from e2e.cluster import CONTROL_PLANE, Cluster, CommandError
from verify import faults
from verify.faults import sh
from verify.verdict import Verify

API = "OUTPUT -p tcp --dport 6443 -j REJECT"
MANIFESTS, PROGRAMS = "/etc/kubernetes/manifests", "/opt"


def _mounted(cluster: Cluster, later: contextlib.ExitStack, node: str, folder: str, options: str) -> None:
    later.callback(cluster.on, node, "umount", folder)
    sh(cluster, node, f"mount --bind {folder} {folder}; mount -o remount,bind,{options} {folder}")


def test_what_would_end_a_run_halfway_is_named_at_once(clean: Verify, tmp_path: Path) -> None:
    cluster, report = clean.cluster, tmp_path / "report.json"
    with contextlib.ExitStack() as later:
        later.callback(faults.flag_removed, cluster)
        faults.scheduler_stopped(cluster, later)
        _mounted(cluster, later, CONTROL_PLANE, MANIFESTS, "ro")
        _mounted(cluster, later, "gpu1", PROGRAMS, "noexec")
        # On the other node the role has nothing to do, because of CDI.
        faults.runtime_file_broken(cluster, later, "gpu2")
        later.callback(cluster.on, "gpu2", "umount", "/opt/gpushare")
        sh(cluster, "gpu2", "mount -t tmpfs -o size=1g,nr_inodes=2 tmpfs /opt/gpushare")
        later.callback(sh, cluster, "gpu2", f"while iptables -D {API} 2>/dev/null; do :; done")
        sh(cluster, "gpu2", f"iptables -I {API}")
        with contextlib.suppress(CommandError):
            cluster.playbook("-e", f"gpushare_preflight_report={report}", name="playbooks/preflight.yml", seconds=180)
    found = json.loads(report.read_text())
    assert found["ok"] is False
    errors = {(one["host"], one["check"], one["found"]) for one in found["reasons"] if one["severity"] == "error"}
    for host, check, words in (
        (CONTROL_PLANE, "scheduler", "no process of kube-scheduler"),
        (CONTROL_PLANE, "disk", f"{MANIFESTS} on a file system mounted read-only"),
        ("gpu1", "disk", "on a file system mounted noexec"),
        ("gpu2", "runtime", "/etc/containerd/config.toml cannot be read: line "),
        ("gpu2", "disk", "too few free inodes for /opt/gpushare"),
        ("gpu2", "api", "no connection from this host to https://"),
    ):
        assert any((one_host, one_check) == (host, check) and words in text for one_host, one_check, text in errors), (check, errors)
