# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The objects of the API that verify needs: nodes, pods that have or ask for GPUs, schedulers, and how our own objects differ.

Every object is cut down to what is judged: the result travels to the controller once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Callable, Collection, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, TypedDict
from urllib.parse import urlencode

from .._cluster.dra import PublishedDriver
from .._cluster.kubectl import Kubectl
from .._cluster.names import (
    ANNOTATION_GPUS,
    ANNOTATION_MIRROR,
    ANNOTATION_PREFIXES,
    ANNOTATION_SCHEDULER_CONFIG,
    EVENT_UNMANAGED,
    GPUS,
    LABEL_NODE,
    LABEL_PROBE,
    MEMORY,
    NAMESPACE,
    PROBE,
)
from .._cluster.objects import WantedObjects, converge
from .._facts.capacity import AnnotationError, published
from .._formats.answers import ModuleAnswer
from .._formats.quantity import quantity
from .._scheduler import manifest, proof
from .admission import AdmissionEvidence

#: Above this many, one list is cheaper than one request for each name.
MANY_NODES = 20
#: A leader renews its Lease every 2 s, and another may take it after 15 s.
_RENEWED_SECONDS, _LOOK_SECONDS = 60.0, 10.0
_ROOM = ("cpu", "memory", "pods")
_MOST_LEASES, _MOST_TAINTS, _SHOWN, _LONGEST_REASON = 20, 20, 80, 1000
_CONTROLLERS = "kube-controller-manager"
#: An API server keeps Events for an hour.
_EVENT_SECONDS = 3600.0
_MOST_EVENTS, _MOST_PASSED = 500, 5


class RunningContainer(TypedDict):
    """A container that runs. started: Unix time."""

    name: str
    id: str
    started: float


class AskingContainer(TypedDict):
    """A container, with the units and GPUs that it asks for. index: init containers count down from -1."""

    index: int
    name: str
    units: int
    gpus: int
    privileged: bool


class PodEvidence(TypedDict):
    """A pod cut down. scheduling: the scheduler's words about it. waiting: why containers do."""

    namespace: str
    name: str
    uid: str
    node: str
    scheduler: str
    phase: str
    message: str
    deleted: bool
    probe: bool
    annotations: Dict[str, str]
    containers: List[AskingContainer]
    running: List[RunningContainer]
    waiting: List[str]
    scheduling: str


class ProbeEvidence(PodEvidence):
    """A probe pod cut down. changed: its fields that admission of others has changed."""

    changed: List[str]


class NodeMetadata(TypedDict):
    """The metadata of a node cut down."""

    name: str
    labels: Dict[str, str]
    annotations: Dict[str, str]


class NodeCondition(TypedDict):
    """A condition of a node cut down."""

    type: str
    status: str
    reason: str
    message: str


class NodeStatus(TypedDict):
    """The status of a node cut down."""

    capacity: Dict[str, Any]
    allocatable: Dict[str, Any]
    conditions: List[NodeCondition]


class NodeEvidence(TypedDict):
    """A node cut down, as Kubernetes has it. nothing_of: the room of pods that it has none of."""

    metadata: NodeMetadata
    cordoned: bool
    nothing_of: List[str]
    taints: List[str]
    status: NodeStatus


class StoppedContainer(TypedDict, total=False):
    """Why a container waits, or how it ended."""

    exitCode: int
    reason: str
    message: str


class RunningState(TypedDict):
    """Nothing of a container that runs but that it does."""


class ContainerState(TypedDict, total=False):
    """The state of a container, under one of these keys."""

    running: RunningState
    waiting: StoppedContainer
    terminated: StoppedContainer


class ContainerStatus(TypedDict, total=False):
    """The status of a container cut down."""

    restartCount: int
    state: ContainerState
    lastState: ContainerState


class _Mount(TypedDict):
    name: str
    mountPath: str


class MirrorMount(_Mount, total=False):
    """A mount of a volume cut down."""

    subPath: str


class MirrorContainer(TypedDict, total=False):
    """A container of a static pod cut down."""

    name: str
    image: str
    command: List[str]
    args: List[str]
    volumeMounts: List[MirrorMount]


class HostPath(TypedDict):
    """A folder of the host."""

    path: str


class HostVolume(TypedDict):
    """A volume that is a folder of the host."""

    name: str
    hostPath: HostPath


class MirrorMetadata(TypedDict):
    """The metadata of a static pod cut down."""

    name: str
    annotations: Dict[str, str]


class MirrorSpec(TypedDict):
    """The spec of a static pod cut down: its containers that are kube-scheduler."""

    containers: List[MirrorContainer]
    volumes: List[HostVolume]


class MirrorStatus(TypedDict):
    """The status of a static pod cut down."""

    containerStatuses: List[ContainerStatus]


class MirrorEvidence(TypedDict):
    """The API's copy of kube-scheduler's static pod cut down, as Kubernetes has it."""

    kind: str
    metadata: MirrorMetadata
    spec: MirrorSpec
    status: MirrorStatus


class LeaseEvidence(TypedDict):
    """A Lease. holder: "" for none. alive: whether it is renewed."""

    holder: str
    alive: bool


class PassedBy(TypedDict):
    """A pod that came to its node past the extender. by: the scheduler that placed it, and its host or pod, such as
    default-scheduler-cp1; "" where none did, or its Event is gone.
    """

    uid: str
    by: str


class ObjectsEvidence(TypedDict):
    """Titles of our objects that are missing, that differ, and that this API server does not serve (unserved)."""

    missing: List[str]
    differs: List[str]
    unserved: List[str]


@dataclass(frozen=True)
class ClusterEvidence:
    """All that verify sees of the API. labelled: nodes with our label where no device plugin has been. schedulers: by node. leases: by
    name.
    """

    nodes: List[NodeEvidence]
    labelled: List[str]
    pods: List[PodEvidence]
    passed_by: List[PassedBy]
    schedulers: Dict[str, Optional[MirrorEvidence]]
    leases: Dict[str, LeaseEvidence]
    admission: AdmissionEvidence
    objects: ObjectsEvidence
    dra: List[PublishedDriver]


@dataclass(frozen=True)
class SeenCluster(ModuleAnswer):
    """The answer of gpushare_verify_cluster about evidence."""

    seen: ClusterEvidence


def nodes(kubectl: Kubectl, names: Collection[str]) -> List[NodeEvidence]:
    """The nodes of these names that exist."""
    if not names:
        return []
    wanted = sorted(names) if len(names) <= MANY_NODES else []
    found = kubectl.items(["get", "nodes", *wanted, "--ignore-not-found"])
    return [_node(item) for item in found if item["metadata"]["name"] in names]


def labelled(kubectl: Kubectl) -> List[str]:
    """Nodes with the label of a GPU node, on which no device plugin has ever published GPUs: one that has stopped leaves its annotation."""
    found = kubectl.pages("/api/v1/nodes", labelSelector=f"{LABEL_NODE}=true")
    bare = (item["metadata"] for item in found if ANNOTATION_GPUS not in (item["metadata"].get("annotations") or {}))
    return sorted(str(metadata["name"]) for metadata in bare)[:_MOST_LEASES]


def settled(node: NodeEvidence) -> bool:
    """Whether the node is Ready and kubelet reports what the device plugin has published: it tells the API every ten seconds only."""
    status = node["status"]
    ready = any(condition["status"] == "True" for condition in status["conditions"])
    try:
        gpus = published(node["metadata"]["annotations"][ANNOTATION_GPUS]).gpus
    except (KeyError, AnnotationError):
        return False
    usable = [gpu for gpu in gpus if gpu.usable]
    offered = [quantity(status["allocatable"].get(name, 0)) for name in (MEMORY, GPUS)]
    return ready and offered == [sum(gpu.units for gpu in usable), len(usable)]


def pods(kubectl: Kubectl) -> List[PodEvidence]:
    """Every pod of ours that has not ended: it asks for our resources, or carries our annotations."""
    found = kubectl.pages("/api/v1/pods", fieldSelector="status.phase!=Succeeded,status.phase!=Failed")
    return [pod(item) for item in found if _asks(item)]


def schedulers(kubectl: Kubectl, names: Iterable[str]) -> Dict[str, Optional[MirrorEvidence]]:
    """Node to the API's copy of its kube-scheduler's static pod."""
    found: Dict[str, Optional[MirrorEvidence]] = {}
    for name in sorted(names):
        items = kubectl.items(["get", "pods", "--namespace", NAMESPACE, "--field-selector", f"spec.nodeName={name}"])
        mirror = proof.find_static_pod(items)
        found[name] = None if mirror is None else _mirror(mirror)
    return found


def leases(
    kubectl: Kubectl, clock: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep
) -> Dict[str, LeaseEvidence]:
    """Leases by name, those that schedulers and controllers have.

    clock: Unix time.
    """
    before = _leases(kubectl)
    alive = {name: abs(clock() - renewed) < _RENEWED_SECONDS for name, (_holder, renewed) in before.items()}
    after = before
    if not all(alive.values()):
        # By this host's clock. A scheduler renews its Lease every two seconds: a second reading needs no clock.
        sleep(_LOOK_SECONDS)
        after = _leases(kubectl)
    return {
        name: {"holder": holder, "alive": alive.get(name, True) or renewed != before[name][1]} for name, (holder, renewed) in after.items()
    }


def _leases(kubectl: Kubectl) -> Dict[str, Tuple[str, float]]:
    found: Dict[str, Tuple[str, float]] = {}
    for item in kubectl.pages(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases", optional=True):
        name, spec = str(item["metadata"]["name"]), item.get("spec") or {}
        if ("scheduler" in name or name == _CONTROLLERS) and len(found) < _MOST_LEASES:
            try:
                renewed = proof.parse_time(str(spec.get("renewTime"))).timestamp()
            except ValueError:
                renewed = 0.0
            found[name] = str(spec.get("holderIdentity") or "")[:_SHOWN], renewed
    return found


def passed_by(kubectl: Kubectl, found: Sequence[PodEvidence], clock: Callable[[], float] = time.time) -> List[PassedBy]:
    """The newest pods that came to their node past the extender in the last hour. found: pods as pods() has them. clock: Unix time."""
    known = {pod["uid"]: pod for pod in found if pod["uid"] and pod["node"] and not pod["deleted"]}
    newest: Dict[str, float] = {}
    for event in _events(kubectl, "/api/v1/events", f"reason={EVENT_UNMANAGED}"):
        uid, when = str((event.get("involvedObject") or {}).get("uid", "")), _event_time(event)
        if uid in known and clock() - when < _EVENT_SECONDS:
            newest[uid] = max(when, newest.get(uid, 0.0))
    uids = sorted(newest, key=lambda uid: -newest[uid])[:_MOST_PASSED]
    return [{"uid": uid, "by": _placed_by(kubectl, known[uid])} for uid in uids]


def _placed_by(kubectl: Kubectl, pod: PodEvidence) -> str:
    where = f"/api/v1/namespaces/{pod['namespace']}/events"
    events = _events(kubectl, where, f"reason=Scheduled,involvedObject.uid={pod['uid']}")
    # The scheduler's name, "-" and the name of its host, which is a pod's where that has no host's network (client-go v0.37.2,
    # tools/events/event_broadcaster.go).
    return next((str(event["reportingInstance"])[:_SHOWN] for event in events if event.get("reportingInstance")), "")


def _events(kubectl: Kubectl, path: str, fields: str) -> List[Dict[str, Any]]:
    """Some of them: users may write as many as they like."""
    page = kubectl.raw(f"{path}?{urlencode({'fieldSelector': fields, 'limit': _MOST_EVENTS})}")
    return list((page or {}).get("items") or [])


def _event_time(event: Mapping[str, Any]) -> float:
    """Unix time, 0 for none."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    try:
        return proof.parse_time(str(next(filter(None, times), ""))).timestamp()
    except ValueError:
        return 0.0


def objects(kubectl: Kubectl, wanted: Sequence[Mapping[str, Any]]) -> ObjectsEvidence:
    """How our objects in the cluster differ from these, by the server's own dry run."""
    result = converge(kubectl, WantedObjects(apply=wanted, skip_unserved=True), check_mode=True)
    missing = [change["before_header"] for change in result.diff if not change["before"]]
    return {"missing": missing, "differs": [title for title in result.objects if title not in missing], "unserved": result.unserved}


def pod(item: Mapping[str, Any]) -> PodEvidence:
    """The pod cut down."""
    metadata, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    containers = [_container(index, container) for index, container in enumerate(spec.get("containers") or [])]
    containers += [_container(-1 - index, container) for index, container in enumerate(spec.get("initContainers") or [])]
    statuses = [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]
    return {
        "namespace": metadata.get("namespace", ""),
        "name": metadata["name"],
        "uid": metadata.get("uid", ""),
        "node": spec.get("nodeName", ""),
        "scheduler": spec.get("schedulerName", ""),
        "phase": status.get("phase", ""),
        "message": status.get("message", ""),
        "deleted": "deletionTimestamp" in metadata,
        "probe": (metadata.get("labels") or {}).get(LABEL_PROBE) == PROBE,
        "annotations": {key: value for key, value in (metadata.get("annotations") or {}).items() if key.startswith(ANNOTATION_PREFIXES)},
        "containers": containers,
        "running": [_status(container) for container in statuses if "running" in (container.get("state") or {})],
        "waiting": [_waiting(container) for container in statuses if "waiting" in (container.get("state") or {})],
        "scheduling": proof.scheduling_message(item),
    }


def _asks(item: Mapping[str, Any]) -> bool:
    containers = [*(item["spec"].get("containers") or []), *(item["spec"].get("initContainers") or [])]
    asked = any(_amount(container, name) for container in containers for name in (MEMORY, GPUS))
    return asked or any(key.startswith(ANNOTATION_PREFIXES) for key in item["metadata"].get("annotations") or {})


def _amount(container: Mapping[str, Any], resource: str) -> int:
    return quantity(((container.get("resources") or {}).get("limits") or {}).get(resource, 0)) or 0


def _container(index: int, container: Mapping[str, Any]) -> AskingContainer:
    return {
        "index": index,
        "name": container["name"],
        "units": _amount(container, MEMORY),
        "gpus": _amount(container, GPUS),
        "privileged": (container.get("securityContext") or {}).get("privileged") is True,
    }


def _status(container: Mapping[str, Any]) -> RunningContainer:
    identity = str(container.get("containerID", "")).partition("://")[2]
    started = proof.parse_time(container["state"]["running"]["startedAt"]).timestamp()
    return {"name": container["name"], "id": identity, "started": started}


def _waiting(container: Mapping[str, Any]) -> str:
    waiting = container["state"]["waiting"]
    return f"{waiting.get('reason', '')} {waiting.get('message', '')}".strip()


def _node(item: Mapping[str, Any]) -> NodeEvidence:
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    annotations, taints = metadata.get("annotations") or {}, spec.get("taints") or []
    return {
        "metadata": {
            "name": metadata["name"],
            "labels": metadata.get("labels") or {},
            "annotations": {key: value for key, value in annotations.items() if key.startswith(ANNOTATION_PREFIXES)},
        },
        "cordoned": spec.get("unschedulable") is True,
        # The room of pods on it, of which a probe pod asks for nothing.
        "nothing_of": [name for name in _ROOM if str((status.get("allocatable") or {}).get(name, "")) == "0"],
        "taints": [str(taint["key"])[: 4 * _SHOWN] for taint in taints if taint["effect"] != "PreferNoSchedule"][:_MOST_TAINTS],
        "status": {
            "capacity": {key: value for key, value in (status.get("capacity") or {}).items() if key in (MEMORY, GPUS)},
            "allocatable": {key: value for key, value in (status.get("allocatable") or {}).items() if key in (MEMORY, GPUS)},
            "conditions": [_condition(c) for c in status.get("conditions") or [] if c["type"] == "Ready"],
        },
    }


def _condition(found: Mapping[str, Any]) -> NodeCondition:
    kind, status, reason, message = (str(found.get(key) or "")[:_LONGEST_REASON] for key in ("type", "status", "reason", "message"))
    return {"type": kind, "status": status, "reason": reason, "message": message}


def _mirror(item: Mapping[str, Any]) -> MirrorEvidence:
    annotations, spec = item["metadata"]["annotations"], item["spec"]
    statuses = (item.get("status") or {}).get("containerStatuses") or []
    containers = [container for container in spec["containers"] if manifest.is_scheduler(container)]
    volumes = [volume for volume in spec.get("volumes") or [] if "hostPath" in volume]
    return {
        "kind": "Pod",
        "metadata": {
            "name": item["metadata"]["name"],
            "annotations": {key: annotations[key] for key in (ANNOTATION_MIRROR, ANNOTATION_SCHEDULER_CONFIG) if key in annotations},
        },
        "spec": {
            "containers": [_mirror_container(container) for container in containers],
            "volumes": [{"name": volume["name"], "hostPath": {"path": volume["hostPath"]["path"]}} for volume in volumes],
        },
        "status": {"containerStatuses": [_container_status(status) for status in statuses]},
    }


def _mirror_container(container: Mapping[str, Any]) -> MirrorContainer:
    found: MirrorContainer = _some(container, "name", "image", "command", "args")
    if "volumeMounts" in container:
        found["volumeMounts"] = [_some(mount, "name", "mountPath", "subPath") for mount in container["volumeMounts"] or []]
    return found


def _container_status(status: Mapping[str, Any]) -> ContainerStatus:
    found: ContainerStatus = _some(status, "restartCount")
    if status.get("state"):
        found["state"] = _state(status["state"])
    if status.get("lastState"):
        found["lastState"] = _state(status["lastState"])
    return found


def _state(state: Mapping[str, Any]) -> ContainerState:
    found: ContainerState = {"running": {}} if "running" in state else {}
    if "waiting" in state:
        found["waiting"] = _some(state["waiting"], "reason", "message")
    if "terminated" in state:
        found["terminated"] = _some(state["terminated"], "exitCode", "reason", "message")
    return found


def _some(found: Mapping[str, Any], *keys: str) -> Any:
    """Those of the keys that are there."""
    return {key: found[key] for key in keys if key in found}
