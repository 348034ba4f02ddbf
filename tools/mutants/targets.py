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
    for name in ("test_ledger", "test_ledger_model", "test_node_report", "test_constraints", "test_pod_affinity", "placement/test_explain")
)
_REQUEST: Final = ("core/test_request.py", "core/test_reuse.py")
_POLICIES: Final = ("core/placement/test_policies.py", "core/placement/test_scarcity.py", "core/test_ledger_model.py")
_RESERVED: Final = "extender/test_reservations.py"
_USAGE: Final = (
    *(f"device_plugin/node/test_{name}.py" for name in ("id_usage", "id_usage_in_doubt", "turns")),
    "device_plugin/kubelet/test_taken_over.py",
)
_ALLOCATED: Final = tuple(
    f"device_plugin/node/test_{name}.py" for name in ("requests", "container_start", "told", "allocator", "rejections")
)
_SEEN: Final = ("plugins/evidence/test_host.py",)
_JUDGED: Final = ("plugins/verdict/test_doctor.py", "plugins/verdict/test_hosts.py", "plugins/verdict/test_judge.py")
_REMOVED: Final = ("plugins/removal/test_host.py",)
_CONTAINERD: Final = (
    "plugins/runtimes/test_containerd.py",
    "plugins/runtimes/test_containerd_service.py",
    "plugins/runtimes/test_default_runtime.py",
)
_DOCKER: Final = "plugins/runtimes/test_docker.py"
_CRIO: Final = "plugins/runtimes/test_crio.py"
_PACKAGES: Final = tuple(f"plugins/packages/test_{name}.py" for name in ("converge", "apt", "rpm", "zypper"))
_GENERATIONS: Final = "plugins/scheduler/test_generations.py"
_KUBELET: Final = ("plugins/kubelet/test_converge.py", "plugins/kubelet/test_gates.py")
_SCHEDULER: Final = ("plugins/scheduler/test_plan.py", "plugins/scheduler/test_config_and_manifest.py")

_OF_RUNTIME: Final[Mapping[str, tuple[str, ...]]] = {
    "core/allocation.py": ("core/test_allocation.py", "core/test_reuse.py"),
    "core/bounds.py": ("core/test_bounds.py",),
    "core/constraints.py": ("core/test_constraints.py", "core/test_request.py"),
    "core/inventory.py": ("core/test_inventory.py",),
    "core/ledger.py": (*_CORE, _RESERVED, "core/placement/test_preemption.py", "extender/test_cache.py"),
    "core/ledger_json.py": ("core/test_ledger_json.py",),
    "core/mps.py": ("core/test_mps.py", "mps/test_shares.py"),
    "core/node_ledger.py": (
        *_CORE,
        "core/test_mps.py",
        "core/placement/test_preemption.py",
        "core/placement/test_scarcity.py",
        "extender/test_cache.py",
    ),
    "core/node_report.py": _CORE,
    "core/overuse.py": ("core/test_overuse.py",),
    "core/pod_affinity.py": ("core/test_pod_affinity.py", "core/test_ledger_model.py"),
    "core/quantity.py": ("core/test_quantity.py", "core/test_request.py"),
    "core/request.py": (*_REQUEST, "core/test_constraints.py", "core/test_pod_affinity.py", "core/placement/test_explain.py"),
    "core/placement/budgets.py": ("core/placement/test_budgets.py", "core/placement/test_preemption.py"),
    "core/placement/scarcity.py": ("core/placement/test_scarcity.py",),
    "core/placement/explain.py": ("core/placement/test_explain.py", "extender/test_diagnosis.py", "extender/test_verbs.py"),
    "core/placement/policies.py": _POLICIES,
    "core/placement/preemption.py": ("core/placement/test_preemption.py", "core/placement/test_budgets.py", _RESERVED),
    "core/placement/ranking.py": (*_POLICIES, "extender/test_verbs.py"),
    "device_plugin/gpu/container_limits.py": ("device_plugin/gpu/test_container_limits.py",),
    "device_plugin/gpu/discovery.py": ("device_plugin/gpu/test_discovery.py", "device_plugin/gpu/test_gpu_poller.py"),
    "device_plugin/gpu/health.py": tuple(f"device_plugin/gpu/test_{name}.py" for name in ("health", "discovery", "xid_events")),
    "device_plugin/gpu/pod_limits.py": ("device_plugin/gpu/test_limited_pods.py",),
    "device_plugin/host/cdi_specs.py": ("device_plugin/host/test_cdi_specs.py",),
    "device_plugin/gpu/pod_memory.py": ("device_plugin/gpu/test_pod_memory.py",),
    "device_plugin/host/mps_states.py": ("device_plugin/host/test_mps.py",),
    "device_plugin/host/usage_file.py": ("device_plugin/host/test_usage_file.py",),
    "device_plugin/kubelet/checkpoint.py": (
        "device_plugin/kubelet/test_checkpoint.py",
        "device_plugin/kubelet/test_taken_over.py",
        "doctor/test_kubelet.py",
    ),
    "device_plugin/kubelet/podresources.py": ("device_plugin/kubelet/test_podresources.py",),
    "device_plugin/node/allocate_response.py": ("device_plugin/node/test_allocate_response.py", "device_plugin/node/test_requests.py"),
    "device_plugin/node/allocator.py": _ALLOCATED,
    "device_plugin/node/container_start.py": (*_ALLOCATED, "device_plugin/kubelet/test_taken_over.py"),
    "device_plugin/node/rejections.py": ("device_plugin/node/test_rejections.py", "device_plugin/node/test_told.py"),
    "device_plugin/node/preferred_ids.py": tuple(
        f"device_plugin/node/test_{name}.py" for name in ("preferred_ids", "requests", "allocator", "requesting_container")
    ),
    "device_plugin/node/devices.py": tuple(f"device_plugin/node/test_{name}.py" for name in ("devices", "told", "allocator")),
    "device_plugin/node/ids.py": ("device_plugin/node/test_ids.py", "device_plugin/publish/test_pod_annotations.py"),
    "device_plugin/node/local_pods.py": (
        "device_plugin/node/test_requesting_container.py",
        "device_plugin/node/test_id_usage.py",
        "device_plugin/node/test_id_usage_in_doubt.py",
    ),
    "device_plugin/node/sentences.py": (
        *_ALLOCATED,
        "device_plugin/publish/test_pod_annotations.py",
        "device_plugin/node/test_sentences.py",
    ),
    "device_plugin/node/requesting_container.py": tuple(
        f"device_plugin/node/test_{name}.py"
        for name in (
            *("requesting_container", "requests", "container_start", "turns"),
            *("told", "rejections", "preferred_ids", "allocator"),
        )
    ),
    "device_plugin/node/cdi.py": ("device_plugin/host/test_cdi_specs.py", "device_plugin/node/test_devices.py"),
    "device_plugin/node/strategy.py": ("device_plugin/node/test_strategy.py",),
    "device_plugin/node/pod_state.py": ("device_plugin/node/test_pod_state.py", *_USAGE),
    "device_plugin/node/id_usage.py": _USAGE,
    "device_plugin/node/id_recorder.py": _USAGE,
    "device_plugin/publish/eviction_requests.py": ("device_plugin/publish/test_eviction_requests.py",),
    "device_plugin/publish/pod_annotations.py": ("device_plugin/publish/test_pod_annotations.py", "device_plugin/node/test_turns.py"),
    "doctor/endpoints.py": ("doctor/test_endpoints.py", "doctor/test_dashboard.py", "doctor/test_ports.py"),
    "doctor/identity.py": ("doctor/test_identity.py", "doctor/test_dashboard.py"),
    "doctor/kubelet.py": ("doctor/test_kubelet.py", "doctor/test_main.py"),
    "doctor/installed_files.py": ("doctor/test_installed_files.py",),
    "doctor/units.py": ("doctor/test_units.py",),
    "extender/binder.py": ("extender/test_binder.py", _RESERVED, "extender/test_leadership.py"),
    "extender/binding.py": ("extender/test_binder.py", _RESERVED, "extender/test_leadership.py"),
    "extender/cache.py": ("extender/test_cache.py", "core/placement/test_budgets.py", _RESERVED),
    "extender/diagnosis.py": ("extender/test_diagnosis.py",),
    "extender/evictor.py": ("extender/test_evictor.py",),
    "extender/inspect_api.py": ("extender/test_inspect_api.py",),
    "extender/leadership.py": ("extender/test_leadership.py",),
    "extender/node_states.py": ("extender/test_node_states.py", "extender/test_cache.py"),
    "extender/requeue.py": ("extender/test_requeue.py", _RESERVED),
    "dashboard/access.py": ("dashboard/test_access.py",),
    "dashboard/history.py": ("dashboard/test_history.py",),
    "dashboard/rows.py": ("dashboard/test_state.py",),
    "dashboard/state.py": ("dashboard/test_state.py",),
    "kubectl_gpushare/cluster.py": ("kubectl_gpushare/test_views.py", "kubectl_gpushare/test_inspect_usage.py"),
    "kubectl_gpushare/cordon.py": ("kubectl_gpushare/test_cordon.py",),
    "kubectl_gpushare/explain.py": ("kubectl_gpushare/test_explain.py",),
    "kubectl_gpushare/simulate.py": ("kubectl_gpushare/test_simulate.py",),
    "kubectl_gpushare/trace.py": ("kubectl_gpushare/test_simulate.py",),
    "kubectl_gpushare/selectors.py": ("kubectl_gpushare/test_selectors.py",),
    "kubectl_gpushare/views.py": ("kubectl_gpushare/test_views.py",),
    "mps/gpu.py": ("mps/test_gpu.py",),
    "mps/control.py": ("mps/test_control.py", "mps/test_mps.py", "mps/test_shares.py"),
    "mps/shares.py": ("mps/test_shares.py",),
    "extender/verbs.py": ("extender/test_verbs.py", _RESERVED),
}
_OF_PLUGINS: Final[Mapping[str, tuple[str, ...]]] = {
    "module_utils/_cluster/drain.py": ("plugins/cluster/test_drain.py",),
    "module_utils/_driver/apply.py": ("plugins/driver/test_apply.py",),
    "module_utils/_driver/facts.py": ("plugins/driver/test_facts.py",),
    "module_utils/_driver/generations.py": ("plugins/driver/test_plan.py",),
    "module_utils/_driver/names.py": ("plugins/driver/test_plan.py",),
    "module_utils/_driver/options.py": ("plugins/driver/test_options.py",),
    "module_utils/_driver/plan.py": ("plugins/driver/test_plan.py",),
    "module_utils/_facts/diagnosis.py": (
        "plugins/facts/test_diagnosis.py",
        "plugins/facts/test_nvidia_smi.py",
        "plugins/verdict/test_hosts.py",
    ),
    "plugin_utils/_preflight/gpus.py": ("plugins/preflight/test_gpus.py",),
    "module_utils/_host/files.py": ("plugins/host/test_files.py", "plugins/change/test_transaction.py"),
    "module_utils/_change/transaction.py": ("plugins/change/test_transaction.py",),
    "module_utils/_change/engine.py": (
        "plugins/change/test_engine.py",
        "plugins/driver/test_apply.py",
        "plugins/toolkit/test_toolkit.py",
        "plugins/daemon/test_files.py",
    ),
    "module_utils/_change/undo.py": ("plugins/change/test_undo.py",),
    "module_utils/_change/journal.py": ("plugins/change/test_journal.py", "plugins/change/test_transaction.py"),
    "module_utils/_daemon/exposure.py": ("plugins/daemon/test_exposure.py",),
    "module_utils/_daemon/mps.py": ("plugins/daemon/test_mps.py",),
    "module_utils/_daemon/files.py": ("plugins/daemon/test_files.py",),
    "module_utils/_formats/yaml_scalars.py": ("plugins/formats/test_yaml_scalars.py",),
    "module_utils/_formats/toml.py": ("plugins/formats/test_toml.py",),
    "module_utils/_formats/toml_edit.py": ("plugins/formats/test_toml.py",),
    "module_utils/_kubelet/arguments.py": _KUBELET,
    "module_utils/_kubelet/config_file.py": _KUBELET,
    "module_utils/_kubelet/converge.py": _KUBELET,
    "module_utils/_kubelet/gates.py": _KUBELET,
    "module_utils/_kubelet/plan.py": _KUBELET,
    "module_utils/_kubelet/service.py": _KUBELET,
    "module_utils/_runtimes/containerd_config.py": _CONTAINERD,
    "module_utils/_runtimes/containerd_options.py": ("plugins/runtimes/test_containerd_options.py",),
    "module_utils/_runtimes/containerd_files.py": _CONTAINERD,
    "module_utils/_runtimes/containerd_service.py": _CONTAINERD,
    "module_utils/_runtimes/default_runtime.py": (*_CONTAINERD, _DOCKER),
    "module_utils/_runtimes/service.py": (*_CONTAINERD, _DOCKER, _CRIO),
    "module_utils/_runtimes/plan.py": _CONTAINERD,
    "module_utils/_runtimes/crio.py": (_CRIO,),
    "module_utils/_runtimes/docker.py": (_DOCKER,),
    "module_utils/_runtimes/docker_config.py": (_DOCKER,),
    "module_utils/_formats/json_edit.py": ("plugins/formats/test_json_edit.py",),
    "module_utils/_scheduler/config.py": (*_SCHEDULER, _GENERATIONS),
    "module_utils/_scheduler/policy.py": (_GENERATIONS,),
    "module_utils/_scheduler/releases.py": (_GENERATIONS,),
    "plugin_utils/_scheduler/wiring.py": (*_SCHEDULER, _GENERATIONS),
    "module_utils/_scheduler/manifest.py": (*_SCHEDULER, _GENERATIONS),
    "module_utils/_scheduler/apply.py": ("plugins/scheduler/test_apply.py",),
    "module_utils/_scheduler/kubeadm.py": (*_SCHEDULER, _GENERATIONS),
    "plugin_utils/_scheduler/plan.py": (*_SCHEDULER, _GENERATIONS),
    "plugin_utils/_scheduler/unplan.py": (*_SCHEDULER, _GENERATIONS),
    "plugin_utils/_scheduler/yaml_splice.py": ("plugins/scheduler/test_yaml_splice.py",),
    "plugin_utils/_verdict/findings.py": ("plugins/verdict/test_findings.py", *_JUDGED),
    "module_utils/_evidence/cluster.py": ("plugins/evidence/test_cluster.py",),
    "module_utils/_evidence/probes.py": ("plugins/evidence/test_cluster.py",),
    "module_utils/_evidence/host.py": _SEEN,
    "module_utils/_evidence/daemons.py": _SEEN,
    "module_utils/_evidence/gpu_node.py": _SEEN,
    "module_utils/_evidence/control_plane.py": _SEEN,
    "plugin_utils/_verdict/containers.py": _JUDGED,
    "plugin_utils/_verdict/daemons.py": ("plugins/evidence/test_files.py", *_JUDGED),
    "plugin_utils/_verdict/doctor.py": _JUDGED,
    "plugin_utils/_verdict/judge.py": _JUDGED,
    "plugin_utils/_verdict/gpu_node.py": _JUDGED,
    "plugin_utils/_verdict/control_plane.py": _JUDGED,
    "module_utils/_packages/converge.py": _PACKAGES,
    "module_utils/_packages/model.py": ("plugins/packages/test_model.py", *_PACKAGES),
    "module_utils/_packages/openpgp.py": ("plugins/packages/test_openpgp.py",),
    "module_utils/_packages/sources.py": ("plugins/packages/test_sources.py", "plugins/packages/test_apt.py"),
    "module_utils/_toolkit/toolkit.py": ("plugins/toolkit/test_toolkit.py",),
    "module_utils/_cluster/objects.py": (
        *(f"plugins/cluster/test_{name}.py" for name in ("objects", "manifests", "taint")),
        "plugins/manifests/test_in_cluster.py",
    ),
    "module_utils/_facts/authority.py": ("plugins/facts/test_authority.py",),
    "module_utils/_takeover/aside.py": ("plugins/takeover/test_takeover.py",),
    "module_utils/_takeover/plugins.py": ("plugins/takeover/test_takeover.py", "plugins/takeover/test_judge.py"),
    "module_utils/_takeover/cluster.py": ("plugins/takeover/test_takeover.py",),
    "module_utils/_takeover/original.py": ("plugins/takeover/test_original.py",),
    "plugin_utils/_takeover/judge.py": ("plugins/takeover/test_judge.py",),
    "module_utils/_scheduler/before_join.py": ("plugins/scheduler/test_before_join.py",),
    "plugin_utils/_removal/dead_nodes.py": ("plugins/removal/test_dead_nodes.py",),
    "module_utils/_removal/plan.py": _REMOVED,
    "module_utils/_removal/cluster.py": ("plugins/removal/test_cluster.py",),
    "module_utils/_removal/host.py": _REMOVED,
    "module_utils/_removal/report.py": ("plugins/removal/test_report.py",),
}

TARGETS: Final[Mapping[str, tuple[str, ...]]] = {
    f"{folder}/{file}": tuple(f"tests/unit/{below}{test}" for test in tests)
    for folder, below, files in ((_RUNTIME, "runtime/", _OF_RUNTIME), ("plugins", "", _OF_PLUGINS))
    for file, tests in files.items()
}


def code_of_ours() -> list[Path]:
    """All Python files whose functions the targets may call."""
    below = [path for folder in (_RUNTIME, "plugins") for path in (ROOT / folder).rglob("*.py")]
    return [path for path in below if "_pb2" not in path.name]
