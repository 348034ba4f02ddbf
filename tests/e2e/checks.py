# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What must hold on a real cluster. Each check returns the problems that it found, in words; none means that it holds.

test_faults.py shows each of them to find a fault that is there.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from e2e.api import Json
from e2e.cluster import (
    CONTROL_PLANE,
    GPU_NODES,
    GPUS,
    MEMORY,
    REPOSITORY,
    Cluster,
    Container,
    RealGpu,
    WaitedInVain,
    allocation,
    annotations_of,
    asked,
    is_running,
    unschedulable,
    uuids,
)

# Control nodes that a container with a GPU may have beside the GPU's own.
CONTROL_DEVICES = {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"}
REREGISTERED_SECONDS = 5.0


def check_devices(cluster: Cluster, pods: Iterable[Json]) -> list[str]:
    """Each running container that asks has the device nodes of its annotated GPUs in /dev, and no other GPU's."""
    pods = list(pods)
    nodes = {pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")}
    gpus = {node: {gpu.index: gpu for gpu in cluster.gpus(node)} for node in nodes}
    return _each_asking(cluster, pods, lambda container: _device_problems(container, gpus[container.pod["spec"]["nodeName"]]))


def _device_problems(container: Container, gpus: Mapping[int, RealGpu]) -> list[str]:
    annotated = allocation(container.pod)
    unknown = sorted(set(annotated) - set(gpus))
    if not annotated or unknown:
        return [f"annotated with GPUs {sorted(annotated)}, the node has {sorted(gpus)}"]
    wanted = {f"nvidia{gpus[index].minor}" for index in annotated}
    found = set(container.devices) - CONTROL_DEVICES
    return [] if found == wanted else [f"has {sorted(found)} in /dev, its annotated GPUs {sorted(annotated)} are {sorted(wanted)}"]


def check_environment(cluster: Cluster, pods: Iterable[Json]) -> list[str]:
    """In each running container that asks, PID 1's variables say what the annotations and the container's limit say."""
    return _each_asking(cluster, pods, _environment_problems)


def _environment_problems(container: Container) -> list[str]:
    notes = annotations_of(container.pod)
    wanted = {name: notes.get(name) for name in ("ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_DEV", "ALIYUN_COM_GPU_MEM_POD")}
    # Whole GPUs count with all their units.
    whole = sum(allocation(container.pod).values()) if asked(container.spec, GPUS) else 0
    wanted["ALIYUN_COM_GPU_MEM_CONTAINER"] = str(asked(container.spec, MEMORY) or whole)
    return [
        f"PID 1 has {name}={container.environment.get(name)}, expected {value}"
        for name, value in wanted.items()
        if value is None or container.environment.get(name) != value
    ]


def _each_asking(cluster: Cluster, pods: Iterable[Json], problems: Callable[[Container], list[str]]) -> list[str]:
    asking = [pod for pod in pods if any(asked(c, MEMORY) or asked(c, GPUS) for c in pod["spec"]["containers"])]
    idle = [f"{pod['metadata']['name']} does not run" for pod in asking if not is_running(pod)]
    found = cluster.containers(asking)
    if not found:
        return [*idle, "there is no container to look at"]
    return idle + [f"{container}: {problem}" for container in found for problem in problems(container)]


def check_no_gpu(cluster: Cluster, pods: Iterable[Json]) -> list[str]:
    """No running container of these pods has anything of NVIDIA in /dev."""
    found = cluster.containers(pods)
    if not found:
        return ["there is no container to look at"]
    return [f"{container} has {sorted(container.devices)} in /dev" for container in found if container.devices]


def check_totals(cluster: Cluster, pods: Iterable[Json] | None = None) -> list[str]:
    """No GPU is over-booked by the pods that are bound: annotations against what the driver says. pods: those of the cluster."""
    problems, bound = [], cluster.pods() if pods is None else list(pods)
    for node in GPU_NODES:
        sizes = {gpu.index: gpu.mib // 1024 for gpu in cluster.gpus(node)}
        for gpu, units in held_on(bound, node).items():
            if units > sizes.get(gpu, 0):
                problems.append(f"GPU {gpu} of {node} has {sizes.get(gpu, 0)} units, pods hold {units}")
    return problems


def held_on(pods: Iterable[Json], node: str) -> Counter[int]:
    """Units per GPU index that unfinished pods on a node hold."""
    held: Counter[int] = Counter()
    for pod in pods:
        if pod["spec"].get("nodeName") == node and pod["status"].get("phase") not in ("Succeeded", "Failed"):
            held.update(allocation(pod))
    return held


def check_pods_per_gpu(cluster: Cluster, expected: Mapping[tuple[str, int], int]) -> list[str]:
    """So many pods run on each GPU (node, index), and none on others."""
    running = [pod for pod in cluster.pods() if is_running(pod)]
    found = Counter((pod["spec"]["nodeName"], gpu) for pod in running for gpu in allocation(pod))
    return [] if found == Counter(expected) else [f"pods per GPU are {dict(sorted(found.items()))}, expected {dict(expected)}"]


def check_unschedulable(cluster: Cluster, name: str, *words: str, seconds: float = 20) -> list[str]:
    """The pod stays unplaced, and the scheduler's reason carries all these words."""
    try:
        reason = cluster.until_unschedulable(name, seconds)
    except WaitedInVain:
        pod = cluster.pod(name)
        return [f"{name} was not rejected; it is on {pod['spec'].get('nodeName')}, phase {pod['status'].get('phase')}"]
    return [f"the reason does not say {word!r}: {reason}" for word in words if word not in reason]


def check_stays_unschedulable(cluster: Cluster, name: str, pods: Collection[str]) -> list[str]:
    """The pod is rejected although all of `pods` run: it had its chance, and there was no GPU for it."""
    running = {pod["metadata"]["name"] for pod in cluster.pods() if is_running(pod)}
    problems = [f"{other} does not run" for other in pods if other not in running]
    return problems if unschedulable(cluster.pod(name)) else [*problems, f"{name} is not rejected"]


def check_event(cluster: Cluster, name: str, text: str, seconds: float = 20) -> list[str]:
    """The pod is Pending and has a Warning whose message contains the text."""

    def said() -> bool:
        return any(text in event.get("message", "") and event["type"] == "Warning" for event in cluster.events(name))

    try:
        cluster.until(f"an event of {name} says {text!r}", said, seconds)
    except WaitedInVain:
        return [f"no event says {text!r}; there are {[event.get('message') for event in cluster.events(name)]}"]
    phase = cluster.pod(name)["status"]["phase"]
    return [] if phase == "Pending" else [f"{name} has the event and is {phase}"]


# As kube-scheduler calls it, with its certificate.
_FILTER = """
import ssl, sys, urllib.request
pki = "/etc/gpushare/pki/scheduler/"
context = ssl.create_default_context(cafile=pki + "ca.crt")
context.load_cert_chain(pki + "tls.crt", pki + "tls.key")
url = "https://127.0.0.1:32766/gpushare-scheduler/filter"
request = urllib.request.Request(url, sys.argv[1].encode(), {"Content-Type": "application/json"})
print(urllib.request.urlopen(request, timeout=5, context=context).read().decode())
"""


def check_filter_rejects(cluster: Cluster, pod: Json, *words: str) -> list[str]:
    """The extender's filter, asked directly on its host, lets no node pass and says these words for each."""
    question = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": list(GPU_NODES)})
    answer = json.loads(cluster.on(CONTROL_PLANE, "python3", "-c", _FILTER, question))
    problems = []
    if answer["NodeNames"] or answer["Error"]:
        problems.append(f"it answers NodeNames {answer['NodeNames']}, Error {answer['Error']!r}; expected none of both")
    for node in GPU_NODES:
        reason = (answer["FailedNodes"] or {}).get(node) or (answer["FailedAndUnresolvableNodes"] or {}).get(node) or ""
        problems += [f"{node}: the reason does not say {word!r}: {reason!r}" for word in words if word not in reason]
    return problems


def check_runs(cluster: Cluster, name: str, seconds: float = 30) -> list[str]:
    """The pod runs within so many seconds."""
    try:
        cluster.until_running(name, seconds=seconds)
    except WaitedInVain:
        pod = cluster.pod(name)
        return [f"{name} does not run after {seconds:g} s: {pod['status'].get('phase')}, {unschedulable(pod) or 'no reason'}"]
    return []


def check_log_lists_its_gpu(cluster: Cluster, pod: Json) -> list[str]:
    """The log of a pod that printed `nvidia-smi -L` has exactly the UUID of its annotated GPU."""
    gpus = {gpu.index: gpu.uuid for gpu in cluster.gpus(pod["spec"]["nodeName"])}
    wanted = [gpus.get(index) for index in allocation(pod)]
    found = uuids(cluster.log(pod["metadata"]["name"]))
    return [] if found == wanted and wanted else [f"the log lists {found}, the annotation means {wanted}"]


def check_registered(cluster: Cluster, node: str) -> list[str]:
    """kubelet offers all units and all GPUs of the node."""
    gpus = cluster.gpus(node)
    wanted = {MEMORY: sum(gpu.mib // 1024 for gpu in gpus), GPUS: len(gpus)}
    status = cluster.node(node)["status"]
    return [
        f"{node}: {kind} of {resource} is {status[kind].get(resource)}, its GPUs make {amount}"
        for kind in ("capacity", "allocatable")
        for resource, amount in wanted.items()
        if status[kind].get(resource) != str(amount)
    ]


def check_inventory(cluster: Cluster, node: str) -> list[str]:
    """The annotation gpushare/gpus says what the driver says."""
    published = json.loads(annotations_of(cluster.node(node)).get("gpushare/gpus", '{"gpus":[]}'))["gpus"]
    found = [(gpu["index"], gpu["uuid"], gpu["minor"], gpu["mib"], gpu["units"]) for gpu in published]
    wanted = [(gpu.index, gpu.uuid, gpu.minor, gpu.mib, gpu.mib // 1024) for gpu in cluster.gpus(node)]
    return [] if found == wanted else [f"{node}: gpushare/gpus says {found}, the driver {wanted}"]


def check_follows(cluster: Cluster, node: str, seconds: float = 30) -> list[str]:
    """Annotation and resources of the node say what its GPUs are, within so many seconds."""
    try:
        cluster.until(f"{node} publishes its GPUs", lambda: not (check_inventory(cluster, node) + check_registered(cluster, node)), seconds)
    except WaitedInVain:
        return check_inventory(cluster, node) + check_registered(cluster, node)
    return []


def check_registers_again(cluster: Cluster, node: str) -> tuple[list[str], Mapping[str, float]]:
    """After a restart of kubelet it has both resources again in time. Also the seconds per resource, from kubelet's own socket on."""
    restarted = time.time()
    cluster.on(node, "systemctl", "restart", "kubelet")

    def made() -> float | None:
        when = float(cluster.on(node, "stat", "-c", "%.9Y", "/var/lib/kubelet/device-plugins/kubelet.sock"))
        return when if when > restarted else None

    since = cluster.until("kubelet has made its socket", made, 30)
    seconds: dict[str, float] = {}
    while len(seconds) < 2 and time.time() < since + REREGISTERED_SECONDS:
        journal = cluster.on(node, "journalctl", "-o", "json", "-u", "kubelet", "--since", f"@{int(since)}")
        seconds = _registrations(journal, since)
    missing = [resource for resource in (MEMORY, GPUS) if seconds.get(resource, REREGISTERED_SECONDS) >= REREGISTERED_SECONDS]
    return [f"{node}: {resource} is not registered again {REREGISTERED_SECONDS:g} s after kubelet's start" for resource in missing], seconds


def _registrations(journal: str, since: float) -> dict[str, float]:
    """Resource → seconds from `since` until kubelet's journal says that it is registered."""
    found: dict[str, float] = {}
    for entry in map(json.loads, journal.splitlines()):
        said = re.search(r'Got registration request.*resourceName="([^"]+)"', str(entry["MESSAGE"]))
        after = int(entry["__REALTIME_TIMESTAMP"]) / 1e6 - since
        if said and after >= 0:
            found.setdefault(said[1], after)
    return found


def check_whole_gpu(cluster: Cluster, whole: Json) -> list[str]:
    """The pod has a GPU that no other pod holds anything of."""
    node = whole["spec"]["nodeName"]
    others = [pod for pod in cluster.pods() if pod["metadata"]["uid"] != whole["metadata"]["uid"]]
    shared = sorted(set(allocation(whole)) & set(held_on(others, node)))
    if not allocation(whole):
        return [f"{whole['metadata']['name']} has no GPU in its annotation"]
    return [f"GPU {gpu} of {node} is whole for {whole['metadata']['name']}, and another pod holds memory of it" for gpu in shared]


def check_changes_nothing(cluster: Cluster) -> list[str]:
    """Another run of the playbook changes no task and restarts nothing."""
    before = _processes(cluster)
    said = cluster.playbook()
    recap = re.findall(r"^(\S+)\s+: ok=\d+\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", said, re.M)
    problems = [f"{host}: changed={c} unreachable={u} failed={f}" for host, c, u, f in recap if (c, u, f) != ("0", "0", "0")]
    if {host for host, *_ in recap} < {CONTROL_PLANE, *GPU_NODES}:
        problems.append(f"the recap names {sorted(host for host, *_ in recap)} only")
    if problems:
        problems.append("\n".join(line for line in said.splitlines() if line.startswith(("TASK", "changed", "fatal"))))
    return problems + [f"{what} was restarted" for what, pid in _processes(cluster).items() if before[what] != pid]


def _processes(cluster: Cluster) -> dict[str, str]:
    """Main processes that an idle run must leave alone."""
    units = [(CONTROL_PLANE, "gpushare-extender"), *((node, unit) for node in GPU_NODES for unit in ("gpushare-device-plugin", "kubelet"))]
    found = {f"{unit} on {node}": cluster.on(node, "systemctl", "show", "-p", "MainPID", unit).strip() for node, unit in units}
    found["kube-scheduler"] = cluster.on(CONTROL_PLANE, "pgrep", "-x", "kube-scheduler").strip()
    return found


def check_readme(cluster: Cluster, readme: str | None = None) -> list[str]:
    """`kubectl inspect gpushare` with the samples prints what the page of the demo shows, but for addresses and their width."""
    text = (REPOSITORY / "docs/start/demo.md").read_text() if readme is None else readme
    shown = re.findall(r"<!-- inspect\b.*?-->\s*```[a-z]*\n(.*?)```", text, re.S)
    if len(shown) != 1:
        return [f"demo.md has {len(shown)} blocks marked <!-- inspect -->, expected one"]
    wanted, found = normal(shown[0]), normal(cluster.inspect())
    return [] if wanted == found else ["demo.md shows:\n" + "\n".join(wanted) + "\nreally it is:\n" + "\n".join(found)]


def normal(output: str) -> list[str]:
    """The lines of inspect's output, made equal for clusters with other addresses."""
    lines = [re.sub(r"\b\d+\.\d+\.\d+\.\d+\b", "ADDRESS", line) for line in output.splitlines()]
    return ["---" if re.fullmatch("-+", line) else "  ".join(line.split()) for line in lines]
