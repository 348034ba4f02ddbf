# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The daemons of another release under running pods: systemd is not told to reload, and containers keep their GPUs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import CONTROL_PLANE, MEMORY, REPOSITORY, Cluster, annotations_of
from installer.releases import next_release, play
from installer.site import NODE, pod
from installer.snapshot import settled

PLUGIN, EXTENDER = "gpushare-device-plugin", "gpushare-extender"
DAEMONS = ((NODE, PLUGIN), (CONTROL_PLANE, EXTENDER))
# Opened by the kernel's own driver, and in no list of devices that every container may open, as the lab's GPUs are.
MAJOR, MINOR = 10, 229
USAGE = "/var/lib/gpushare-device-plugin/held.json"


@pytest.fixture
def guarded(installed: Cluster) -> Iterator[Cluster]:
    """The installed cluster, whose GPUs on the node can only be opened by who is allowed to."""
    installed.clear()
    drop_in, units = f"/run/systemd/system/{PLUGIN}.service.d", "systemctl daemon-reload; systemctl restart"
    gpus = f"for gpu in /dev/nvidia[0-9]*; do rm $gpu; mknod -m 666 $gpu c {MAJOR} {MINOR}; done; gpushare-lab-gpu refresh"
    allowed = f"mkdir -p {drop_in}; printf '[Service]\\nDeviceAllow=char-misc rw\\n' > {drop_in}/90-test.conf"
    sh(installed, NODE, f"{gpus}; {allowed}; {units} {PLUGIN}")
    installed.until("the plugin has the GPUs", lambda: has_gpus(installed), 120)
    # It publishes and keeps a pod of before until kubelet has confirmed that it is gone.
    installed.until("no pod of before has a GPU", lambda: '"pods":{}' in sh(installed, NODE, f"cat {USAGE}"), 180)
    yield installed
    installed.clear()
    sh(installed, NODE, f"rm -r {drop_in} /dev/nvidia[0-9]*; gpushare-lab-gpu refresh; {units} {PLUGIN}")
    installed.until("the plugin has the GPUs", lambda: has_gpus(installed), 120)


def has_gpus(cluster: Cluster) -> bool:
    """Whether both are published, and kubelet has their units."""
    node = cluster.node(NODE)
    return len(json.loads(annotations_of(node)["gpushare/gpus"])["gpus"]) == 2 and node["status"]["allocatable"][MEMORY] == "32"


def sh(cluster: Cluster, node: str, script: str) -> str:
    return cluster.on(node, "sh", "-ec", script)


def reloads(cluster: Cluster, node: str) -> int:
    """How often systemd has read all units again since it was booted, by its own journal."""
    return int(sh(cluster, node, "journalctl --no-pager _PID=1 | grep -c 'systemd.*: Reloading' || true"))


def held(cluster: Cluster, node: str, name: str) -> int:
    """How many sockets the daemon got from systemd."""
    variables = sh(cluster, node, f"tr '\\0' '\\n' < /proc/$(systemctl show -P MainPID {name})/environ")
    return int(dict(line.partition("=")[::2] for line in variables.splitlines()).get("LISTEN_FDS", "0"))


def without_sockets(cluster: Cluster) -> None:
    """The extender of a release that holds its addresses itself."""
    unit = f"/etc/systemd/system/{EXTENDER}.socket"
    cluster.stop(CONTROL_PLANE, EXTENDER)
    sh(cluster, CONTROL_PLANE, f"systemctl disable {EXTENDER}.socket; rm {unit}; systemctl daemon-reload; systemctl start {EXTENDER}")
    assert held(cluster, CONTROL_PLANE, EXTENDER) == 0


def opens(cluster: Cluster, name: str) -> bool:
    """Whether a process in the container's cgroup can open its GPU."""
    said = cluster.kubectl("exec", name, "--", "sh", "-c", "gpu=$(echo /dev/nvidia[0-9]); (exec 3<$gpu) 2>&1; echo $?", seconds=30)
    return said.split()[-1] == "0"


def device_group(cluster: Cluster, name: str) -> str:
    """The folder of the container's device cgroup on its node."""
    identity = cluster.pod(name)["status"]["containerStatuses"][0]["containerID"].partition("://")[2]
    script = f"pid=$(ctr -n k8s.io tasks ls | awk '$1 == \"{identity}\" {{print $2}}'); grep -E '^[0-9]+:devices:' /proc/$pid/cgroup"
    return "/sys/fs/cgroup/devices" + sh(cluster, NODE, script).strip().split(":", 2)[2]


@pytest.mark.timeout(2400)
def test_a_new_release_starts_without_a_daemon_reload_and_a_running_container_keeps_its_gpu(guarded: Cluster, tmp_path: Path) -> None:
    cluster = guarded
    cluster.create(pod("holder", {"aliyun.com/gpu-mem": "2"}))
    cluster.until_running("holder")
    assert opens(cluster, "holder")
    container = cluster.pod("holder")["status"]["containerStatuses"][0]
    without_sockets(cluster)
    before = {node: (reloads(cluster, node), sh(cluster, node, f"cat /etc/systemd/system/{name}.service")) for node, name in DAEMONS}

    done = play(next_release(tmp_path), cluster, "tests/installer/daemons.yml", "-e", "gpushare_metrics_address=127.0.0.1")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    for node, name in DAEMONS:
        assert (reloads(cluster, node), sh(cluster, node, f"cat /etc/systemd/system/{name}.service")) == before[node]
        assert "/opt/gpushare/0.1.1-" in sh(cluster, node, f"tr '\\0' ' ' < /proc/$(systemctl show -P MainPID {name})/cmdline")
    assert (held(cluster, NODE, PLUGIN), held(cluster, CONTROL_PLANE, EXTENDER)) == (1, 2)
    now = cluster.pod("holder")["status"]["containerStatuses"][0]
    assert (now["containerID"], now["restartCount"]) == (container["containerID"], container["restartCount"])
    assert opens(cluster, "holder")

    # That the GPU can be taken so, and is seen to be: what a daemon-reload does to a container that systemd knows less of.
    sh(cluster, NODE, f"echo 'c {MAJOR}:{MINOR} rwm' > {device_group(cluster, 'holder')}/devices.deny")
    assert not opens(cluster, "holder")
    cluster.delete("holder")


def test_a_unit_that_has_changed_is_not_read_while_that_would_take_a_gpu(guarded: Cluster) -> None:
    """A scope of systemd with a GPU that systemd does not know stands for a container of the legacy mode."""
    cluster = guarded
    unit = f"/etc/systemd/system/{PLUGIN}.service"
    inside = "sleep 1000000"
    start = f"systemd-run --scope --unit=gpushare-test -p DevicePolicy=strict -p 'DeviceAllow=/dev/null rw' unshare -m {inside}"
    sh(cluster, NODE, f"cp -p {unit} /run/gpushare-test-unit; nohup {start} > /dev/null 2>&1 &")
    cluster.until("the scope has a process", lambda: "sleep" in sh(cluster, NODE, "systemctl status gpushare-test.scope"), 30)
    try:
        sh(cluster, NODE, f"echo '# edited' >> {unit}")
        untouched, count = settled(cluster), reloads(cluster, NODE)
        done = play(REPOSITORY, cluster, "site.yml", "--limit", NODE)
        said = done.stdout + done.stderr
        assert done.returncode != 0, said[-6000:]
        assert f"{PLUGIN}.service has changed" in said
        assert "gpushare-test.scope (nvidia0, nvidia1)" in said
        assert "Drain this node" in said
        changed = untouched.differences(settled(cluster))
        print(*changed, sep="\n")
        assert (changed, reloads(cluster, NODE)) == ([], count)
    finally:
        sh(cluster, NODE, "systemctl stop gpushare-test.scope; cat /run/gpushare-test-unit > " + unit)
    # Nothing is exposed any more, so systemd may read it.
    done = play(REPOSITORY, cluster, "site.yml", "--limit", NODE)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    assert sh(cluster, NODE, f"systemctl show -P NeedDaemonReload {PLUGIN}").strip() == "no"
