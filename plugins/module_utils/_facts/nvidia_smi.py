# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `nvidia-smi -q -x` says: the cards, the driver, and what is wrong in words that name a cure.

Private to this collection. Reads the output of every driver since 384 (document types v4 to v13); pure.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.versions import numbers
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import Outcome

ARGUMENTS = ("-q", "-x")
#: Seconds; a host with many cards and no persistence daemon initialises each of them first.
TIMEOUT = 120
#: The oldest driver with which containers get cards (nvidia-container-runtime's own floor).
MINIMUM_DRIVER = "384.81"
#: Where the GPU Operator's driver container puts the driver's files, for other containers.
CONTAINER = "/run/nvidia/driver"

_END = "</nvidia_smi_log>"
_NAME = re.compile(r"(<process_name>)(.*?)(</process_name>)", re.DOTALL)
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PCI = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-9a-fA-F])")


@dataclass(frozen=True)
class Process:
    """A process on a card. kind: "C" (compute), "G" (graphics), "C+G"; memory_mib: None if the driver does not say."""

    pid: int
    kind: str
    name: str
    memory_mib: Optional[int]


@dataclass(frozen=True)
class MigDevice:
    """A MIG instance of a card."""

    index: Optional[int]
    gpu_instance: Optional[int]
    compute_instance: Optional[int]
    memory_mib: Optional[int]


@dataclass(frozen=True)
class SmiCard:
    """One card. index: NVML's. What the driver does not know ("N/A", an error) is None.

    pci: domain:bus:device.function, 4-digit domain, lower case; compute_mode: as nvidia-smi writes it, such as "Default";
    mig_mode: "enabled", "disabled" or None for a card without MIG.
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


@dataclass(frozen=True)
class Problem:
    """Why the cards cannot be used as they are. kind: one of the keys of the table in nvidia_smi_info's documentation."""

    kind: str
    found: str
    expected: str
    cure: str

    def __str__(self) -> str:
        return f"found {self.found}; expected {self.expected}; {self.cure}"


@dataclass(frozen=True)
class SmiReport:
    """All that nvidia-smi said. Cards may be listed although there is a problem."""

    cards: Tuple[SmiCard, ...]
    driver_version: Optional[str]
    cuda_version: Optional[str]
    problem: Optional[Problem]

    def as_dict(self) -> Dict[str, Any]:
        """For a module's result."""
        return {
            "cards": [
                dict(asdict(card), mig_devices=[asdict(m) for m in card.mig_devices], processes=[asdict(p) for p in card.processes])
                for card in self.cards
            ],
            "driver_version": self.driver_version,
            "cuda_version": self.cuda_version,
            "problem": None if self.problem is None else asdict(self.problem),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SmiReport":
        """The opposite of as_dict."""
        problem = values["problem"]
        return cls(
            cards=tuple(_card_from_dict(card) for card in values["cards"]),
            driver_version=values["driver_version"],
            cuda_version=values["cuda_version"],
            problem=None if problem is None else Problem(**problem),
        )


class SmiOutputError(ValueError):
    """The output is no XML of nvidia-smi; says what it begins with."""


_ANSWER = "nvidia-smi to list the cards"
# The words that nvidia-smi has used for each failure since driver 384, and what helps.
_FAILURES: Tuple[Tuple[str, "re.Pattern[str]", str], ...] = (
    (
        "version_mismatch",
        re.compile("version mismatch", re.I),
        "the driver was upgraded while the old kernel module stayed loaded: reboot the host (or stop everything that uses the cards and "
        "reload the nvidia modules), and hold the driver's packages so that it does not happen again",
    ),
    (
        "library_missing",
        re.compile(r"couldn.t find libnvidia-ml|NVIDIA Management Library.*not found|shared library not found", re.I),
        "install the driver's libraries of the same version as its kernel module, then run ldconfig",
    ),
    (
        "driver_not_loaded",
        re.compile(r"couldn.t communicate with the NVIDIA driver|driver not loaded", re.I),
        "load it with `modprobe nvidia`; if that fails `dmesg` says why: no module for the running kernel (headers missing when it was "
        "built), a signature that Secure Boot rejects, or nouveau holding the card",
    ),
    (
        "card_lost",
        re.compile(r"GPU is lost|fallen off the bus|unable to determine the device handle", re.I),
        "a card no longer answers on the bus: look for Xid in `dmesg`, then reboot the host; if that does not last, the card or its power "
        "is faulty",
    ),
    (
        "reset_required",
        re.compile(r"requires? (?:a )?reset", re.I),
        "stop what uses the card, then run `nvidia-smi --gpu-reset` for it",
    ),
    (
        "no_permission",
        re.compile(r"insufficient permissions|access blocked|operation not permitted", re.I),
        "run as root on the host itself, not in a container without the cards' device nodes",
    ),
    (
        "no_devices",
        re.compile("no devices (?:were )?found", re.I),
        "the driver is loaded and sees no card: check with `lspci -d 10de:`, that the card is supported by this driver's version and "
        "flavour (open modules need Turing or newer), and that it is not given to a virtual machine (vfio-pci)",
    ),
)
_BY_STATUS = {4: "no_permission", 6: "no_devices", 9: "driver_not_loaded", 12: "library_missing", 15: "card_lost", 18: "version_mismatch"}
_CURES = {kind: cure for kind, dummy, cure in _FAILURES}


def report(outcome: Optional[Outcome], minimum_driver: str = MINIMUM_DRIVER, driver_container: bool = False) -> SmiReport:
    """The cards, or why there are none. outcome: of `nvidia-smi -q -x`, None where there is no nvidia-smi.

    driver_container: whether the driver of this host is in a container of NVIDIA's GPU Operator (see CONTAINER).
    """
    if outcome is None and driver_container:
        found_ = f"no nvidia-smi on this host; its driver is in a container of NVIDIA's GPU Operator ({CONTAINER})"
        cure = (
            "this release needs the driver on the host. Do not install one beside the operator's: first have the operator leave this node "
            "(label nvidia.com/gpu.deploy.operands=false), reboot, then install the driver; or take this host out of the group of GPU hosts"
        )
        return SmiReport((), None, None, Problem("not_installed", found_, _ANSWER, cure))
    if outcome is None:
        cure = "install the NVIDIA driver with its nvidia-smi, or take this host out of the group of GPU hosts"
        return SmiReport((), None, None, Problem("not_installed", "no nvidia-smi on this host", _ANSWER, cure))
    try:
        found = parse(outcome.out)
    except SmiOutputError as error:
        return SmiReport((), None, None, _failure(outcome, str(error)))
    return SmiReport(found.cards, found.driver_version, found.cuda_version, found.problem or _too_old(found.driver_version, minimum_driver))


def parse(text: str) -> SmiReport:
    """The XML in `text`, which may have other words around it. SmiOutputError if there is none that can be read.

    A missing or unusable field never fails: it is None. The problem is that of cards which are attached but not listed.
    """
    log = _document(text)
    cards = tuple(_card(index, gpu) for index, gpu in enumerate(log.findall("gpu")))
    attached = _number(log.findtext("attached_gpus"))
    problem = None
    if attached is not None and attached > len(cards):
        found = f"{attached} cards attached, of which {len(cards)} answer"
        problem = Problem("card_lost", found, "every attached card to answer", _CURES["card_lost"])
    elif not cards:
        problem = Problem("no_devices", "a driver without cards", _ANSWER, _CURES["no_devices"])
    # Since 610 the kernel's and the user's side have versions of their own.
    driver = _text(log.findtext("driver_version")) or _text(log.findtext("kmd_version"))
    cuda = _text(log.findtext("cuda_version")) or _text(log.findtext("cuda_umd_version"))
    return SmiReport(cards, driver, cuda, problem)


def _document(text: str) -> ElementTree.Element:
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


def _card(index: int, gpu: ElementTree.Element) -> SmiCard:
    return SmiCard(
        index=index,
        uuid=_text(gpu.findtext("uuid")) or "",
        minor=_number(gpu.findtext("minor_number")),
        pci=_pci(gpu.get("id")) or _pci(gpu.findtext("pci/pci_bus_id")),
        model=_text(gpu.findtext("product_name")) or "unknown",
        memory_mib=_mib(gpu.findtext("fb_memory_usage/total")),
        compute_mode=_text(gpu.findtext("compute_mode")),
        mig_mode=_mig_mode(gpu.findtext("mig_mode/current_mig")),
        mig_devices=tuple(_mig_device(device) for device in gpu.findall("mig_devices/mig_device")),
        processes=tuple(_processes(gpu)),
    )


def _mig_device(device: ElementTree.Element) -> MigDevice:
    return MigDevice(
        index=_number(device.findtext("index")),
        gpu_instance=_number(device.findtext("gpu_instance_id")),
        compute_instance=_number(device.findtext("compute_instance_id")),
        memory_mib=_mib(device.findtext("fb_memory_usage/total")),
    )


def _processes(gpu: ElementTree.Element) -> List[Process]:
    found = []
    for info in gpu.findall("processes/process_info"):
        pid = _number(info.findtext("pid"))
        if pid is not None:
            kind, name = _text(info.findtext("type")) or "", _text(info.findtext("process_name")) or ""
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


def _mig_mode(value: Optional[str]) -> Optional[str]:
    text = (_text(value) or "").lower()
    return text if text in ("enabled", "disabled") else None


def _pci(value: Optional[str]) -> Optional[str]:
    match = _PCI.fullmatch((value or "").strip())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}".lower()


def _failure(outcome: Outcome, unreadable: str) -> Problem:
    command = " ".join(outcome.argv)
    if outcome.timed_out is not None:
        cure = "the driver hangs: look at `dmesg` for Xid and NVRM lines, then reboot the host"
        return Problem("timeout", f"no answer from {command} within {outcome.timed_out:g} s", _ANSWER, cure)
    if outcome.status is None:
        cure = "check that it is an executable file of this machine's architecture, and that its libraries are there"
        return Problem("failed", f"{command} cannot be run ({outcome.words})", _ANSWER, cure)
    said = f"{outcome.words!r} (exit status {outcome.status})"
    for kind, words, cure in _FAILURES:
        if words.search(outcome.words):
            return Problem(kind, said, _ANSWER, cure)
    kind = _BY_STATUS.get(outcome.status, "")
    if kind:
        return Problem(kind, said, _ANSWER, _CURES[kind])
    if outcome.ok:
        cure = "run `nvidia-smi -q -x` on the host to see what it prints"
        return Problem("unreadable", unreadable, "the XML that nvidia-smi prints", cure)
    return Problem("failed", said, _ANSWER, "run `nvidia-smi` on the host, and look at `dmesg` for lines with NVRM")


def _too_old(version: Optional[str], minimum: str) -> Optional[Problem]:
    found, least = numbers(version), numbers(minimum)
    if found is None or least is None or found >= least:
        return None
    cure = "install a newer driver: older ones cannot give cards to containers"
    return Problem("driver_too_old", f"driver {version}", f"{minimum} or newer", cure)


def _card_from_dict(values: Mapping[str, Any]) -> SmiCard:
    return SmiCard(
        **dict(
            values,
            mig_devices=tuple(MigDevice(**device) for device in values["mig_devices"]),
            processes=tuple(Process(**process) for process in values["processes"]),
        )
    )
