# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""docs/operate/offline.md on nodes without a way out: services, another release, uninstall; then pods. Nothing is asked of the network.

The tests stand in the order of a cluster's life.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster_mode.in_cluster import InCluster
from e2e.checks import check_devices, check_environment
from e2e.cluster import REPOSITORY, CommandError
from e2e.manifests import pod
from installer.releases import next_release, play
from installer.site import ROLES, Site, differences, roles
from offline.away import NODES, attempt, attempts, damaged, forget, make, words
from offline.conftest import Away

#: Each node is proven by a pod, also where nothing has changed.
PROBE = ("-e", "gpushare_verify_probe=always")


def rejected(site: Site, bundle: Path, *arguments: str) -> str:
    """Why site.yml did not begin."""
    with pytest.raises(CommandError) as error:
        site.play("site.yml", "-e", f"gpushare_bundle={bundle}", *arguments)
    return " ".join(str(error.value).split())


def test_every_way_out_is_counted(away: Away) -> None:
    for node in NODES:
        attempt(away.cluster, node)
        assert attempts(away.cluster, node) >= 2, f"{node} does not count what wants to leave it"
    forget(away.cluster)


def test_a_bundle_that_will_not_do_is_rejected_before_any_host_is_changed(away: Away, site: Site, tmp_path: Path) -> None:
    seen = rejected(site, damaged(away.bundle, tmp_path, "wheels/grpcio-"))
    assert "wheels/grpcio-" in seen
    assert "copy the file again" in seen
    other = make(REPOSITORY, away.cluster, tmp_path / "other", gpushare_bundle_pythons=["3.12"])
    seen = rejected(site, other, "-e", json.dumps({"gpushare_pip_extra_args": ["--index-url", "https://mirror.example.org/simple"]}))
    for host in NODES:
        assert host in seen
    assert "no wheels for Python 3.11 on x86_64: " in seen
    assert "gpushare_bundle and gpushare_pip_extra_args" in seen
    assert "nothing was changed" in seen
    assert differences(away.files, site.state()) == []


def test_site_installs_from_the_bundle(away: Away, site: Site) -> None:
    done, output = site.play("site.yml", "-e", f"gpushare_bundle={away.bundle}", *PROBE)
    assert roles(done.changes()) >= ROLES - {"container_runtime"}, output
    away.cluster.create(pod("share", memory=2))
    running = away.cluster.until_running("share")
    assert check_devices(away.cluster, running) == []
    assert check_environment(away.cluster, running) == []
    away.cluster.delete("share")


def test_the_next_run_is_silent(away: Away, site: Site) -> None:
    again, output = site.play("site.yml", "-e", f"gpushare_bundle={away.bundle}")
    assert again.changes() == {}, output


def test_another_release_needs_its_own_bundle_and_goes_through_with_it(away: Away, tmp_path: Path) -> None:
    release = next_release(tmp_path, "0.1.2")
    done = play(release, away.cluster, "playbooks/upgrade.yml", "-e", f"gpushare_bundle={away.bundle}")
    assert done.returncode != 0
    assert "another build of the runtime" in words(done)
    bundle = make(release, away.cluster, tmp_path / "next")
    done = play(release, away.cluster, "playbooks/upgrade.yml", "-e", f"gpushare_bundle={bundle}", *PROBE)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    for node in NODES:
        assert "/opt/gpushare/0.1.2-" in away.cluster.on(node, "readlink", "-f", "/opt/gpushare/current")


def test_uninstall_leaves_the_hosts_as_they_were(away: Away, site: Site) -> None:
    away.cluster.clear()
    site.uninstall()
    before = {name: value for name, value in away.files.items() if not name.startswith("node ")}
    after = {name: value for name, value in site.state(resources=False).items() if not name.startswith("node ")}
    assert differences(before, after) == []


def test_pods_get_their_images_from_the_bundle(away: Away, here: InCluster) -> None:
    without = here.rejected(gpushare_bundle=str(away.bundle), gpushare_gpu_group="nobody", gpushare_control_plane_group="nobody")
    assert "no image localhost/gpushare:0.1.0 on gpu1, gpu2" in " ".join(without.split())
    assert "kube-scheduler:v" in without
    predicted, _ = here.play("--check", gpushare_bundle=str(away.bundle))
    done, output = here.play(gpushare_bundle=str(away.bundle))
    assert done.changes() == predicted.changes(), output
    assert {host for host, _play, _task in done.changes()} == {"localhost", *NODES}
    away.cluster.create(pod("share", memory=2))
    running = away.cluster.until_running("share")
    assert check_devices(away.cluster, running) == []
    away.cluster.delete("share")
    again, output = here.play(gpushare_bundle=str(away.bundle))
    assert again.changes() == {}, output


def test_the_pods_go_again(away: Away, here: InCluster) -> None:
    away.cluster.clear()
    here.play(gpushare_cluster_state="absent", gpushare_bundle=str(away.bundle))
    assert [name for name in here.objects() if "gpushare" in name] == []


def test_nothing_was_asked_of_the_network(away: Away) -> None:
    assert {node: attempts(away.cluster, node) for node in NODES} == dict.fromkeys(NODES, 0)
