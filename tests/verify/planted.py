# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which faults are planted together, as what verify finds each, and which codes of verify are not planted here, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from e2e.cluster import CONTROL_PLANE, Cluster
from verify import faults
from verify.faults import Fault

ANYWHERE: Final = ""


@dataclass(frozen=True)
class Planted:
    """cure: words that the printed cure must have; by_hand: does what no command of the cure can, None where its commands are all."""

    fault: Fault
    host: str
    code: str
    cure: str
    severity: str = "error"
    by_hand: Callable[[Cluster], None] | None = None


_RESTART = "systemctl restart gpushare-device-plugin"
_SITE = "run site.yml again"

#: Faults of a group are planted at once, in their order, so pods come first: none of them explains another one.
GROUPS: Final[Mapping[str, tuple[Planted, ...]]] = {
    "first day": (
        Planted(faults.wrong_gpu, "gpu2", "wrong_gpu", "NVIDIA_VISIBLE_DEVICES", by_hand=faults.pods_deleted),
        Planted(faults.extender_address_wrong, CONTROL_PLANE, "extender_address_wrong", "127.0.0.1:32766"),
        Planted(faults.plugin_not_registered, "gpu1", "plugin_not_registered", _RESTART),
        Planted(faults.policy_gone, ANYWHERE, "policy_differs", _SITE),
    ),
    "driver": (
        Planted(faults.driver_mismatch, "gpu1", "driver_mismatch", "reboot the host", by_hand=faults.driver_reloaded),
        Planted(faults.default_runtime_not_running, "gpu2", "default_runtime_not_running", "systemctl restart containerd.service"),
    ),
    "daemons": (
        Planted(faults.extender_down, CONTROL_PLANE, "extender_down", "systemctl restart gpushare-extender"),
        Planted(faults.plugin_stopped, "gpu1", "plugin_stopped", _RESTART),
        Planted(faults.wrong_gpu_count, "gpu2", "wrong_gpu_count", _RESTART),
        Planted(faults.token_exposed, "gpu2", "token_exposed", "chmod 0600 /var/lib/gpushare-device-plugin/token"),
        Planted(faults.label_gone, "gpu2", "label_missing", "kubectl label node gpu2 gpushare.kubernetes/node=true"),
    ),
    "others' programs": (
        Planted(
            faults.port_taken,
            CONTROL_PLANE,
            "port_taken",
            "systemctl start gpushare-extender.socket gpushare-extender",
            by_hand=faults.listener_ended,
        ),
        Planted(faults.capacity_short, "gpu1", "capacity_short", "systemctl restart kubelet"),
        Planted(faults.second_plugin, "gpu2", "second_plugin", "keep it off this node", by_hand=faults.second_plugin_stopped),
    ),
    "pods and GPUs": (
        Planted(faults.gpu_without_request, "gpu2", "gpu_without_request", "hostPath", "warning", faults.pods_deleted),
        Planted(faults.other_scheduler, ANYWHERE, "other_scheduler", "schedulerName: default-scheduler", "warning", faults.pods_deleted),
        Planted(faults.extender_unheard, CONTROL_PLANE, "extender_down", "packet filter", by_hand=faults.filter_removed),
        Planted(faults.runtime_file_broken, "gpu1", "runtime_file_broken", "correct what", by_hand=faults.runtime_file_corrected),
        Planted(faults.no_cgroups, "gpu2", "no_cgroups", "no-cgroups=false", "warning"),
        Planted(faults.cdi_stale, "gpu1", "cdi_stale", "nvidia-ctk cdi generate"),
        Planted(faults.device_closed, "gpu2", "gpu_device_closed", "chmod 0666 /dev/nvidia1", "warning"),
        Planted(faults.gpu_cordoned, "gpu2", "gpu_cordoned", "kubectl gpushare uncordon gpu2 1", "warning"),
        Planted(faults.plugin_not_at_boot, "gpu2", "plugin_not_at_boot", "systemctl enable", "warning"),
    ),
    "tokens and files": (
        Planted(faults.certificate_expired, CONTROL_PLANE, "certificate_expired", "systemctl start gpushare-pki.service"),
        Planted(faults.scheduler_certificate, CONTROL_PLANE, "control_plane_certificate", "kubeadm certs renew scheduler.conf", "warning"),
        Planted(faults.extender_not_at_boot, CONTROL_PLANE, "extender_not_at_boot", "systemctl enable", "warning"),
        Planted(faults.token_unreadable, "gpu1", "token_unreadable", "chown 0 /var/lib/gpushare-device-plugin/token"),
        Planted(faults.cdi_missing, "gpu1", "cdi_missing", "nvidia-ctk cdi generate --output="),
        Planted(faults.runtime_silent, "gpu2", "runtime_silent", "systemctl restart containerd"),
    ),
    "kubelet and scheduler": (
        Planted(faults.stale_scheduler_file, CONTROL_PLANE, "stale_scheduler_file", "mv /etc/kubernetes/manifests/kube-scheduler.yaml.bak"),
        Planted(faults.certificate_wrong, CONTROL_PLANE, "certificate_wrong", "systemctl start gpushare-pki.service"),
        Planted(faults.kubelet_stopped, "gpu1", "kubelet_stopped", "systemctl restart kubelet"),
        Planted(
            faults.cgroup_drivers_differ,
            "gpu2",
            "cgroup_drivers_differ",
            "set SystemdCgroup = false in the options of the runtime nvidia",
            by_hand=faults.cgroup_driver_set,
        ),
    ),
    "before the scheduler": (
        Planted(
            faults.policies_not_enforced, ANYWHERE, "policies_not_enforced", "--disable-admission-plugins", by_hand=faults.policies_enforced
        ),
        Planted(faults.extender_of_others, CONTROL_PLANE, "extender_of_others", "take extenders[0] out of", by_hand=faults.entry_removed),
        Planted(faults.webhook_silent, ANYWHERE, "webhook_silent", "kubectl delete validatingwebhookconfiguration theirs"),
        Planted(faults.bindings_changed, ANYWHERE, "bindings_changed", "annotations", "warning", faults.mutating_policy_removed),
    ),
    "no leader": (
        Planted(faults.scheduler_not_leading, ANYWHERE, "scheduler_not_leading", "kubeadm certs renew", by_hand=faults.scheduler_leads),
    ),
    "units": (
        Planted(faults.kubelet_masked, "gpu1", "kubelet_stopped", "systemctl unmask kubelet; systemctl start kubelet"),
        Planted(faults.plugin_hardened, "gpu2", "unit_overridden", "rm /etc/systemd/system/gpushare-.service.d/10-hardening.conf"),
        Planted(faults.files_exposed, CONTROL_PLANE, "files_exposed", "chown -h 0 /etc/gpushare"),
        Planted(faults.state_exposed, "gpu1", "files_exposed", _RESTART),
        Planted(faults.timer_off, CONTROL_PLANE, "trigger_stopped", "systemctl enable --now gpushare-pki.timer", "warning"),
    ),
    "images and specs": (
        Planted(faults.run_full, "gpu1", "disk_full", "df -h", by_hand=faults.run_emptied),
        Planted(faults.sandbox_image_gone, "gpu2", "sandbox_image_missing", "pull ", by_hand=faults.sandbox_image_back),
        Planted(faults.cdi_twice, "gpu2", "cdi_twice", "rm /", "warning"),
    ),
    "a flag": (
        Planted(faults.scheduler_stopped, CONTROL_PLANE, "scheduler_stopped", "correct that", by_hand=faults.flag_removed),
        Planted(faults.state_not_kept, "gpu1", "state_not_kept", "mount -o remount,rw"),
    ),
    "site, first": (
        Planted(faults.extender_not_called, CONTROL_PLANE, "extender_not_called", "managedResources"),
        Planted(faults.token_expired, "gpu1", "token_expired", _SITE),
        Planted(faults.default_runtime_missing, "gpu2", "default_runtime_missing", _SITE),
        Planted(faults.files_changed, "gpu2", "files_changed", "site.yml --check --diff"),
        Planted(faults.policy_audits, ANYWHERE, "policy_differs", _SITE),
    ),
    "site, second": (
        Planted(faults.extender_entry_differs, CONTROL_PLANE, "extender_entry_differs", _SITE),
        Planted(faults.token_foreign, "gpu1", "token_foreign", "rm /var/lib/gpushare-device-plugin/token"),
        Planted(faults.gpus_visible, "gpu2", "gpus_visible", _SITE),
        Planted(faults.unit_overridden, "gpu2", "unit_overridden", "rm /etc/systemd/system/gpushare-device-plugin.service.d/50-mine.conf"),
        Planted(faults.rbac_gone, ANYWHERE, "rbac_differs", _SITE),
    ),
    "site, third": (
        Planted(faults.scheduler_older_than_file, CONTROL_PLANE, "scheduler_older_than_file", _SITE),
        Planted(faults.plugin_not_synced, "gpu1", "plugin_not_synced", "https://127.0.0.1:9"),
        Planted(faults.mounts_ignored, "gpu2", "mounts_ignored", _SITE),
        Planted(faults.runtime_differs, "gpu2", "runtime_differs", "rm -r /opt/gpushare/"),
    ),
    "site, fourth": (
        Planted(faults.scheduler_not_configured, CONTROL_PLANE, "scheduler_not_configured", _SITE),
        Planted(faults.plugin_missing, "gpu1", "plugin_missing", _SITE),
        Planted(faults.token_missing, "gpu2", "token_missing", _SITE),
    ),
    "site, fifth": (Planted(faults.runtime_missing, "gpu1", "runtime_missing", _SITE),),
}

_SAME = "its cure is that of a planted one of the same daemon: site.yml, or a restart"
_HARDWARE = "needs hardware, or a driver in a state, that the lab does not have"
_WISH = "the cure is another value in the inventory, or Kubernetes in another release"
_FOLLOWS = "on a lab it follows from a planted one"
_LOOKS = "a race, or a fault of others: its cure is to look and to run verify again"

#: Codes that are not planted here, with the reason. Each is judged in tests/unit/plugins/verdict or tests/unit/runtime/doctor.
ELSEWHERE: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "dashboard_missing",
            "dashboard_not_at_boot",
            "dashboard_not_synced",
            "dashboard_older_than_file",
            "dashboard_open",
            "environment_ignored",
            "extender_missing",
            "extender_older_than_file",
            "metrics_down",
            "metrics_open",
            "plugin_older_than_file",
            "runtime_older_than_file",
            "socket_stopped",
            "token_rejected",
        ),
        _SAME,
    ),
    **dict.fromkeys(
        (
            "driver_problem",
            "gpu_compute_mode",
            "gpu_device_missing",
            "gpu_fabric_not_ready",
            "gpu_failing",
            "gpu_gone",
            "gpu_lost",
            "gpu_missing",
            "gpu_mode_pending",
            "gpu_repair_pending",
            "gpu_unhealthy",
            "gpu_unusable",
            "gpu_without_memory",
            "reboot_required",
            "uuid_twice",
        ),
        _HARDWARE,
    ),
    **dict.fromkeys(
        (
            "driver_too_old",
            "extender_called_for_all",
            "extender_elsewhere",
            "gpu_count_unexpected",
            "gpu_memory_unexpected",
            "metrics_wrong",
            "policies_not_served",
            "strategy_kept",
            "strategy_wrong",
            "unit_extended",
        ),
        _WISH,
    ),
    **dict.fromkeys(
        (
            "annotation_wrong",
            "capacity_over",
            "extender_not_synced",
            "journal_lost",
            "node_not_ready",
            "probe_not_called",
            "probe_not_scheduled",
            "token_forbidden",
        ),
        _FOLLOWS,
    ),
    "record_lost": "its cure ends every pod of the node, those of the suite as well",
    **dict.fromkeys(("kubelet_certificate", "kubelet_root_differs"), "needs a kubelet with another life or folder than the lab's"),
    **dict.fromkeys(("container_not_seen", "node_missing", "not_annotated", "probe_failed", "token_not_renewed"), _LOOKS),
    **dict.fromkeys(("controllers_not_leading", "node_closed", "service_limited"), "tests/verify/strangers.py"),
    "label_without_plugin": "tests/verify/reviewed.py",
    **dict.fromkeys(("dashboard_down", "dashboard_unexpected"), "tests/e2e/test_dashboard_service.py"),
    **dict.fromkeys(
        ("not_checked", "not_proven", "probe_not_running", "probe_rejected", "second_scheduler"),
        "tests of their own in tests/verify/test_faults.py",
    ),
}
