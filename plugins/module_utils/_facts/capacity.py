# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the GPUs of a node, what its device plugin published and what Kubernetes reports are the same memory.

Pure: nodes as the API has them and reports of nvidia-smi in, differences out.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, replace
from typing import Any, Collection, Dict, List, Mapping, Optional, Tuple

from .._cluster.names import ANNOTATION_GPUS, GPUS, MEMORY, PLUGIN
from .._formats.answers import ModuleAnswer
from .._formats.failure import Failure
from .._formats.finding import ERROR, WARNING, Finding
from .._formats.quantity import quantity, unit_mib
from .._host.logged import told
from .nvidia_smi import CAPS, SharedGpu, SmiGpu, SmiReport

VERSION = 1
#: nvidia-smi rounds memory to MiB in its own way.
_ROUNDING_MIB = 1
_GPU_HEALTH = "dmesg | grep -i xid; nvidia-smi -q -d ECC,PAGE_RETIREMENT"
_PLUGIN = f"systemctl status {PLUGIN}; journalctl -u {PLUGIN} -n 50"


#: Key of a difference in the result to the field of the finding.
# Of a text that a node has written.
_LONGEST_STRATEGY = 32
_LONGEST_REASON = 320


class AnnotationError(Failure, ValueError):
    """The annotation with the GPUs cannot be used; says what was found and expected."""


@dataclass(frozen=True)
class PublishedGpu:
    """A GPU or MIG instance in the annotation; mib and units as the device plugin counted them.

    nodes: those below /dev that a container gets of it; () where they are not said.
    """

    index: int
    uuid: str
    mib: int
    units: int
    usable: bool
    state: str
    nodes: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Published:
    """The annotation. unit: its name, such as "GiB". unit_mib: its size in MiB. strategy: "" if it has none."""

    unit: str
    unit_mib: int
    gpus: Tuple[PublishedGpu, ...]
    strategy: str = ""


@dataclass(frozen=True)
class CapacityCounts:
    """The same memory counted in four places, in units; None where the place says nothing. gpus_*: the same in GPUs.

    nvml: in the published unit, else in the wanted one.
    """

    node: str
    unit: Optional[str]
    nvml: Optional[int]
    published: Optional[int]
    capacity: Optional[int]
    allocatable: Optional[int]
    gpus_nvml: int
    gpus_published: Optional[int]
    gpus_capacity: Optional[int]
    gpus_allocatable: Optional[int]


@dataclass(frozen=True)
class CapacityDifference:
    """A difference between nvidia-smi and the API."""

    node: str
    what: str
    severity: str
    code: str
    found: str
    expected: str
    cure: str


@dataclass(frozen=True)
class CapacityAnswer(ModuleAnswer):
    """The answer of gpu_mem_capacity."""

    ok: bool
    nodes: List[CapacityCounts]
    differences: List[CapacityDifference]


@dataclass(frozen=True)
class Comparison:
    """All nodes compared. ok: no error; warnings do not count."""

    sums: Tuple[CapacityCounts, ...]
    differences: Tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return all(difference.severity != ERROR for difference in self.differences)

    def answer(self) -> CapacityAnswer:
        """The comparison as the module answers it."""
        differences = [
            CapacityDifference(it.host, it.subject, it.severity, it.check, it.found, it.expected, it.cure) for it in self.differences
        ]
        return CapacityAnswer(False, self.ok, list(self.sums), differences)


def compare(reports: Mapping[str, SmiReport], nodes: Collection[Mapping[str, Any]], unit: str = "") -> Comparison:
    """Compare what nvidia-smi says on each node with the nodes of the API. unit: the one that is wanted, "" for any."""
    by_name = {str(node.get("metadata", {}).get("name")): node for node in nodes}
    sums: List[CapacityCounts] = []
    differences: List[Finding] = []
    for name, report in sorted(reports.items()):
        if name not in by_name:
            differences.append(_missing(name, by_name))
            continue
        compared = _Node(name, report, by_name[name], unit)
        sums.append(compared.sums())
        differences += compared.differences()
    return Comparison(tuple(sums), tuple(differences))


def published(text: str) -> Published:
    """The annotation's content. AnnotationError if it cannot be used."""
    try:
        data = json.loads(text)
        version = data["v"]
        if version != VERSION:
            raise AnnotationError(f"version {version!r} (this release reads {VERSION})")
        size = unit_mib(data["unit"])
        if size is None:
            raise AnnotationError(f"unit {data['unit']!r}")
        gpus = tuple(_published_gpu(gpu) for gpu in data["gpus"])
    except AnnotationError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise AnnotationError(f"{text[:120]!r} ({type(error).__name__}: {error})") from None
    return Published(data["unit"], size, gpus, str(data.get("strategy", ""))[:_LONGEST_STRATEGY])


def driver_code(problem: Finding) -> str:
    """The code of what nvidia-smi complains of."""
    return {"version_mismatch": "driver_mismatch", "gpu_lost": "gpu_lost"}.get(problem.check, "driver_problem")


def without_memory(gpu: SmiGpu) -> Finding:
    """A GPU whose memory nvidia-smi does not report."""
    cure = (
        "the memory of a GPU with unified memory, such as NVIDIA GB10, is the host's, and gpushare cannot share it: do not make such "
        "a host a GPU node; for any other GPU update the driver"
    )
    return Finding("gpu_without_memory", f"GPU {gpu.index} ({gpu.model}) that reports no memory", "its memory in MiB", cure)


def _published_gpu(gpu: Mapping[str, Any]) -> PublishedGpu:
    state = str(gpu["health"]) if gpu["health"] != "ok" else "cordoned" if gpu["cordoned"] else "ok"
    nodes = [f"nvidia{int(gpu['minor'])}"] if "minor" in gpu else []
    nodes += [f"{CAPS}/nvidia-cap{int(cap)}" for cap in gpu.get("caps", [])[:2]]
    return PublishedGpu(int(gpu["index"]), str(gpu["uuid"]), int(gpu["mib"]), int(gpu["units"]), state == "ok", state, tuple(nodes))


def _missing(name: str, known: Collection[str]) -> Finding:
    near = difflib.get_close_matches(name, known, 1)
    also = f"; {near[0]} is one" if near else ""
    cure = (
        "where it was there before: systemctl restart kubelet; then run site.yml again (kubelet makes its Node at its start only). A host "
        "that never was there: join it to the cluster, or see whether the kubeconfig is of the cluster that its kubelet belongs to"
    )
    seen, expected = f"no node of this name in the API{also}", "the node that the host's kubelet registers"
    return Finding("node_missing", seen, expected, cure, host=name, subject="node")


class _Node:
    """One node and what its driver says."""

    def __init__(self, name: str, report: SmiReport, node: Mapping[str, Any], unit: str) -> None:
        self.name, self.report, self.wanted_unit = name, report, unit
        status = node.get("status", {})
        self.capacity = self._resources(status.get("capacity"))
        self.allocatable = self._resources(status.get("allocatable"))
        ready: Mapping[str, Any] = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), {})
        self.ready = ready.get("status") == "True"
        # Of kubelet, or of the control plane, which has not heard of it.
        self.says = told(": ".join(filter(None, (str(ready.get(key) or "") for key in ("reason", "message")))), _LONGEST_REASON)
        self.annotation = (node.get("metadata", {}).get("annotations") or {}).get(ANNOTATION_GPUS)
        self.published: Optional[Published] = None
        self.unreadable = ""
        if self.annotation is not None:
            try:
                self.published = published(self.annotation)
            except AnnotationError as error:
                self.unreadable = str(error)

    @staticmethod
    def _resources(values: Any) -> Dict[str, Optional[int]]:
        return {name: quantity((values or {})[name]) if name in (values or {}) else None for name in (MEMORY, GPUS)}

    def sums(self) -> CapacityCounts:
        return CapacityCounts(
            node=self.name,
            unit=self.published.unit if self.published else None,
            nvml=self._nvml_units(),
            published=sum(gpu.units for gpu in self.published.gpus) if self.published else None,
            capacity=self.capacity[MEMORY],
            allocatable=self.allocatable[MEMORY],
            gpus_nvml=len(self.report.shared),
            gpus_published=len(self.published.gpus) if self.published else None,
            gpus_capacity=self.capacity[GPUS],
            gpus_allocatable=self.allocatable[GPUS],
        )

    def differences(self) -> List[Finding]:
        found = self._of_driver()
        if not self.ready:
            cure = "correct what that message names; kubelet's journal on the host has more"
            seen = f"a node that is not Ready: {self.says or 'kubelet has not said why'}"
            found.append(self._difference("node", seen, "a Ready one", cure, "node_not_ready"))
        if self.annotation is None:
            cure = f"the device plugin has not run here or may not write: {_PLUGIN}"
            seen, expected = f"no annotation {ANNOTATION_GPUS}", "the node's GPUs in it"
            return [*found, self._difference("annotation", seen, expected, cure, "annotation_wrong")]
        if self.published is None:
            cure = "run site.yml again, so that the node and the control plane have the same release"
            expected = "the GPUs as the device plugin writes them"
            return [*found, self._difference("annotation", self.unreadable, expected, cure, "annotation_wrong")]
        return [*found, *self._of_annotation(self.published), *self._of_resources(self.published)]

    def _difference(self, what: str, found: str, expected: str, cure: str, code: str, severity: str = ERROR) -> Finding:
        return Finding(code, found, expected, cure, severity, self.name, subject=what)

    def _of_driver(self) -> List[Finding]:
        found = []
        if self.report.problem is not None:
            problem = self.report.problem
            found.append(self._difference("gpus", problem.found, problem.expected, problem.cure, driver_code(problem)))
        silent = (without_memory(gpu) for gpu in self.report.gpus if gpu.memory_mib is None)
        return [*found, *(replace(finding, host=self.name, subject="gpus") for finding in silent)]

    def _of_annotation(self, annotation: Published) -> List[Finding]:
        """Where the published GPUs are not those that the driver has now."""
        found = []
        if self.wanted_unit and annotation.unit != self.wanted_unit:
            cure = (
                "run site.yml again with the wanted gpushare_memory_unit, with no pod on the node; if site.yml says this: what else sets "
                "--memory-unit, such as a drop-in? systemctl cat gpushare-device-plugin.service"
            )
            found.append(
                self._difference("annotation", f"units of {annotation.unit}", f"units of {self.wanted_unit}", cure, "annotation_wrong")
            )
        if self.report.problem is not None and not self.report.gpus:
            return found  # it is said already why none are listed
        have, said = {gpu.uuid: gpu for gpu in self.report.shared}, {gpu.uuid: gpu for gpu in annotation.gpus}
        reread = "restart the device plugin so that it reads the GPUs again: systemctl restart gpushare-device-plugin"
        for uuid in sorted(have.keys() - said.keys()):
            found.append(self._difference("annotation", f"no GPU {uuid}", "every GPU that nvidia-smi lists", reread, "wrong_gpu_count"))
        for uuid in sorted(said.keys() - have.keys()):
            seen = f"GPU {said[uuid].index} ({uuid}), which nvidia-smi does not list"
            cure = "if the GPU was taken out: " + reread + "; if not, it is lost: read `dmesg` for Xid and reboot the host"
            found.append(self._difference("annotation", seen, "only GPUs that are there", cure, "wrong_gpu_count"))
        for uuid in sorted(have.keys() & said.keys()):
            mine, its = self._mib(have[uuid], said[uuid]), said[uuid]
            if have[uuid].index != its.index:
                seen = f"index {its.index} for GPU {uuid}"
                found.append(self._difference("annotation", seen, f"index {have[uuid].index}, NVML's", reread, "annotation_wrong"))
            if mine is not None and (mine != its.mib or its.units != its.mib // annotation.unit_mib):
                seen = f"{its.units} units of {annotation.unit} ({its.mib} MiB) for GPU {its.index}"
                wanted = f"{mine // annotation.unit_mib} units ({mine} MiB)"
                found.append(self._difference("annotation", seen, wanted, reread, "annotation_wrong"))
        return found

    def _of_resources(self, annotation: Published) -> List[Finding]:
        """Where kubelet reports something else than the device plugin published."""
        found = []
        for resource, count in ((MEMORY, lambda gpu: gpu.units), (GPUS, lambda gpu: 1)):
            total = sum(count(gpu) for gpu in annotation.gpus)
            usable = sum(count(gpu) for gpu in annotation.gpus if gpu.usable)
            capacity, allocatable = self.capacity[resource], self.allocatable[resource]
            if not capacity and total:
                cure = f"the device plugin is not registered with kubelet: {_PLUGIN}; then search kubelet's journal for {resource}"
                seen = "none" if capacity is None else "0"
                found.append(self._difference(f"capacity {resource}", seen, str(total), cure, "capacity_short"))
                continue
            if capacity is not None and capacity != total:
                cure = f"another plugin may register the same resource: {_PLUGIN}; or kubelet has an old list: systemctl restart kubelet"
                code = "capacity_short" if capacity < total else "capacity_over"
                expected = f"{total}, the sum of the published GPUs"
                found.append(self._difference(f"capacity {resource}", str(capacity), expected, cure, code))
            found += self._of_allocatable(resource, allocatable, usable, capacity or 0, annotation)
        return found

    def _of_allocatable(
        self, resource: str, allocatable: Optional[int], usable: int, capacity: int, annotation: Published
    ) -> List[Finding]:
        what = f"allocatable {resource}"
        if allocatable != usable:
            cure = f"the device plugin has stopped or kubelet has lost it: {_PLUGIN}" if not allocatable else _PLUGIN
            code = "capacity_short" if (allocatable or 0) < usable else "capacity_over"
            return [self._difference(what, str(allocatable or 0), f"{usable}, the sum of the usable GPUs", cure, code)]
        if usable != capacity:
            unusable = ", ".join(f"GPU {gpu.index}: {gpu.state}" for gpu in annotation.gpus if not gpu.usable)
            if unusable:
                ill = any(gpu.state not in ("ok", "cordoned") for gpu in annotation.gpus)
                code = "gpu_unusable" if ill else "gpu_cordoned"
                seen = f"{usable} of {capacity} ({unusable})"
                closed = [f"kubectl gpushare uncordon {self.name} {gpu.index}" for gpu in annotation.gpus if gpu.state == "cordoned"]
                cure = (
                    f"{_GPU_HEALTH}; docs/operate/on-call.md has what each XID asks for"
                    if ill
                    else f"when they shall serve again: {'; '.join(closed)}"
                )
                return [self._difference(what, seen, str(capacity), cure, code, WARNING)]
        return []

    def _mib(self, gpu: SharedGpu, said: PublishedGpu) -> Optional[int]:
        """The GPU's memory, in the device plugin's own rounding where that explains the difference."""
        if gpu.memory_mib is None:
            return None
        return said.mib if abs(gpu.memory_mib - said.mib) <= _ROUNDING_MIB else gpu.memory_mib

    def _nvml_units(self) -> Optional[int]:
        size = self.published.unit_mib if self.published else unit_mib(self.wanted_unit)
        if size is None or any(gpu.memory_mib is None for gpu in self.report.shared):
            return None
        said = {gpu.uuid: gpu for gpu in self.published.gpus} if self.published else {}
        total = 0
        for gpu in self.report.shared:
            mib = self._mib(gpu, said[gpu.uuid]) if gpu.uuid in said else gpu.memory_mib
            total += (mib or 0) // size
        return total
