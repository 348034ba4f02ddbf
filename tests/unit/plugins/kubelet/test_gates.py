# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Feature gates of kubelet: in which release, in which text, and hostile input."""

from __future__ import annotations

import json

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet import gates
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet.arguments import (
    ArgumentsError,
    StartFile,
    environment_of,
    start_of,
    with_argument,
    with_gates,
    with_unit_argument,
)
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet.config_file import ConfigError, gates_of
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet.config_file import with_gates as config_with_gates
from hypothesis import given
from hypothesis import strategies as st

# From the pages about feature gates on kubernetes.io, by hand: (release, given, to be written).
NEEDED = [
    ((1, 5), {}, []),
    ((1, 6), {}, ["Accelerators"]),
    ((1, 7), {}, ["Accelerators"]),
    ((1, 8), {}, ["Accelerators", "DevicePlugins"]),
    ((1, 9), {"DevicePlugins": True}, ["Accelerators"]),
    ((1, 9), {"DevicePlugins": True, "Accelerators": True}, []),
    ((1, 10), {}, ["Accelerators"]),
    ((1, 10), {"DevicePlugins": False}, ["Accelerators", "DevicePlugins"]),
    ((1, 11), {}, []),
    ((1, 25), {}, []),
    ((1, 25), {"DevicePlugins": False, "CPUManager": False}, ["DevicePlugins"]),
    ((1, 26), {"DevicePlugins": False}, []),
    ((1, 28), {}, []),
    ((2, 9), {}, []),
]


@pytest.mark.parametrize(("release", "now", "expected"), NEEDED)
def test_what_each_release_must_be_given(release: tuple[int, int], now: dict[str, bool], expected: list[str]) -> None:
    assert gates.needed(release, now) == expected


def test_what_the_next_kubernetes_no_longer_takes() -> None:
    now = {"DevicePlugins": True, "DynamicResourceAllocation": True, "CPUManager": True, "Unheard": True}
    assert gates.obsolete(now, (1, 25)) == []
    assert gates.obsolete(now, (1, 26)) == [("DevicePlugins", False)]
    assert gates.obsolete(now, (1, 27)) == [("DevicePlugins", False)]
    assert gates.obsolete(now, (1, 37)) == [("DevicePlugins", True), ("DynamicResourceAllocation", False)]


def test_each_flag_adds_to_the_ones_before_it() -> None:
    words = ["kubelet", "--feature-gates=A=true,B=false", "--v=2", "--feature-gates", "B=true", "--feature-gatesX=C=true"]
    assert gates.from_words(words) == {"A": True, "B": True}
    assert gates.merged("A=true, B=false,A=false", {"A": False, "C": True}) == "A=false,B=false,C=true"
    assert gates.merged("A=true,B=false", {"A": None}) == "B=false"


@pytest.mark.parametrize("value", ["A", "A=maybe", "A=true;B=true", "=true", "A b=true", ",".join(f"G{n}=true" for n in range(501))])
def test_what_is_no_list_of_gates_is_an_error(value: str) -> None:
    with pytest.raises(gates.GateError) as caught:
        gates.parsed(value)
    assert len(str(caught.value)) < 200


CONFIGS = [
    # before, after DevicePlugins=true
    ("kind: KubeletConfiguration\n", "kind: KubeletConfiguration\nfeatureGates:\n  DevicePlugins: true\n"),
    ("kind: KubeletConfiguration", "kind: KubeletConfiguration\nfeatureGates:\n  DevicePlugins: true\n"),
    (
        "featureGates: {A: true}  # c\nkind: KubeletConfiguration\n",
        "featureGates: {A: true, DevicePlugins: true}  # c\nkind: KubeletConfiguration\n",
    ),
    ("featureGates: {}\nkind: KubeletConfiguration\n", "featureGates:\n  DevicePlugins: true\nkind: KubeletConfiguration\n"),
    (
        "featureGates:\n    # why\n    'DevicePlugins': false # off\n\n    B: true\nkind: KubeletConfiguration\n",
        "featureGates:\n    # why\n    'DevicePlugins': true # off\n\n    B: true\nkind: KubeletConfiguration\n",
    ),
    (
        '{"kind": "KubeletConfiguration", "featureGates": {"DevicePlugins": false}}\n',
        '{"kind": "KubeletConfiguration", "featureGates": {"DevicePlugins": true}}\n',
    ),
]


@pytest.mark.parametrize(("before", "after"), CONFIGS)
def test_the_configuration_keeps_everything_else(before: str, after: str) -> None:
    assert config_with_gates(before, {"DevicePlugins": True}) == after
    assert config_with_gates(after, {"DevicePlugins": True}) == after
    # And back: what a YAML library understands is what it was.
    old = yaml.safe_load(before).get("featureGates") or {}
    back = config_with_gates(after, {"DevicePlugins": old.get("DevicePlugins")})
    assert (yaml.safe_load(back).get("featureGates") or {}) == old


@pytest.mark.parametrize(
    "text",
    [
        "",
        "kind: Other\n",
        "kind: KubeletConfiguration\nfeatureGates: [A]\n",
        "kind: KubeletConfiguration\nfeatureGates:\n  A: maybe\n",
        "kind: KubeletConfiguration\nfeatureGates:\n  A: true\nfeatureGates:\n  B: true\n",
        "kind: KubeletConfiguration\n'featureGates': {}\n",
        "kind: KubeletConfiguration\n---\nkind: KubeletConfiguration\n---\n",
        "kind: KubeletConfiguration\n...\n",
        "kind: KubeletConfiguration\nfeatureGates: &all\n  A: true\n",
        '{"kind": "KubeletConfiguration", "featureGates": [}',
        # YAML permits no tab there, and kubelet does not read it.
        "kind: KubeletConfiguration\nfeatureGates:\n\tA: true\n",
        "kind: KubeletConfiguration\nauthentication:\n  \tx509: {}\n",
    ],
)
def test_a_configuration_that_is_not_understood_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError):
        config_with_gates(text, {"DevicePlugins": True})


def test_a_tab_that_indents_nothing_is_nobodys_mistake() -> None:
    text = "kind: KubeletConfiguration\n\t\n\t# a comment\na:\tb\n"
    assert config_with_gates(text, {"DevicePlugins": True}) == text + "featureGates:\n  DevicePlugins: true\n"
    json = '{\n\t"kind": "KubeletConfiguration"\n}\n'
    assert gates_of(config_with_gates(json, {"DevicePlugins": True})) == {"DevicePlugins": True}


_NAMES = st.sampled_from(["DevicePlugins", "Accelerators", "CPUManager", "Zeta"])
_GATES = st.dictionaries(_NAMES, st.booleans(), max_size=4)


@given(_GATES, st.dictionaries(_NAMES, st.none() | st.booleans(), max_size=4), st.sampled_from(["block", "flow", "json"]), st.booleans())
def test_any_edit_reads_back_as_exactly_the_change(now: dict[str, bool], changes: dict[str, bool | None], form: str, last: bool) -> None:
    data = {"kind": "KubeletConfiguration", "clusterDNS": ["10.96.0.10"], "featureGates": now, "evictionHard": {"nodefs.available": "10%"}}
    if last:
        data["featureGates"] = data.pop("featureGates")
    if form == "json":
        text = json.dumps(data)
    elif form == "flow":
        inline = "{" + ", ".join(f"{name}: {str(value).lower()}" for name, value in now.items()) + "}"
        text = yaml.safe_dump({**data, "featureGates": "HERE"}, sort_keys=False).replace("HERE", inline)
    else:
        text = yaml.safe_dump(data, sort_keys=False)
    expected = {**now, **{name: value for name, value in changes.items() if value is not None}}
    expected = {name: value for name, value in expected.items() if changes.get(name, value) is not None}
    found = yaml.safe_load(config_with_gates(text, changes))
    assert (found.pop("featureGates", None) or {}) == expected
    assert found == {key: value for key, value in data.items() if key != "featureGates"}
    assert gates_of(config_with_gates(text, changes)) == expected


UNIT = """\
[Unit]
Description=x
[Service]
Environment="KUBELET_EXTRA_ARGS=--a=b --feature-gates=X=false" OTHER=1
EnvironmentFile=-/etc/default/kubelet
ExecStart=/usr/bin/kubelet ${NONE} --first \\
    --feature-gates="Y=true" $KUBELET_EXTRA_ARGS
"""


def test_words_come_from_where_systemd_takes_them() -> None:
    unit = StartFile("/etc/systemd/system/kubelet.service", UNIT)
    start = start_of([unit], [StartFile("/etc/default/kubelet", "", True, True)])
    assert start.argv == ["", "--first", "--feature-gates=Y=true", "--a=b", "--feature-gates=X=false"]
    assert [(word.text, word.variable) for word in start.gate_words()] == [
        ("--feature-gates=Y=true", ""),
        ("--feature-gates=X=false", "KUBELET_EXTRA_ARGS"),
    ]
    # An environment file wins over Environment=.
    start = start_of([unit], [StartFile("/etc/default/kubelet", "# KUBELET_EXTRA_ARGS=--c\nKUBELET_EXTRA_ARGS='--d'\n")])
    assert start.argv == ["", "--first", "--feature-gates=Y=true", "--d"]
    assert start.defined["KUBELET_EXTRA_ARGS"] == "/etc/default/kubelet"
    with pytest.raises(ArgumentsError, match="no ExecStart"):
        start_of([StartFile("/x", "[Service]\nExecStart=\n")], [])


def test_a_flag_is_edited_in_its_own_place() -> None:
    change = {"DevicePlugins": True}
    assert "--feature-gates=X=false,DevicePlugins=true" in with_gates(UNIT, "KUBELET_EXTRA_ARGS", change)
    assert '--feature-gates="Y=true,DevicePlugins=true"' in with_gates(UNIT, "", change)
    assert with_gates(UNIT, "KUBELET_EXTRA_ARGS", {"X": None}) == UNIT.replace(" --feature-gates=X=false", "")
    with pytest.raises(ArgumentsError):
        with_gates(UNIT, "OTHER", change)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "KUBELET_EXTRA_ARGS=--x\n"),
        ("# mine", "# mine\nKUBELET_EXTRA_ARGS=--x\n"),
        ("KUBELET_EXTRA_ARGS=\n", "KUBELET_EXTRA_ARGS=--x\n"),
        ("KUBELET_EXTRA_ARGS=--v=2\nB=1\n", 'KUBELET_EXTRA_ARGS="--v=2 --x"\nB=1\n'),
        ("KUBELET_EXTRA_ARGS='--v=2 --w'\n", "KUBELET_EXTRA_ARGS='--v=2 --w --x'\n"),
        ('A=1\nKUBELET_EXTRA_ARGS="" \n', 'A=1\nKUBELET_EXTRA_ARGS="--x" \n'),
    ],
)
def test_an_argument_is_added_to_an_environment_file(text: str, expected: str) -> None:
    after = with_argument(text, "KUBELET_EXTRA_ARGS", "--x")
    assert after == expected
    assert environment_of(after)["KUBELET_EXTRA_ARGS"].split()[-1] == "--x"


@pytest.mark.parametrize("text", ["KUBELET_EXTRA_ARGS=--a 'b c'\n", "KUBELET_EXTRA_ARGS=--a \\\n  --b\n", 'KUBELET_EXTRA_ARGS="a\\"b"\n'])
def test_a_value_that_is_not_plain_is_left_to_people(text: str) -> None:
    with pytest.raises(ArgumentsError):
        with_argument(text, "KUBELET_EXTRA_ARGS", "--x")
    with pytest.raises(ArgumentsError):
        with_unit_argument("[Service]\nEnvironment=KUBELET_EXTRA_ARGS=--a\n", "KUBELET_EXTRA_ARGS", "--x")
