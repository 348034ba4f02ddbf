# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Feature gates of kubelet: in which release, in which text, and hostile input."""

from __future__ import annotations

import json

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.systemd import environment
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet import gates
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet.arguments import (
    ArgumentsError,
    StartFile,
    environment_file_paths,
    gates_in_text,
    start_of,
    variables_in,
    with_argument,
    with_gates,
    with_unit_argument,
)
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet.config_file import ConfigError, gates_of
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet.config_file import with_gates as config_with_gates
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet.plan import without
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils import _yaml
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


# From the same pages: the first release of Kubernetes 1 that knows a gate, that has it on, that has it locked, and that no longer knows it.
RELEASES = {
    "Accelerators": (6, 11, 11, 11),
    "DevicePlugins": (8, 10, 26, 28),
    "KubeletPodResources": (13, 15, 28, 30),
    "TopologyManager": (16, 18, 27, 29),
    "KubeletPodResourcesGetAllocatable": (21, 23, 28, 30),
    "DynamicResourceAllocation": (26, 34, 35, 38),
    "DevicePluginCDIDevices": (28, 29, 31, 34),
}


@pytest.mark.parametrize("name", RELEASES)
def test_a_gate_is_given_where_it_is_off_and_named_where_it_can_go(name: str) -> None:
    since, on, locked, gone = RELEASES[name]
    releases = [(1, minor) for minor in range(41)]
    assert [release for release in releases if gates.needed(release, {}, [name])] == releases[since:on]
    assert [release for release in releases if gates.needed(release, {name: False}, [name])] == releases[since:locked]
    assert [release for release in releases if gates.TABLE[name].is_known(release)] == releases[since:gone]


def test_each_flag_adds_to_the_ones_before_it() -> None:
    words = ["kubelet", "--feature-gates=A=true,B=false", "--v=2", "-feature-gates", "B=true", "--feature-gatesX=C=true"]
    assert gates.from_words(words) == {"A": True, "B": True}
    assert gates.parsed(" A = TRUE , ,B=t,C=0") == {"A": True, "B": True, "C": False}
    assert gates.merged("A =true, , B=false,A=false", {"A": False, "C": True}) == "A=false,B=false,C=true"
    assert gates.merged("A=true,B=false", {"A": None, "C": None}) == "B=false"
    assert len(gates.parsed(",".join(f"G{number}=true" for number in range(500)))) == 500


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("A", "'A'"),
        (" A=maybe", "'A=maybe'"),
        ("A=true;B=true", "'A=true;B=true'"),
        ("=true", "'=true'"),
        ("A b=true", "'A b=true'"),
        ("A" * 200, f"'{'A' * 80}'"),
        (",".join(f"G{number}=true" for number in range(501)) + ",A", "more than 500 pairs"),
    ],
)
def test_what_is_no_list_of_gates_is_an_error(value: str, found: str) -> None:
    for read in (gates.parsed, lambda text: gates.merged(text, {"C": True})):
        with pytest.raises(gates.GateError) as caught:
            read(value)
        assert str(caught.value).removesuffix("; expected NAME=true or NAME=false") == f"--feature-gates has {found}"


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
        "---\nkind: KubeletConfiguration\nfeatureGates:\n B: true",
        "---\nkind: KubeletConfiguration\nfeatureGates:\n B: true\n DevicePlugins: true\n",
    ),
    (
        "kind: KubeletConfiguration\nfeatureGates: ~ # c\n#\n# d\n\na: 1\n",
        "kind: KubeletConfiguration\nfeatureGates:  # c\n  DevicePlugins: true\n#\n# d\n\na: 1\n",
    ),
    (
        "kind: KubeletConfiguration\nfeatureGates: {\"A\" : false, 'B': true , }",
        "kind: KubeletConfiguration\nfeatureGates: {\"A\" : false, 'B': true, DevicePlugins: true , }",
    ),
    (
        "featureGates:\n    # why\n    'DevicePlugins': false # off\n\n    B: true\nkind: KubeletConfiguration\n",
        "featureGates:\n    # why\n    'DevicePlugins': true # off\n\n    B: true\nkind: KubeletConfiguration\n",
    ),
    # Other spellings of true and false, which stay.
    (
        "kind: KubeletConfiguration\nfeatureGates:\n  A: True\n  B: no # c\n  DevicePlugins: OFF\n",
        "kind: KubeletConfiguration\nfeatureGates:\n  A: True\n  B: no # c\n  DevicePlugins: true\n",
    ),
    # Braces over several lines.
    (
        "featureGates: { # why\n  A: True,   # a\n  # of b\n  'B': n}  # c\nkind: KubeletConfiguration\n",
        "featureGates: { # why\n  A: True,   # a\n  # of b\n  'B': n, DevicePlugins: true}  # c\nkind: KubeletConfiguration\n",
    ),
    (
        "featureGates: {\n  DevicePlugins: false, A: on\n}\nkind: KubeletConfiguration\n",
        "featureGates: {\n  DevicePlugins: true, A: on\n}\nkind: KubeletConfiguration\n",
    ),
    ("featureGates: {\n}  # c\nkind: KubeletConfiguration\n", "featureGates:  # c\n  DevicePlugins: true\nkind: KubeletConfiguration\n"),
    # kubelet reads the first document.
    ("kind: KubeletConfiguration\n---\n", "kind: KubeletConfiguration\nfeatureGates:\n  DevicePlugins: true\n---\n"),
    (
        "# c\n---\nkind: KubeletConfiguration\nfeatureGates: {A: true}\n...\nfeatureGates: [\n",
        "# c\n---\nkind: KubeletConfiguration\nfeatureGates: {A: true, DevicePlugins: true}\n...\nfeatureGates: [\n",
    ),
    (
        "kind: KubeletConfiguration\r\nfeatureGates:\r\n  A: true\r\n",
        "kind: KubeletConfiguration\r\nfeatureGates:\r\n  A: true\r\n  DevicePlugins: true\r\n",
    ),
    (
        '\n{"kind": "KubeletConfiguration", "featureGates": {"DevicePlugins": false}}\n',
        '\n{"kind": "KubeletConfiguration", "featureGates": {"DevicePlugins": true}}\n',
    ),
]


@pytest.mark.parametrize(("before", "after"), CONFIGS)
def test_the_configuration_keeps_everything_else(before: str, after: str) -> None:
    assert config_with_gates(before, {}) == before
    assert config_with_gates(before, {"DevicePlugins": True}) == after
    assert config_with_gates(after, {"DevicePlugins": True}) == after
    # And back: what a YAML library understands is what it was.
    old = _yaml.load(before).get("featureGates") or {}
    back = config_with_gates(after, {"DevicePlugins": old.get("DevicePlugins")})
    assert (_yaml.load(back).get("featureGates") or {}) == old
    assert _yaml.load(after)["featureGates"] == {**old, "DevicePlugins": True}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "kind: Other\n",
        "kind: KubeletConfiguration\nfeatureGates: [A]\n",
        "kind: KubeletConfiguration\nfeatureGates:\n  A: maybe\n",
        "kind: KubeletConfiguration\nfeatureGates:\n  A: true\nfeatureGates:\n  B: true\n",
        "kind: KubeletConfiguration\n'featureGates': {}\n",
        "kind: KubeletConfiguration\nfeatureGates : {A: true}\n",
        "---\n---\nkind: KubeletConfiguration\n",
        "kind: KubeletConfiguration\n<<: {featureGates: {A: true}}\n",
        "  kind: KubeletConfiguration\n  featureGates:\n    A: true\n",
        "kind: KubeletConfiguration\nfeatureGates: {A: true} B\n",
        "kind: KubeletConfiguration\nfeatureGates: {A: true B: true}\n",
        "kind: KubeletConfiguration\nfeatureGates: {A: true,\n",
        "kind: KubeletConfiguration\nfeatureGates: {A: 'true'}\n",
        'kind: KubeletConfiguration\nfeatureGates:\n  A: "true"\n',
        "kind: KubeletConfiguration\nfeatureGates: &all\n  A: true\n",
        '{"kind": "KubeletConfiguration", "featureGates": [}',
        # YAML permits no tab there, and kubelet does not read it.
        "kind: KubeletConfiguration\nfeatureGates:\n\tA: true\n",
        "kind: KubeletConfiguration\nauthentication:\n  \tx509: {}\n",
        "kind: KubeletConfiguration\nfeatureGates: {A-B: true}\n",
        "kind: KubeletConfiguration\nfeatureGates: {A: maybe}\n",
        '{"kind": "KubeletConfiguration", "featureGates": {"DevicePlugins": {"A": true}}}',
        '{"kind": "KubeletConfiguration", "featureGates": {}, "featureGates": {}}',
        '{"kind": "KubeletConfiguration", "featureGates": null}',
        '{"kind": "KubeletConfiguration", "featureGates": []}',
    ],
)
def test_a_configuration_that_is_not_understood_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError):
        config_with_gates(text, {"DevicePlugins": True})


def test_an_edit_that_would_change_other_settings_is_an_error() -> None:
    with pytest.raises(ConfigError, match="stands in a form that is not edited"):
        config_with_gates("kind: KubeletConfiguration\nother:\nfeatureGates: {A: true}\n  b: 1\n", {"A": None})


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
    assert expected == now or ("featureGates" in found) is bool(expected)
    assert (found.pop("featureGates", None) or {}) == expected
    assert found == {key: value for key, value in data.items() if key != "featureGates"}
    assert gates_of(config_with_gates(text, changes)) == expected


UNIT = """\
[Unit]
Description=x
[Service]
Environment=GONE=1
Environment=
Environment="KUBELET_EXTRA_ARGS=--feature-gates=W=true --a=b --feature-gates=X=false" OTHER=1 'IP=10.0.0.1' ALONE
Environment
 EnvironmentFile = -/etc/default/kubelet
EnvironmentFile=/etc/kubelet.env
ExecStart=/usr/bin/kubelet ${NONE} --node-ip=${IP} --b=$IP "$NO" \\
    -feature-gates="Y=true" $KUBELET_EXTRA_ARGS
Restart=always
 [Other]
ExecStart=/usr/bin/other
"""
PATH = "/etc/systemd/system/kubelet.service"


def test_words_come_from_where_systemd_takes_them() -> None:
    unit = StartFile(PATH, UNIT)
    start = start_of([unit], [StartFile("/etc/default/kubelet", "")])
    first = ["", "--node-ip=10.0.0.1", "--b=$IP", "-feature-gates=Y=true"]
    assert start.argv == [*first, "--feature-gates=W=true", "--a=b", "--feature-gates=X=false"]
    assert [(word.text, word.variable, word.path) for word in start.gate_words()] == [
        ("-feature-gates=Y=true", "", PATH),
        ("--feature-gates=W=true", "KUBELET_EXTRA_ARGS", PATH),
        ("--feature-gates=X=false", "KUBELET_EXTRA_ARGS", PATH),
    ]
    assert start.used == ("NONE", "IP", "NO", "KUBELET_EXTRA_ARGS")
    assert start.defined == dict.fromkeys(["KUBELET_EXTRA_ARGS", "OTHER", "IP"], PATH)
    # An environment file wins over Environment=.
    start = start_of([unit], [StartFile("/etc/default/kubelet", "# KUBELET_EXTRA_ARGS=--c\nKUBELET_EXTRA_ARGS='--d'\n")])
    assert start.argv == [*first, "--d"]
    assert start.defined["KUBELET_EXTRA_ARGS"] == "/etc/default/kubelet"
    with pytest.raises(ArgumentsError, match="no ExecStart"):
        start_of([unit, StartFile("/x", "[Service]\nExecStart=\n")], [])


def test_assignments_are_read_as_systemd_reads_them() -> None:
    files = [("/etc/default/kubelet", True), ("/etc/kubelet.env", False)]
    assert environment_file_paths([StartFile(PATH, UNIT)]) == files
    assert environment_file_paths([StartFile(PATH, UNIT), StartFile("/x", "[Service]\nEnvironmentFile=\nEnvironmentFile=/a\n")]) == [
        ("/a", False)
    ]
    assert gates_in_text(UNIT + "  # --feature-gates=Z=true\n") == {"W": True, "X": False, "Y": True}
    assert variables_in('Environment="A=1" "B=2"\nC=3\n B=4\n') == ["A", "B", "C"]


@pytest.mark.parametrize(
    ("text", "argv"),
    [
        ('ARGS=\'--feature-gates="A=true,B=false" --c="d e"\'\n', ["--feature-gates=A=true,B=false", "--c=d e"]),
        ('ARGS=--feature-gates="A=true,B=false" --c\n', ["--feature-gates=A=true,B=false", "--c"]),
        ("ARGS=--feature-gates=A=true,\\\nB=false --c\n", ["--feature-gates=A=true,B=false", "--c"]),
        ('ARGS = "--feature-gates=A=true,\\\nB=false"\n', ["--feature-gates=A=true,B=false"]),
        ('ARGS="--feature-gates=A=true,B=false\n--c"\n', ["--feature-gates=A=true,B=false", "--c"]),
    ],
)
def test_gates_are_those_that_systemd_gives_to_kubelet(text: str, argv: list[str]) -> None:
    unit = StartFile("/u", "[Service]\nEnvironmentFile=/e\nExecStart=/usr/bin/kubelet \\\n# no argument\n  $ARGS\n")
    start = start_of([unit], [StartFile("/e", text)])
    assert start.argv == argv
    assert gates.from_words(start.argv) == {"A": True, "B": False}
    assert {word.variable for word in start.words} == {"ARGS"}


def test_a_flag_is_edited_in_its_own_place() -> None:
    change = {"DevicePlugins": True}
    assert with_gates(UNIT, "KUBELET_EXTRA_ARGS", change) == UNIT.replace("X=false", "X=false,DevicePlugins=true")
    assert with_gates(UNIT, "", change) == UNIT.replace("Y=true", "Y=true,DevicePlugins=true")
    assert with_gates(UNIT, "KUBELET_EXTRA_ARGS", {"X": None}) == UNIT.replace(" --feature-gates=X=false", "")
    for text in (UNIT, "OTHER=---feature-gates=X=true\n"):
        with pytest.raises(ArgumentsError):
            with_gates(text, "OTHER", change)


@pytest.mark.parametrize(
    ("text", "original", "expected"),
    [
        (
            'A="--b --feature-gates=Accelerators=true,CPUManager=true,DevicePlugins=true,TopologyManager=false"\n',
            "A=--feature-gates=DevicePlugins=true\n",
            'A="--b --feature-gates=CPUManager=true,DevicePlugins=true,TopologyManager=false"\n',
        ),
        ("A=--b\n", "", "A=--b\n"),
        (
            "A=--feature-gates=X=true\nB=--feature-gates=DevicePlugins=true\n",
            "B=--feature-gates=DevicePlugins=true\n",
            "A=--feature-gates=X=true\nB=--feature-gates=DevicePlugins=true\n",
        ),
        ("A=1\nB=--feature-gates=DevicePlugins=true\n", "", "A=1\nB=\n"),
        ("A=--feature-gates=X=true\nB=--feature-gates=DevicePlugins=true\n", "", "A=--feature-gates=X=true\nB=\n"),
        ("A=--feature-gates=DevicePlugins=true\nB=--feature-gates=DevicePlugins=true\n", "", "A=\nB=\n"),
        (
            "A=--feature-gates=X=true\nB=--feature-gates=DevicePlugins=true\n",
            "B=--feature-gates=DevicePlugins=false\n",
            "A=--feature-gates=X=true\nB=--feature-gates=DevicePlugins=false\n",
        ),
        ("A=---feature-gates=DevicePlugins=true\n", "", None),
    ],
)
def test_what_others_have_made_of_a_file_loses_our_gates_only(text: str, original: str, expected: str | None) -> None:
    if expected is not None:
        assert without("/a", text, original) == expected
        return
    with pytest.raises(Rejected, match="/a: --feature-gates stands in a form that is not edited; nothing was changed"):
        without("/a", text, original)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "KUBELET_EXTRA_ARGS=--x\n"),
        ("# mine", "# mine\nKUBELET_EXTRA_ARGS=--x\n"),
        ("B=1\n", "B=1\nKUBELET_EXTRA_ARGS=--x\n"),
        ("KUBELET_EXTRA_ARGS=--v=2\nKUBELET_EXTRA_ARGS=\n", "KUBELET_EXTRA_ARGS=--v=2\nKUBELET_EXTRA_ARGS=--x\n"),
        ("KUBELET_EXTRA_ARGS=\n", "KUBELET_EXTRA_ARGS=--x\n"),
        ("KUBELET_EXTRA_ARGS=--v=2\nB=1\n", 'KUBELET_EXTRA_ARGS="--v=2 --x"\nB=1\n'),
        ("KUBELET_EXTRA_ARGS='--v=2 --w'\n", "KUBELET_EXTRA_ARGS='--v=2 --w --x'\n"),
        ('A=1\nKUBELET_EXTRA_ARGS="" \n', 'A=1\nKUBELET_EXTRA_ARGS="--x" \n'),
        # A second assignment would take the first one's arguments away.
        ("KUBELET_EXTRA_ARGS = --v=2\n", 'KUBELET_EXTRA_ARGS = "--v=2 --x"\n'),
        # No assignment to systemd.
        ("export KUBELET_EXTRA_ARGS=--v=2\n", "export KUBELET_EXTRA_ARGS=--v=2\nKUBELET_EXTRA_ARGS=--x\n"),
    ],
)
def test_an_argument_is_added_to_an_environment_file(text: str, expected: str) -> None:
    after = with_argument(text, "KUBELET_EXTRA_ARGS", "--x")
    assert after == expected
    assert environment(after)["KUBELET_EXTRA_ARGS"].split()[-1] == "--x"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"A=1" "KUBELET_EXTRA_ARGS=--v=2 " B=1', '"A=1" "KUBELET_EXTRA_ARGS=--v=2 --x" B=1'),
        ("KUBELET_EXTRA_ARGS= B=1", "KUBELET_EXTRA_ARGS=--x B=1"),
        ("'KUBELET_EXTRA_ARGS=--a' 'KUBELET_EXTRA_ARGS=--b'", "'KUBELET_EXTRA_ARGS=--a' 'KUBELET_EXTRA_ARGS=--b --x'"),
    ],
)
def test_an_argument_is_added_to_an_assignment_of_a_unit(text: str, expected: str) -> None:
    assert with_unit_argument(f"[Service]\nEnvironment={text}\n", "KUBELET_EXTRA_ARGS", "--x") == f"[Service]\nEnvironment={expected}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("KUBELET_EXTRA_ARGS=--a 'b c'\n", "has a value with quotes inside"),
        ("KUBELET_EXTRA_ARGS=--a \\\n  --b\n", "goes over several lines"),
        ('KUBELET_EXTRA_ARGS="a\\"b"\n', "has a value with quotes inside"),
    ],
)
def test_a_value_that_is_not_plain_is_left_to_people(text: str, words: str) -> None:
    with pytest.raises(ArgumentsError, match=f"KUBELET_EXTRA_ARGS {words}"):
        with_argument(text, "KUBELET_EXTRA_ARGS", "--x")
    for unit in ("KUBELET_EXTRA_ARGS=--a", '"KUBELET_EXTRA_ARGS=--a \\\n --b"', "OTHER=1"):
        with pytest.raises(ArgumentsError, match="KUBELET_EXTRA_ARGS stands in a form that is not edited"):
            with_unit_argument(f"[Service]\nEnvironment={unit}\n", "KUBELET_EXTRA_ARGS", "--x")
