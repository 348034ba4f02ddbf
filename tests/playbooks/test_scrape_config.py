# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""playbooks/scrape_config.yml through Ansible itself: a file for each host, which Prometheus reads with the token of that host."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path
from typing import Any

import yaml

from playbooks.play import ROOT, play

PLAYBOOK = ROOT / "playbooks/scrape_config.yml"
SECRET = "only-for-this-test"
HOSTS: dict[str, dict[str, dict[str, Any]]] = {
    "kube_control_plane": {"cp1": {"gpushare_metrics_address": "::1"}, "cp2": {"gpushare_metrics_address": "127.0.0.1"}},
    "gpu_nodes": {
        "gpu1": {"gpushare_metrics_address": "10.0.0.11"},
        "gpu2": {"gpushare_metrics_address": "0.0.0.0", "ansible_host": "10.0.0.12", "gpushare_metrics_plugin_port": 9500},
        "gpu3": {},
        "gpu4": {"gpushare_metrics_address": "10.0.0.14", "gpushare_metrics_plugin_port": 0},
        # Both.
        "cp2": {},
    },
}
# As inventories have them for all hosts: the controller is none of these.
OF_ALL = {
    "ansible_connection": "ssh",
    "ansible_become": True,
    "ansible_become_exe": "/nonexistent/sudo",
    "ansible_python_interpreter": "/nonexistent/python",
    "gpushare_metrics_token": f"{{{{ (inventory_hostname ~ '{SECRET}') | ansible.builtin.hash('sha256') }}}}",
}


def job(name: str, host: str, address: str) -> dict[str, Any]:
    return {
        "job_name": f"{name}/{host}",
        "static_configs": [{"targets": [address]}],
        "relabel_configs": [{"target_label": "job", "replacement": name}],
        "authorization": {"credentials": hashlib.sha256(f"{host}{SECRET}".encode()).hexdigest()},
    }


def test_each_host_has_a_file_with_its_token_and_again_nothing_changes(tmp_path: Path) -> None:
    folder = tmp_path / "scrape"
    folder.mkdir()
    (folder / "gpu3.yml").write_text("of before")
    arguments = ("-e", f"gpushare_scrape_dir={folder}", "--diff")
    done = play(tmp_path, PLAYBOOK, HOSTS, *arguments, **OF_ALL)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {path.name: yaml.safe_load(path.read_text())["scrape_configs"] for path in folder.iterdir()}
    assert found == {
        "cp1.yml": [job("gpushare-extender", "cp1", "[::1]:9441")],
        "cp2.yml": [job("gpushare-extender", "cp2", "127.0.0.1:9441"), job("gpushare-device-plugin", "cp2", "127.0.0.1:9440")],
        "gpu1.yml": [job("gpushare-device-plugin", "gpu1", "10.0.0.11:9440")],
        "gpu2.yml": [job("gpushare-device-plugin", "gpu2", "10.0.0.12:9500")],
        "gpu4.yml": None,
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert not any(one["authorization"]["credentials"] in done.stdout for jobs in found.values() for one in jobs or [])
    again = play(tmp_path, PLAYBOOK, HOSTS, *arguments, **OF_ALL)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "changed=1" not in again.stdout


def test_a_run_without_a_folder_says_what_it_needs(tmp_path: Path) -> None:
    done = play(tmp_path, PLAYBOOK, HOSTS, **OF_ALL)
    assert done.returncode == 2
    assert "Expected the absolute path of a folder on the controller" in " ".join((done.stdout + done.stderr).split())
