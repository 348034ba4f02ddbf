# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The output of `nvidia-smi -q -x`: the GPUs and their state, the driver, or the problem that prevents it.

Reads the output of every driver since 384 (document types v4 to v13); pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Optional, Tuple
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from .._formats.answers import answer_of
from .._formats.failure import Failure
from .._formats.finding import Finding
from .._host.command import Outcome
from . import diagnosis

ARGUMENTS = ("-q", "-x")
#: Seconds; a host with many GPUs and no persistence daemon initialises each of them first.
TIMEOUT = 120
#: The oldest driver with which containers get GPUs (nvidia-container-runtime's own floor).
MINIMUM_DRIVER = "384.81"

#: The state of NVLink's fabric with which CUDA starts.
FABRIC_READY = "Completed"
_WORD = 60
_MOST_GPUS, _MOST_PROCESSES, _LONGEST = 128, 4096, 200
_MOST_LINES = 8192
#: Lists the UUIDs of MIG instances.
LIST = ("-L",)
#: A line such as "gpu0/gi7/ci0/access 67" for each MIG instance that there could be (MIG user guide, "/dev based nvidia-capabilities").
CAPABILITIES = "/proc/driver/nvidia-caps/mig-minors"
#: The folder of their device nodes, below /dev.
CAPS = "nvidia-caps"
_LISTED_GPU = re.compile(r"GPU \d+: .*\(UUID: (GPU-[0-9a-f-]{36})\)")
_LISTED_INSTANCE = re.compile(r"\s+MIG ([!-~]{1,30})\s+Device\s+(\d{1,3}): \(UUID: (MIG-[0-9A-Za-z/-]{1,60})\)")
# A host with eight GPUs prints 0.4 MB, most of it clocks.
_LONGEST_OUTPUT = 64 * 1024 * 1024
_END = "</nvidia_smi_log>"
_NAME = re.compile(r"(<process_name>)(.*?)(</process_name>)", re.DOTALL)
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PCI = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-9a-fA-F])")


@dataclass(frozen=True)
class Process:
    """A process on a GPU. kind: "C" (compute), "G" (graphics), "C+G", "M+C" (client of MPS); memory_mib: None if the driver does not say.

    pod_uid: of the pod that it runs in, None for a process of no pod; its namespace and name as far as the host shows them.
    """

    pid: int
    kind: str
    name: str
    memory_mib: Optional[int]
    pod_uid: Optional[str] = None
    pod_namespace: Optional[str] = None
    pod_name: Optional[str] = None


@dataclass(frozen=True)
class MigDevice:
    """A MIG instance of a GPU. uuid and profile, such as "1g.10gb": None where `nvidia-smi -L` does not list it.

    caps: numbers of its two device nodes /dev/nvidia-caps/nvidia-cap<number>; () where the driver does not list them.
    """

    index: Optional[int]
    gpu_instance: Optional[int]
    compute_instance: Optional[int]
    memory_mib: Optional[int]
    uuid: Optional[str] = None
    profile: Optional[str] = None
    caps: Tuple[int, ...] = ()


@dataclass(frozen=True)
class SharedGpu:
    """The unit that the device plugin shares out: a GPU, or an instance of a GPU in MIG mode.

    index: as the device plugin counts; nodes: those below /dev that a container gets of it, None if they are not known.
    """

    index: int
    uuid: str
    model: str
    memory_mib: Optional[int]
    nodes: Optional[Tuple[str, ...]]


@dataclass(frozen=True)
class Ecc:
    """Error correction. mode, pending_mode: "enabled", "disabled" or None for a GPU without it; the pending one is that of the next
    reset. Counts of errors since the driver was loaded (volatile) and over the GPU's life (aggregate)."""

    mode: Optional[str] = None
    pending_mode: Optional[str] = None
    volatile_corrected: Optional[int] = None
    volatile_uncorrected: Optional[int] = None
    aggregate_corrected: Optional[int] = None
    aggregate_uncorrected: Optional[int] = None


@dataclass(frozen=True)
class Repair:
    """Memory that the GPU no longer uses. Pages are retired before Ampere, rows are remapped from Ampere on.

    pending: a retirement or remapping that the next reset makes effective. failed: a remapping that failed, or memory that the GPU cannot
    repair. action: what the driver asks for, such as "Reset" or "Reboot", None for nothing.
    """

    retired_pages: Optional[int] = None
    remapped_rows: Optional[int] = None
    pending: Optional[bool] = None
    failed: Optional[bool] = None
    action: Optional[str] = None


@dataclass(frozen=True)
class SmiGpu:
    """One GPU. index: NVML's. A value that the driver does not know ("N/A", an error) is None.

    pci: domain:bus:device.function, 4-digit domain, lower case. compute_mode: as nvidia-smi writes it, such as "Default".
    mig_mode, pending_mig_mode: "enabled", "disabled" or None for a GPU without MIG. architecture: such as "Turing", from driver 495 on.
    fabric: of NVLink, "Completed", or what keeps CUDA from it, such as "In Progress"; None without one, and for GPUs before Hopper.
    """

    index: int
    uuid: str
    minor: Optional[int]
    pci: Optional[str]
    model: str
    memory_mib: Optional[int]
    compute_mode: Optional[str]
    mig_mode: Optional[str]
    mig_devices: Tuple[MigDevice, ...]
    processes: Tuple[Process, ...]
    architecture: Optional[str] = None
    pending_mig_mode: Optional[str] = None
    ecc: Ecc = Ecc()
    repair: Repair = Repair()
    fabric: Optional[str] = None

    @property
    def shared(self) -> Tuple[SharedGpu, ...]:
        """The GPU itself, or in MIG mode its instances, as far as they are known."""
        own = None if self.minor is None else (f"nvidia{self.minor}",)
        if self.mig_mode != "enabled":
            return (SharedGpu(self.index, self.uuid, self.model, self.memory_mib, own),)
        return tuple(
            SharedGpu(
                instance_index(self.index, device.gpu_instance, device.compute_instance),
                device.uuid,
                f"{self.model} MIG {device.profile}",
                device.memory_mib,
                None if own is None or not device.caps else (*own, *(f"{CAPS}/nvidia-cap{cap}" for cap in device.caps)),
            )
            for device in self.mig_devices
            if device.uuid is not None and device.gpu_instance is not None and device.compute_instance is not None
        )


def instance_index(gpu: int, gpu_instance: int, compute_instance: int) -> int:
    """The index of a MIG instance, as `instance_index` of the runtime's core/inventory.py has it."""
    return 10000 + 1000 * gpu + 10 * gpu_instance + compute_instance


@dataclass(frozen=True)
class SmiReport:
    """All that nvidia-smi said. GPUs may be listed although there is a problem."""

    gpus: Tuple[SmiGpu, ...]
    driver_version: Optional[str]
    cuda_version: Optional[str]
    problem: Optional[Finding]

    @property
    def shared(self) -> Tuple[SharedGpu, ...]:
        """The units that the device plugin shares out of all GPUs."""
        return tuple(shared for gpu in self.gpus for shared in gpu.shared)

    def sent(self) -> "SmiAnswer":
        """The report as a module answers it."""
        return SmiAnswer(self.gpus, self.driver_version, self.cuda_version, None if self.problem is None else SmiProblem.of(self.problem))

    def as_dict(self) -> Dict[str, Any]:
        return dict(answer_of(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SmiReport":
        """The opposite of as_dict."""
        problem = values["problem"]
        return cls(
            gpus=tuple(_gpu_from_dict(gpu) for gpu in values["gpus"]),
            driver_version=values["driver_version"],
            cuda_version=values["cuda_version"],
            problem=None if problem is None else Finding(*(problem[key] for key in ("kind", "found", "expected", "cure"))),
        )


@dataclass(frozen=True)
class SmiProblem:
    """Why the GPUs cannot be used as they are, in a module's answer."""

    kind: str
    found: str
    expected: str
    cure: str

    @classmethod
    def of(cls, finding: Finding) -> "SmiProblem":
        return cls(finding.check, finding.found, finding.expected, finding.cure)


@dataclass(frozen=True)
class SmiAnswer:
    """The report in a module's answer."""

    gpus: Tuple[SmiGpu, ...]
    driver_version: Optional[str]
    cuda_version: Optional[str]
    problem: Optional[SmiProblem]


def with_instances(found: SmiReport, listing: str, capabilities: str) -> SmiReport:
    """The report with UUID, profile and device nodes of each MIG instance. listing: of `nvidia-smi -L`; capabilities: the driver's list.

    `nvidia-smi -q` of driver 535 names instances by their places only.
    """
    listed: Dict[Tuple[str, int], Tuple[str, str]] = {}
    gpu = ""
    for line in listing.splitlines()[:_MOST_LINES]:
        parent, instance = _LISTED_GPU.match(line), _LISTED_INSTANCE.match(line)
        gpu = parent.group(1) if parent else gpu
        if instance:
            listed[gpu, int(instance.group(2))] = (instance.group(3), instance.group(1))
    pairs = [line.split() for line in capabilities.splitlines()[:_MOST_LINES]]
    minors = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and _number(pair[1]) is not None}

    def known(smi_gpu: SmiGpu, device: MigDevice) -> MigDevice:
        uuid, profile = listed.get((smi_gpu.uuid, -1 if device.index is None else device.index), (device.uuid, device.profile))
        place = f"gpu{smi_gpu.minor}/gi{device.gpu_instance}"
        caps = [minors.get(f"{place}/access"), minors.get(f"{place}/ci{device.compute_instance}/access")]
        return replace(device, uuid=uuid, profile=profile, caps=tuple(cap for cap in caps if cap is not None) if None not in caps else ())

    gpus = tuple(replace(smi_gpu, mig_devices=tuple(known(smi_gpu, device) for device in smi_gpu.mig_devices)) for smi_gpu in found.gpus)
    return replace(found, gpus=gpus)


class SmiOutputError(Failure, ValueError):
    """The output is not XML of nvidia-smi; it says what it begins with."""


def report(outcome: Optional[Outcome], driver_container: bool = False) -> SmiReport:
    """The GPUs, or why there are none. outcome: of `nvidia-smi -q -x`, None where there is no nvidia-smi.

    driver_container: whether a driver container of NVIDIA's GPU Operator provides the driver of this host.
    """
    if outcome is None:
        return SmiReport((), None, None, diagnosis.not_installed(driver_container))
    try:
        return parse(outcome.out)
    except SmiOutputError as error:
        return SmiReport((), None, None, diagnosis.failure(outcome, str(error)))


def parse(text: str) -> SmiReport:
    """The XML in `text`, which may have other words around it. SmiOutputError if there is none that can be read.

    A missing or unusable field never fails: it is None. The problem is that of GPUs which are attached but not listed, or listed with an
    error in place of their memory.
    """
    log = _document(text)
    elements = log.findall("gpu")[:_MOST_GPUS]
    gpus = tuple(_gpu(index, element) for index, element in enumerate(elements))
    problem = diagnosis.unlisted(_number(log.findtext("attached_gpus")), len(gpus))
    for index, element in enumerate(elements):
        answers = [(element.findtext(path) or "").strip() for path in ("fb_memory_usage/total", "uuid")]
        problem = problem or diagnosis.unusable(f"GPU {index} ({gpus[index].pci or 'no PCI address'})", answers)
    # Since 610 the kernel's and the user's side have versions of their own.
    driver = _text(log.findtext("driver_version")) or _text(log.findtext("kmd_version"))
    cuda = _text(log.findtext("cuda_version")) or _text(log.findtext("cuda_umd_version"))
    return SmiReport(gpus, driver, cuda, problem)


def _document(text: str) -> ElementTree.Element:
    if len(text) > _LONGEST_OUTPUT:
        raise SmiOutputError(f"nvidia-smi printed {len(text)} characters, more than {_LONGEST_OUTPUT}")
    start, end = text.find("<nvidia_smi_log"), text.find(_END)
    if start < 0 or end < start:
        raise SmiOutputError(f"no XML of nvidia-smi in {' '.join(text.split())[:200]!r}")
    body = text[start : end + len(_END)]
    try:
        return ElementTree.fromstring(body)
    except ElementTree.ParseError:
        pass
    # A process may have any name, and older drivers print it as it is.
    cleaned = _NAME.sub(lambda match: match.group(1) + escape(match.group(2)) + match.group(3), _NOT_XML.sub("?", body))
    try:
        return ElementTree.fromstring(cleaned)
    except (ElementTree.ParseError, ValueError) as error:
        raise SmiOutputError(f"the XML of nvidia-smi cannot be read: {error}") from None


def _gpu(index: int, element: ElementTree.Element) -> SmiGpu:
    return SmiGpu(
        index=index,
        uuid=_text(element.findtext("uuid")) or "",
        minor=_number(element.findtext("minor_number")),
        pci=_pci(element.get("id")) or _pci(element.findtext("pci/pci_bus_id")),
        model=_text(element.findtext("product_name")) or "unknown",
        memory_mib=_mib(element.findtext("fb_memory_usage/total")),
        compute_mode=_text(element.findtext("compute_mode")),
        mig_mode=_mode(element.findtext("mig_mode/current_mig")),
        mig_devices=tuple(_mig_device(device) for device in element.findall("mig_devices/mig_device")),
        processes=tuple(_processes(element)),
        architecture=_text(element.findtext("product_architecture")),
        pending_mig_mode=_mode(element.findtext("mig_mode/pending_mig")),
        ecc=_ecc(element),
        repair=_repair(element),
        fabric=_fabric(element),
    )


def _fabric(element: ElementTree.Element) -> Optional[str]:
    state, status = (_text(element.findtext(f"fabric/{name}")) for name in ("state", "status"))
    if state is None or state.lower() != FABRIC_READY.lower():
        return None if state is None else state[:_WORD]
    return FABRIC_READY if status is None or status.lower() == "success" else f"{FABRIC_READY}, {status}"[:_WORD]


def _ecc(element: ElementTree.Element) -> Ecc:
    return Ecc(
        _mode(element.findtext("ecc_mode/current_ecc")),
        _mode(element.findtext("ecc_mode/pending_ecc")),
        *_errors(element.find("ecc_errors/volatile")),
        *_errors(element.find("ecc_errors/aggregate")),
    )


def _errors(counts: Optional[ElementTree.Element]) -> Tuple[Optional[int], Optional[int]]:
    """(corrected, uncorrected). Drivers before 418 have a total for single and double bit errors; later ones count SRAM and DRAM, and
    since 545 two kinds of uncorrected errors of SRAM."""
    if counts is None:
        return None, None
    totals = _number(counts.findtext("single_bit/total")), _number(counts.findtext("double_bit/total"))
    if totals != (None, None):
        return totals
    corrected = [_number(element.text) for element in counts if element.tag.endswith("_correctable")]
    uncorrected = [_number(element.text) for element in counts if "_uncorrectable" in element.tag]
    return _sum(corrected), _sum(uncorrected)


def _sum(numbers: List[Optional[int]]) -> Optional[int]:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _repair(element: ElementTree.Element) -> Repair:
    pages = [_number(element.findtext(f"retired_pages/{kind}_retirement/retired_count")) for kind in ("multiple_single_bit", "double_bit")]
    rows = [_number(element.findtext(f"remapped_rows/remapped_row_{kind}")) for kind in ("corr", "unc")]
    pending = [
        _yes(element.findtext(path))
        for path in (
            "retired_pages/pending_retirement",
            "retired_pages/pending_blacklist",
            "remapped_rows/remapped_row_pending",
            "ecc_errors/channel_repair_pending",
            "ecc_errors/tpc_repair_pending",
        )
    ]
    action = _text(element.findtext("gpu_recovery_action"))
    # Drivers from 525 to 550 ask in this way.
    if action is None and _yes(element.findtext("gpu_reset_status/reset_required")):
        action = "Reset"
    elif action is None and _yes(element.findtext("gpu_reset_status/drain_and_reset_recommended")):
        action = "Drain and Reset"
    failed = [_yes(element.findtext(path)) for path in ("remapped_rows/remapped_row_failure", "ecc_errors/unrepairable_memory")]
    return Repair(_sum(pages), _sum(rows), _any_known(pending), _any_known(failed), action)


def _any_known(answers: List[Optional[bool]]) -> Optional[bool]:
    known = [answer for answer in answers if answer is not None]
    return any(known) if known else None


def _yes(value: Optional[str]) -> Optional[bool]:
    return {"yes": True, "no": False}.get((_text(value) or "").lower())


def _mig_device(device: ElementTree.Element) -> MigDevice:
    return MigDevice(
        index=_number(device.findtext("index")),
        gpu_instance=_number(device.findtext("gpu_instance_id")),
        compute_instance=_number(device.findtext("compute_instance_id")),
        memory_mib=_mib(device.findtext("fb_memory_usage/total")),
        uuid=_text(device.findtext("uuid")),
    )


def _processes(element: ElementTree.Element) -> List[Process]:
    found = []
    for info in element.findall("processes/process_info")[:_MOST_PROCESSES]:
        pid = _number(info.findtext("pid"))
        if pid is not None:
            kind, name = _text(info.findtext("type")) or "", (_text(info.findtext("process_name")) or "")[:_LONGEST]
            found.append(Process(pid, kind, name, _mib(info.findtext("used_memory"))))
    return found


def _text(value: Optional[str]) -> Optional[str]:
    """The text, None for all the ways in which nvidia-smi says that it has none."""
    text = (value or "").strip()
    plain = text.strip("[]").lower()
    nothing = plain in ("", "n/a", "err!", "none", "insufficient permissions", "gpu requires reset", "gpu is lost")
    nothing = nothing or plain.startswith(("unknown error", "not supported", "not available", "requested functionality"))
    return None if nothing else text


def _number(value: Optional[str]) -> Optional[int]:
    text = _text(value) or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def _mib(value: Optional[str]) -> Optional[int]:
    text = _text(value) or ""
    match = re.fullmatch("([0-9]+) Mi?B", text)
    return _number(match.group(1)) if match else None


def _mode(value: Optional[str]) -> Optional[str]:
    text = (_text(value) or "").lower()
    return text if text in ("enabled", "disabled") else None


def _pci(value: Optional[str]) -> Optional[str]:
    match = _PCI.fullmatch((value or "").strip())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}".lower()


def _gpu_from_dict(values: Mapping[str, Any]) -> SmiGpu:
    return SmiGpu(
        **dict(
            values,
            mig_devices=tuple(MigDevice(**dict(device, caps=tuple(device.get("caps", ())))) for device in values["mig_devices"]),
            processes=tuple(Process(**process) for process in values["processes"]),
            ecc=Ecc(**values.get("ecc", {})),
            repair=Repair(**values.get("repair", {})),
        )
    )
