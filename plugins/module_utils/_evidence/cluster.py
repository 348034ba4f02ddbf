# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The objects of the API that verify needs: nodes, pods that have or ask for GPUs, schedulers, and how our own objects differ.

Every object is cut down to what is judged: the result travels to the controller once.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Collection, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple
from urllib.parse import urlencode

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
from .._formats.quantity import quantity
from .._scheduler import manifest, proof

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


def nodes(kubectl: Kubectl, names: Collection[str]) -> List[Dict[str, Any]]:
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


def settled(node: Mapping[str, Any]) -> bool:
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


def pods(kubectl: Kubectl) -> List[Dict[str, Any]]:
    """Every pod of ours that has not ended: it asks for our resources, or carries our annotations."""
    found = kubectl.pages("/api/v1/pods", fieldSelector="status.phase!=Succeeded,status.phase!=Failed")
    return [pod(item) for item in found if _asks(item)]


def schedulers(kubectl: Kubectl, names: Iterable[str]) -> Dict[str, Optional[Dict[str, Any]]]:
    """Node to the API's copy of its kube-scheduler's static pod."""
    found: Dict[str, Optional[Dict[str, Any]]] = {}
    for name in sorted(names):
        items = kubectl.items(["get", "pods", "--namespace", NAMESPACE, "--field-selector", f"spec.nodeName={name}"])
        mirror = proof.find_static_pod(items)
        found[name] = None if mirror is None else _mirror(mirror)
    return found


def leases(kubectl: Kubectl, clock: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep) -> Dict[str, Any]:
    """Leases by name, those that schedulers and controllers have: the holder ("" for none) and whether it is renewed (alive).

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


def passed_by(kubectl: Kubectl, found: Sequence[Mapping[str, Any]], clock: Callable[[], float] = time.time) -> List[Dict[str, str]]:
    """The newest pods that came to their node past the extender in the last hour: {"uid", "by"}. found: pods as pods() has them. by: the
    scheduler that placed it, and its host or pod, such as default-scheduler-cp1; "" where none did, or its Event is gone. clock: Unix
    time."""
    known = {pod["uid"]: pod for pod in found if pod["uid"] and pod["node"] and not pod["deleted"]}
    newest: Dict[str, float] = {}
    for event in _events(kubectl, "/api/v1/events", f"reason={EVENT_UNMANAGED}"):
        uid, when = str((event.get("involvedObject") or {}).get("uid", "")), _event_time(event)
        if uid in known and clock() - when < _EVENT_SECONDS:
            newest[uid] = max(when, newest.get(uid, 0.0))
    uids = sorted(newest, key=lambda uid: -newest[uid])[:_MOST_PASSED]
    return [{"uid": uid, "by": _placed_by(kubectl, known[uid])} for uid in uids]


def _placed_by(kubectl: Kubectl, pod: Mapping[str, Any]) -> str:
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


def objects(kubectl: Kubectl, wanted: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """How our objects in the cluster differ from these, by the server's own dry run: titles that are missing, that differ, and that
    this API server does not serve (unserved).
    """
    result = converge(kubectl, WantedObjects(apply=wanted, skip_unserved=True), check_mode=True)
    missing = [change["before_header"] for change in result["diff"] if not change["before"]]
    return {"missing": missing, "differs": [title for title in result["objects"] if title not in missing], "unserved": result["unserved"]}


def pod(item: Mapping[str, Any]) -> Dict[str, Any]:
    """A pod cut down. containers: by name, with its place (init containers count down from -1), units and GPUs asked for."""
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


def _container(index: int, container: Mapping[str, Any]) -> Dict[str, Any]:
    return {
        "index": index,
        "name": container["name"],
        "units": _amount(container, MEMORY),
        "gpus": _amount(container, GPUS),
        "privileged": (container.get("securityContext") or {}).get("privileged") is True,
    }


def _status(container: Mapping[str, Any]) -> Dict[str, Any]:
    identity = str(container.get("containerID", "")).partition("://")[2]
    started = proof.parse_time(container["state"]["running"]["startedAt"]).timestamp()
    return {"name": container["name"], "id": identity, "started": started}


def _waiting(container: Mapping[str, Any]) -> str:
    waiting = container["state"]["waiting"]
    return f"{waiting.get('reason', '')} {waiting.get('message', '')}".strip()


def _node(item: Mapping[str, Any]) -> Dict[str, Any]:
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


def _condition(found: Mapping[str, Any]) -> Dict[str, str]:
    return {key: str(found.get(key) or "")[:_LONGEST_REASON] for key in ("type", "status", "reason", "message")}


def _mirror(item: Mapping[str, Any]) -> Dict[str, Any]:
    annotations = item["metadata"]["annotations"]
    containers = [
        {key: container[key] for key in ("name", "image", "command", "args", "volumeMounts") if key in container}
        for container in item["spec"]["containers"]
        if manifest.is_scheduler(container)
    ]
    return {
        "kind": "Pod",
        "metadata": {
            "name": item["metadata"]["name"],
            "annotations": {key: annotations[key] for key in (ANNOTATION_MIRROR, ANNOTATION_SCHEDULER_CONFIG) if key in annotations},
        },
        "spec": {"containers": containers, "volumes": [volume for volume in item["spec"].get("volumes") or [] if "hostPath" in volume]},
        "status": {"containerStatuses": (item.get("status") or {}).get("containerStatuses") or []},
    }
