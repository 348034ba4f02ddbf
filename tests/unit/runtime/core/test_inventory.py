# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The annotation `gpushare/gpus`."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_runtime.core.bounds import ReportError
from gpushare_runtime.core.inventory import Gpu, Inventory, instance_index, physical_index
from gpushare_runtime.core.quantity import UNITS
from unit.fakes.runtime.pods import gpu, inventory
from unit.golden import Golden

# Written out from the protocol, not produced by the code.
DOCUMENTED = (
    '{"v":1,"unit":"GiB","gpus":[{"index":0,"uuid":"GPU-8f6","minor":0,"pci":"0000:3b:00.0","model":"Tesla T4",'
    '"mib":15360,"units":15,"numa":0,"health":"ok","cordoned":false}]}'
)
TEXT = st.sampled_from(["", "Tesla T4", "0000:3b:00.0", "ok", "lost", 'ü "'])
NATURAL = st.integers(min_value=0, max_value=10**6)


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    indexes = sorted(draw(st.sets(st.integers(min_value=0, max_value=64), max_size=3)))
    numa = st.none() | NATURAL
    gpus = tuple(
        Gpu(i, f"GPU-{i}", draw(NATURAL), draw(TEXT), draw(TEXT), draw(NATURAL), draw(NATURAL), draw(numa), draw(TEXT), draw(st.booleans()))
        for i in indexes
    )
    return Inventory(draw(st.sampled_from(list(UNITS.values()))), gpus, draw(st.integers(0, 100)), cpu=draw(NATURAL))


def test_the_documented_form_is_read_and_written() -> None:
    found = Inventory.from_json(DOCUMENTED)
    assert found.by_uuid["GPU-8f6"].units == 15
    assert found.to_json() == DOCUMENTED


@pytest.mark.parametrize("more", ["", ',"caps":[3,4]'])
def test_texts_that_the_gpus_of_many_nodes_repeat_are_in_memory_once(more: str) -> None:
    text = DOCUMENTED.replace('"cordoned":false', f'"cordoned":false{more}')
    (first,), (second,) = (Inventory.from_json(text).gpus for _ in range(2))
    assert first is not second
    assert all(getattr(first, name) is getattr(second, name) for name in ("pci", "model", "health"))


def test_compute_is_mentioned_where_it_is_shared_out() -> None:
    text = '{"v":1,"unit":"64MiB","core":100,"gpus":[]}'
    found = Inventory.from_json(text)
    assert (found.core, found.unit, found.gpus) == (100, UNITS["64MiB"], ())
    assert found.to_json() == text
    assert Inventory.from_json(DOCUMENTED).core == 0


def test_the_cpu_of_the_node_is_mentioned_where_it_is_known() -> None:
    text = '{"v":1,"unit":"GiB","cpu":31850,"gpus":[]}'
    assert (Inventory.from_json(text).cpu, Inventory.from_json(text).to_json()) == (31850, text)
    assert Inventory.from_json(DOCUMENTED).cpu == 0
    for wrong in ("-1", "true", '"4"', "0.5", "1" + "0" * 19):
        with pytest.raises(ReportError, match=r"^cpu must "):
            Inventory.from_json(text.replace("31850", wrong))


def test_the_numa_node_may_be_unknown() -> None:
    data = json.loads(DOCUMENTED)
    for unknown in (data["gpus"][0] | {"numa": None}, {k: v for k, v in data["gpus"][0].items() if k != "numa"}):
        assert Inventory.from_json(json.dumps(data | {"gpus": [unknown]})).gpus[0].numa is None


@given(inventories())
def test_what_is_written_is_read_back(gpus: Inventory) -> None:
    assert Inventory.from_json(gpus.to_json()) == gpus


def test_what_a_library_says_of_a_gpu_is_written_so_that_it_can_be_read() -> None:
    """Whatever characters are in it, and however much it is."""
    written = Inventory(UNITS["GiB"], (gpu(0, 16, model="A\x1b[31m100", health="lost:\nsee\tthe log " + "x" * 9999),)).to_json()
    (read,) = Inventory.from_json(written).gpus
    assert (read.model, read.health[:18], read.usable) == ("A [31m100", "lost: see the log ", False)
    assert len(read.health) == 512


@pytest.mark.parametrize("key", ["uuid", "pci", "model", "health"])
@pytest.mark.parametrize("text", ["a\nb", "\x1b[2J", "\ud800", "\u202egnp", "x" * 513])
def test_texts_are_short_and_obeyed_by_no_terminal(key: str, text: str, golden: Golden) -> None:
    data = json.loads(DOCUMENTED)
    data["gpus"][0][key] = text
    with golden.raised(ReportError) as error:
        Inventory.from_json(json.dumps(data))
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 200
    data["gpus"][0][key] = "x" * 512
    assert getattr(Inventory.from_json(json.dumps(data)).gpus[0], key) == "x" * 512


@pytest.mark.parametrize(
    ("key", "most"), [("index", 255), ("minor", 2**31 - 1), ("mib", 2**31 - 1), ("units", 2**31 - 1), ("numa", 2**31 - 1)]
)
def test_numbers_end_where_no_machine_is(key: str, most: int, golden: Golden) -> None:
    data = json.loads(DOCUMENTED)
    data["gpus"][0][key] = most
    assert getattr(Inventory.from_json(json.dumps(data)).gpus[0], key) == most
    for more in (most + 1, 10**4000):
        data["gpus"][0][key] = more
        with golden.raised(ReportError) as error:
            Inventory.from_json(json.dumps(data))
        assert len(str(error.value)) < 200


def test_a_node_has_at_most_so_many_gpus(golden: Golden) -> None:
    data = json.loads(DOCUMENTED)
    entry = data["gpus"][0]
    data["gpus"] = [{**entry, "index": n, "uuid": f"GPU-{n}"} for n in range(128)]
    assert len(Inventory.from_json(json.dumps(data)).gpus) == 128
    data["gpus"].append({**entry, "index": 128, "uuid": "GPU-128"})
    with golden.raised(ReportError):
        Inventory.from_json(json.dumps(data))


def test_what_is_said_of_the_largest_node_fits_and_no_more_is_parsed(golden: Golden) -> None:
    entry = gpu(0, 80, model="NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", health="XID 79: " + "x" * 150)
    largest = Inventory(UNITS["GiB"], tuple(replace(entry, index=n, uuid=f"{entry.uuid}-{n}") for n in range(128))).to_json()
    padded = largest + " " * (64 * 1024 - len(largest))
    assert len(Inventory.from_json(padded).gpus) == 128
    with golden.raised(ReportError):
        Inventory.from_json(f"{padded} ")


@pytest.mark.parametrize(
    "text", ["[" * 30_000, '{"v":' + "9" * 5000 + "}", '{"v":' + "[" * 900 + "]" * 900 + "}", '{"v":1,"unit":"' + "x" * 30_000 + '"}']
)
def test_what_is_too_deep_too_long_or_too_large_is_said_in_few_words(text: str) -> None:
    with pytest.raises(ReportError) as error:
        Inventory.from_json(text)
    assert len(str(error.value)) < 300
    assert str(error.value).isprintable()


def test_sixteen_gpus_stay_far_below_what_a_nodes_annotations_may_hold() -> None:
    many = Inventory(UNITS["MiB"], tuple(gpu(i, 288, uuid=f"GPU-8f6d4b2a-0c1e-4d3f-9a8b-7c6d5e4f3a{i:02d}") for i in range(16)))
    assert len(many.to_json()) < 256 * 1024 / 32


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"v": 2}, "version 2"),
        ({"v": None}, "version None"),
        ({"unit": "GB"}, "'GB'"),
        ({"gpus": {}}, "gpus must be list"),
        ({"gpus": [1]}, r"^gpus\[0\] must be an object, found int"),
        ({"unit": None}, "^unit must be str, found None"),
        ({"core": 101}, "^core must be at most 100, found 101"),
        ({"core": -1}, "^core must not be negative"),
        ({"core": "20"}, "^core must be int, found '20'"),
        ({"core": None}, "^core must be int, found None"),
        ({"gpus": [{"index": "0"}]}, r"gpus\[0\].index"),
        ({"gpus": [{"index": -1}]}, "negative"),
        ({"gpus": [{"index": True}]}, r"gpus\[0\].index"),
    ],
)
def test_what_cannot_be_used_is_rejected_with_its_place(change: dict[str, object], says: str) -> None:
    with pytest.raises(ReportError, match=says):
        Inventory.from_json(json.dumps(json.loads(DOCUMENTED) | change))


@pytest.mark.parametrize("wrong", ["", 0, 1, -1, None, True])
@pytest.mark.parametrize("key", ["index", "uuid", "minor", "pci", "model", "mib", "units", "numa", "health", "cordoned"])
def test_each_field_of_a_gpu_has_its_kind(key: str, wrong: object) -> None:
    kind = {**dict.fromkeys(("uuid", "pci", "model", "health"), str), "cordoned": bool}.get(key, int)
    data = json.loads(DOCUMENTED)
    data["gpus"].append(data["gpus"][0] | {"index": 5, "uuid": "GPU-2", key: wrong})
    text = json.dumps(data)
    # JSON's true is no number; a NUMA node may be unknown.
    if (type(wrong) is kind and wrong != -1) or (key == "numa" and wrong is None):
        if (key, wrong) == ("index", 0):
            return
        assert getattr(Inventory.from_json(text).gpus[1], key) == wrong
    else:
        says = f"must not be negative, found {wrong}" if kind is type(wrong) else f"must be {kind.__name__}, found {wrong!r}"
        with pytest.raises(ReportError, match=f"^{re.escape(f'gpus[1].{key} {says}')}"):
            Inventory.from_json(text)


def test_every_field_must_be_there() -> None:
    for key in json.loads(DOCUMENTED)["gpus"][0].keys() - {"numa"}:
        data = json.loads(DOCUMENTED)
        del data["gpus"][0][key]
        with pytest.raises(ReportError, match=rf"^gpus\[0\]\.{key} must be \w+, found None"):
            Inventory.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "7"])
def test_text_that_is_no_annotation_is_rejected(text: str) -> None:
    with pytest.raises(ReportError):
        Inventory.from_json(text)


def test_instances_have_the_index_of_their_place_and_the_numbers_of_their_device_nodes() -> None:
    assert (instance_index(0, 13, 0), instance_index(3, 1, 2), instance_index(15, 14, 7)) == (10130, 13012, 25147)
    assert [physical_index(index) for index in (0, 255, 10130, 13012, 25147)] == [0, 255, 0, 3, 15]
    made = Inventory(UNITS["GiB"], (gpu(0, 16), gpu(10130, 9, uuid="MIG-1", caps=(120, 121)), gpu(13012, 9, uuid="MIG-2")))
    assert Inventory.from_json(made.to_json()) == made
    assert [one.is_instance for one in made.gpus] == [False, True, True]
    for index, uuid, caps, says in (
        (256, "GPU-1", [], r"index must be at most 255"),
        (100_000, "MIG-1", [], r"index must be at most 99999"),
        (10130, "MIG-1", [1, 2, 3], r"caps must be a list of at most 2 numbers, found \[1, 2, 3\]"),
        (10130, "MIG-1", [-1, 2], "caps must be"),
        (10130, "MIG-1", [True], "caps must be"),
        (10130, "MIG-1", {}, "caps must be"),
    ):
        data = json.loads(made.to_json())
        data["gpus"] = [data["gpus"][1] | {"index": index, "uuid": uuid, "caps": caps}]
        with pytest.raises(ReportError, match=rf"^gpus\[0\]\.{says}"):
            Inventory.from_json(json.dumps(data))


def test_a_gpu_is_listed_once() -> None:
    with pytest.raises(ReportError, match="ascending"):
        Inventory(UNITS["GiB"], (gpu(1, 16), gpu(0, 16)))
    with pytest.raises(ReportError, match="ascending"):
        Inventory(UNITS["GiB"], (gpu(0, 16), gpu(0, 16, uuid="GPU-x")))
    with pytest.raises(ReportError, match="UUID"):
        Inventory(UNITS["GiB"], (gpu(0, 16, uuid="GPU-x"), gpu(1, 16, uuid="GPU-x")))


def test_gpus_of_different_size_are_counted_each() -> None:
    assert inventory(16, 24).units == 40
    assert (inventory().units, inventory().core) == (0, 0)


def test_gpus_are_found_by_index_and_by_uuid() -> None:
    gpus = (gpu(1, 16), gpu(4, 24))
    found = Inventory(UNITS["GiB"], gpus)
    assert found.by_index == dict(zip((1, 4), gpus, strict=True))
    assert found.by_uuid == {one.uuid: one for one in gpus}


def test_a_bad_or_cordoned_gpu_takes_no_pods() -> None:
    assert gpu(0, 16).usable
    assert not gpu(0, 16, health="xid 79").usable
    assert not gpu(0, 16, cordoned=True).usable
