# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""From the release alone to pods that share a GPU, and back: the commands of the quick start, as they stand there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import yaml

from docs.conftest import shell
from docs.pages import Step, steps
from docs.tarball import COLLECTION, release
from e2e.checks import check_devices
from e2e.cluster import GPU_NODES, Cluster

TEST = "tests/docs/test_tarball.py"
_RECAP = re.compile(r"^(\S+)\s+: ok=\d+\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.M)

# What the sums begin with once the use of GPUs is known.
_USED = re.compile(r"USED/(?=ALLOC)|(?<= )[0-9.]+/(?=[0-9]+/[0-9]+ )")


def write_hosts(cluster: Cluster, inventory: Path) -> None:
    """What the page leaves to the user: the hosts. kubelet's five minutes are waited for by another suite."""
    hosts = yaml.safe_load(cluster.inventory.read_text())
    hosts["all"].setdefault("vars", {})["gpushare_uninstall_wait"] = 0
    (inventory / "hosts.yml").write_text(yaml.safe_dump(hosts))
    shutil.rmtree(inventory / "group_vars")


def counts(output: str) -> dict[str, tuple[int, int]]:
    """Host to (changed, unreachable or failed) of a playbook's end."""
    return {host: (int(changed), int(gone) + int(failed)) for host, changed, gone, failed in _RECAP.findall(output)}


def shown_by(step: Step, output: str) -> list[str]:
    """Lines of the page's output that the real one does not have; columns may be wider, and nodes may publish their use already."""
    real = {" ".join(_USED.sub("", line).split()) for line in output.splitlines()}
    return [line for line in step.output.splitlines() if line.strip() and " ".join(line.split()) not in real]


def test_the_quick_start_does_what_it_says(bare: Cluster, tmp_path: Path) -> None:
    line = shell(bare, tmp_path)
    release(tmp_path)
    for step in steps("docs/start/quickstart.md", TEST):
        output = line(step.command)
        assert shown_by(step, output) == [], f"{step.command} prints\n{output}"
        if step.command.startswith("ansible-galaxy"):
            shutil.copy2(tmp_path / COLLECTION / "docs/use/samples/01-share.yaml", tmp_path)
        elif step.command.startswith("cp "):
            write_hosts(bare, tmp_path / "inventory")
        elif step.command.startswith("ansible-playbook"):
            found = counts(output)
            assert set(found) >= {"cp1", *GPU_NODES}, output[-3000:]
            assert {failed for _changed, failed in found.values()} == {0}
            if step.command.endswith(".preflight"):
                assert {changed for changed, _failed in found.values()} == {0}
        elif step.command.startswith("kubectl wait"):
            pods = bare.until_running("share-1", "share-2", "share-3")
            assert check_devices(bare, pods) == []
    assert "aliyun.com/gpu-mem" not in bare.on("cp1", "cat", "/etc/kubernetes/manifests/kube-scheduler.yaml")
    units = bare.on("gpu1", "ls", "/etc/systemd/system").split()
    assert [unit for unit in units if unit.startswith("gpushare-") and not unit.startswith("gpushare-lab-")] == []


def test_the_page_of_uninstalling_shows_before_it_removes(installed: Cluster, tmp_path: Path) -> None:
    line = shell(installed, tmp_path)
    line(f"ansible-galaxy collection install {release(tmp_path)}")
    (tmp_path / "inventory/group_vars").mkdir(parents=True)
    write_hosts(installed, tmp_path / "inventory")
    for step in steps("docs/operate/uninstall.md", TEST):
        assert {failed for _changed, failed in counts(line(step.command)).values()} == {0}
    assert installed.on("gpu1", "systemctl", "is-active", "gpushare-device-plugin").strip() == "active"
