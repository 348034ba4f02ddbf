# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a probe pod has the GPU that its annotation, or its claim, says.

Pure. The output of a pod is text of others: it is read in bounds.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from .._cluster.names import ANNOTATION_ALLOCATION, ANNOTATION_GPUS, ANNOTATION_INDEX
from .._facts.capacity import published
from .._formats.finding import few
from .._formats.nvidia_config import STRICT_IN_WORDS
from .claims import Device
from .pods import Ended

_MOST = 256
_OF_GPU = re.compile(r"nvidia\d+|nvidia-caps/nvidia-cap\d+")
_SHOWN = 80
#: Of one unit of a GPU.
_CLAIM = "gpushare-m1"


def judge(ended: Ended, node: Mapping[str, Any]) -> List[str]:
    """The problem of one probe, as found, expected and what to do. node: with its annotations."""
    title = f"probe pod on {ended.node}"
    found, devices, variables = _said(title, ended)
    if found:
        return found
    annotations = (ended.pod["metadata"].get("annotations") or {}) if ended.pod else {}
    try:
        index = given(annotations)
        of_node = published((node["metadata"].get("annotations") or {}).get(ANNOTATION_GPUS, ""))
    except ValueError as error:
        return [f"{title}: found {error}; expected the GPU in its annotations and those of its node; see the logs of gpushare's scheduler"]
    nodes = {gpu.index: gpu.nodes for gpu in of_node.gpus}
    wanted = sorted(f"/dev/{node}" for node in nodes.get(index, ())) or ["one that its node names"]
    if devices != wanted:
        cure = "see whether the container runtime there is NVIDIA's (gpushare_runtime_class), and gpushare_device_strategy"
        if of_node.strategy == "cdi":
            # No object of the cluster says it, and the device plugin has no access to the container runtime.
            cure = "switch CDI on in the container runtime there (containerd 1.7: enable_cdi = true), or choose another "
            cure += "gpushare_device_strategy"
        found.append(f"{title}: found the device nodes {', '.join(devices) or 'none'}; expected {', '.join(wanted)}, GPU {index}; {cure}")
    if variables.get(ANNOTATION_INDEX) != str(index):
        words = f"{ANNOTATION_INDEX}={variables.get(ANNOTATION_INDEX, '')[:_SHOWN]}"
        found.append(f"{title}: found {words} in its first process; expected {index}; see the log of the device plugin on that node")
    return found


def judge_claim(ended: Ended, gpus: Sequence[Device]) -> List[str]:
    """The same with the back end dra. gpus: of the node. Its claim is gone when it has ended, so its variable says which GPU it had."""
    title = f"probe pod on {ended.node}"
    found, devices, variables = _said(title, ended)
    if found:
        return found
    status = ended.pod.get("status") or {}
    of_template = [str(claim.get("name"))[:_SHOWN] for claim in status.get("resourceClaimStatuses") or () if claim.get("resourceClaimName")]
    if of_template != [_CLAIM]:
        cure = "see whether the policies gpushare-dra-requests and gpushare-dra-claims are bound"
        found.append(
            f"{title}: found the claims {few(of_template) or 'none'}; expected {_CLAIM}, which admission makes of its limit; {cure}"
        )
    text = variables.get(ANNOTATION_INDEX, "")
    gpu = next((gpu for gpu in gpus if str(gpu.index) == text), None)
    if gpu is None:
        known = few(str(gpu.index) for gpu in gpus) or "none"
        cure = "switch CDI on in the container runtime there (containerd 1.7: enable_cdi = true), and see the log of the device plugin"
        return [*found, f"{title}: found {ANNOTATION_INDEX}={text[:_SHOWN]}; expected a GPU of the node's ResourceSlice ({known}); {cure}"]
    # A slice does not name the files of an instance's capabilities.
    given = [device for device in devices if not (gpu.instance and device.startswith("/dev/nvidia-caps/"))]
    if given != [f"/dev/nvidia{gpu.minor}"]:
        cure = "see the log of the device plugin on that node, and the CDI specs there"
        found.append(
            f"{title}: found the device nodes {', '.join(devices) or 'none'}; expected /dev/nvidia{gpu.minor}, GPU {gpu.index}; {cure}"
        )
    return found


def _said(title: str, ended: Ended) -> Tuple[List[str], List[str], Dict[str, str]]:
    """(why it says nothing, device nodes of GPUs, variables) of a probe."""
    if not ended.phase:
        cure = "see `kubectl describe` of gpushare's pods"
        return [f"{title}: found that it has not run ({ended.why}); expected it to print its GPUs; {cure}"], [], {}
    if ended.phase != "Succeeded":
        cure = "see the log of the device plugin on that node"
        return [f"{title}: found that it failed ({ended.why}); expected it to print its GPUs; {cure}"], [], {}
    try:
        return ([], *seen(ended.log))
    except ValueError as error:
        return [f"{title}: found {error}; expected JSON with its device nodes and variables; use the image of this release"], [], {}


def judge_second(node: str, others: Sequence[str]) -> str:
    """others: what else gives the GPUs of this node to pods."""
    return (
        f"second_plugin on {node}: found {few(other[: 2 * _SHOWN] for other in others)}; expected one that gives its GPUs to pods, ours; "
        "end the pods that have GPUs of it there, then keep it off this node: both give the same GPUs (docs/operate/migrate.md)"
    )


def judge_visible(ended: Ended, runtime_class: str) -> List[str]:
    """Whether a pod that asks for no GPU sees some: gpus_visible. One that did not run, as where there is no such runtime, saw none."""
    if ended.phase != "Succeeded":
        return []
    try:
        devices, _ = seen(ended.log)
    except ValueError as error:
        return [f"gpus_visible on {ended.node}: found {error}; expected JSON with the device nodes of a pod; use the image of this release"]
    if not devices:
        return []
    by = f"of the RuntimeClass {runtime_class}" if runtime_class else "of the default runtime"
    cure = f"set {STRICT_IN_WORDS} in NVIDIA's config.toml there"
    if runtime_class:
        cure += f", or keep tenants' pods off {runtime_class} by an admission policy"
    return [
        f"gpus_visible on {ended.node}: found that any pod {by} with NVIDIA_VISIBLE_DEVICES=all sees {', '.join(devices)} without asking "
        f"for a GPU; expected none; {cure} (docs/operate/kubernetes.md#nvidias-runtime)"
    ]


def seen(log: str) -> Tuple[List[str], Dict[str, str]]:
    """(device nodes of GPUs, variables) that a probe has printed; ValueError where it printed something else."""
    try:
        said: Any = json.loads(log)
        devices, variables = said["devices"], said["environment"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(f"the words {log[:_SHOWN]!r}") from None
    if not isinstance(devices, list) or not isinstance(variables, dict) or max(len(devices), len(variables)) > _MOST:
        raise ValueError(f"the words {log[:_SHOWN]!r}")
    numbered = sorted(f"/dev/{device}" for device in map(str, devices) if _OF_GPU.fullmatch(device))
    return numbered, {str(key): str(value) for key, value in variables.items()}


def given(annotations: Mapping[str, str]) -> int:
    """The index of the one GPU that the pod's annotation gives its container; ValueError where it gives another number."""
    try:
        # Containers are numbered.
        gpus: Any = json.loads(annotations.get(ANNOTATION_ALLOCATION, ""))["0"]
        (index,) = gpus
        return int(index)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(f"the allocation {annotations.get(ANNOTATION_ALLOCATION, 'none')[:_SHOWN]!r}") from None
