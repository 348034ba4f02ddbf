# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What identifies a machine is replaced, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts import nvidia_smi

from gpu_proof.context import REPOSITORY
from gpu_proof.scrub import Scrubber

_XML = REPOSITORY / "tests/unit/plugins/fixtures/nvidia_smi_535_two_gpus.xml"


def test_serials_and_uuids_of_real_xml_are_replaced_and_the_rest_stays() -> None:
    text = _XML.read_text()
    made = Scrubber("nobody").text(text)
    before, after = (
        ElementTree.fromstring(text[text.index("<nvidia_smi_log") :]),
        ElementTree.fromstring(made[made.index("<nvidia_smi_log") :]),
    )
    changed = {old.tag for old, new in zip(before.iter(), after.iter(), strict=True) if old.text != new.text}
    assert changed <= {"uuid", "serial"}
    assert "uuid" in changed
    assert [old.attrib for old in before.iter()] == [new.attrib for new in after.iter()], "PCI addresses"
    for gpu in nvidia_smi.parse(text).gpus:
        assert gpu.uuid not in made
    ours = nvidia_smi.parse(made)
    assert len({gpu.uuid for gpu in ours.gpus}) == len(ours.gpus)


def test_the_same_value_has_the_same_replacement_in_xml_and_in_json() -> None:
    uuid, other = "GPU-8f6f2c31-0a1b-4c2d-9e3f-123456789abc", "GPU-00aa2c31-0a1b-4c2d-9e3f-123456789abc"
    scrubber = Scrubber("nobody")
    xml = scrubber.text(f"<uuid>{uuid}</uuid><serial>1320321001234</serial><uuid>{other}</uuid>")
    assert scrubber.text(uuid.upper().replace("GPU-", "GPU-")) in xml
    found = json.loads(scrubber.text(json.dumps({"a": uuid, "b": [other, uuid]})))
    assert found["a"] == found["b"][1] != found["b"][0]
    assert f"<uuid>{found['a']}</uuid>" in xml
    assert "1320321001234" not in xml


def test_newer_drivers_identities() -> None:
    text = (
        "<uuid>MIG-8f6f2c31-0a1b-4c2d-9e3f-123456789abc</uuid><chassis_serial_number>1821325191344</chassis_serial_number>"
        "<cluster_uuid>3b4c5d6e-0a1b-4c2d-9e3f-123456789abc</cluster_uuid><gpu_guid>0x4a5b6c7d8e9f</gpu_guid><pdi>0x645fbd0947b1c390</pdi><serial>N/A</serial>"
        "<gpu_part_number>2330-885-A1</gpu_part_number>"
    )
    made = Scrubber("nobody").text(text)
    for secret in ("8f6f2c31", "1821325191344", "3b4c5d6e", "4a5b6c7d8e9f", "645fbd0947b1c390"):
        assert secret not in made
    assert "<serial>N/A</serial>" in made
    assert "2330-885-A1" in made


def test_the_machines_name_is_replaced_as_a_word() -> None:
    assert Scrubber("trainer7").text("on trainer7: trainer70 /home/trainer7") == "on host: trainer70 /home/host"
    assert Scrubber("gpu1").text("node gpu1") == "node gpu1", "a short name is part of other words"


def test_a_text_without_any_stays(tmp_path: Path) -> None:
    assert Scrubber("nobody").text('{"pci": "0000:04:00.0"}') == '{"pci": "0000:04:00.0"}'
