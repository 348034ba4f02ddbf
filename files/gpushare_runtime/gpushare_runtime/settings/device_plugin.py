# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The settings of gpushare-device-plugin."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.quantity import GIB, UNITS, Unit, parse_unit
from gpushare_runtime.settings import common
from gpushare_runtime.settings.common import Address
from gpushare_runtime.settings.schema import (
    CLUSTER,
    HOST_PATH,
    OWN,
    ChoiceType,
    Clash,
    ListType,
    NumberType,
    SwitchType,
    TextType,
    folder,
    not_by_claims,
    setting,
)

AUTO: Final = "auto"
REPORT, EVICT = "report", "evict"
EXTENDER, DRA = "extender", "dra"
NODE, NONE = "node", "none"
#: auto: the driver's limits where they are possible, else watch. driver: the plugin serves only with them. mps: the control daemons'
#: limits. watch: no limits, pods that exceed their units are reported. none: they are not reported either.
ISOLATIONS: Final = (AUTO, protocol.ISOLATION_DRIVER, protocol.ISOLATION_MPS, protocol.ISOLATION_WATCH, protocol.ISOLATION_NONE)
# By size, as people choose.
_UNITS: Final = tuple(sorted(UNITS, key=lambda name: -UNITS[name].mib))
_CDI: Final = " and ".join(protocol.CDI_FOLDERS)


@dataclass(frozen=True)
class DevicePluginConfig:
    """As a file or a command line has them. The order is that of the file and of the docs."""

    node: str = setting(
        "",
        "name of this node in Kubernetes (or NODE_NAME)",
        TextType("a name of at most 253 letters, digits, dots and dashes", r"[A-Za-z0-9]([-A-Za-z0-9.]{0,251}[A-Za-z0-9])?"),
        key="nodeName",
        option="node-name",
        environment="NODE_NAME",
    )
    unit: Unit = setting(
        GIB,
        "size of one unit of gpu-mem",
        ChoiceType(_UNITS, parse_unit),
        key="memoryUnit",
        option="memory-unit",
        variable="gpushare_memory_unit",
        chart="memoryUnit",
        agrees="does not change while pods have memory of the node's GPUs",
        description="Size of one unit of C(aliyun.com/gpu-mem). A smaller unit makes more ids, of which kubelet accepts about 67,000 per "
        "node. Preflight rejects a unit that makes too many. It also rejects a change while pods have memory of the node's GPUs.",
        meaning="Size of one unit of `aliyun.com/gpu-mem`. A smaller unit makes more ids, of which kubelet accepts about 67,000 "
        "per node. Change it only while no pod has memory of GPUs.",
    )
    kubeconfig: str | None = setting(None, "(or KUBECONFIG); without: in-cluster", TextType("the path of a file"), metavar="FILE")
    kubelet_root: Path = setting(
        Path(protocol.KUBELET_ROOT),
        "kubelet's --root-dir, which has its podresources API",
        folder(),
        metavar="DIR",
        agrees="must be the folder of this node's kubelet",
        variable="gpushare_kubelet_root",
        hosts=False,
        apart=True,
        chart="kubeletRoot",
        description="C(--root-dir) of the kubelets on GPU nodes, which has C(pod-resources).",
    )
    device_plugins_dir: Path = setting(
        Path(protocol.KUBELET_PLUGIN_DIR), "kubelet's folder of device plugins, which its --root-dir does not move", folder(), metavar="DIR"
    )
    state: Path | None = setting(
        None,
        "folder of the plugin's notes for its next process (or STATE_DIRECTORY); default /run/gpushare-device-plugin, which a reboot "
        "empties",
        folder(),
        key="stateDir",
        option="state-dir",
        metavar="DIR",
    )
    seed_token_file: Path | None = common.seed_token_file()
    token_file: Path | None = common.token_file()
    token_seconds: int = common.token_seconds()
    backend: str = setting(
        EXTENDER,
        f"the scheduler extender places pods, or kube-scheduler does by dynamic resource allocation; {DRA} needs Kubernetes 1.37 and CDI",
        ChoiceType((EXTENDER, DRA)),
    )
    strategy: str = setting(
        protocol.STRATEGY_ENVIRONMENT,
        f"how containers get their GPUs, by default as the original; {AUTO}: {protocol.STRATEGY_MOUNTS}, in a container by what is seen of "
        "the node",
        ChoiceType((AUTO, *protocol.STRATEGIES)),
        key="deviceStrategy",
        option="device-strategy",
        variable="gpushare_device_strategy",
        apart=True,
        clashes=(not_by_claims(protocol.STRATEGY_MOUNTS, protocol.STRATEGY_ENVIRONMENT),),
        chart="deviceStrategy",
        preset=AUTO,
        agrees="on hosts the role chooses; does not change while pods have GPUs",
        description="How containers get their GPUs on this host, and so which GPUs a container sees that it has not requested. V(cdi) "
        "requires CDI in kubelet and the container runtime, V(volume-mounts) and V(envvar) require C(nvidia) as default runtime. With "
        "V(envvar) the environment of any container selects GPUs. V(auto) is V(cdi) where the host supports it, else V(volume-mounts). "
        "The strategy does not change while pods have GPUs.",
        meaning="How containers get their GPUs, and so which GPUs a container sees that it has not requested. `cdi` requires CDI "
        "in kubelet and the container runtime, `volume-mounts` and `envvar` require NVIDIA's runtime. With `envvar` the "
        "environment of any container selects GPUs. With `auto` the device plugin of each node chooses. The strategy does "
        "not change while pods have GPUs.",
    )
    isolation: str = setting(
        AUTO,
        "keep each pod to its units by the driver (r615 or newer), by MPS, by watching it, or not; auto: by the driver where possible, "
        "else by watching",
        ChoiceType(ISOLATIONS, chart=(AUTO, protocol.ISOLATION_DRIVER, protocol.ISOLATION_WATCH, protocol.ISOLATION_NONE)),
        variable="gpushare_isolation",
        clashes=(
            Clash(
                {"gpushare_deploy_mode": ("kubernetes",), OWN: (protocol.ISOLATION_MPS,)},
                "another isolation",
                "set gpushare_isolation to auto, watch, driver or none, or gpushare_deploy_mode: systemd",
            ),
        ),
        chart="isolation",
        agrees="`none` measures nothing, so that `overuse: evict` needs another one",
        description="Mechanism that keeps each pod to its units. V(driver): NVIDIA's driver, 620 (long-term) or 615, with cgroup v2 and no "
        "MIG; a node without it has no GPUs for pods. V(mps): MPS control daemons, one per GPU, on GPUs from Volta on without MIG. "
        "V(watch): nothing, pods that exceed their units are reported. V(none): they are not reported either. V(auto) is V(driver) where "
        "possible, else V(watch). Where the daemons are pods, V(auto) is V(watch), and V(mps) is rejected. V(mps) is set and left only "
        "while no pod has GPUs. With limits by the driver the device plugin has the capability C(CAP_SYS_ADMIN), because the driver "
        "requires it.",
        meaning="Mechanism that keeps each pod to its units. `watch`: nothing, pods that exceed their units are reported. "
        "`driver`: NVIDIA's driver, 620 (long-term) or 615, with cgroup v2 and no MIG. A node without it has no GPUs for "
        "pods, and the device plugin has the capability `CAP_SYS_ADMIN`. `none`: they are not reported either. `auto` is "
        "`watch`.",
    )
    limit_running_pods: bool = setting(
        False,
        "also limit pods that started before limits were possible",
        SwitchType(),
        variable="gpushare_limit_running_pods",
        description="Whether the device plugin also limits pods that started before their node had limits. Such a pod may use more than "
        "its units already. Then its next allocation fails.",
    )
    overuse: str = setting(
        REPORT,
        "consequence for a pod that uses more memory than its units: an Event, or also its eviction",
        ChoiceType((REPORT, EVICT)),
        variable="gpushare_overuse",
        scope=CLUSTER,
        clashes=(not_by_claims(EVICT),),
        chart="overuse",
        agrees="`evict` has no effect unless the extender evicts, too",
        description="Consequence for a pod that uses more memory of a GPU than its units for C(gpushare_overuse_grace) seconds. V(report) "
        "means an Event and a metric. With V(evict) the extender also evicts the pod through the Eviction API, as soon as its disruption "
        "budgets allow. This requires ValidatingAdmissionPolicy (Kubernetes 1.30).",
    )
    # Long enough for several readings.
    overuse_grace: int = setting(
        60,
        "time above its units after which the eviction of a pod is requested",
        NumberType(10, 86400, "seconds"),
        metavar="SECONDS",
        variable="gpushare_overuse_grace",
        chart="overuseGrace",
        description="Seconds from 10 to 86400. A pod is evicted if it uses more than its units at every reading of this time, with "
        "O(gpushare_overuse=evict).",
    )
    unstartable: str = setting(
        REPORT,
        "consequence for a pod that can never start with the ids that it has: its Event from kubelet, or also its eviction",
        ChoiceType((REPORT, EVICT)),
        variable="gpushare_unstartable",
        scope=CLUSTER,
        agrees="`evict` has no effect unless the extender evicts, too",
        description="Consequence for a pod that can never start with the units that it got, of which no container runs. V(report) means "
        "that kubelet's Events on the pod say so, until the pod is deleted. With V(evict) the extender also evicts the pod, so that its "
        "controller creates it again. A pod without a controller is then gone. This requires ValidatingAdmissionPolicy (Kubernetes 1.30).",
    )
    unhealthy: str = setting(
        REPORT,
        f"consequence for the pods of a GPU that fails, with the back end {DRA}: their status and an Event say so, or Kubernetes "
        "also evicts them",
        ChoiceType((REPORT, EVICT)),
        variable="gpushare_unhealthy",
        hosts=False,
        clashes=(
            Clash(
                {OWN: (EVICT,), "gpushare_backend": (EXTENDER,)},
                "report: only Kubernetes evicts the pods of a GPU that fails, by claims",
                "leave it out",
                f"gpushare_unhealthy: {EVICT} without gpushare_backend: {DRA}",
            ),
        ),
        chart="unhealthy",
        agrees=f"`evict` requires `backend: {DRA}`",
        description="Consequence for the pods of a GPU that fails, with C(gpushare_backend=dra). V(report) means that the pods' status and "
        "an Event of the node say so, and the pods go on. With V(evict) the device of a GPU that has itself failed, by several readings, "
        "has a taint C(NoExecute). Kubernetes deletes its pods by that at once, without asking their disruption budgets, and their "
        "controllers create them again. A pod without a controller is then gone. Trouble of the driver or of CDI specs evicts no pod.",
        meaning="Consequence for the pods of a GPU that fails, with `backend: dra`. `report`: the pods' status and an Event of the node "
        "say so, and the pods go on. `evict`: the device of a GPU that has itself failed, by several readings, has a taint `NoExecute`. "
        "Kubernetes deletes its pods by that at once, without asking their disruption budgets, and their controllers create them again.",
    )
    health_checks: int = setting(
        3,
        "checks in a row, one every two seconds, that a failed GPU must pass before pods may use it again",
        NumberType(1, 43200),
        metavar="N",
        variable="gpushare_health_checks",
        chart="healthChecks",
        description="Number of checks in a row, from 1 to 43200, that a failed GPU must pass before pods may use it again; after an "
        "XID at least three. The device plugin checks every two seconds. With more of them, a GPU that fails again and again stays out of "
        "use for longer.",
    )
    publish_use: str = setting(
        NODE,
        "publish the use that pods make of the GPUs: by an annotation of the node at most once a minute, or not",
        ChoiceType((NODE, NONE)),
        variable="gpushare_publish_use",
        chart="publishUse",
        description="Where the device plugin publishes the use that pods make of the node's GPUs. With V(node) it writes the annotation "
        "C(gpushare/use) of the node, at most once a minute, and only a difference that a person would notice. C(kubectl gpushare) and "
        "the dashboard show it where there is no Prometheus. Everybody who may read nodes may read it. V(none) means nowhere.",
    )
    cdi_folders: tuple[str, ...] = setting(
        (),
        f"folder of CDI specs; repeat it for others, the last one first (default {_CDI})",
        ListType(TextType("an absolute path", r"/[^\0]*"), 16),
        key="cdiSpecDirs",
        option="cdi-spec-dir",
        metavar="DIR",
    )
    cdi_dir: Path | None = setting(
        None,
        f"write a CDI spec {protocol.CDI_FILE} there for devices {protocol.CDI_KIND_OWN}, where none of {protocol.CDI_KIND} fits the GPUs; "
        "the only folder of CDI specs, unless --cdi-spec-dir names others",
        folder(),
        metavar="DIR",
        agrees="requires `hostRoot`",
        variable="gpushare_cdi_dir",
        hosts=False,
        chart="cdiDir",
        preset="/var/run/cdi",
        description="Folder of CDI specs on the nodes that a reboot empties. Where none there of C(nvidia.com/gpu) fits the node's GPUs, "
        "the device plugin writes C(gpushare.json), with the strategies V(cdi) and V(auto) of O(gpushare_device_strategy).",
    )
    host_root: Path | None = setting(
        None, "below which the host's /usr, /dev and /run/nvidia are mounted, for --cdi-dir", folder(), metavar="DIR"
    )
    driver_root: str = setting(
        "",
        "of the driver's files, as the host sees it (default: /run/nvidia/driver if it has them, else /)",
        TextType("an absolute path, or nothing", r"(?:/[^\0]*)?", charted="(/[A-Za-z0-9_@.+:,=-]+)*", form=HOST_PATH),
        metavar="DIR",
        variable="gpushare_driver_root",
        hosts=False,
        chart="driverRoot",
        description="Root folder of the NVIDIA driver's files on the nodes. Empty means C(/run/nvidia/driver), where the GPU Operator's "
        "driver has them, if they are there, else C(/).",
    )
    runtime_class: str = setting(
        "",
        "of this pod; default: it has the nodes' default runtime",
        TextType("the name of a RuntimeClass, or nothing", charted="([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?"),
        metavar="NAME",
        variable="gpushare_runtime_class",
        hosts=False,
        apart=True,
        chart="runtimeClass",
        preset="gpushare-nvidia",
        description="RuntimeClass by which the device plugin's pods get the driver's libraries. V(gpushare-nvidia) is made here, for the "
        "handler C(nvidia), and a policy rejects pods of other namespaces that name it. Another one must be there, and any pod may name "
        "it. Empty where NVIDIA's runtime is the default of the nodes.",
        meaning="RuntimeClass by which the device plugin's pods get the driver's libraries. The chart makes `gpushare-nvidia` for "
        "the handler `nvidia`, and a policy that rejects pods of other namespaces that name it. Another one must be "
        "there, and any pod may name it. Empty where NVIDIA's runtime is the default of the nodes.",
    )
    in_container: bool = setting(False, "the host is seen through mounts only, and another library needs a new container", SwitchType())
    cgroup_root: Path | None = setting(
        None, "where the host's control groups are mounted (default: their first mount)", folder(), metavar="DIR"
    )
    dev_root: Path = setting(Path("/dev"), "where the host's /dev is mounted", folder(), metavar="DIR")
    metrics_listen: Address | None = common.metrics_listen("127.0.0.1:9440")
    metrics_token_file: Path | None = common.metrics_token_file()
    health_listen: Address | None = common.health_listen("0.0.0.0:9443")
    log_level: str = common.log_level()
