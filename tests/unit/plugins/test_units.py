# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The daemons' units as Ansible makes them from the variables: the daemons themselves read their command lines."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpushare_runtime.device_plugin import main as plugin
from gpushare_runtime.extender import main as extender

ROOT = Path(__file__).resolve().parents[3]
# Host to its variables.
HOSTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "open": {
        "gpushare_metrics_address": "10.0.0.5",
        "gpushare_metrics_token": "0123456789abcdef",
        "gpushare_metrics_plugin_port": "9500",
        "gpushare_memory_unit": "64MiB",
        "gpushare_placement": "spread",
        "gpushare_card_placement": "fgd",
        "gpushare_most_nodes": "100",
        "gpushare_preemption": "no",
        "gpushare_scheduler_lease": "infra/mine",
    },
    "six": {"gpushare_metrics_address": "::1", "gpushare_metrics_extender_port": 9501, "gpushare_extender_tls": False},
    "half": {"gpushare_metrics_address": "127.0.0.1", "gpushare_metrics_extender_port": 0, "gpushare_metrics_token": "0123456789abcdef"},
}
PLAY = """
- hosts: all
  gather_facts: false
  vars_files:
    - {roles}/extender/defaults/main.yml
    - {roles}/extender/vars/main.yml
    - {roles}/device_plugin/defaults/main.yml
    - {roles}/device_plugin/vars/main.yml
  vars:
    __gpushare_node: {{node_name: gpu1, kubelet_root: /var/lib/kubelet}}
  tasks:
    - ansible.builtin.copy:
        content: "{{{{ lookup('ansible.builtin.template', '{roles}/' ~ item ~ '.service.j2') }}}}"
        dest: "{folder}/{{{{ inventory_hostname }}}}.{{{{ item | basename }}}}"
        mode: "0600"
      loop: [extender/templates/gpushare-extender, device_plugin/templates/gpushare-device-plugin]
"""


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with each host's units."""
    folder = tmp_path_factory.mktemp("units")
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (folder / "hosts.json").write_text(json.dumps({"all": {"vars": local, "hosts": {name: {} for name in HOSTS}}}))
    for name, values in HOSTS.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    # Over the roles' defaults, which a play's files would otherwise win against.
    play = PLAY.format(roles=ROOT / "roles", folder=folder).replace(
        "  vars:\n", f"    - {folder}/{{{{ inventory_hostname }}}}.json\n  vars:\n", 1
    )
    (folder / "play.yml").write_text(play)
    done = subprocess.run(
        [Path(sys.executable).parent / "ansible-playbook", "-i", folder / "hosts.json", folder / "play.yml"],
        env=os.environ | {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_LOCAL_TEMP": str(folder / "tmp")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def unit(units: Path, host: str, name: str) -> str:
    return (units / f"{host}.gpushare-{name}").read_text()


def arguments(units: Path, host: str, name: str) -> list[str]:
    """What systemd starts it with."""
    text = unit(units, host, name).replace("\\\n", " ")
    (line,) = (line for line in text.splitlines() if line.startswith("ExecStart="))
    return shlex.split(line.partition("=")[2].replace("${RUNTIME_DIRECTORY}", "/run/gpushare-extender"))[1:]


@pytest.mark.parametrize(
    ("host", "unit_name", "metrics", "token"),
    [
        ("plain", "GiB", None, None),
        ("open", "64MiB", ("10.0.0.5", 9500), "/etc/gpushare/device-plugin-metrics.token"),
        ("six", "GiB", ("::1", 9440), None),
        ("half", "GiB", ("127.0.0.1", 9440), "/etc/gpushare/device-plugin-metrics.token"),
    ],
)
def test_the_device_plugin_reads_its_options(
    units: Path, host: str, unit_name: str, metrics: tuple[str, int] | None, token: str | None
) -> None:
    settings, _level = plugin.parse_arguments(arguments(units, host, "device-plugin"))
    found = settings.metrics
    assert settings.unit.name == unit_name
    assert (found and (found.host, found.port)) == metrics
    assert (found and found.token_file) == (Path(token) if token else None)


@pytest.mark.parametrize(
    ("host", "placement", "cards", "preempt", "lease", "metrics", "token"),
    [
        ("plain", "binpack", "", True, "kube-system/kube-scheduler", None, False),
        ("open", "spread", "fgd", False, "infra/mine", "10.0.0.5:9441", True),
        ("six", "binpack", "", True, "kube-system/kube-scheduler", "[::1]:9501", False),
        ("half", "binpack", "", True, "kube-system/kube-scheduler", None, False),
    ],
)
def test_the_extender_reads_its_options(
    units: Path, host: str, placement: str, cards: str, preempt: bool, lease: str, metrics: str | None, token: bool
) -> None:
    given = arguments(units, host, "extender")
    options = extender._parser().parse_args(given)
    assert (options.placement, options.card_placement, options.preempt) == (placement, cards, preempt)
    assert options.most_nodes == (100 if host == "open" else 0)
    assert given[given.index("--lease") + 1] == lease
    assert (given[given.index("--metrics-listen") + 1] if "--metrics-listen" in given else None) == metrics
    assert ("--tls-cert" in given) == (host != "six")
    # The process may not read the original: it gets a copy, made anew at each reload.
    copies = [line for line in unit(units, host, "extender").splitlines() if line.startswith("ExecStartPre=")]
    assert ("/etc/gpushare/extender-metrics.token" in copies[0]) == token
    assert ("/run/gpushare-extender/extender-metrics.token" in given) == token
