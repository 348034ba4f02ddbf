# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Outputs of `nvidia-smi -q -x` of many drivers and GPUs, as minidom reads them and as we do."""

from __future__ import annotations

import re
from xml.dom import minidom

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.nvidia_smi import SmiOutputError, parse

from unit.fakes.plugins.real_files.corpus import Case, parameters

NOTHING = ("", "N/A", "[N/A]", "None")


def text(element: minidom.Element, path: str) -> str | None:
    """Of the first element of this path below another one, None where it has none."""
    for tag in path.split("/"):
        found = [child for child in element.childNodes if child.nodeName == tag]
        if not found:
            return None
        element = found[0]
    said = "".join(node.data for node in element.childNodes if node.nodeType == node.TEXT_NODE).strip()
    return None if said in NOTHING else said


def number(element: minidom.Element, path: str) -> int | None:
    found = re.fullmatch(r"([0-9]+)(?: MiB)?", text(element, path) or "")
    return int(found.group(1)) if found else None


@pytest.mark.parametrize("case", parameters("nvidia_smi"))
def test_an_output(case: Case) -> None:
    (content,) = case.texts("/").values()
    if case.is_rejected():
        with pytest.raises(SmiOutputError) as caught:
            parse(content)
        assert [words for words in case.says if words not in str(caught.value)] == [], caught.value
        return
    log = minidom.parseString(content[content.index("<?xml") :].encode()).documentElement
    assert log is not None
    elements = [child for child in log.childNodes if child.nodeName == "gpu"]
    found = parse(content)
    assert found.driver_version == (text(log, "driver_version") or text(log, "kmd_version"))
    said = "" if found.problem is None else f"{found.problem.check}: {found.problem.found}"
    assert [words for words in case.says if words not in said] == [], said
    assert bool(case.says) is bool(found.problem)
    assert len(found.gpus) == len(elements)
    for gpu, element in zip(found.gpus, elements, strict=True):
        assert (gpu.uuid or None, gpu.model) == (text(element, "uuid"), text(element, "product_name"))
        assert (gpu.memory_mib, gpu.minor) == (number(element, "fb_memory_usage/total"), number(element, "minor_number"))
        assert gpu.pci == f"{int(element.getAttribute('id')[:-8], 16):04x}{element.getAttribute('id')[-8:]}".lower()
        assert gpu.mig_mode == (text(element, "mig_mode/current_mig") or "").lower() or gpu.mig_mode is None
        devices = element.getElementsByTagName("mig_device")
        assert [(one.gpu_instance, one.memory_mib) for one in gpu.mig_devices] == [
            (number(one, "gpu_instance_id"), number(one, "fb_memory_usage/total")) for one in devices
        ]
        processes = element.getElementsByTagName("process_info")
        assert [(one.pid, one.kind, one.memory_mib) for one in gpu.processes] == [
            (number(one, "pid"), text(one, "type"), number(one, "used_memory")) for one in processes
        ]
