# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The findings of verify about one GPU node: driver, device plugin and kubelet, container runtime, CDI specs, and the node in the API.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...module_utils._cluster.names import GPUS, LABEL_NODE, MEMORY, PLUGIN
from ...module_utils._facts.capacity import compare, driver_code
from ...module_utils._facts.cgroup_drivers import CgroupDrivers, two_drivers
from ...module_utils._facts.device_managers import DRA_CURE, DRA_DRIVERS, OTHER_CURE, dra_title
from ...module_utils._facts.diagnosis import versions
from ...module_utils._facts.driver import Driver
from ...module_utils._facts.nvidia_smi import SmiReport
from ...module_utils._facts.stopped_unit import StoppedUnit, complained, last_words, start_again, stopped
from ...module_utils._formats.finding import ERROR, WARNING, few
from .._preflight.gpus import Expected, judge_compute_modes, judge_gpus
from .._preflight.host import ROOM, room_cure
from .daemons import SITE, judge_metrics
from .doctor import Doctor
from .findings import VerifyFindings
from .hints import NEW_CERTIFICATE, hint
from .near_end import near_end
from .visibility import judge_visibility, needs_no_runtime

#: In the doctor's words.
ONE_PLUGIN = "one device plugin for the GPUs, ours"
STOP_OTHER = f"{OTHER_CURE}; then: systemctl restart {PLUGIN}"
#: Taints that programs set for a time, and may leave: the cluster autoscaler (kubernetes/autoscaler#5657), Karpenter 1
#: (karpenter.sh/docs/concepts/disruption), read on 2026-11-29.
_OF_PROGRAMS = frozenset({"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"})
#: k8s.io/api 0.37.2, core/v1/well_known_taints.go. Those of a node that is not ready follow from that.
_OF_KUBELET = frozenset(f"node.kubernetes.io/{what}-pressure" for what in ("memory", "disk", "pid"))
#: The reason of a node of which the control plane has not heard (pkg/controller/nodelifecycle).
_NOT_HEARD = "NodeStatusUnknown"
_RUNTIME = "nvidia"
_MOST_NAMED = 4
_RENEWED = "one that kubelet has renewed, which it does before 90 % of its life"


def judge_sandbox(found: VerifyFindings, gpu: Mapping[str, Any]) -> None:
    """Whether the runtime has the image of which it makes the sandbox of every pod."""
    image, puller = gpu["sandbox"]["image"], gpu["sandbox"]["puller"]
    if image is None or not gpu["sandbox"]["missing"]:
        return
    # A runtime pulls it with the next pod where it reaches the registry. A host that has had pods and has none at all does not, or lost it.
    severity = WARNING if gpu["images"] else ERROR
    seen = f"no image {image}, of which the container runtime makes the sandbox of every new pod"
    cure = f"{puller} {image}; without a registry, import it from a host that has it, or set the runtime to one that this host has"
    found.say("sandbox_image_missing", seen, "it on the host", cure, severity)


def judge_kubelet(found: VerifyFindings, gpu: Mapping[str, Any], runs: bool, now: float) -> None:
    """Whether kubelet's own certificate lasts, and the device plugin reads its folder. now: by the clock of the host."""
    late = near_end(gpu["kubelet_life"], now)
    if late is not None:
        severity, when = late
        soon = (
            "is rotateCertificates: true in kubelet's configuration, and does kube-controller-manager sign (kubectl get csr)? Then: "
            "systemctl restart kubelet"
        )
        cure = NEW_CERTIFICATE if severity == ERROR else soon
        found.say("kubelet_certificate", f"kubelet's client certificate, which {when}", _RENEWED, cure, severity)
    kubelets, plugins = gpu["kubelet_roots"]
    if runs and plugins and kubelets != plugins:
        seen = f"a device plugin with --kubelet-root {plugins}, and a kubelet with --root-dir {kubelets}"
        found.say("kubelet_root_differs", seen, "one folder: the plugin asks kubelet there which pods have GPUs", SITE)


def judge_record(found: VerifyFindings, gpu: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> None:
    """Whether kubelet has a record of the pods that run with GPUs. pods: of this node, by the API."""
    lost = [pod for pod in pods if pod["uid"] in gpu["forgotten"] and pod["running"] and not pod["deleted"]]
    if lost:
        names = few(sorted(f"{pod['namespace']}/{pod['name']}" for pod in lost), _MOST_NAMED)
        seen = f"pods with GPUs of which kubelet has no record: {names}; its checkpoint was lost, and they run on with their GPUs"
        cure = "nothing is urgent: delete each pod when convenient, so that its owner starts it again; do not end their processes"
        found.say("record_lost", seen, "a record of each in kubelet's checkpoint", cure)


def judge_node(
    found: VerifyFindings, seen: Mapping[str, Any], doctor: Doctor, node: Mapping[str, Any] | None, dra: Sequence[str] = ()
) -> None:
    """seen: of gpushare_verify_host. doctor: its answer there. node: as the API has it, None if the API was not asked. dra: DRA
    drivers that publish the node's GPUs there.
    """
    gpu = seen["gpu"]
    report = SmiReport.from_dict(gpu["nvidia_smi"])
    driver = None if gpu["driver"] is None else Driver(**gpu["driver"])
    parts = None if driver is None else versions(driver)
    if report.problem is not None:
        found.add(report.problem, check=driver_code(report.problem))
    elif parts is not None:
        found.add(parts)
    places = seen["places"]
    expected = Expected(places["minimum_driver"], places["expect_gpus"], places["expect_memory_mib"])
    for finding in judge_gpus(report, expected, driver is not None and driver.lacks_fabric_manager):
        found.add(finding)
    for finding in () if gpu["mps"] else judge_compute_modes(report):
        found.add(finding)
    judge_kubelet(found, gpu, seen["kubelet"]["running"], seen["now"])
    if not seen["kubelet"]["running"]:
        unit = StoppedUnit(**(seen["kubelet"]["unit"] or {}))
        words, cure = stopped(unit)
        found.say("kubelet_stopped", words, "a running one", (not unit.by_hand and hint(words)) or cure)
    judge_metrics(found, doctor, PLUGIN, seen["places"]["metrics_plugin"])
    _second_plugin(found, gpu, doctor, report, dra)
    if gpu["container_runtime"] is not None:
        default = seen["places"]["runtime_default"]
        _container_runtime(found, gpu["container_runtime"], "unchanged" if needs_no_runtime(gpu, default) else default)
        drivers = two_drivers(CgroupDrivers(**gpu["cgroups"]), gpu["container_runtime"]["name"])
        if drivers is not None:
            found.add(drivers, check="cgroup_drivers_differ")
    for limits in gpu["limits"]:
        _limits(found, limits)
    if gpu["without_room"]:
        found.say("disk_full", f"no room in {', '.join(gpu['without_room'])}", ROOM, room_cure(gpu["without_room"]))
    judge_sandbox(found, gpu)
    judge_visibility(found, seen, node)
    if report.problem is None:
        _devices(found, gpu["devices"])
        _cdi(found, gpu["cdi"], report)
    if node is not None:
        _api(found, seen, report, node)


def _second_plugin(found: VerifyFindings, gpu: Mapping[str, Any], doctor: Doctor, report: SmiReport, dra: Sequence[str]) -> None:
    """Whether another program allocates the GPUs, by what only verify compares: the host's programs, ids with the GPUs, and the API."""
    evidence = [f"{manager['name']} ({'; '.join(manager['evidence'])})" for manager in gpu["managers"]]
    ours = {gpu.uuid for gpu in report.shared}
    for resource in (MEMORY, GPUS):
        foreign = sorted(set(doctor.registered.get(resource, ())) - ours)
        # GPUs that are gone, or a driver that does not answer, are said elsewhere: a stranger has a socket, too.
        if foreign and ours and doctor.strangers:
            who = " or ".join(doctor.strangers)
            evidence.append(f"ids such as {foreign[0]} registered for {resource}, which are not ids of GPUs, by {who}")
    only_dra = all(manager["name"] in DRA_DRIVERS.values() for manager in gpu["managers"]) and len(evidence) == len(gpu["managers"])
    evidence += map(dra_title, dra)
    # The doctor names a DRA driver by its process.
    if evidence and not (only_dra and any(finding.check == "second_plugin" for finding in doctor.findings)):
        found.say("second_plugin", ", ".join(evidence), ONE_PLUGIN, DRA_CURE if only_dra else STOP_OTHER)


def _container_runtime(found: VerifyFindings, runtime: Mapping[str, Any], default: str) -> None:
    """default: what gpushare_default_runtime says."""
    name, unit, running, file = runtime["name"], runtime["unit"], runtime["running_default"], runtime["file_default"]
    if runtime["problem"]:
        state = StoppedUnit(**(runtime["stopped"] or {"name": unit}))
        cure = start_again(state, unit)
        if runtime["broken"]:
            cure = f"correct what the message names; then: systemctl restart {unit}"
        seen = "; ".join(filter(None, [runtime["problem"], runtime["broken"]]))
        seen += last_words(state)
        known = "" if state.by_hand else hint(seen)
        cure = f"{known}; then: systemctl restart {unit}" if known else cure
        found.say("runtime_silent", seen, f"{name} to answer kubelet's questions", cure)
    elif runtime["broken"]:
        cure = f"correct what the message names; do not restart {unit} before: it runs with its former files, and would not start again"
        found.say("runtime_file_broken", f"{name} running, and {runtime['broken']}", "files with which it would start again", cure)
    elif default != "unchanged" and running != _RUNTIME and file == _RUNTIME:
        seen = f"default runtime {running!r} in the running {name} ({runtime['lacks']})"
        expected = f"{_RUNTIME!r}, as its files say"
        found.say("default_runtime_not_running", seen, expected, f"{SITE}, or: systemctl restart {unit}")
    elif default != "unchanged" and file != _RUNTIME:
        words = f", though the process still has {running!r}" if running == _RUNTIME else ""
        found.say("default_runtime_missing", f"default runtime {file!r} in {name}'s files{words}", f"{_RUNTIME!r}", SITE)
    elif runtime["lacks"]:
        seen, cure = f"a {name} that was not restarted since its files changed ({runtime['lacks']})", f"systemctl restart {unit}"
        found.say("runtime_older_than_file", seen, "the process that the files mean", cure)


def _limits(found: VerifyFindings, limits: Mapping[str, Any]) -> None:
    """Whether kubelet, or the runtime, has limits with which it cannot start pods, or which their programs get, too."""
    unit, low, paths = limits["unit"], " and ".join(limits["low"]), " ".join(limits["drop_ins"])
    names = " and ".join(setting.partition("=")[0] for setting in limits["low"])
    again = f"systemctl daemon-reload; systemctl restart {unit}"
    cure = f"remove {names} from {paths or f'its unit (systemctl cat {unit} shows where it stands)'}; then: {again}"
    if limits["whole"]:
        cure = f"rm {paths}; then: {again}"
    if unit.startswith("docker"):
        cure += ": where live-restore is off, that ends its containers"
    found.say("service_limited", f"{unit} with {low}{f', of {paths}' if paths else ''}", "limits with which it starts pods", cure)


def _devices(found: VerifyFindings, devices: Mapping[str, Any]) -> None:
    """Whether the driver's device files are there, and open to whom the driver means them."""
    wanted, nodes = devices["mode"], devices["nodes"]
    gone = [path for path, mode in nodes.items() if mode < 0]
    if gone:
        numbers = [path.replace("/dev/nvidia", "").replace("ctl", "255") for path in gone]
        cure = f"{'; '.join(f'nvidia-modprobe -c {number}' for number in numbers)}; then see what removes them: udev rules, dmesg"
        found.say("gpu_device_missing", f"no {few(gone, 3)}", "the device file of every GPU that nvidia-smi lists", cure)
    closed = [path for path, mode in nodes.items() if mode >= 0 and wanted & ~mode]
    if closed:
        seen = ", ".join(f"{path} with mode {nodes[path]:04o}" for path in closed[:_MOST_NAMED])
        expected = f"{wanted:04o}, the driver's own: else programs in containers that are not root cannot open their GPU"
        cure = f"chmod {wanted:04o} {' '.join(closed)}; if the mode comes back: a udev rule, or NVreg_DeviceFileMode of the module nvidia"
        found.say("gpu_device_closed", seen, expected, cure)


def _cdi(found: VerifyFindings, cdi: Mapping[str, Any], report: SmiReport) -> None:
    cure = "nvidia-ctk cdi generate --output=PATH, and enable nvidia-cdi-refresh.path so that it follows the driver"
    if cdi["mode"] == "cdi" and not cdi["specs"]:
        seen = "no CDI spec of nvidia.com/gpu, though nvidia-container-runtime is in mode cdi"
        found.say("cdi_missing", seen, "one that names the GPUs", cure.replace("PATH", "/var/run/cdi/nvidia.yaml"))
    have = {gpu.uuid for gpu in report.shared}
    for spec in cdi["specs"]:
        stale = []
        named = set(spec["gpus"])
        if named:
            stale += [f"GPU {uuid}, which is not there" for uuid in sorted(named - have)]
            stale += [f"no GPU {uuid}" for uuid in sorted(have - named)]
        others = [version for version in spec["versions"] if version != report.driver_version]
        if report.driver_version and others:
            stale.append(f"libraries of driver {', '.join(others)}")
        if spec["missing"]:
            stale.append(f"{few(spec['missing'], 3)}, which the host does not have")
        if stale:
            expected = f"the {len(have)} GPUs and driver {report.driver_version} that nvidia-smi shows"
            found.say("cdi_stale", f"in {spec['path']} {'; '.join(stale)}", expected, cure.replace("PATH", spec["path"]))


def _api(found: VerifyFindings, seen: Mapping[str, Any], report: SmiReport, node: Mapping[str, Any]) -> None:
    name = seen["node_name"]
    compared = compare({name: report}, [node] if node else [], seen["places"]["memory_unit"])
    for difference in compared.differences:
        # The host has said that already.
        if report.problem is None or difference.subject != "gpus" or difference.check != driver_code(report.problem):
            words, cure = "", difference.cure
            if difference.check == "node_not_ready":
                words, way = _why_not_ready(seen["kubelet"], difference.found)
                cure = way or cure
            found.add(difference, found=f"{difference.subject}: {difference.found}{words}", cure=cure)
    if node and (node["metadata"].get("labels") or {}).get(LABEL_NODE) != "true":
        labels = node["metadata"].get("labels") or {}
        seen_label = f"label {LABEL_NODE}={labels[LABEL_NODE]}" if LABEL_NODE in labels else f"no label {LABEL_NODE}"
        cure = f"{SITE}, or: kubectl label node {name} {LABEL_NODE}=true"
        found.say("label_missing", f"{seen_label} on node {name}", f"{LABEL_NODE}=true", cure)
    if node:
        _closed(found, name, node)


def _why_not_ready(kubelet: Mapping[str, Any], found: str) -> tuple[str, str]:
    """(words for the end of what was found, a cure) of a node that is not Ready. kubelet: the running one. found: the API's words."""
    # Of one that does not reach the API server, all other complaints are consequences.
    lost = _NOT_HEARD in found and kubelet["unreached"]
    words, proxy = complained(kubelet["unreached"] if lost else kubelet["says"]), kubelet["proxy"]
    if not lost:
        return words, hint(words)
    cure = (
        "see whether that address is your API server (server: in /etc/kubernetes/kubelet.conf), whether it answers this host (curl -k "
        "ADDRESS/version; nft list ruleset; iptables -S) and accepts kubelet's certificate: correct what differs; then: systemctl restart "
        "kubelet"
    )
    if proxy:
        words += f"; kubelet runs with the proxy {proxy}, of its environment"
        cure = (
            "grep -rs -i https_proxy /etc/systemd /etc/default /etc/environment names who sets it: remove it, or give NO_PROXY the "
            f"addresses of the cluster; then: systemctl daemon-reexec; systemctl restart kubelet; else {cure}"
        )
    return words, cure


def _closed(found: VerifyFindings, name: str, node: Mapping[str, Any]) -> None:
    """A cordon, or a taint of a program, keeps users' pods from a node that works. Probe pods tolerate it."""
    ways = [("cordoned", f"kubectl uncordon {name}")] if node["cordoned"] else []
    for what in node["nothing_of"]:
        cure = f"correct kubelet's systemReserved, kubeReserved or maxPods, which leave none of it (kubectl describe node {name})"
        ways.append((f"with no allocatable {what}", cure))
    for key in sorted(_OF_PROGRAMS.intersection(node["taints"])):
        cure = f"if the program that has set it has ended, or has forgotten it: kubectl taint nodes {name} {key}-"
        ways.append((f"with the taint {key}", cure))
    for key in sorted(_OF_KUBELET.intersection(node["taints"])):
        cure = (
            f"make room on the host (df -h; free -m), or, where it has room, correct evictionHard in kubelet's configuration "
            f"(/var/lib/kubelet/config.yaml); kubelet takes the taint away: kubectl describe node {name}"
        )
        ways.append((f"with the taint {key}", cure))
    for way, cure in ways:
        found.say("node_closed", f"node {name} {way}, so it takes no new pods", "it open to pods", cure)
