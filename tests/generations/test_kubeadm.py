# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Control planes as the real kubeadm of each generation leaves them: what the role makes of them, that kubeadm writes it again, and back.

kubeadm runs in a folder that is its root, where nothing else is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet import config_file
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._scheduler.plan import Found, read_manifest

from generations.programs import KUBEADMS, kubeadm, release_of
from unit.fakes.plugins.kubelet.found_states import FLAGS
from unit.fakes.plugins.scheduler.generations import CONFIG_PATH, MANIFEST_PATH, STATES, manifest
from unit.fakes.plugins.scheduler.planned import EXPECTED, done, plan

FLAGS_FILE, KUBELET_CONFIG = "/var/lib/kubelet/kubeadm-flags.env", "/var/lib/kubelet/config.yaml"
INIT = """\
localAPIEndpoint: {advertiseAddress: 10.0.0.1}
nodeRegistration: {name: cp1, criSocket: "unix:///run/containerd/containerd.sock"}
"""


class Kubeadm:
    """A kubeadm and the folder that it takes for its host."""

    def __init__(self, root: Path, release: str) -> None:
        self.root, self.version = root, KUBEADMS[release]
        root.mkdir()
        shutil.copy(kubeadm(release), root / "kubeadm")

    def __call__(self, *words: str) -> str:
        called = ["chroot", str(self.root), "/kubeadm", *words]
        ended = subprocess.run(called, capture_output=True, text=True, timeout=300, check=False, env={"PATH": os.environ["PATH"]})
        assert ended.returncode == 0, ended.stderr[-3000:]
        return ended.stdout

    def defaults(self) -> dict[str, Any]:
        """Its own ClusterConfiguration for its own version."""
        printed = yaml.safe_load_all(self("config", "print", "init-defaults"))
        found: dict[str, Any] = next(one for one in printed if one["kind"] == "ClusterConfiguration")
        return {**found, "kubernetesVersion": f"v{self.version}"}

    def written(self, cluster: str, *phase: str) -> None:
        """Run a phase of its `init` with this ClusterConfiguration."""
        version = yaml.safe_load(cluster)["apiVersion"]
        init = f"apiVersion: {version}\nkind: InitConfiguration\n{INIT}---\n{cluster}"
        (self.root / "kubeadm.yaml").write_text(init)
        self("init", "phase", *phase, "--config", "/kubeadm.yaml")

    def manifest(self, cluster: str) -> str:
        (self.root / MANIFEST_PATH[1:]).unlink(missing_ok=True)
        self.written(cluster, "control-plane", "scheduler")
        return self.read(MANIFEST_PATH)

    def read(self, path: str) -> str:
        return (self.root / path[1:]).read_text()


@pytest.mark.timeout(3600)  # where programs are to be built
@pytest.mark.parametrize("release", sorted(KUBEADMS))
def test_a_scheduler_of_the_real_kubeadm_is_wired_kept_by_kubeadm_and_given_back(tmp_path: Path, release: str) -> None:
    program = Kubeadm(tmp_path / "root", release)
    cluster = yaml.safe_dump(program.defaults())
    text = program.manifest(cluster)
    before = Found({MANIFEST_PATH: text, CONFIG_PATH: None}, cluster=cluster, cluster_version="42", nodes=3, server=f"v{program.version}")
    made = plan(before)
    after = done(before, made)
    path, version, flag = EXPECTED[f"kubeadm {release}"]
    assert yaml.safe_load(after.files[path] or "")["apiVersion"] == version
    assert plan(after).diff == []

    # kubeadm takes its ClusterConfiguration with us in it, and writes what we have written, but for the hash.
    again, wanted = read_manifest(program.manifest(after.cluster or "")), read_manifest(after.files[MANIFEST_PATH] or "")
    assert sorted(again.words) == sorted(wanted.words)
    assert again.flags[flag] == path
    assert sorted(again.mounts) == sorted(wanted.mounts)
    # From there it is one more run, and then as if it had been the first.
    upgraded = replace(after, files={**after.files, MANIFEST_PATH: program.read(MANIFEST_PATH)})
    rewired = done(upgraded, plan(upgraded))
    assert plan(rewired).diff == []
    gone = done(rewired, plan(rewired, "absent"))
    assert yaml.safe_load(gone.files[MANIFEST_PATH] or "") == yaml.safe_load(text)
    assert gone.files[CONFIG_PATH] is None

    straight = done(after, plan(after, "absent"))
    assert (straight.files[MANIFEST_PATH], straight.files[CONFIG_PATH], straight.cluster) == (text, None, cluster)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("release", sorted(KUBEADMS))
def test_the_states_that_are_written_after_its_documentation_are_as_it_writes_them(tmp_path: Path, release: str) -> None:
    """Those of kube-scheduler and kubelet, in what the roles read of them."""
    program = Kubeadm(tmp_path / "root", release)
    assert release_of(program.version) == release
    cluster = yaml.safe_dump(program.defaults())
    real, ours = read_manifest(program.manifest(cluster)), read_manifest(manifest(program.version))
    assert sorted(real.words) == sorted(ours.words)
    assert real.mounts == ours.mounts
    for key in ("volumes", "hostNetwork"):
        assert real.pod["spec"][key] == ours.pod["spec"][key]
    assert real.image.rpartition(":")[2] == f"v{program.version}"
    assert yaml.safe_load(cluster)["apiVersion"] == yaml.safe_load(STATES[f"kubeadm {release}"][1] or "")["apiVersion"]

    program.written(cluster, "kubelet-start")
    assert program.read(FLAGS_FILE).startswith(FLAGS.partition("--")[0])
    # It sets no gate by itself, and its configuration is one that the role can edit and give back.
    config = program.read(KUBELET_CONFIG)
    assert config_file.gates_of(config) == {}
    edited = config_file.with_gates(config, {"DevicePlugins": True})
    assert yaml.safe_load(edited) == {**yaml.safe_load(config), "featureGates": {"DevicePlugins": True}}
    assert yaml.safe_load(config_file.with_gates(edited, {"DevicePlugins": None})) == yaml.safe_load(config)
