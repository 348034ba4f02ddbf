# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""containerd takes an option in more spellings than one, and we judge and write it as the containerd of the host decodes it.

The right values are what the real programs did (tests/installer/test_cgroup_drivers.py reads runc's arguments).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomllib
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes import containerd_config
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.containerd_options import Decoder, spellings

from unit.fakes.plugins.runtimes.containerd_host import BINARY, Machine
from unit.fakes.plugins.runtimes.fake_containerd import NEW, OLD, model

ONE, TWO = Decoder((1, 6)), Decoder((2, 0))
RELEASES = ("1.6.20", "1.7.29", "2.1.4", "2.4.2")
RUNC = "io.containerd.runc.v2"


def entry(**options: Any) -> dict[str, Any]:
    return {"runtime_type": RUNC, "options": options}


@pytest.mark.parametrize(
    ("options", "one", "two"),
    [
        ({"SystemdCgroup": True}, True, True),
        ({"systemdCgroup": True}, True, True),
        ({"systemdcgroup": True}, True, True),
        ({"SYSTEMDCGROUP": True}, True, True),
        # Only 2.x takes any case.
        ({"systemdCGroup": True}, None, True),
        # Of two that disagree, 1.x takes the field's own name, and 2.x the last one in order.
        ({"SystemdCgroup": False, "systemdCgroup": True}, False, True),
        ({"systemdCgroup": False, "SystemdCgroup": True}, True, False),
        ({"SYSTEMDCGROUP": True, "systemdCgroup": False}, True, False),
        ({"systemdcgroup": True, "SYSTEMDCGROUP": False}, True, True),
        # Other words are other options.
        ({"systemd_cgroup": True, "Systemd-Cgroup": True}, None, None),
        ({}, None, None),
    ],
)
def test_a_field_gets_the_value_that_this_containerd_decodes(options: dict[str, bool], one: bool | None, two: bool | None) -> None:
    assert (ONE.value(entry(**options), "SystemdCgroup"), TWO.value(entry(**options), "SystemdCgroup")) == (one, two)


def test_what_counts_has_one_key_for_each_field_and_keeps_what_is_no_field() -> None:
    found = entry(SystemdCgroup=False, systemdCgroup=True, binaryName="/runc", Root="/r", mine=1, Mine=2)
    assert ONE.effective(found) == entry(SystemdCgroup=False, binaryName="/runc", Root="/r", mine=1, Mine=2)
    assert TWO.effective(found) == entry(systemdCgroup=True, binaryName="/runc", Root="/r", mine=1, Mine=2)
    assert TWO.decoded(found) == entry(SystemdCgroup=True, BinaryName="/runc", Root="/r", mine=1, Mine=2)


def test_options_of_other_runtimes_and_entries_without_any_stay_as_they_are() -> None:
    for found in ({"runtime_type": "io.containerd.kata.v2", "options": {"systemdCgroup": True}}, {"runtime_type": RUNC}, {"options": None}):
        assert (ONE.decoded(found), TWO.decoded(found)) == (found, found)
    assert spellings({"SystemdCgroup": 1, "systemdcgroup": 1, "Systemd": 1}, "SystemdCgroup") == ["SystemdCgroup", "systemdcgroup"]


def test_two_spellings_of_one_value_are_no_difference_and_the_process_is_judged_by_what_it_decodes() -> None:
    dump = {"plugins": {NEW: {"containerd": {"runtimes": {"nvidia": entry(SystemdCgroup=True, BinaryName="/b")}}}}}
    same = {"plugins": {NEW: {"containerd": {"runtimes": {"nvidia": entry(systemdCgroup=True, binaryname="/b")}}}}}
    assert containerd_config.differences(dump, same, TWO) == []
    options = {"BinaryName": BINARY, "SystemdCgroup": False, "systemdCgroup": True}
    status = {"containerd": {"defaultRuntimeName": "nvidia", "runtimes": {"nvidia": {"runtimeType": RUNC, "options": options}}}}
    wanted = containerd_config.runtimes(
        {"default_runtime_name": "nvidia", "runtimes": {"nvidia": entry(BinaryName=BINARY, SystemdCgroup=True)}}, ONE
    )
    assert containerd_config.not_running(wanted, containerd_config.running_runtimes(status, TWO)) is None
    assert "'SystemdCgroup': False}, expected" in str(
        containerd_config.not_running(wanted, containerd_config.running_runtimes(status, ONE))
    )


def section(release: str) -> str:
    return f'plugins."{OLD if release.startswith("1.") else NEW}".containerd'


def kubespray(release: str, options: str, more: str = "") -> str:
    """A main file with these options of runc, as kubespray's releases have it. Version 2 has the old name on every containerd."""
    cri = section(release)
    return f"""\
version = {2 if release.startswith("1.") else 3}
root = "/var/lib/containerd"
[{cri}]
  default_runtime_name = "{"nvidia" if more else "runc"}"
  snapshotter = "overlayfs"
  [{cri}.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [{cri}.runtimes.runc.options]
{options}{more}"""


LOWER = '      systemdCgroup = true\n      binaryName = "/usr/local/bin/runc"\n'


def options_of(machine: Machine) -> dict[str, Any]:
    """The options of nvidia over all files, as they are written."""
    found: dict[str, Any] = {}
    for text in machine.texts().values():
        plugins = tomllib.loads(text.decode()).get("plugins", {})
        for name in (OLD, NEW):
            found |= plugins.get(name, {}).get("containerd", {}).get("runtimes", {}).get("nvidia", {}).get("options", {})
    return found


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("options", "right"),
    [
        # kubespray 2.16 to 2.23, 2.24 to 2.27, and from 2.28 on.
        ("      systemdCgroup = true\n", {"BinaryName": BINARY, "systemdCgroup": True}),
        (LOWER, {"binaryName": BINARY, "systemdCgroup": True}),
        ('      SystemdCgroup = true\n      BinaryName = "/usr/local/bin/runc"\n', {"BinaryName": BINARY, "SystemdCgroup": True}),
        ("      systemdCgroup = false\n", {"BinaryName": BINARY, "systemdCgroup": False}),
        # kubespray makes these of what a user has given it.
        ("      systemdcgroup = true\n      shimCgroup = '/x'\n", {"BinaryName": BINARY, "systemdcgroup": True, "shimCgroup": "/x"}),
    ],
)
def test_nvidia_has_the_cgroup_driver_of_runc_in_the_spelling_that_is_there(
    tmp_path: Path, release: str, options: str, right: dict[str, Any]
) -> None:
    text = kubespray(release, options)
    machine = Machine(model(release), tmp_path).write({"config.toml": text})
    plan = machine.present()
    assert options_of(machine) == right
    assert plan.after.entries["nvidia"]["options"].get("SystemdCgroup", False) is next(v for k, v in right.items() if "ystemd" in k)
    assert plan.after.entries["nvidia"]["options"]["BinaryName"] == BINARY
    assert machine.present().files == {}
    machine.absent()
    assert machine.texts() == {"config.toml": text.encode()}


def test_a_spelling_that_1x_does_not_take_gets_one_that_it_does(tmp_path: Path) -> None:
    text = kubespray("1.7.29", "      systemdCGroup = true\n")
    machine = Machine(model("1.7.29"), tmp_path).write({"config.toml": text})
    machine.present()
    assert options_of(machine) == {"BinaryName": BINARY, "SystemdCgroup": False}


def nvidia(release: str, options: str) -> str:
    return f"""\
  [{section(release)}.runtimes.nvidia]
    runtime_type = "io.containerd.runc.v2"
    [{section(release)}.runtimes.nvidia.options]
{options}"""


@pytest.mark.parametrize("release", RELEASES)
def test_a_second_spelling_of_an_earlier_release_of_ours_is_put_right(tmp_path: Path, release: str) -> None:
    ours = f'      BinaryName = "{BINARY}"\n      SystemdCgroup = false\n' + LOWER
    machine = Machine(model(release), tmp_path).write({"config.toml": kubespray(release, LOWER, nvidia(release, ours))})
    machine.present()
    assert options_of(machine) == {"BinaryName": BINARY, "binaryName": BINARY, "SystemdCgroup": True, "systemdCgroup": True}
    assert machine.present().files == {}


@pytest.mark.parametrize("release", RELEASES)
def test_an_entry_that_is_right_in_another_spelling_is_left_alone(tmp_path: Path, release: str) -> None:
    text = kubespray(release, LOWER, nvidia(release, f'      binaryname = "{BINARY}"\n      systemdCgroup = true\n'))
    machine = Machine(model(release), tmp_path).write({"config.toml": text})
    assert machine.present().files == {}
    assert machine.texts() == {"config.toml": text.encode()}


@pytest.mark.parametrize("release", RELEASES)
def test_an_entry_of_others_is_corrected_in_its_spelling_and_gets_its_values_back(tmp_path: Path, release: str) -> None:
    text = kubespray(release, LOWER, nvidia(release, '      binaryName = "/old"\n      systemdCgroup = false\n'))
    text = text.replace('default_runtime_name = "nvidia"', 'default_runtime_name = "runc"')
    machine = Machine(model(release), tmp_path).write({"config.toml": text})
    machine.present()
    assert options_of(machine) == {"binaryName": BINARY, "systemdCgroup": True}
    # Others' edits since: ours is taken back value by value.
    machine.config.write_text(machine.config.read_text() + "[debug]\n")
    machine.absent()
    assert machine.config.read_text() == text + "[debug]\n"


def test_taking_out_removes_the_second_spelling_that_an_earlier_release_wrote() -> None:
    cri = f'[plugins."{OLD}".containerd.runtimes.nvidia'
    original = f'version = 2\n{cri}]\nruntime_type = "x"\n{cri}.options]\nsystemdCgroup = true\nbinaryName = "/old"\n'
    now = original + f'SystemdCgroup = false\nBinaryName = "{BINARY}"\n[debug]\n'
    assert containerd_config.reverted(now, original, {}, []) == original + "[debug]\n"
