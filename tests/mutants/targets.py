# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whose mutants which tests must kill: a source file to test files below tests/unit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_RUNTIME: Final = "files/gpushare_runtime/gpushare_runtime"

_CORE: Final = tuple(f"runtime/test_{name}.py" for name in ("ledger", "ledger_model", "held", "rules", "reasons"))
_REQUEST: Final = ("runtime/test_request.py", "runtime/test_reuse.py")
_PLACEMENT: Final = ("runtime/test_placement.py", "runtime/test_ledger_model.py")
_NODE: Final = ("test_requests.py", "test_node.py")
_SEEN: Final = ("plugins/test_verify_look.py",)
_JUDGED: Final = ("plugins/test_verify_findings.py", "plugins/test_verify_judge.py")
_REMOVED: Final = ("plugins/test_remove.py",)
_CONTAINERD: Final = ("plugins/test_containerd.py", "plugins/test_containerd_service.py", "plugins/test_container_runtime.py")
_SCHEDULER: Final = ("plugins/test_scheduler_plan.py", "plugins/test_kube_scheduler.py")

_OF_RUNTIME: Final[Mapping[str, tuple[str, ...]]] = {
    "ledger.py": (*_CORE, "runtime/extender/test_reservations.py", "runtime/extender/test_preempt.py"),
    "node_ledger.py": _CORE,
    "holding.py": _CORE,
    "held.py": _CORE,
    "request.py": (*_REQUEST, "runtime/test_rules.py", "runtime/test_reasons.py"),
    "reuse.py": _REQUEST,
    "rules.py": ("runtime/test_rules.py", "runtime/test_request.py"),
    "placement.py": _PLACEMENT,
    "ranking.py": (*_PLACEMENT, "runtime/extender/test_service.py"),
    "fragmentation.py": ("runtime/test_placement.py",),
    "allocation.py": ("runtime/test_allocation.py", "runtime/test_reuse.py"),
    "quantity.py": ("runtime/test_quantity.py", "runtime/test_request.py"),
    "inventory.py": ("runtime/test_inventory.py",),
    "bounds.py": ("runtime/test_bounds.py",),
}
_OF_DEVICE_PLUGIN: Final[Mapping[str, tuple[str, ...]]] = {
    "answer.py": ("test_answer.py",),
    "assigner.py": ("test_assigner.py",),
    "cards.py": ("test_cards.py",),
    "checkpoint.py": ("test_checkpoint.py",),
    "choice.py": ("test_choice.py",),
    "cross_check.py": ("test_cross_check.py",),
    "health.py": ("test_health.py", "test_cards.py", "test_follow_xids.py"),
    "holders.py": ("test_holders.py",),
    "holdings.py": ("test_holders.py",),
    "node.py": _NODE,
    "node_cards.py": _NODE,
    "pods.py": ("test_turns.py", "test_holders.py"),
    "records.py": ("test_cross_check.py",),
    "refusals.py": ("test_refusals.py",),
    "shares.py": ("test_shares.py", "test_assigner.py"),
    "starts.py": _NODE,
    "state_file.py": ("test_state_file.py",),
    "turns.py": ("test_turns.py",),
    "unit_change.py": ("test_unit_change.py",),
    "unmanaged.py": ("test_assigner.py",),
}
_OF_EXTENDER: Final[Mapping[str, tuple[str, ...]]] = {
    "advice.py": ("test_advice.py",),
    "budgets.py": ("test_budgets.py",),
    "binder.py": ("test_binder.py", "test_reservations.py", "test_fence.py"),
    "cluster.py": ("test_cluster.py", "test_budgets.py", "test_reservations.py"),
    "fence.py": ("test_fence.py",),
    "nominated.py": ("test_reservations.py", "test_preempt.py"),
    "preempt.py": ("test_preempt.py",),
    "recall.py": ("test_recall.py", "test_reservations.py"),
    "service.py": ("test_service.py", "test_reservations.py"),
    "views.py": ("test_views.py",),
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
        (_RUNTIME, "", _OF_RUNTIME),
        (f"{_RUNTIME}/device_plugin", "runtime/device_plugin/", _OF_DEVICE_PLUGIN),
        (f"{_RUNTIME}/extender", "runtime/extender/", _OF_EXTENDER),
        ("plugins", "", _OF_PLUGINS),
    )
    for file, tests in files.items()
}


def code_of_ours() -> list[Path]:
    """All Python files whose functions the targets may call."""
    below = [path for folder in (_RUNTIME, "plugins") for path in (ROOT / folder).rglob("*.py")]
    return [path for path in below if "_pb2" not in path.name]
