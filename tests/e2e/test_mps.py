# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The isolation mps on real kubelets: NVIDIA's own control daemon under systemd for each GPU, and what pods get of it.

The GPUs are simulated, so no server and no client runs: what the daemon does for them is not shown here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from e2e.api import Json
from e2e.cluster import Cluster, CommandError, allocation, annotations_of
from e2e.manifests import pod
from e2e.running import NODE
from e2e.sandbox import ENTER, INSIDE

pytestmark = pytest.mark.suite("gpus")

CORE = "aliyun.com/gpu-core.percentage"
MIB = 32
SET = ("-e", "gpushare_isolation=mps", "-e", f"gpushare_mps_shared_memory_mib={MIB}")
FOLDER = "/run/gpushare-mps"
INJECTED = "/dev/shm/cuda_injection_path_shm"


def gpus_of(cluster: Cluster, node: str) -> Json:
    found: Json = json.loads(annotations_of(cluster.node(node))["gpushare/gpus"])
    return found


def usable(cluster: Cluster, node: str) -> list[bool]:
    return [gpu["health"] == "ok" for gpu in gpus_of(cluster, node)["gpus"]]


def services(cluster: Cluster, node: str) -> list[str]:
    listed = cluster.on(node, "systemctl", "list-units", "--plain", "--no-legend", "--state=active", "gpushare-mps-*")
    return [line.split()[0] for line in listed.splitlines()]


def modes(cluster: Cluster, node: str) -> set[str]:
    return {line.strip() for line in cluster.on(node, "nvidia-smi", "--query-gpu=compute_mode", "--format=csv,noheader").splitlines()}


@pytest.fixture(scope="module")
def mps(cluster: Cluster) -> Iterator[Cluster]:
    cluster.clear()
    cluster.playbook(*SET)
    yield cluster
    cluster.clear()
    cluster.playbook()
    assert services(cluster, NODE) == []
    assert modes(cluster, NODE) == {"Default"}
    assert FOLDER not in cluster.on(NODE, "cat", "/proc/mounts")
    assert "GPU-" not in cluster.on(NODE, "ls", "-A", FOLDER)


def default_limit(cluster: Cluster, uuid: str) -> str:
    """What NVIDIA's control daemon of the GPU answers."""
    ask = f"echo get_default_device_pinned_mem_limit 0 | CUDA_MPS_PIPE_DIRECTORY=/run/gpushare-mps/{uuid}/pipe nvidia-cuda-mps-control"
    return cluster.on(NODE, "sh", "-c", ask).strip()


def sharing(name: str, memory: int, core: int) -> Json:
    made = pod(name, memory=memory, node=NODE)
    made["spec"]["containers"][0]["resources"]["limits"][CORE] = str(core)
    return made


def test_each_gpu_has_a_daemon_and_the_next_run_changes_nothing(mps: Cluster) -> None:
    found = gpus_of(mps, NODE)
    assert services(mps, NODE) == [f"gpushare-mps-{uuid}.service" for uuid in sorted(gpu["uuid"] for gpu in found["gpus"])]
    assert modes(mps, NODE) == {"Exclusive_Process"}
    assert (found["isolation"], found["core"], found["clients"]) == ("mps", 100, 48)
    assert all(usable(mps, NODE))
    recap = [line for line in mps.playbook(*SET).splitlines() if " : ok=" in line]
    assert recap
    assert all("changed=0" in line for line in recap), recap


def test_a_pod_gets_its_own_limits_and_the_socket_of_its_gpus_daemon(mps: Cluster) -> None:
    mps.create(sharing("share", 4, 30))
    mps.until_running("share")
    environment = dict(line.split("=", 1) for line in mps.kubectl("exec", "share", "--", "env").splitlines() if "=" in line)
    assert environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=4096M"
    assert environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert mps.kubectl("exec", "share", "--", "sh", "-c", 'test -S "$CUDA_MPS_PIPE_DIRECTORY/control" && echo there').strip() == "there"
    # A client that unsets its limit gets no more than the largest container of the GPU has.
    uuid = gpus_of(mps, NODE)["gpus"][next(iter(allocation(mps.pod("share"))))]["uuid"]
    mps.until("the daemon's default is that of the container", lambda: default_limit(mps, uuid) == "4G", 30)
    # The rest of this GPU's compute is not enough for the next one, whatever memory is free.
    (index,) = allocation(mps.pod("share"))
    mps.create(sharing("other", 1, 80))
    mps.until_running("other")
    assert list(allocation(mps.pod("other"))) != [index]
    mps.create(pod("larger", memory=6, node=NODE))
    mps.until_running("larger")
    uuid = gpus_of(mps, NODE)["gpus"][next(iter(allocation(mps.pod("larger"))))]["uuid"]
    assert default_limit(mps, uuid) == "6G"
    mps.create(sharing("third", 1, 75))
    assert "of compute" in mps.until_unschedulable("third")
    mps.clear()


def test_while_a_daemon_does_not_answer_its_gpu_takes_no_pod(mps: Cluster) -> None:
    first = gpus_of(mps, NODE)["gpus"][0]["uuid"]
    unit = f"gpushare-mps-{first}.service"
    mps.on(NODE, "systemctl", "stop", unit)
    mps.until("the GPU is unusable", lambda: usable(mps, NODE).count(False) == 1, 60)
    mps.on(NODE, "systemctl", "start", unit)
    mps.until("the GPU is usable again", lambda: all(usable(mps, NODE)), 60)
    mps.on(NODE, "sh", "-c", f"kill -9 $(pgrep -f nvidia-cuda-mps-control | head -1); systemctl is-active {unit} || true")
    mps.until("systemd has started both again", lambda: len(services(mps, NODE)) == len(usable(mps, NODE)) and all(usable(mps, NODE)), 120)


def as_user(name: str, user: int) -> Json:
    """A container without any capability."""
    made = pod(name, memory=2, node=NODE)
    made["spec"]["containers"][0]["securityContext"] = {"runAsUser": user, "capabilities": {"drop": ["ALL"]}}
    return made


def gpu_of(cluster: Cluster, name: str) -> str:
    uuid: str = gpus_of(cluster, NODE)["gpus"][next(iter(allocation(cluster.pod(name))))]["uuid"]
    return uuid


# The daemon opens these by their names, follows links, and makes what is not there.
PLANT = """
cd "$CUDA_MPS_PIPE_DIRECTORY"
while :; do
  mkdir x; chmod 0777 control_lock
  rm -f log control_lock; ln -s /dev/stand-in log; ln -s /run/gpushare-mps/planted control_lock
done >/dev/null 2>&1
"""


def test_no_container_makes_what_the_root_of_the_host_opens(mps: Cluster) -> None:
    mps.create(as_user("plants", 0))
    mps.until_running("plants")
    uuid = gpu_of(mps, "plants")
    unit = f"gpushare-mps-{uuid}.service"
    # Where the service may write: as a disk would be there.
    mps.on(NODE, "sh", "-c", "printf disk > /dev/stand-in")
    try:
        mps.kubectl("exec", "plants", "--", "sh", "-c", f"( {PLANT} ) > /dev/null 2>&1 &")
        for _ in range(6):
            mps.on(NODE, "sh", "-c", f"systemctl restart {unit} || true")
            assert mps.on(NODE, "cat", "/dev/stand-in") == "disk"
            assert "planted" not in mps.on(NODE, "ls", FOLDER)
        assert sorted(mps.on(NODE, "ls", f"{FOLDER}/{uuid}/pipe").split()) == ["control", "control_lock", "control_privileged", "log"]
        assert mps.on(NODE, "systemctl", "is-active", unit).strip() == "active"
    finally:
        mps.on(NODE, "rm", "-f", "/dev/stand-in", f"{FOLDER}/planted")
        mps.clear()


def test_no_container_names_a_library_to_the_servers_and_to_the_others_of_its_gpu(mps: Cluster) -> None:
    mps.create(as_user("names", 0))
    mps.until_running("names")
    uuid = gpu_of(mps, "names")
    tries = f"""
    printf evil > /dev/shm/evil
    for way in 'rm -f' 'ln -f /dev/shm/evil' 'mv -f /dev/shm/evil' 'ln -sfn /dev/shm/evil' 'cp -f /dev/shm/evil'; do $way {INJECTED}; done
    umount {INJECTED}; mv {INJECTED} /dev/shm/aside; cat {INJECTED}
    """
    assert mps.kubectl("exec", "names", "--", "sh", "-c", f"( {tries} ) 2>/dev/null") == ""
    assert mps.on(NODE, "stat", "-c", "%s %u", f"{FOLDER}/{uuid}/shm/{INJECTED.rpartition('/')[2]}").strip() == "0 0"
    assert mps.on(NODE, "cat", f"{FOLDER}/{uuid}/shm/evil") == "evil", "it is the shared memory of the GPU"
    pid = mps.on(NODE, "systemctl", "show", "-p", "MainPID", "--value", f"gpushare-mps-{uuid}").strip()
    assert mps.on(NODE, "nsenter", "-t", pid, "-m", "stat", "-c", "%F", INJECTED).strip() == "character special file"
    options = next(line.split()[3].split(",") for line in mps.on(NODE, "cat", "/proc/mounts").splitlines() if f"{uuid}/shm" in line)
    assert {"noexec", "nosuid", "nodev"} <= set(options)
    mps.clear()


@pytest.mark.parametrize(
    "fill",
    [
        f"dd if=/dev/zero of=/dev/shm/bytes bs=1M count={2 * MIB}",
        "i=0; while [ $i -lt 20000 ]; do : > /dev/shm/$i || exit 1; i=$((i+1)); done",
    ],
    ids=["bytes", "files"],
)
def test_a_container_fills_its_gpus_shared_memory_only_and_for_as_long_as_the_gpu_has_pods(mps: Cluster, fill: str) -> None:
    mps.create(as_user("fills", 65534))
    mps.until_running("fills")
    uuid = gpu_of(mps, "fills")
    with pytest.raises(CommandError, match="No space left on device"):
        mps.kubectl("exec", "fills", "--", "sh", "-c", fill)
    free = mps.on(NODE, "sh", "-c", "echo x > /run/test-mps && cat /run/test-mps; rm -f /run/test-mps")
    assert free.strip() == "x"
    shared, run = (mps.on(NODE, "stat", "-c", "%d", path) for path in (f"{FOLDER}/{uuid}/shm", "/run"))
    assert shared != run
    # A restart of the daemon is none of the container: what it has mounted stays.
    mps.on(NODE, "systemctl", "restart", f"gpushare-mps-{uuid}")
    assert len(mps.on(NODE, "ls", f"{FOLDER}/{uuid}/shm").split()) > 1
    mps.clear()
    left = [INJECTED.rpartition("/")[2]]
    mps.until("the shared memory is empty", lambda: mps.on(NODE, "ls", "-A", f"{FOLDER}/{uuid}/shm").split() == left, 60)


def test_a_service_has_its_gpus_and_its_folders_alone(mps: Cluster) -> None:
    uuid = gpus_of(mps, NODE)["gpus"][0]["uuid"]
    pid = mps.on(NODE, "systemctl", "show", "-p", "MainPID", "--value", f"gpushare-mps-{uuid}").strip()
    own = (f"{FOLDER}/x", "/var/lib/gpushare-mps/x")
    # The last three give the host to who is root.
    others = (
        "/etc/x",
        "/usr/x",
        "/var/lib/kubelet/x",
        "/run/systemd/private",
        "/run/dbus/system_bus_socket",
        "/run/containerd/containerd.sock",
    )
    disk = "/dev/test-mps"
    mps.on(NODE, "mknod", disk, "b", "7", "0")
    try:
        found = json.loads(mps.on(NODE, "sh", "-ec", ENTER, "sh", pid, INSIDE, *own, *others, "/dev/nvidiactl", "/dev/nvidia0", disk))
    finally:
        mps.on(NODE, "rm", "-f", disk, *own)
    assert [path for path, why in found.items() if not why] == [*own, "/dev/nvidiactl", "/dev/nvidia0"]
    assert found[disk] == "EPERM"
    status = dict(line.split(":\t", 1) for line in mps.on(NODE, "cat", f"/proc/{pid}/status").splitlines() if ":\t" in line)
    names = ("DAC_OVERRIDE", 1), ("FOWNER", 3), ("KILL", 5), ("SETGID", 6), ("SETUID", 7), ("SYS_ADMIN", 21)
    assert int(status["CapBnd"], 16) == sum(1 << bit for _name, bit in names)
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def test_a_driver_that_is_loaded_after_the_service_is_let_in_by_a_restart(mps: Cluster) -> None:
    """systemd has the numbers of devices from the time of its start: a number that no driver of NVIDIA's has stands for the new one."""
    mps.on(NODE, "mknod", "/dev/nvidia-uvm", "c", "10", "229")
    try:
        mps.until("the GPUs are unusable", lambda: not any(usable(mps, NODE)), 120)
        said = mps.on(NODE, "journalctl", "-u", "gpushare-mps-*", "-n", "50", "--no-pager", "-o", "cat")
        assert "found /dev/nvidia-uvm, which this service may not open" in said
    finally:
        mps.on(NODE, "rm", "-f", "/dev/nvidia-uvm")
    mps.until("the GPUs are usable", lambda: all(usable(mps, NODE)), 120)


def ending(cluster: Cluster) -> dict[str, list[list[int]]]:
    """GPU → the processes whose clients the device plugin wants to be terminated."""
    found: dict[str, list[list[int]]] = json.loads(cluster.on(NODE, "cat", "/var/lib/gpushare-device-plugin/ending.json"))["clients"]
    return found


def test_the_processes_of_a_deleted_pod_are_listed_shortly_before_kubelet_kills_them(mps: Cluster) -> None:
    """Its program hears no SIGTERM, as none does that is a container's first process and asks for none."""
    made = pod("ends", memory=2, node=NODE)
    made["spec"]["terminationGracePeriodSeconds"] = 30
    mps.create(made)
    mps.create(pod("stays", memory=2, node=NODE))
    mps.until_running("ends", "stays")
    uid, uuid = mps.pod("ends")["metadata"]["uid"], gpu_of(mps, "ends")
    own = mps.on(NODE, "sh", "-c", f"grep -ls {uid.replace('-', '.')} /proc/[0-9]*/cgroup").split()
    mps.kubectl("delete", "pod", "ends", "--wait=false")
    assert ending(mps) == {}
    listed = mps.until("its processes are listed", lambda: ending(mps), 60)
    assert {f"/proc/{pid}/cgroup" for pid, _ in listed[uuid]} == set(own)
    assert list(listed) == [uuid]
    mps.until("the list is empty again", lambda: ending(mps) == {}, 90)
    assert mps.pod("stays")["status"]["phase"] == "Running"
    mps.clear()


def test_mps_is_not_left_under_pods(mps: Cluster) -> None:
    mps.create(pod("stays", memory=2, node=NODE))
    mps.until_running("stays")
    with pytest.raises(CommandError, match="drain the node and run again, or keep gpushare_isolation"):
        mps.playbook()
    assert gpus_of(mps, NODE)["isolation"] == "mps"
    assert len(services(mps, NODE)) == len(usable(mps, NODE))
    assert mps.pod("stays")["status"]["phase"] == "Running"
    mps.clear()
