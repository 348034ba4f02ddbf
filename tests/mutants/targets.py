# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whose mutants which tests must kill: a source file to test files below tests/unit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_RUNTIME: Final = "files/gpushare_runtime/gpushare_runtime"

_CORE: Final = tuple(
    f"core/{name}.py"
    for name in (
        "test_ledger",
        "test_ledger_model",
        "test_node_report",
        "test_constraints",
        "placement/test_explain",
    )
)
_REQUEST: Final = ("core/test_request.py", "core/test_reuse.py")
_POLICIES: Final = ("core/placement/test_policies.py", "core/test_ledger_model.py")
_RESERVED: Final = "extender/test_reservations.py"
_SEEN: Final = ("plugins/test_verify_look.py",)
_JUDGED: Final = ("plugins/test_verify_findings.py", "plugins/test_verify_judge.py")
_REMOVED: Final = ("plugins/test_remove.py",)
_CONTAINERD: Final = ("plugins/test_containerd.py", "plugins/test_containerd_service.py", "plugins/test_container_runtime.py")
_SCHEDULER: Final = ("plugins/test_scheduler_plan.py", "plugins/test_kube_scheduler.py")

_OF_RUNTIME: Final[Mapping[str, tuple[str, ...]]] = {
    "core/allocation.py": ("core/test_allocation.py", "core/test_reuse.py"),
    "core/bounds.py": ("core/test_bounds.py",),
    "core/constraints.py": ("core/test_constraints.py", "core/test_request.py"),
    "core/inventory.py": ("core/test_inventory.py",),
    "core/ledger.py": (*_CORE, _RESERVED, "core/placement/test_preemption.py"),
    "core/node_ledger.py": _CORE,
    "core/node_report.py": _CORE,
    "core/quantity.py": ("core/test_quantity.py", "core/test_request.py"),
    "core/request.py": (*_REQUEST, "core/test_constraints.py", "core/placement/test_explain.py"),
    "core/placement/fragmentation.py": ("core/placement/test_policies.py",),
    "core/placement/policies.py": _POLICIES,
    "core/placement/preemption.py": ("core/placement/test_preemption.py", "core/placement/test_budgets.py", _RESERVED),
    "core/placement/ranking.py": (*_POLICIES, "extender/test_verbs.py"),
    "device_plugin/gpu/discovery.py": ("device_plugin/test_discovery.py",),
    "device_plugin/gpu/health.py": tuple(f"device_plugin/test_{name}.py" for name in ("health", "discovery", "xid_events")),
    "device_plugin/host/usage_file.py": ("device_plugin/test_usage_file.py",),
    "device_plugin/kubelet/checkpoint.py": ("device_plugin/test_checkpoint.py", "device_plugin/test_unit_change.py"),
    "device_plugin/kubelet/podresources.py": ("device_plugin/test_podresources.py",),
    "device_plugin/node/allocator.py": tuple(
        f"device_plugin/test_{name}.py" for name in ("requests", "allocator", "rejections", "allocate_response")
    ),
    "device_plugin/node/candidates.py": tuple(f"device_plugin/test_{n}.py" for n in ("candidates", "requests", "allocator", "pending")),
    "device_plugin/node/devices.py": ("device_plugin/test_requests.py", "device_plugin/test_allocator.py"),
    "device_plugin/node/ids.py": ("device_plugin/test_ids.py", "device_plugin/test_pod_annotations.py"),
    "device_plugin/node/local_pods.py": ("device_plugin/test_pending.py", "device_plugin/test_usage.py"),
    "device_plugin/node/messages.py": ("device_plugin/test_pod_annotations.py",),
    "device_plugin/node/pending.py": ("device_plugin/test_pending.py", "device_plugin/test_requests.py"),
    "device_plugin/node/usage.py": ("device_plugin/test_usage.py",),
    "device_plugin/publish/pod_annotations.py": ("device_plugin/test_pod_annotations.py",),
    "extender/binder.py": ("extender/test_binder.py", _RESERVED, "extender/test_leadership.py"),
    "extender/cache.py": ("extender/test_cache.py", "core/placement/test_budgets.py", _RESERVED),
    "extender/diagnosis.py": ("extender/test_diagnosis.py",),
    "extender/inspect_api.py": ("extender/test_inspect_api.py",),
    "extender/leadership.py": ("extender/test_leadership.py",),
    "extender/requeue.py": ("extender/test_requeue.py", _RESERVED),
    "extender/verbs.py": ("extender/test_verbs.py", _RESERVED),
}
_OF_PLUGINS: Final[Mapping[str, tuple[str, ...]]] = {
    "module_utils/_files.py": ("plugins/test_files.py", "plugins/test_transaction.py"),
    "module_utils/_transaction.py": ("plugins/test_transaction.py",),
    "module_utils/_journal.py": ("plugins/test_journal.py", "plugins/test_transaction.py"),
    "module_utils/_pending.py": ("plugins/test_journal.py", "plugins/test_transaction.py"),
    "module_utils/_daemon_files.py": ("plugins/test_daemon_files.py",),
    "module_utils/_yaml_scalars.py": ("plugins/test_yaml_scalars.py",),
    "module_utils/_toml.py": ("plugins/test_toml.py",),
    "module_utils/_toml_edit.py": ("plugins/test_toml.py",),
    "module_utils/_containerd.py": _CONTAINERD,
    "module_utils/_containerd_files.py": _CONTAINERD,
    "module_utils/_containerd_service.py": _CONTAINERD,
    "module_utils/_container_runtime.py": _CONTAINERD,
    "module_utils/_kube_scheduler.py": _SCHEDULER,
    "module_utils/_scheduler_undo.py": _SCHEDULER,
    "module_utils/_scheduler_change.py": ("plugins/test_scheduler_change.py",),
    "module_utils/_kubeadm_config.py": _SCHEDULER,
    "plugin_utils/_scheduler_plan.py": _SCHEDULER,
    "plugin_utils/_scheduler_unplan.py": _SCHEDULER,
    "plugin_utils/_yaml_splice.py": ("plugins/test_yaml_splice.py",),
    "module_utils/_verify.py": ("plugins/test_verify.py", *_JUDGED),
    "module_utils/_verify_cluster.py": ("plugins/test_verify_cluster.py",),
    "module_utils/_verify_probe.py": ("plugins/test_verify_cluster.py",),
    "module_utils/_verify_seen.py": _SEEN,
    "module_utils/_verify_look.py": _SEEN,
    "module_utils/_verify_look_node.py": _SEEN,
    "module_utils/_verify_look_plane.py": _SEEN,
    "plugin_utils/_verify_containers.py": _JUDGED,
    "plugin_utils/_verify_host.py": _JUDGED,
    "plugin_utils/_verify_judge.py": _JUDGED,
    "plugin_utils/_verify_node.py": _JUDGED,
    "plugin_utils/_verify_plane.py": _JUDGED,
    "plugin_utils/_verify_room.py": _JUDGED,
    "module_utils/_cluster_change.py": ("plugins/test_cluster_change.py",),
    "module_utils/_remove.py": _REMOVED,
    "module_utils/_remove_cluster.py": ("plugins/test_remove_cluster.py",),
    "module_utils/_remove_leftovers.py": _REMOVED,
    "module_utils/_remove_objects.py": ("plugins/test_remove_cluster.py",),
    "module_utils/_remove_services.py": _REMOVED,
    "module_utils/_report.py": ("plugins/test_report.py",),
}

TARGETS: Final[Mapping[str, tuple[str, ...]]] = {
    f"{folder}/{file}": tuple(f"tests/unit/{below}{test}" for test in tests)
    for folder, below, files in (
        (_RUNTIME, "runtime/", _OF_RUNTIME),
        ("plugins", "", _OF_PLUGINS),
    )
    for file, tests in files.items()
}


def code_of_ours() -> list[Path]:
    """All Python files whose functions the targets may call."""
    below = [path for folder in (_RUNTIME, "plugins") for path in (ROOT / folder).rglob("*.py")]
    return [path for path in below if "_pb2" not in path.name]
