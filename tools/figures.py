# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The numbers with a unit on the pages, each from the code or from a saved result; `python tools/reference.py --write` writes them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from string import Formatter
from typing import Any

import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.scheduler_config import ALL_NODES_UP_TO
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests import policies as admission
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests import workloads
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.values import Values
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight import looked_up
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.host import MINIMUM_FREE_MIB, MOST_SECONDS_APART, SECONDS_APART
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.variables import ROWS, variables

import proof
import questions
from gpu_proof import context as gpu_context
from gpu_proof import memory as gpu_memory
from gpu_proof import one_node as gpu_node
from gpu_proof import pack as gpu_pack
from gpu_proof import simulated as gpu_simulated
from gpu_proof import steps as gpu_steps
from gpushare_lab import components
from gpushare_runtime.core import bounds, ledger, mps, overuse, reservation, use_report
from gpushare_runtime.core import request as core_request
from gpushare_runtime.core.placement import budgets, ranking, scarcity
from gpushare_runtime.daemon import page_server
from gpushare_runtime.dashboard import access, feed, history, local, server, state, viewers
from gpushare_runtime.dashboard import pods as page_of_a_pod
from gpushare_runtime.device_plugin import main as plugin_main
from gpushare_runtime.device_plugin.gpu import discovery, pod_memory
from gpushare_runtime.device_plugin.host import cdi_specs, mps_endings
from gpushare_runtime.device_plugin.kubelet import podresources, registration
from gpushare_runtime.device_plugin.node import devices, pod_state, rejections, turns
from gpushare_runtime.device_plugin.publish import eviction_requests, pod_annotations
from gpushare_runtime.dra import claims
from gpushare_runtime.extender import evictor, http_server, leadership
from gpushare_runtime.kube import events
from gpushare_runtime.kubectl_gpushare import cordon, live, right_size, stalls, status, used
from gpushare_runtime.kubectl_program import main as kubectl_program
from gpushare_runtime.mps import canary as mps_canary
from gpushare_runtime.mps import main as mps_main
from gpushare_runtime.pki import certificates
from image import layout as image
from measured import span
from suites import report, run
from tree import REPOSITORY

MIB = 1024**2
DAY = 86400
OPERATE, REFERENCE = "docs/operate", "docs/reference"


def saved(name: str) -> Any:
    return json.loads((REPOSITORY / f"docs/project/benchmarks/{name}.json").read_text())


def unit(name: str, key: str) -> str:
    """The value of a key in the unit of a daemon, the default of a variable."""
    (template,) = (REPOSITORY / "roles").glob(f"*/templates/{name}.service.j2")
    found = re.search(rf"^{key}=(?:\{{\{{ (gpushare_\w+) \}}\}}|(\S+))$", template.read_text(), re.M)
    assert found, f"{template} has no {key}"
    return default(found[1]) if found[1] else found[2]


def default(name: str) -> str:
    return str(variables(REPOSITORY)[name].spec["default"])


def requested(workload: dict[str, Any], container: int = 0) -> str:
    """The MiB that a container of our pods requests."""
    memory = workload["spec"]["template"]["spec"]["containers"][container]["resources"]["requests"]["memory"]
    return str(memory).removesuffix("Mi")


def alert(name: str) -> dict[str, Any]:
    groups = yaml.safe_load((REPOSITORY / OPERATE / "monitoring/rules.yml").read_text())["groups"]
    return next(rule for group in groups for rule in group["rules"] if rule.get("alert") == name)


def held_for(name: str) -> int:
    """Minutes for which the expression of an alert must hold."""
    found = re.fullmatch(r"(\d+)m", alert(name)["for"])
    assert found
    return int(found[1])


def in_expression(name: str, pattern: str) -> int:
    found = re.search(pattern, alert(name)["expr"])
    assert found, alert(name)["expr"]
    return int(found[1])


def exposures() -> list[str]:
    """What tests let the units have at most."""
    text = (REPOSITORY / "tests/e2e/test_rights.py").read_text()
    mps = (REPOSITORY / "tests/unit/plugins/daemon/test_mps_unit.py").read_text()
    return re.findall(r'"gpushare-(?:extender|device-plugin|pki)", (\d\.\d)\)', text) + re.findall(r"MOST_EXPOSURE = (\d\.\d)", mps)


def took(*whats: str) -> str:
    """The times of these in all saved runs."""
    return span(saved("failures"), *whats)


REGISTERED = took(*(f"aliyun.com/{one} registered after kubelet made its socket" for one in ("gpu-mem", "gpu-count")))
NO_RECORD = "after a lost checkpoint"
NO_CHECKPOINT, STATUS, AGAIN = (
    "after kubelet starts without its checkpoint",
    "allocatable in the node's status",
    "usable again after its end",
)
BINDS = [saved("binds-1"), saved("binds-2")]
KILLED = sorted(saved("leader-killed"), key=lambda one: one["opened_s"])
KUBECTL, PAGE, PLUGIN = saved("kubectl"), saved("dashboard"), saved("device-plugin")
STARTUP = saved("scheduling-5000-sampled")["startup"]
PLUGIN_AT_REST = saved("device-plugin-rest")
NVIDIA_OPERATOR, CRIO = saved("nvidia-operator"), saved("cri-o")
#: Nodes that publish nothing, and the same while they publish their use.
AT_REST = saved("scheduling-5000-rest")["startup"]["rest"]
#: Seconds of CPU of each view, by source and view.
VIEWS_TOOK = {(one["source"], one["view"]): one["cpu_seconds"] for one in KUBECTL["results"]}
CHURN = saved("churn")
CLAIMS, CLAIMS_CHURN = saved("claims-500"), saved("claims-churn")
CLAIMS_WRONG = tuple(CLAIMS_CHURN[key] for key in ("wrong_gpus", "over_booked", "left_claims"))
#: Means of its rounds: with the extender, with claims.
CLAIMS_RATES, CLAIMS_GPUS = (tuple(proof.mean(CLAIMS, kind, key) for kind in ("ours", "claims")) for key in ("rate", "gpus"))
#: By words about the measurement, and of those without a special condition by step: the last one with the most nodes.
FLEETS = {one["what"]: one["runs"] for one in saved("fleet")}
_SPECIAL = ("memory", "over ssh", "alone, by size")
_PLAIN = [run for what, runs in FLEETS.items() if what not in _SPECIAL for run in sorted(runs, key=itemgetter("nodes"))]
FLEET = {run["step"]: run for run in _PLAIN}
#: The device plugin with a real library: memory and ids on each GPU.
ON_REAL_GPUS = [
    value for one in proof.reports() for value in (one.found("plugin", "resident MiB"), one.found("plugin", "ids of memory, in GiB"))
]
#: Of one program, the same on each GPU.
(CONTEXT_MIB,) = {one.steps["memory"]["values"]["cgroupfs: MiB of the context beside 4096"] for one in proof.reports()}
MEMORY_MAX_OF_PLUGIN = [unit("gpushare-device-plugin", "MemoryMax").removesuffix("M")]
#: Rate of four programs of that of one, on each GPU: without MPS, then with it.
TOGETHER = {
    kind: tuple(one.together(kind)[mps] for mps in (False, True) for one in proof.reports()) for kind in ("matrix-product", "transformer")
}
MAKEFILE = (REPOSITORY / "Makefile").read_text()
MOST_CPU_SECONDS = max(one["cpu_seconds"] for one in KUBECTL["results"])
HTTP_TIMEOUT = default("gpushare_extender_http_timeout").removesuffix("s")
#: Each fault must be found within so many binds.
CI_MINUTES = re.findall(r'"--minutes", type=float, default=(\d+)', (REPOSITORY / "tools/suites/__main__.py").read_text())[0]
MOST_BINDS = int(re.findall(r"--without-each (\d+)", (REPOSITORY / "Makefile").read_text())[0])

# Also of thousands, and from one to another; never a part of a number.
_NUMBER = r"(?<![\d.,–-])\d(?:[\d.,]*\d)?(?:[–-]\d(?:[\d.,]*\d)?)?"
#: Page → its words with {} for each number, and the numbers.
FIGURES: dict[str, list[tuple[str, tuple[Any, ...]]]] = {
    f"{OPERATE}/high-availability.md": [
        ("It reads the Lease every {:g} s", (leadership.POLL_SECONDS,)),
        ("It sends a Binding only within {:g} s after", (leadership.SEND_SECONDS,)),
        ("A Binding carries `timeout={}s`", (leadership.SERVER_SECONDS,)),
        ("`TCP_USER_TIMEOUT` of {:g} s", (leadership.TRANSIT_SECONDS,)),
        ("With a margin of {:g} s, no Binding happens later than {:g} s", (leadership.MARGIN_SECONDS, leadership.DRAINED_SECONDS)),
        (
            "For {:g} + {:g} = **{:g} s** filter and bind",
            (leadership.SEND_SECONDS, leadership.DRAINED_SECONDS, leadership.TAKEOVER_SECONDS),
        ),
        ("They wait at most {} s behind", (default("gpushare_extender_http_timeout").removesuffix("s"),)),
        ("does not get there within {:g} s", (leadership.GRACE_SECONDS,)),
        ("nothing is sent after W + {:g} s", (leadership.SEND_SECONDS,)),
        ("happens before W + {:g} + {:g} s", (leadership.SEND_SECONDS, leadership.DRAINED_SECONDS)),
        ("It lasts {:g} s. At its end", (leadership.TAKEOVER_SECONDS,)),
        ("({:g} s from the start with `lease: none`)", (leadership.DRAINED_SECONDS,)),
        ("the rest of its {:g} s, usually until the next read ({:g} s)", (leadership.SEND_SECONDS, leadership.POLL_SECONDS)),
        ("GPU pods wait {:g} s more. kube-scheduler", (leadership.TAKEOVER_SECONDS,)),
        ("GPU pods wait {:g} s from its first read", (leadership.TAKEOVER_SECONDS,)),
        ("(permissions, no answer for {:g} s)", (leadership.SEND_SECONDS,)),
        ("After {:g} s the extender serves its scheduler as the only one", (leadership.TAKEOVER_SECONDS,)),
        ("GPU pods wait {:g} s from the first read that", (leadership.TAKEOVER_SECONDS,)),
        ("fails if one is not detected within {:,} binds", (MOST_BINDS,)),
        ("with {:,} completed Bindings each", tuple({one["bound"] for one in BINDS})),
        ("| changes of the leader | {} | {} |", tuple(one["leader changed"] for one in BINDS)),
        ("| killed extenders | {} | {} |", tuple(one["extender killed"] for one in BINDS)),
        ("| over-booked GPUs at the node | {} | {} |", tuple(one["node_over"] for one in BINDS)),
        ("had too much in the API server's pods | {} | {} |", tuple(one["ledger_excess_by_these"] for one in BINDS)),
        ("sent by a process that had paused | {} | {} |", tuple(one["sent_after_a_pause"] for one in BINDS)),
        ("and reported by its extender | {} | {} |", tuple(one["of_these_reported"] for one in BINDS)),
        ("admissions that the nodes rejected | {} | {} |", tuple(one["admissions_rejected"] for one in BINDS)),
        ("in the middle of {} pending pods", tuple({one["bound_before"] + one["bound_after"] for one in KILLED})),
        ("{}–{} of the pods were bound before", tuple(f([one["bound_before"] for one in KILLED]) for f in (min, max))),
        ("was over {:.0f}–{:.0f} s after the kill", (KILLED[1]["opened_s"], KILLED[-1]["opened_s"])),
        ("Once it was {:.0f} s", (KILLED[0]["opened_s"],)),
        ("the last {:.0f}–{:.0f} s after the kill", tuple(f([one["last_bound_s"] for one in KILLED]) for f in (min, max))),
    ],
    f"{OPERATE}/isolation.md": [
        (
            "The warning Event comes {:g} to {:g} s after the pod has grown",
            ((overuse.READINGS - 1) * pod_memory.INTERVAL_SECONDS, overuse.READINGS * pod_memory.INTERVAL_SECONDS),
        ),
        ("evicted after {} s above its units (`gpushare_overuse_grace`)", (default("gpushare_overuse_grace"),)),
        (
            "It does so {:g} s before kubelet sends SIGKILL, or after half of a grace period of less than {:g} s",
            (mps_endings.LEAD_SECONDS, 2 * mps_endings.LEAD_SECONDS),
        ),
        ("give it {:g} s more", (mps_endings.LEAD_SECONDS,)),
        ("every {} s (`gpushare_mps_canary_seconds`)", (default("gpushare_mps_canary_seconds"),)),
        ("if {} MiB of the GPU are in no container's share, and one of the {} clients is free", (mps_canary.ROOM_MIB, mps.MOST_CLIENTS)),
        ("hangs for {:g} s, or fails", (mps_canary.DEADLINE_SECONDS,)),
        ("a daemon that answers nothing for {:g} s", (mps_main.SILENT_SECONDS,)),
        (
            "It has {} MiB (`gpushare_mps_shared_memory_mib`) and {} files",
            (
                default("gpushare_mps_shared_memory_mib"),
                *re.findall(r"nr_inodes=(\d+)", (REPOSITORY / "roles/mps/templates/gpushare-mps.service.j2").read_text()),
            ),
        ),
    ],
    f"{OPERATE}/visibility.md": [
        ("A spec may have {} MiB; a folder may have {} specs", (cdi_specs.MOST_BYTES // MIB, cdi_specs.MOST_FILES))
    ],
    "docs/start/gpus.md": [("`gpushare_overuse: evict` after {} s", (default("gpushare_overuse_grace"),))],
    f"{OPERATE}/footprint.md": [
        ("other pods at most {}", (default("gpushare_extender_http_timeout").replace("s", " s"),)),
        (
            "| {:.0f} MiB with {} nodes and {:,} pods | {:.1f} % of a core | {} GiB | {} MiB |",
            (
                STARTUP["resident_mib"],
                STARTUP["nodes"],
                STARTUP["pods"],
                max(one["percent"] for one in saved("scheduling-5000-rest")["startup"]["rest"]),
                unit("gpushare-extender", "MemoryMax").removesuffix("G"),
                requested(workloads.deployment(Values("", "")), 1),
            ),
        ),
        (
            "| {:.0f} MiB with {:,} unit ids, and {:.1f} ms of CPU per pod that starts "
            "| {:.1f} ms each second, with {} GPUs | {} MiB | {} MiB |",
            (
                PLUGIN["resident MiB"],
                PLUGIN["ids"],
                PLUGIN["CPU ms per pod"],
                PLUGIN_AT_REST["CPU ms each second"]["now"],
                PLUGIN_AT_REST["gpus"],
                *MEMORY_MAX_OF_PLUGIN,
                requested(workloads.daemon_set(Values("", ""))),
            ),
        ),
        (
            "an H100 and an H200 | {} MiB with {} unit ids, and {} MiB with {} | {} and {} ms each second | {} MiB | {} MiB |",
            (
                *ON_REAL_GPUS,
                *(one.steps["plugin"]["values"]["CPU ms in each second at rest"] for one in proof.reports()),
                *MEMORY_MAX_OF_PLUGIN,
                requested(workloads.daemon_set(Values("", ""))),
            ),
        ),
        ("which requests {} MiB and has no limit", (requested(workloads.deployment(Values("", ""))),)),
        ("needs {} MiB of disk", (MINIMUM_FREE_MIB,)),
    ],
    f"{OPERATE}/capacity.md": [
        ("of {} MiB there", (CONTEXT_MIB,)),
        ("and {} % more (`--margin`)", (kubectl_program.MARGIN_PERCENT,)),
        ("{} nodes, {:,} pods: [benchmarks]", (STARTUP["nodes"], STARTUP["pods"])),
        ("programs that fill the GPU did {:.2f} and {:.2f} of the work of one, and {:.2f} and {:.2f} with MPS", TOGETHER["matrix-product"]),
        ("small ones did {:.2f} and {:.2f} times as much, and {:.2f} and {:.2f} with MPS", TOGETHER["transformer"]),
    ],
    f"{OPERATE}/gpu-operator.md": [
        (
            "The controller and `nvidia-validator` of {} ran on {} against an API server {} ([result]",
            (NVIDIA_OPERATOR["gpu_operator"], NVIDIA_OPERATOR["date"], NVIDIA_OPERATOR["kubernetes"]),
        ),
        ("an error after 30 tries, in {:.0f} s", (NVIDIA_OPERATOR["label_alone"]["ran"]["plugin-validation"]["seconds"],)),
    ],
    "docs/start/support.md": [
        ("On {} with {}, `cdi` on one node", (CRIO["date"], CRIO["version"])),
        ("a churn of {} pods, and", (CRIO["churn"]["pods"],)),
    ],
    **{
        f"{OPERATE}/{page}.md": [("is evicted after {} s (`overuseGrace`)", (default("gpushare_overuse_grace"),))]
        for page in ("eks", "openshift")
    },
    f"{OPERATE}/migrate.md": [("(`gpushare_take_over_timeout`, {} s)", (default("gpushare_take_over_timeout"),))],
    f"{OPERATE}/operations.md": [
        (
            "For {} GPU nodes that need nothing, `site` took {:.0f} CPU seconds of the controller and {:.0f} s of time, "
            "on two CPUs with {} forks",
            tuple(FLEET["site"][key] for key in ("nodes", "seconds", "wall", "forks")),
        ),
        (
            "The first installation took {:.0f} CPU seconds and {:.0f} s, an upgrade {:.0f} and {:.0f} s, `uninstall` {:.0f} and {:.0f} s",
            tuple(FLEET[step][key] for step in ("first site", "upgrade", "uninstall") for key in ("seconds", "wall")),
        ),
        ("`preflight` took {:.0f} CPU seconds and `verify` {:.0f}", (FLEET["preflight"]["seconds"], FLEET["verify"]["seconds"])),
        ("Its largest process had {:.0f} MiB", (FLEET["site"]["peak"],)),
        ("all of them together {:.0f} MiB", (FLEETS["memory"][0]["together"],)),
        (
            "ssh, which takes another {:.2f} CPU seconds for each node",
            ((FLEETS["over ssh"][0]["seconds"] - FLEET["site"]["seconds"]) / FLEET["site"]["nodes"],),
        ),
        ("between scheduler and extender | {} days", (certificates.LIFE["server"].days,)),
        ("one per control plane | {} years", (certificates.LIFE["ca"].days // 365,)),
    ],
    f"{OPERATE}/troubleshooting.md": [
        ("It clears within {:g} s", (ledger.REJECTED_SECONDS,)),
        ("does not answer within {} s", (HTTP_TIMEOUT,)),
        ("by more than {:g} s; from {:g} s on", (SECONDS_APART, MOST_SECONDS_APART)),
        ("systemd replaces a hanging process after {} s", (unit("gpushare-extender", "WatchdogSec"),)),
        ("tables that were read more than {} days ago", (looked_up.OLD_DAYS,)),
    ],
    "docs/use/dra.md": [
        ("| {} pods on {} nodes with 8 GPUs, in a [benchmark]", (CLAIMS["pods"], CLAIMS["nodes"])),
        (
            "| {:.0f} pods bound a second, {:.0f} GPUs in use | {:.0f} pods a second, {:.0f} GPUs in use |",
            tuple(value for pair in zip(CLAIMS_RATES, CLAIMS_GPUS, strict=True) for value in pair),
        ),
    ],
    "docs/project/questions.md": [
        ("Opening a page takes {:.0f} s", (questions.PAGE_MINUTES * 60,)),
        ("takes more than {:.0f} minutes", (questions.MOST_MINUTES,)),
    ],
    f"{OPERATE}/failures.md": [
        ("of which systemd waits {} s", (unit("gpushare-device-plugin", "RestartSec"),)),
        (
            "and then [{:g} s](high-availability.md#what-an-extender-does); other pods wait at most {} s |",
            (leadership.TAKEOVER_SECONDS, default("gpushare_extender_http_timeout").removesuffix("s")),
        ),
        ("[{:.0f}–{:.0f} s](high-availability.md#lab) until pods", (KILLED[1]["opened_s"], KILLED[-1]["opened_s"])),
        ("answers end within {:g} s", (registration.DRAIN_SECONDS,)),
        ("asks again every {:g} s, each time on a new socket", (registration.REGISTER_SECONDS,)),
        ("asks kubelet every {:g} s whether it has its ids", (podresources.HEALTHY_SECONDS,)),
        ("kubelet starts after {:g} s all the same", (plugin_main.START_SECONDS,)),
        ("does nothing at all, it is {} s", (unit("gpushare-device-plugin", "TimeoutStartSec"),)),
        ("holds up a common restart by {} s more", (4 * int(unit("gpushare-device-plugin", "TimeoutStopSec")),)),
        ("registered again | {} after kubelet created its socket", (REGISTERED,)),
        ("others wait | {}, of which systemd", (took("kubelet has the plugin again after kill -9"),)),
        ("two bound pods started in {};", (took("two bound pods start without the API server"),)),
        ("corrected later | {} |", (took("kubelet has the plugin again after kill -9, without the API server"),)),
        ("{} from power-on until the node was Ready", (took("all units offered again after the restart"),)),
        ("{} until all units are registered", (took(f"allocatable is back {NO_CHECKPOINT}"),)),
        ("registers in about {} after kubelet has", (REGISTERED,)),
        ("It publishes the failure in {}, and", (took("GPU lost: published", "GPU xid_79: published"),)),
        ("kubelet has it in {}. The", (took("GPU lost: known to kubelet", "GPU xid_79: known to kubelet"),)),
        ("next report, in {}.", (took(f"GPU lost: {STATUS}", f"GPU xid_79: {STATUS}"),)),
        ("{} until the GPU is usable again", (took(f"GPU lost: {AGAIN}", f"GPU xid_79: {AGAIN}"),)),
        ("published in {}, usable again", (took("XID 48: published"),)),
        ("usable again after {} if the GPU answers", (took("XID 48: usable again after three checks"),)),
        ("published in {}, in kubelet", (took("GPU cordon: published"),)),
        ("in kubelet in {}; back", (took("GPU cordon: known to kubelet"),)),
        ("back in {} |", (took(f"GPU cordon: {AGAIN}"),)),
        ("leave allocatable in {};", (took(f"driver gone: {STATUS}"),)),
        ("runs {} after the driver's return", (took("driver gone: a waiting pod runs after its return"),)),
        ("allocatable is 0 after {};", (took(f"driver upgraded: {STATUS}"),)),
        ("runs {} after driver and library", (took("driver upgraded: a waiting pod runs after its return"),)),
        ("In the first {:g} s after kubelet's start", (registration.SETTLED_SECONDS,)),
        ("All of 16 containers ran again after {}", (took(f"all of 16 containers run again {NO_RECORD}"),)),
        ("checks a GPU every {:g} s", (discovery.INTERVAL_SECONDS,)),
        ("reads the GPUs every {:g} s", (discovery.INTERVAL_SECONDS,)),
        ("for at most {:g} s. After that only", (ledger.UNKNOWN_SECONDS,)),
        ("has been silent for {:g} s. For", (pod_state.GRACE,)),
        ("never ran it is {:g} s", (pod_state.SILENCE,)),
        ("holds its GPU back for {:g} s", (ledger.REJECTED_SECONDS,)),
    ],
    "README.md": [("`site` took {:.0f} s on the H100 node", (proof.one_node()["values"]["seconds of site.yml"],))],
    "roles/device_plugin/README.md": [("after {:g} s in any case", (plugin_main.START_SECONDS,))],
    f"{REFERENCE}/device-plugin.md": [
        ("took {} MiB [on an H100 and an H200]", (CONTEXT_MIB,)),
        ("without a record takes {:g} s longer", (turns.ORDER_SECONDS,)),
        ("others, for {:g} s if none has failed", (turns.PATIENCE_SECONDS,)),
        ("or have failed less than {:g} s ago", (turns.RETRY_SECONDS,)),
        ("one after the other, every {:g} s.", (turns.RELEASE_SECONDS,)),
        ("arrive within {:g} s of each other", (turns.ORDER_SECONDS,)),
        ("one of them fails every {:g} s, with", (turns.RELEASE_SECONDS,)),
        ("waits for at most {:g} s. If you", (turns.HOLD_SECONDS,)),
        ("over, after {:g} s at the latest", (pod_annotations.LONGEST_WAIT_SECONDS,)),
        ("all of 16 containers ran again after {}", (took(f"all of 16 containers run again {NO_RECORD}"),)),
        ("the first of them after {}", (took(f"the first of 16 containers runs again {NO_RECORD}"),)),
        ("{:g} s before kubelet kills what is left of a pod", (mps_endings.LEAD_SECONDS,)),
        ("in the pod's control group, at most {}. Each has", (mps.MOST_ENDING,)),
        ("takes the service for started after {:g} s", (plugin_main.START_SECONDS,)),
        ("asks kubelet every {:g} s, and takes the resource back", (podresources.HEALTHY_SECONDS,)),
        ("the plugin registers in about {}.", (REGISTERED,)),
        ("For {:g} s afterwards `gpushare/held`", (rejections.LIFETIME,)),
        ("ends with status 1 after {:g} s", (plugin_main.CONTAINER_ENDING_SECONDS,)),
        ("the ids are reserved for {:g} s", (pod_state.CREATION_SECONDS,)),
        ("queries its daemon every {:g} s", (mps_main.INTERVAL_SECONDS,)),
        ("Without an answer for {:g} s", (mps.FRESH_SECONDS,)),
        ('"clients":{}`', (mps.MOST_CLIENTS,)),
        ("less than {:.0f} % of their units", (100 * overuse.ENDS_BELOW,)),
        (
            "This is {:g} to {:g} s after it has grown",
            ((overuse.READINGS - 1) * pod_memory.INTERVAL_SECONDS, overuse.READINGS * pod_memory.INTERVAL_SECONDS),
        ),
        ("The annotation lists at most {} pods", (bounds.MOST_EVICTIONS,)),
        ("renews it every {:g} s", (eviction_requests.RENEW_BEFORE,)),
        ("tries again after {:g} to {:g} s", (evictor.FIRST_WAIT, evictor.LONGEST_WAIT)),
        ("end in more than {:g} s", (overuse.REQUEST_SECONDS + overuse.CLOCKS_DIFFER,)),
        ("must not differ by more than {:g} s", (overuse.CLOCKS_DIFFER,)),
        ("`gpushare_overuse_grace` seconds ({} by default)", (default("gpushare_overuse_grace"),)),
        ("a list of at most {} MiB", (devices.KUBELET_MESSAGE_BYTES // MIB,)),
        ("8 GPUs of 80 GiB make {:,} units of 64 MiB. In units of 1 MiB they would make {:,}", (8 * 80 * 1024 // 64, 8 * 80 * 1024)),
        ("open calls (at most {:g} s)", (registration.DRAIN_SECONDS,)),
        ("`gpus: NVML has not answered for {:g} s`", (discovery.HANGING_SECONDS,)),
    ],
    f"{OPERATE}/monitoring/README.md": [
        ("An extender has not answered scrapes for {} minutes", (held_for("GPUShareExtenderDown"),)),
        ("sent the extender nothing for {} minutes", (in_expression("GPUShareWatchStale", r"> (\d+)") // 60,)),
        ("An extender has returned errors to kube-scheduler for {} minutes", (held_for("GPUShareVerbErrors"),)),
        ("(`httpTimeout`, {} s)", (HTTP_TIMEOUT,)),
        ("of a node has not answered scrapes for {} minutes", (held_for("GPUShareDevicePluginDown"),)),
        ("has been degraded for {} minutes", (held_for("GPUShareDevicePluginDegraded"),)),
        ("the CA of its clients, expires within {} days", (in_expression("GPUShareCertificateExpires", rf"< (\d+) \* {DAY}"),)),
        ("the token expires within {} days", (in_expression("GPUShareTokenExpires", rf"< (\d+) \* {DAY}"),)),
        ("something impossible for {} minutes", (held_for("GPUShareLedgerInconsistent"),)),
        ("than its units for {} minutes", (held_for("GPUShareMemoryExceeded"),)),
        ("Pods have waited for {} minutes", (held_for("GPUSharePodsWaitWithRoom"),)),
        (
            "more than {} allocations within {} minutes",
            (in_expression("GPUShareAdmissionRejections", r">= (\d+)") - 1, in_expression("GPUShareAdmissionRejections", r"\[(\d+)m\]")),
        ),
    ],
    f"{REFERENCE}/events.md": [("at most every {:g} minutes", (events.REPEAT_SECONDS / 60,))],
    f"{REFERENCE}/kubectl.md": [
        ("would notice: {} percent of the SMs", (use_report.NOTED_PERCENT,)),
        ("that has been idle for {:g} minutes", (use_report.IDLE_SECONDS / 60,)),
        ("it is read every {:g} s", (live.USED_SECONDS,)),
        ("is that with {} % more (`--margin PERCENT`)", (kubectl_program.MARGIN_PERCENT,)),
        ("then of the last {} days", (used.PEAKS_DAYS,)),
        ("by less than {} MiB", (use_report.NOTED_MIB,)),
        ("of a restart up to {:g} hours before it", (use_report.REFRESH_SECONDS / 3600,)),
        ("It renews it after {:g} hours without one", (use_report.REFRESH_SECONDS / 3600,)),
        ("a value that is older than {:g} hours", ((use_report.REFRESH_SECONDS + use_report.LATE_SECONDS) / 3600,)),
        ("pods times nodes are more than {:,}", (right_size.MOST_TRIED,)),
        ("that have not run for {:g} minutes", (stalls.HANGS_SECONDS / 60,)),
        ("such an Event of the last {:g} minutes", (status.RECENT_SECONDS / 60,)),
        ("when a GPU pod has waited for {:g} s", (status.WAITED_SECONDS,)),
        ("by default {:g} seconds", (kubectl_program.DRAIN_SECONDS,)),
        ("it waits up to {:g} seconds", (cordon.WAIT_SECONDS,)),
        ("views of {} nodes with", (KUBECTL["nodes"],)),
        ("{:,} GPUs and {:,} pods", (8 * KUBECTL["nodes"], KUBECTL["pods"])),
        ("publish at most {:.0f} times per second", (KUBECTL["nodes"] / use_report.WRITE_SECONDS,)),
        ("etcd took about {:.0f} % of a core, and about {:.0f} % before", tuple(one["plane_percent"] for one in AT_REST[::-1])),
        ("with {:.0f} other changes per second", (AT_REST[0]["changes"],)),
        ("The extender took {:.1f} % of a core, and {:.1f} % before", tuple(one["percent"] for one in AT_REST[::-1])),
        ("The targets are {:g} s of CPU time and {:g} MiB", (KUBECTL["target_cpu_seconds"], KUBECTL["target_resident_mib"])),
        (
            "the table of nodes took {:.1f} s, that of pods {:.1f} s, `top -A` {:.1f} s, and `idle -A` {:.1f} s with",
            tuple(VIEWS_TOOK["API server", view] for view in ("nodes", "pods -A", "top -A", "idle -A")),
        ),
        ("and none more than {} MiB", (max(one["resident_mib"] for one in KUBECTL["results"]),)),
        ("the first two took {:.1f} and {:.1f} s", tuple(VIEWS_TOOK["API server, without the use", view] for view in ("nodes", "pods -A"))),
        (
            "Of a node with 10 pods on 8 GPUs it has {} bytes, of all together {:.1f} MiB",
            (KUBECTL["use_bytes_of_a_node"], KUBECTL["use_bytes_of_a_node"] * KUBECTL["nodes"] / MIB),
        ),
    ],
    "docs/project/dra.md": [
        ("`claims.json` would pass {} MiB", (claims.MOST_BYTES // MIB,)),
        ("At full size, {} pods come and go in its churn", (CLAIMS_CHURN["pods"],)),
        ("{} of them deleted by force", (CLAIMS_CHURN["deleted_by_force"],)),
        ("there are {} kills: {} each of device plugin", (sum(CLAIMS_CHURN["kills"].values()), min(CLAIMS_CHURN["kills"].values()))),
        ("{} containers had another GPU than their claim's, {} GPUs were over-booked, and {} claims were left", CLAIMS_WRONG),
        ("With {} nodes of 8 GPUs, and {} pods of 1 to 8 units", (CLAIMS["nodes"], CLAIMS["pods"])),
        ("had {:.2f} of the extender's rate", (CLAIMS["claims_ratio"],)),
        ("and {:.1f} times its CPU for each pod", (CLAIMS["claims_cpu_ratio"],)),
    ],
    f"{REFERENCE}/http.md": [("Bodies may have {} MiB", (http_server.MOST_BYTES // MIB,))],
    f"{REFERENCE}/image.md": [("each at most {} MB, and at most {} MB", (image.MOST_PACKED_MB, image.MOST_MB))],
    f"{REFERENCE}/metrics.md": [
        ("The device plugin reads NVML every {:g} seconds", (pod_memory.INTERVAL_SECONDS,)),
        ("The sensors of GPUs are read every {:g} seconds", (pod_memory.INTERVAL_SECONDS * pod_memory.SENSORS_EVERY,)),
        ("A GPU that does not answer within {:g} seconds", (pod_memory.SLOW_SECONDS,)),
        ("At most {} requests are answered at a time", (page_server.MOST,)),
        ("or after {:g} s. It lasts {:g} s for a pod of", (reservation.RESERVED_SECONDS, reservation.GROUP_SECONDS)),
        ("It lasts {:g} minutes for a pod with volumes", (reservation.VOLUME_SECONDS / 60,)),
        ("installer sets to {} s", (HTTP_TIMEOUT,)),
        ("costs at most {} s", (HTTP_TIMEOUT,)),
        ("a hanging process after {} s", (unit("gpushare-extender", "WatchdogSec"),)),
    ],
    f"{REFERENCE}/names.md": [("It counts for {:g} s unless", (overuse.REQUEST_SECONDS,))],
    f"{REFERENCE}/permissions.md": [
        ("event has at most {} characters", (admission.EVENT_CHARACTERS,)),
        ("(root only, {} years)", (certificates.LIFE["ca"].days // 365,)),
        ("certificates are valid for {} days", (certificates.LIFE["server"].days,)),
        (
            "| memory, open files | {} GiB, {} | {} MiB, {} |",
            (
                unit("gpushare-extender", "MemoryMax").removesuffix("G"),
                unit("gpushare-extender", "LimitNOFILE"),
                unit("gpushare-device-plugin", "MemoryMax").removesuffix("M"),
                unit("gpushare-device-plugin", "LimitNOFILE"),
            ),
        ),
        ("| exposure (0 to 10, systemd 252) | {} | {} | {} | {} |", tuple(exposures())),
        ("The extender used {:.0f} MiB with {} nodes and {:,} pods", (STARTUP["resident_mib"], STARTUP["nodes"], STARTUP["pods"])),
        ("The device plugin used {:.0f} MiB with {:,} ids", (PLUGIN["resident MiB"], PLUGIN["ids"])),
        ("the extender accepts has {} MiB", (http_server.MOST_BYTES // MIB,)),
        ("(`OOMScoreAdjust={}`)", (unit("gpushare-extender", "OOMScoreAdjust"),)),
        ("like kubelet (`{}`)", (unit("gpushare-device-plugin", "OOMScoreAdjust"),)),
        ("at most {} connections without a certificate, each for {:g} seconds", (http_server.UNVERIFIED, http_server.UNVERIFIED_SECONDS)),
        ("metrics pages keep {} connections without a valid token", (page_server.UNVERIFIED,)),
        ("and answer {} at a time", (page_server.MOST,)),
        ("annotation | {} entries, {} characters |", (bounds.MOST_ASKED, bounds.MOST_ASKED_BYTES)),
        ("that request GPU resources | {} |", (bounds.MOST_CONTAINERS,)),
        ("| GPUs of a node | {} |", (bounds.MOST_GPUS,)),
        ("| `gpushare/gpus` | {:.0f} KiB |", (bounds.MOST_GPUS_BYTES / 1024,)),
        ("| `gpushare/held` as a whole | {:.0f} KiB |", (bounds.MOST_REPORT_BYTES / 1024,)),
        ("| `gpushare/held` | {} entries and {} rejections |", (bounds.MOST_HELD, bounds.MOST_HELD)),
        ("| `gpushare/evictions` | {} pods, {:.0f} KiB |", (bounds.MOST_EVICTIONS, bounds.MOST_REPORT_BYTES / 1024)),
        ("| `gpushare/use` | {} pods, {:.0f} KiB", (use_report.MOST_PODS, bounds.MOST_REPORT_BYTES / 1024)),
        ("| disruption budgets that may cover one pod | {} |", (budgets.MOST_BUDGETS,)),
        ("| {} labels and expressions, {} values |", (budgets.MOST_REQUIREMENTS, budgets.MOST_VALUES)),
        ("| labels of a pod that budgets are compared with | {} |", (budgets.MOST_LABELS,)),
        ("| texts of a node | {} printable characters |", (bounds.MOST_TEXT,)),
        ("quote at most {} characters", (bounds.QUOTED,)),
        ("the GPUs of that node for {:g} s with each pod", (ledger.UNKNOWN_SECONDS,)),
    ],
    "docs/use/dashboard.md": [
        ("at most {} nodes, those with room first", (page_of_a_pod.MOST_VERDICTS,)),
        ("The page reads it every {:g} seconds", (history.EVERY_SECONDS,)),
        ("differs by about {} MiB", (feed.STEP_MIB,)),
        ("deleted after {:g} seconds", (local.FILE_SECONDS,)),
        ("{} to {} printable ASCII characters", (access.LEAST_TOKEN, access.MOST_TOKEN)),
        ("At most {} pages can be open", (server.MOST_STREAMS,)),
        ("After {} tokens in {:g} seconds", (viewers.MOST_REJECTED, viewers.REJECTED_SECONDS)),
        ("figures for {} nodes and {:,} pods", (PAGE["nodes"], PAGE["pods"])),
        ("keeps the last {} MiB of differences", (state.MOST_KEPT_BYTES // MIB,)),
    ],
    "docs/use/frameworks.md": [("of {} MiB on an H100 and an H200", (CONTEXT_MIB,))],
    "docs/use/requests.md": [
        ("in steps of {}.", (core_request.CORE_STEP,)),
        ("Each has at most {} entries and {} characters", (bounds.MOST_ASKED, bounds.MOST_ASKED_BYTES)),
        ("At most {} containers of a pod", (bounds.MOST_CONTAINERS,)),
        ("in steps of {} % of a GPU", (scarcity.STEP_PER_CENT,)),
        ("One node gets {} points", (ranking.BEST_SCORE,)),
        ("every other at most {}.", (ranking.BEST_SCORE - 1,)),
        ("free for others {:g} s after the scheduler's next question", (reservation.CYCLE_SECONDS,)),
        ("about another pod, and {:g} s after the last one", (reservation.RESERVED_SECONDS,)),
        ("the extender reserves for up to {:g} s", (reservation.GROUP_SECONDS,)),
    ],
    "docs/project/design.md": [("`httpTimeout`, {} s", (HTTP_TIMEOUT,))],
    "docs/project/glossary.md": [("by default 1 {} |", (default("gpushare_memory_unit"),))],
    "docs/project/testing.md": [
        ("A line of progress comes every {:g} seconds", (run.TELL_EVERY_S,)),
        ("lists each test over {:g} seconds", (report.LONG_TEST_S,)),
        ("do not fit into {} minutes together", (CI_MINUTES,)),
    ],
    "roles/dashboard/README.md": [
        ("has at most {} MiB of memory", (unit("gpushare-dashboard", "MemoryMax").removesuffix("M"),)),
        ("renews the certificate ({} days)", (certificates.LIFE["server"].days,)),
    ],
    "roles/extender/README.md": [
        ("has at most {} GiB of memory", (unit("gpushare-extender", "MemoryMax").removesuffix("G"),)),
        ("renews the certificates ({} days)", (certificates.LIFE["server"].days,)),
    ],
    "roles/in_cluster/README.md": [
        (
            "it waits up to {} s",
            tuple(re.findall(r"start_timeout \| int, (\d+)\]", (REPOSITORY / "roles/in_cluster/tasks/main.yml").read_text())),
        )
    ],
    "roles/mps/README.md": [("queries the daemon every {:g} s", (mps_main.INTERVAL_SECONDS,))],
    "roles/preflight/README.md": [
        ("an `httpTimeout` above {:g} s", (ROWS["gpushare_extender_http_timeout"].longest,)),
        ("API server's by more than {:g} s | by more than {:g} s", (MOST_SECONDS_APART, SECONDS_APART)),
        ("less than {} MiB for the runtime", (MINIMUM_FREE_MIB,)),
        ("read more than {} days ago", (looked_up.OLD_DAYS,)),
    ],
    "docs/project/release.md": [
        ("table that was read more than {} days ago", (looked_up.OLD_FOR_RELEASE_DAYS,)),
        ("was read more than {} days ago (`old_facts`)", (looked_up.OLD_DAYS,)),
    ],
    "roles/scheduler/README.md": [("in clusters of up to {} nodes", (ALL_NODES_UP_TO,))],
    "docs/start/demo.md": [
        ("a real Kubernetes {} on this machine", (components.KUBERNETES.rpartition(".")[0],)),
        ("use the cache, and take under {} s", tuple(re.findall(r"second time on: under (\d+) s", MAKEFILE))),
    ],
    "docs/project/gpu-proof.md": [
        ("in at most {} minutes", (math.ceil(gpu_steps.TOTAL_SECONDS / 60),)),
        ("on simulated GPUs in less than {} minutes", (gpu_simulated.MOST_SECONDS // 60,)),
        ("{} GiB of the GPU's memory free", ((sum(gpu_memory.SIZES) + len(gpu_memory.SIZES) * gpu_context.CONTEXT_MIB) // 1024,)),
        ("{} pods through extender", (gpu_context.PODS,)),
        ("at most {} MiB", (gpu_pack.MOST_MIB,)),
        ("at most {} GiB", (gpu_node.MOST_GIB,)),
        ("two programs with {} and {} GiB", tuple(size // 1024 for size in gpu_memory.SIZES)),
    ],
}


def plain(page: str) -> str:
    """The text of a page on one line, without what is generated, fenced, or a comment."""
    text = re.sub(r"<!-- generated: .*?<!-- /generated -->", "", (REPOSITORY / page).read_text(), flags=re.S)
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return " ".join(re.sub(r"<!--.*?-->", "", text, flags=re.S).split())


def rewritten(text: str, rows: Sequence[tuple[str, tuple[Any, ...]]]) -> str:
    """A page with the numbers of its rows. ValueError for words that it does not have once, unless their numbers are right."""
    for words, values in rows:
        specs = [spec or "" for _, name, spec, _ in Formatter().parse(words) if name is not None]
        numbers = [format(value, spec) for value, spec in zip(values, specs, strict=True)]
        found = [*re.finditer(_pattern(words, numbers), text)]
        if len(found) != 1 and words.format(*values) in " ".join(text.split()):
            continue
        if len(found) != 1:
            raise ValueError(f"found {len(found)} times: {words}; expected these words once, with any numbers")
        pieces, end = [], 0
        for group, number in enumerate(numbers, 1):
            pieces += [text[end : found[0].start(group)], number]
            end = found[0].end(group)
        text = "".join([*pieces, text[end:]])
    return text


def _pattern(words: str, numbers: Sequence[str]) -> str:
    """The words of a row with any numbers of the same form, a group each. A page may break the words between its lines."""
    parts, left = [], iter(numbers)
    for literal, name, *_ in Formatter().parse(words):
        parts.append(r"\s+".join(map(re.escape, literal.split(" "))))
        if name is not None:
            around = map(re.escape, re.split(_NUMBER, next(left)))
            parts.append(f"({_NUMBER.join(around)})")
    return "".join(parts)


def write(root: Path = REPOSITORY) -> None:
    """Give every page its numbers."""
    for page, rows in FIGURES.items():
        path = root / page
        try:
            path.write_text(rewritten(path.read_text(), rows))
        except ValueError as error:
            raise SystemExit(f"{page}: {error}") from error
