# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The links of the chain from a user's pod to its GPU: what must hold, the two places that verify reads, and the findings that judge it.

Data. A code without a link does not exist: CHECKS of findings.py is made of this table, and docs/operate/links.md, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...module_utils._formats.finding import ERROR, NOTE, WARNING

#: Programs that make findings.
VERIFY, DOCTOR = "verify", "gpushare-doctor"
#: The first link that stands beside the chain.
BESIDE = "metrics"


@dataclass(frozen=True)
class FindingKind:
    """The findings of one kind. severities: those that each may have. programs: those that make it. codes: apart by blanks."""

    severities: tuple[str, ...]
    programs: tuple[str, ...]
    codes: str


@dataclass(frozen=True)
class Link:
    """One link. holds: its assertion. evidence: two independent places that show whether it holds. kinds: its findings."""

    name: str
    holds: str
    evidence: tuple[str, str]
    kinds: tuple[FindingKind, ...] = field(default_factory=tuple)

    @property
    def codes(self) -> list[str]:
        """The codes of all its findings, in the order of the alphabet."""
        return sorted(code for kind in self.kinds for code in kind.codes.split())


def _errors(codes: str) -> FindingKind:
    return FindingKind((ERROR,), (VERIFY,), codes)


def _warnings(codes: str) -> FindingKind:
    return FindingKind((WARNING,), (VERIFY,), codes)


def _graded(codes: str) -> FindingKind:
    return FindingKind((ERROR, WARNING), (VERIFY,), codes)


def _notes(codes: str) -> FindingKind:
    return FindingKind((NOTE,), (VERIFY,), codes)


def _doctor(codes: str) -> FindingKind:
    return FindingKind((ERROR,), (DOCTOR,), codes)


def _doctor_warnings(codes: str) -> FindingKind:
    return FindingKind((WARNING,), (DOCTOR,), codes)


def _both(codes: str) -> FindingKind:
    return FindingKind((ERROR,), (DOCTOR, VERIFY), codes)


#: In the order in which a pod meets them. The last ones stand beside the chain: a fault there stops no pod.
LINKS: tuple[Link, ...] = (
    Link(
        "hosts",
        "verify sees every host of the run, and the cluster.",
        ("the answer of each host", "the answer of the API server"),
        (_errors("not_checked"),),
    ),
    Link(
        "admission",
        "The API server admits users' pods, and denies the annotations that only gpushare may write.",
        ("our rights and policies in the API, by the server's dry run", "a dry run of a pod that the server must deny"),
        (_errors("policies_not_enforced policy_differs rbac_differs"), _notes("policies_not_served")),
    ),
    Link(
        "others' admission",
        "Webhooks, policies and quotas of others let pods and their Bindings pass, and leave them as they are.",
        (
            "their configurations in the API, and the endpoints of their Services",
            "dry runs of what webhooks are asked about, and the creation of a probe pod in users' namespace",
        ),
        (_graded("webhook_silent"), _warnings("bindings_changed probe_rejected")),
    ),
    Link(
        "scheduler",
        "A kube-scheduler runs from its files and leads, and its certificate lasts.",
        ("manifest, configuration, certificate and last error on each control plane", "its static pod and its Lease in the API"),
        (
            _graded("control_plane_certificate"),
            _errors("scheduler_not_configured scheduler_not_leading scheduler_older_than_file scheduler_stopped stale_scheduler_file"),
        ),
    ),
    Link(
        "controllers",
        "A kube-controller-manager leads, so that Deployments and Jobs make their pods.",
        ("its Lease in the API", "its last error on each control plane"),
        (_errors("controllers_not_leading"),),
    ),
    Link(
        "extender",
        "Every extender of the scheduler's configuration answers, and ours is called for each pod with a GPU.",
        ("the entries in the configuration on each control plane", "a connection to each, and the health report of ours"),
        (
            _errors("extender_address_wrong extender_entry_differs extender_not_called extender_of_others"),
            _warnings("extender_called_for_all extender_elsewhere"),
            _doctor("certificate_expired certificate_wrong extender_down extender_missing extender_not_synced extender_older_than_file"),
            _doctor_warnings("extender_not_at_boot"),
        ),
    ),
    Link(
        "ports",
        "The daemons, and no others, listen on their addresses.",
        ("the sockets of the units", "the processes that listen there"),
        (_doctor("port_taken"), _doctor_warnings("socket_stopped")),
    ),
    Link(
        "second scheduler",
        "No other scheduler places pods with GPUs without a call of the extender.",
        (
            "spec.schedulerName of pods with GPUs, against the scheduler's configuration",
            "Events: who placed them, and without the extender",
        ),
        (_warnings("other_scheduler second_scheduler"),),
    ),
    Link(
        "kubelet",
        "kubelet runs as its unit, its certificate lasts, and it has a record of the pods with GPUs.",
        ("its unit, process, certificate and checkpoint on the host", "the Node in the API"),
        (
            _errors("kubelet_stopped node_missing node_not_ready"),
            _graded("kubelet_certificate"),
            _warnings("kubelet_root_differs record_lost"),
        ),
    ),
    Link(
        "runtime",
        "The container runtime answers, has the sandbox's image and kubelet's cgroup driver, and runs from its files.",
        ("its files and its unit on the host", "its answers at its socket"),
        (
            _errors("cgroup_drivers_differ default_runtime_missing default_runtime_not_running runtime_file_broken runtime_silent"),
            _graded("sandbox_image_missing"),
            _warnings("runtime_older_than_file service_limited"),
        ),
    ),
    Link(
        "plugin",
        "The device plugin runs as its unit, alone, and is registered with kubelet.",
        ("its unit and process on the host", "kubelet's checkpoint, and the API server's answer to it"),
        (
            _both("second_plugin"),
            _doctor("plugin_missing plugin_not_registered plugin_not_synced plugin_older_than_file plugin_stopped"),
            _doctor_warnings("plugin_not_at_boot"),
        ),
    ),
    Link(
        "identity",
        "Each daemon has a token of its own that lasts.",
        ("the token's file, owner and claims on the host", "the API server's answer to the token"),
        (
            _doctor("token_expired token_exposed token_forbidden token_foreign token_missing token_rejected token_unreadable"),
            _doctor_warnings("token_not_renewed"),
        ),
    ),
    Link(
        "files",
        "The files and units of gpushare are as its roles wrote them, and belong to root.",
        ("the files on the host, with their owners and modes", "the journal's hashes, and systemd's view of the units"),
        (
            _errors("files_changed runtime_missing unit_overridden"),
            _warnings("journal_lost unit_extended"),
            _both("runtime_differs"),
            _doctor("files_exposed"),
            _doctor_warnings("trigger_stopped"),
        ),
    ),
    Link(
        "disks",
        "Folders in which containers start, and those of the daemons' state, take files.",
        ("room and inodes of the folders in which containers start", "mount, room and inodes of the daemons' state folders"),
        (_errors("disk_full"), _doctor("state_not_kept")),
    ),
    Link(
        "driver and GPUs",
        "The driver answers, and the GPUs are those that the host shall have, healthy and in a fitting mode.",
        ("nvidia-smi's answer", "the kernel's modules, device files and the bus"),
        (
            _errors(
                "driver_mismatch driver_problem driver_too_old gpu_count_unexpected gpu_device_missing gpu_fabric_not_ready gpu_failing "
                "gpu_lost gpu_memory_unexpected gpu_missing gpu_without_memory"
            ),
            _graded("gpu_compute_mode"),
            _warnings("gpu_device_closed gpu_mode_pending gpu_repair_pending reboot_required uuid_twice"),
            _doctor("gpu_gone gpu_unhealthy"),
        ),
    ),
    Link(
        "labels and capacity",
        "The node has gpushare's label, is open to pods, and publishes the units of its usable GPUs.",
        ("nvidia-smi's answer on the host", "label, taints, annotation, capacity and allocatable of the Node in the API"),
        (
            _errors("annotation_wrong capacity_over capacity_short gpu_unusable label_missing wrong_gpu_count"),
            _warnings("gpu_cordoned label_without_plugin node_closed"),
        ),
    ),
    Link(
        "strategy",
        "A container gets its GPUs by a strategy that fits the host, by one CDI spec of the driver in use.",
        ("the configuration of NVIDIA's runtime, and the CDI specs on the host", "the strategy that the node publishes"),
        (
            _errors("cdi_missing environment_ignored mounts_ignored strategy_wrong"),
            _graded("no_cgroups"),
            _notes("strategy_kept"),
            _both("cdi_stale"),
            FindingKind((ERROR, WARNING), (DOCTOR,), "cdi_twice"),
            FindingKind((ERROR, NOTE), (VERIFY,), "gpus_visible"),
        ),
    ),
    Link(
        "containers",
        "Each running container has the GPU of its annotation, and no container without a request has one.",
        ("/dev of the containers' processes", "annotations of the pods in the API"),
        (_errors("container_not_seen not_annotated wrong_gpu"), _warnings("gpu_without_request")),
    ),
    Link(
        "probe",
        "A probe pod in users' namespace goes all the way.",
        ("the probe pod and its Events in the API", "its container on the host, and the calls that the extender counts"),
        (
            _errors("probe_failed probe_not_called probe_not_running probe_not_scheduled"),
            FindingKind((ERROR, NOTE), (VERIFY,), "not_proven"),
        ),
    ),
    Link(
        "metrics",
        "The daemons show metrics where they shall, and to holders of the token only.",
        ("the options of each daemon's process", "answers to requests with the token and without"),
        (_errors("metrics_wrong"), _doctor("metrics_down metrics_open")),
    ),
    Link(
        "dashboard",
        "A dashboard runs where it shall, as its unit, and answers holders of the token only.",
        ("its unit and process on the host", "its answers with the token and without"),
        (
            _warnings("dashboard_unexpected"),
            _doctor("dashboard_down dashboard_missing dashboard_not_synced dashboard_older_than_file dashboard_open"),
            _doctor_warnings("dashboard_not_at_boot"),
        ),
    ),
)


def kinds() -> Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Each code to (severities, programs)."""
    return {code: (kind.severities, kind.programs) for link in LINKS for kind in link.kinds for code in kind.codes.split()}


def link_of() -> Mapping[str, str]:
    """Each code to the name of its link."""
    return {code: link.name for link in LINKS for code in link.codes}


def beside() -> list[str]:
    """The codes of the links beside the chain: a fault there stops no pod."""
    names = [link.name for link in LINKS]
    return [code for link in LINKS[names.index(BESIDE) :] for code in link.codes]
