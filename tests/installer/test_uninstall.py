# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""uninstall.yml where it is not simple: kubelet holds on, a host is away, it is killed, others have edited.

tests/install has the simple way.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from e2e.cluster import CONTROL_PLANE, REPOSITORY, Cluster
from installer.site import CONTAINERD, MANIFEST, NODE, SCHEDULER, Site, differences, pod, without
from labs import ONE, Labs


@pytest.fixture
def site(labs: Labs, tmp_path: Path) -> Site:
    """A cluster with one GPU node on which nobody has installed anything, or from which all has been taken out again."""
    return Site(labs.current or labs.bare(ONE), tmp_path)


def test_what_kubelet_has_let_go_of_does_not_come_back(site: Site) -> None:
    cluster = site.cluster
    untouched = site.state()
    site.install()
    cluster.create(pod("share", {"aliyun.com/gpu-mem": "2"}))
    cluster.until_running("share")
    cluster.delete("share")

    # kubelet names a removed plugin's resources for five minutes.
    _results, output = site.uninstall(wait=400)
    assert differences(untouched, site.state()) == [], output
    assert site.registered() == []

    # Neither with a new kubelet nor with its next report.
    before = heartbeat(cluster)
    cluster.on(NODE, "systemctl", "restart", "kubelet")
    cluster.until("kubelet has reported again", lambda: heartbeat(cluster) != before, 400)
    assert differences(untouched, site.state()) == []


def heartbeat(cluster: Cluster) -> str:
    conditions = cluster.node(NODE)["status"]["conditions"]
    return str(next(c["lastHeartbeatTime"] for c in conditions if c["type"] == "Ready"))


def test_a_host_that_cannot_be_reached_stops_it_and_without_that_host_its_accounts_stay(site: Site, tmp_path: Path) -> None:
    untouched = site.state(resources=False)
    site.install()
    installed = site.state()
    away = tmp_path / "away.yml"
    away.write_text(yaml.safe_dump({"all": {"hosts": {NODE: {"ansible_host": "127.0.0.1", "ansible_port": 1}}}}))
    assert f"{NODE} cannot be reached or read (see above). Nothing was changed on any host" in site.rejected("-i", str(away))
    assert differences(installed, site.state()) == []

    _results, output = site.uninstall("--limit", f"all:!{NODE}")
    assert "other hosts still use it" in output
    after = site.state()
    of_the_node = {name: state for name, state in installed.items() if name.startswith((f"{NODE}:", f"node {NODE}"))}
    assert differences(of_the_node, {name: state for name, state in after.items() if name in of_the_node}) == []
    accounts = {name for name in installed if "gpushare-device-plugin" in name and not name.startswith(f"{CONTROL_PLANE}:")}
    assert accounts <= set(after), "an account is gone that is in use"
    assert [line for line in differences(untouched, after) if line.startswith(f"{CONTROL_PLANE}:")] == []
    site.schedules("while-one-is-away")

    site.uninstall()
    assert differences(untouched, site.state(resources=False)) == []


def test_killed_at_each_step_the_next_run_finishes_and_pods_are_scheduled_meanwhile(site: Site) -> None:
    cluster = site.cluster
    untouched = site.state(resources=False)
    site.install()
    site.ship(NODE)
    steps = site.remove_killed_at_each_step(NODE, "services")
    assert steps[0] == "stopped gpushare-device-plugin.service"
    assert "removed /etc/systemd/system/gpushare-device-plugin.service" in steps
    site.schedules("plugin-half-removed")

    play = subprocess.Popen(
        site.command("playbooks/uninstall.yml"),
        cwd=REPOSITORY,
        env=site.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        cluster.until("the scheduler has lost the extender", lambda: "gpushare" not in site.read(CONTROL_PLANE, MANIFEST), 180)
    finally:
        os.killpg(play.pid, signal.SIGKILL)
        play.wait(30)
    site.schedules("scheduler-just-changed")
    site.ship(CONTROL_PLANE)
    steps = site.remove_killed_at_each_step(CONTROL_PLANE, "services")
    assert steps[:3] == ["stopped gpushare-pki.timer", "stopped gpushare-extender.socket", "stopped gpushare-extender.service"]
    assert "removed /etc/gpushare" in steps
    site.schedules("extender-half-removed")

    site.uninstall()
    assert differences(untouched, site.state(resources=False)) == []
    results, output = site.uninstall()
    if "resource aliyun.com/" in output:
        # On a busy machine kubelet's five minutes ended between the two runs, so the second one removed what kubelet had named until then.
        results, output = site.uninstall()
    assert results.changes() == {}, output


def test_what_an_administrator_has_changed_meanwhile_stays_and_is_reported(site: Site) -> None:
    untouched = site.state(resources=False)
    manifest, containerd = site.read(CONTROL_PLANE, MANIFEST), site.read(NODE, CONTAINERD)
    site.install()
    site.write(CONTROL_PLANE, SCHEDULER, site.read(CONTROL_PLANE, SCHEDULER) + "parallelism: 8\n")
    edit = (
        "  tolerate_missing_hugetlb_controller = true\n",
        "  tolerate_missing_hugetlb_controller = true\n  max_container_log_line_size = 32768\n",
    )
    site.write(NODE, CONTAINERD, site.read(NODE, CONTAINERD).replace(*edit))
    unit = "/etc/systemd/system/gpushare-device-plugin.service"
    site.write(NODE, unit, site.read(NODE, unit) + "# edited\n")
    site.write(NODE, "/etc/gpushare/notes.txt", "mine\n")
    for path in (CONTAINERD, unit, SCHEDULER):
        assert any(path in line and "changed by others since" in line for line in site.play("playbooks/report.yml")[1].splitlines()), path

    _results, output = site.uninstall()
    for path in (CONTAINERD, unit, SCHEDULER, "/etc/gpushare"):
        assert path in output
    assert "notes.txt" in output
    assert site.read(NODE, CONTAINERD) == containerd.replace(*edit)
    config = yaml.safe_load(site.read(CONTROL_PLANE, SCHEDULER))
    assert config["parallelism"] == 8
    assert "extenders" not in config
    assert "gpushare.kubernetes/" not in site.read(CONTROL_PLANE, MANIFEST)
    assert site.read(CONTROL_PLANE, MANIFEST) != manifest  # it goes on naming the configuration, which now is the administrator's
    declared = [f"{NODE}:{CONTAINERD}", f"{CONTROL_PLANE}:{MANIFEST}", "kubeadm-config"]
    kept = [f"{CONTROL_PLANE}:/etc/kubernetes/gpushare", f"{CONTROL_PLANE}:{SCHEDULER}"]
    kept += [f"{NODE}:/etc/gpushare", f"{NODE}:/etc/gpushare/notes.txt"]
    after = {
        name: state
        for name, state in site.state(resources=False).items()
        if name
        not in (
            f"{CONTROL_PLANE}:/etc/kubernetes/gpushare",
            f"{CONTROL_PLANE}:{SCHEDULER}",
            f"{NODE}:/etc/gpushare",
            f"{NODE}:/etc/gpushare/notes.txt",
        )
    }
    assert differences(without(untouched, *declared), without(after, *declared)) == []
    site.schedules("afterwards-with-edits")
