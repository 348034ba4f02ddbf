# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of Kubernetes that end with a release, and those of them that a host uses: said before the upgrade, not by a kubelet that
does not start.

Pure. Data: from k8s.io/kubernetes 1.34.0, 1.35.0, 1.36.3, 1.37.2 and 1.38.0-beta.0, compared on 2026-11-29:

- gates: test/compatibility_lifecycle/reference/versioned_feature_list.yaml, which kubelet and all components of a control plane share.
  Those about devices stand in `_kubelet/gates.py`.
- kubelet's flags: cmd/kubelet/app/options/globalflags_linux.go
- kubeadm: `validateSupportedVersion` in cmd/kubeadm/app/util/config/common.go, and cmd/kubeadm/app/features/features.go
- cgroup v1: pkg/kubelet/apis/config/v1beta1/defaults.go
- the container runtime: kubelet's own metric cri_losing_support, and kubeadm's check ContainerRuntimeVersion

For a new release compare these files with it, add its rows, raise NEWEST, and date it in `looked_up.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ...module_utils._facts.cgroup_drivers import ANSWERS
from ...module_utils._facts.node import NodeFacts
from ...module_utils._formats.finding import ERROR, WARNING, Finding, HostFindings, few
from ...module_utils._formats.versions import numbers
from ...module_utils._kubelet.gates import TABLE, Release

#: The newest release that this is about, and the version of its that was read.
NEWEST, READ = 38, "1.38.0-beta.0"
#: Minor version of Kubernetes to the gates that it no longer knows.
GATES_GONE: Mapping[int, str] = {
    35: (
        "AllowServiceLBStatusOnNonLB ComponentSLIs CronJobsScheduledAnnotation LoadBalancerIPMode PodIndexLabel "
        "ProbeHostPodSecurityStandards SizeMemoryBackedVolumes StatefulSetAutoDeletePVC StrictCostEnforcementForVAP "
        "StrictCostEnforcementForWebhooks UserNamespacesPodSecurityStandards"
    ),
    36: (
        "CPUCFSQuotaPeriod CSIMigrationPortworx HonorPVReclaimPolicy InPlacePodVerticalScalingAllocatedStatus "
        "InTreePluginPortworxUnregister MemoryManager RuntimeClassInImageCriAPI ServiceTrafficDistribution "
        "StructuredAuthorizationConfiguration TopologyAwareHints WatchFromStorageWithoutResourceVersion"
    ),
    37: (
        "APIServerTracing AnonymousAuthConfigurableEndpoints AnyVolumeDataSource AuthorizeNodeWithSelectors "
        "AuthorizeWithSelectors BtreeWatchCache ConsistentListFromCache GangScheduling JobBackoffLimitPerIndex "
        "JobPodReplacementPolicy JobSuccessPolicy LogarithmicScaleDown OrderedNamespaceDeletion PodLifecycleSleepAction "
        "PodLifecycleSleepActionAllowZero PreventStaticPodAPIReferences RelaxedDNSSearchValidation "
        "ResilientWatchCacheInitialization RetryGenerateName SchedulerQueueingHints SidecarContainers "
        "StreamingCollectionEncodingToJSON StreamingCollectionEncodingToProtobuf StructuredAuthenticationConfiguration "
        "WorkloadAwarePreemption"
    ),
    38: (
        "AggregatedDiscoveryRemoveBetaType AllowOverwriteTerminationGracePeriodSeconds CRDValidationRatcheting "
        "CustomResourceFieldSelectors DisableAllocatorDualWrite ExecProbeTimeout InPlacePodVerticalScaling JobManagedBy "
        "KubeletTracing MatchLabelKeysInPodAffinity MultiCIDRServiceAllocator NFTablesProxyMode NodeSwap "
        "PodGroupPreemptionPolicy PodSchedulingReadiness PreferSameTrafficDistribution RecoverVolumeExpansionFailure "
        "SeparateTaintEvictionController ServiceAccountTokenJTI ServiceAccountTokenNodeBinding "
        "ServiceAccountTokenNodeBindingValidation ServiceAccountTokenPodNodeInfo SupplementalGroupsPolicy "
        "SystemdWatchdog WinDSR WinOverlay WindowsHostNetwork"
    ),
}
#: To the gates that it has locked as on, and as off; in the first row those that were before it.
GATES_ON: Mapping[int, str] = {
    34: (
        "APIServerTracing AnonymousAuthConfigurableEndpoints AnyVolumeDataSource AuthorizeNodeWithSelectors "
        "AuthorizeWithSelectors BtreeWatchCache CPUManagerPolicyOptions CRDValidationRatcheting CSIMigrationPortworx "
        "ConsistentListFromCache CustomResourceFieldSelectors HonorPVReclaimPolicy JobBackoffLimitPerIndex "
        "JobPodReplacementPolicy JobSuccessPolicy KubeletCgroupDriverFromCRI KubeletTracing LogarithmicScaleDown "
        "MatchLabelKeysInPodAffinity MemoryManager MultiCIDRServiceAllocator NFTablesProxyMode "
        "NodeInclusionPolicyInPodTopologySpread NodeSwap OrderedNamespaceDeletion PodLifecycleSleepAction "
        "PodLifecycleSleepActionAllowZero PodSchedulingReadiness RecoverVolumeExpansionFailure RecursiveReadOnlyMounts "
        "RelaxedDNSSearchValidation RelaxedEnvironmentVariableValidation ResilientWatchCacheInitialization "
        "RetryGenerateName SchedulerQueueingHints SeparateTaintEvictionController ServiceAccountTokenJTI "
        "ServiceAccountTokenNodeBinding ServiceAccountTokenNodeBindingValidation ServiceAccountTokenPodNodeInfo "
        "ServiceTrafficDistribution SidecarContainers StreamingCollectionEncodingToJSON "
        "StreamingCollectionEncodingToProtobuf StructuredAuthenticationConfiguration "
        "StructuredAuthorizationConfiguration TopologyAwareHints WinDSR WinOverlay"
    ),
    35: (
        "AggregatedDiscoveryRemoveBetaType DisableAllocatorDualWrite ExecProbeTimeout ImageMaximumGCAge "
        "InPlacePodVerticalScaling JobManagedBy PodObservedGenerationTracking PreferSameTrafficDistribution "
        "SupplementalGroupsPolicy SystemdWatchdog"
    ),
    36: (
        "CSIServiceAccountTokenSecrets DRAAdminAccess DeclarativeValidation DisableNodeKubeProxyVersion "
        "ExternalServiceAccountTokenSigner ImageVolume KubeletFineGrainedAuthz KubeletPSI "
        "KubeletPodResourcesDynamicResources KubeletPodResourcesGet MutableCSINodeAllocatableCount NodeLogQuery "
        "ProcMountType SELinuxChangePolicy SELinuxMountReadWriteOncePod UserNamespacesSupport VolumeAttributesClass"
    ),
    37: (
        "DRAExtendedResource DRAPrioritizedList DRAResourceClaimDeviceStatus DisableCPUQuotaWithExclusiveCPUs "
        "HPAConfigurableTolerance HostnameOverride InPlacePodVerticalScalingInitContainers NodeDeclaredFeatures "
        "PLEGOnDemandRelist PodReadyToStartContainersCondition RelaxedServiceNameValidation "
        "WatchCacheInitializationPostStartHook"
    ),
    38: (
        "AuthorizePodWebsocketUpgradeCreatePermission DRADeviceBindingConditions DRADeviceTaintRules DRADeviceTaints "
        "DRAPartitionableDevices EnvFiles ExtendWebSocketsToKubelet HPAGeneration PortForwardWebsockets "
        "StrictIPCIDRValidation TranslateStreamCloseWebsocketRequests"
    ),
}
GATES_OFF: Mapping[int, str] = {
    34: "WatchFromStorageWithoutResourceVersion",
    35: "AllowOverwriteTerminationGracePeriodSeconds",
    36: "GitRepoVolumeDriver SeparateCacheWatchRPC",
    37: "DeclarativeValidationTakeover",
}
#: To the flags that its kubelet no longer has. kubelet takes them with _ and with -.
FLAGS_GONE: Mapping[int, str] = {
    37: (
        "application-metrics-count-limit boot-id-file container-hints containerd containerd-namespace enable-load-reader "
        "event-storage-age-limit event-storage-event-limit global-housekeeping-interval log-cadvisor-usage machine-id-file "
        "storage-driver-buffer-duration storage-driver-db storage-driver-host storage-driver-password storage-driver-secure "
        "storage-driver-table storage-driver-user"
    )
}
#: To the versions of a ClusterConfiguration that its kubeadm no longer reads, each with the last kubeadm that migrates it.
KUBEADM_GONE: Mapping[int, Mapping[str, str]] = {22: {"v1beta1": "1.21"}, 27: {"v1beta2": "1.26"}, 37: {"v1beta3": "1.36"}}
#: To the feature gates of a ClusterConfiguration that its kubeadm no longer knows.
KUBEADM_GATES_GONE: Mapping[int, str] = {36: "ControlPlaneKubeletLocalMode", 37: "NodeLocalCRISocket PublicKeysECDSA"}
#: The first kubelet that does not start on cgroup v1 unless failCgroupV1 is false; the one that ends with runtimes without RuntimeConfig.
NO_CGROUP_V1, NEEDS_RUNTIME_CONFIG = 35, 38
_SHOWN, _MOST = 8, 80
# The order in which they are told.
_COMPONENTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")


class GateEnd(NamedTuple):
    """locked: the first minor release in which the gate has `value` and no other; gone: the first one that does not know it. None: none."""

    locked: int | None
    value: bool
    gone: int | None


def _of_table() -> dict[str, GateEnd]:
    ends = {gate.name: GateEnd(gate.locked, True, None if gate.until is None else gate.until + 1) for gate in TABLE.values()}
    for value, by_release in ((True, GATES_ON), (False, GATES_OFF)):
        ends.update({name: GateEnd(minor, value, None) for minor, names in by_release.items() for name in names.split()})
    for minor, names in GATES_GONE.items():
        ends.update({name: ends.get(name, GateEnd(None, True, None))._replace(gone=minor) for name in names.split()})
    return ends


#: Each gate that ends in some way.
GATES: Mapping[str, GateEnd] = _of_table()


def judge_kubelet(found: HostFindings, facts: NodeFacts, target: str) -> None:
    """The arguments of this host's kubelet, and the ground below it, that the release `target` does not take. target: "" for none."""
    release = _release(target)
    if release is None:
        return
    kubelet = facts.kubelet
    where = kubelet.config or "its arguments"
    for finding in _gates(kubelet.feature_gates, release, target, "that kubelet", where):
        found.add(finding, check="kubelet")
    gone = sorted(_ended(FLAGS_GONE, release).intersection(kubelet.flags))
    if gone:
        seen = f"kubelet's {few((f'--{name}' for name in gone), _SHOWN)}, which Kubernetes {target} does not have"
        cure = "take them out of kubelet's arguments before the upgrade: that kubelet does not start with a flag that it does not know"
        found.error("kubelet", seen, f"arguments that Kubernetes {target} takes", cure)
    if release >= (1, NO_CGROUP_V1) and fails_on_cgroup_v1(facts):
        seen = f"cgroup v1, on which the kubelet of Kubernetes {target} does not start by default"
        found.error("kubelet", seen, "cgroup v2", cgroup_cure(facts))
    _runtime(found, facts, release, target)
    if release > (1, NEWEST):
        seen = f"gpushare_target_kubernetes: {target}, of which this release of the collection knows nothing"
        cure = "read Kubernetes' own notes for that upgrade, or take a newer release of this collection"
        found.warn("kubelet", seen, f"1.{NEWEST} or older", cure)


def judge_control_plane(found: HostFindings, facts: NodeFacts, target: str) -> None:
    """The gates that the components of this control plane run with, and that the release `target` does not take."""
    release = _release(target)
    if release is None:
        return
    for name in _COMPONENTS:
        where = f"{name}'s manifest and of kubeadm's ClusterConfiguration"
        for finding in _gates(facts.control_plane.feature_gates.get(name, {}), release, target, f"that {name}", where):
            found.add(finding, check="control_plane", found=f"{name} with {finding.found}")


def judge_kubeadm(found: HostFindings, version: str, gates: Sequence[str], target: str) -> None:
    """A ClusterConfiguration that the kubeadm of the release `target` does not read. version: such as "v1beta4", "" for none."""
    release = _release(target)
    if release is None or not version:
        return
    expected = f"one that kubeadm {target} reads"
    for minor, versions in KUBEADM_GONE.items():
        if (1, minor) <= release and version in versions:
            cure = (
                f"run `kubeadm config migrate` of kubeadm 1.31 to {versions[version]} with it before the upgrade, store what that writes "
                "(kubeadm init phase upload-config kubeadm --config FILE), and run site again"
            )
            if version != "v1beta3":
                cure = f"upgrade with kubeadm release by release: up to {versions[version]} it reads {version}, and writes a newer one"
            found.error("kubernetes", f"a ClusterConfiguration {version}", expected, cure)
    gone = _ended(KUBEADM_GATES_GONE, release).intersection(gates)
    if gone:
        seen = f"a ClusterConfiguration with kubeadm's feature gate {few(sorted(gone), _SHOWN)}"
        cure = "take it out of featureGates there (kubectl -n kube-system edit configmap kubeadm-config): that kubeadm rejects it"
        found.error("kubernetes", seen, expected, cure)


def fails_on_cgroup_v1(facts: NodeFacts) -> bool:
    """Whether a kubelet from 1.35 on does not start here."""
    return facts.system is not None and facts.system.cgroup == 1 and facts.kubelet.fail_cgroup_v1 is not False


def cgroup_cure(facts: NodeFacts) -> str:
    """How such a kubelet starts."""
    where = facts.kubelet.config or "kubelet's configuration"
    return f"boot the host with cgroup v2 (systemd.unified_cgroup_hierarchy=1), or set failCgroupV1: false in {where}"


def rows() -> Iterator[tuple[str, str, str]]:
    """(release, what ends with it, what happens to who still uses it) for the docs, the newest first."""
    for minor in range(NEWEST, min(GATES_GONE) - 1, -1):
        names = sorted({*GATES_GONE.get(minor, "").split(), *(gate.name for gate in TABLE.values() if gate.until == minor - 1)})
        stops = "the component does not start"
        parts = [("feature gates", names, stops), ("flags of kubelet", [f"--{name}" for name in FLAGS_GONE.get(minor, "").split()], stops)]
        parts.append(("kubeadm's ClusterConfiguration", list(KUBEADM_GONE.get(minor, {})), "kubeadm rejects it"))
        parts.append(("feature gates of kubeadm", KUBEADM_GATES_GONE.get(minor, "").split(), "kubeadm rejects it"))
        for what, listed, effect in parts:
            if listed:
                yield f"1.{minor}", f"{what} {', '.join(f'`{name}`' for name in listed)}", effect
        if minor == NEEDS_RUNTIME_CONFIG:
            kinds = " and ".join(f"{name} before {'.'.join(map(str, since))}" for name, since in ANSWERS.items())
            yield f"1.{minor}", kinds, f"announced by Kubernetes; {READ} still starts with them: a warning"
        if minor == NO_CGROUP_V1:
            yield f"1.{minor}", "cgroup v1", "kubelet does not start, unless `failCgroupV1: false` is set"


def _ended(by_release: Mapping[int, str], release: Release) -> set[str]:
    """All names up to this release."""
    return {name for minor, names in by_release.items() if (1, minor) <= release for name in names.split()}


def _release(target: str) -> Release | None:
    version = numbers(target)
    return None if version is None else (version[0], version[1] if len(version) > 1 else 0)


def _gates(given: Mapping[str, bool], release: Release, target: str, program: str, where: str) -> Iterator[Finding]:
    """Findings without a check. program: the one that does not start; where: the place of the gate."""
    expected = f"arguments that Kubernetes {target} takes"
    for name in sorted(given):
        end = GATES.get(name)
        if end is None:
            continue
        gone, locked = end.gone is not None and release >= (1, end.gone), end.locked is not None and release >= (1, end.locked)
        stops = f"take it out of {where} before the upgrade: {program} does not start with it"
        if gone:
            yield Finding("", f"the feature gate {name}, which Kubernetes {target} does not know", expected, stops, ERROR)
        elif locked and given[name] is not end.value:
            seen = f"the feature gate {name}={str(given[name]).lower()}, which is locked to {str(end.value).lower()} in Kubernetes {target}"
            yield Finding("", seen, expected, stops, ERROR)
        elif locked:
            cure = f"take it out of {where}: a later release does not know it"
            yield Finding("", f"the feature gate {name}, which is locked in Kubernetes {target}", expected, cure, WARNING)


def _runtime(found: HostFindings, facts: NodeFacts, release: Release, target: str) -> None:
    # k3s and RKE2 bring it with them.
    name = facts.kubelet.runtime or ""
    if release < (1, NEEDS_RUNTIME_CONFIG) or name not in ANSWERS or facts.distribution.name in ("k3s", "rke2"):
        return
    for runtime in facts.runtimes or ():
        version = numbers(runtime.version) if runtime.name == name else None
        if version is not None and version[:2] < ANSWERS[name]:
            since = ".".join(map(str, ANSWERS[name]))
            cure = f"upgrade it first: kubelet {target} is announced not to work with a runtime that lacks RuntimeConfig of the CRI"
            found.warn(
                "runtime", f"{name} {str(runtime.version)[:_MOST]}, with gpushare_target_kubernetes: {target}", f"{since} or newer", cure
            )
