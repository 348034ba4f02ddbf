# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The labs that suites stand on: their shapes, and one of them in the state that a test wants, in seconds where it was in it before.

A run of pytest brings its lab up and removes it (GPUSHARE_OWN_LAB: under this name). Where the runner of the suites names one
(GPUSHARE_SHARED_LAB) it stays for the next suite, with its states saved. GPUSHARE_SCHEDULER=RELEASE gives it
another kube-scheduler, of versions.ini. GPUSHARE_LAB=NAME uses a lab that is up, as it is, and
leaves it: for one test by hand.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from e2e.cluster import CONTROL_PLANE, Cluster
from gpushare_lab import components, saved
from gpushare_lab import state as lab_state
from gpushare_lab.archive import File
from gpushare_lab.prepare import the_cache
from gpushare_lab.versions import released
from take_over.stand_ins import give_image_of

BARE, INSTALLED = "bare", "installed"
Install = Callable[[Cluster], object]


@dataclass(frozen=True)
class Shape:
    """What `lab up` is asked for, and how long that may take where everything has to be built first.

    variables: those of hosts in the inventory, besides the lab's own.
    """

    name: str
    arguments: tuple[str, ...]
    seconds: float = 1800
    variables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


#: containerd of the newest release and of the one with long-term support, so that of the device strategies the strictest, and the one
#: for which the container runtime is changed.
TWO = Shape(
    "two", ("--no-nvidia-runtime", "--runtime", "gpu2=containerd-2.3"), variables={"gpu2": {"gpushare_device_strategy": "volume-mounts"}}
)
#: One DaemonSet serves all its GPU nodes, so that they have one device strategy.
TWO_MOUNTS = Shape(
    "two-mounts", TWO.arguments, variables={node: {"gpushare_device_strategy": "volume-mounts"} for node in ("gpu1", "gpu2")}
)
#: Its container runtime knows the nvidia runtime, which is the default. GPUs for 50 pods and more.
TWO_NVIDIA = Shape("two-nvidia", ("--gpus", "gpu1=2x32,gpu2=32+40"))
#: The same GPUs as TWO; the daemons will be pods.
IN_CLUSTER = Shape("in-cluster", ())
#: Its GPU nodes become nodes of NVIDIA's GPU Operator, tests/cdi_nodes.
GPU_OPERATOR = Shape("gpu-operator", ("--no-nvidia-runtime", "--runtime", "gpu1=containerd-2.4,gpu2=containerd-1.7"), seconds=3600)
#: With Debian's own containerd on its GPU node, of which the role container_runtime writes most.
ONE = Shape("one", ("--no-nvidia-runtime", "--gpu-nodes", "1", "--runtime", "gpu1=containerd-1.6"))
FOUR_RUNTIMES = {"gpu1": "docker", "gpu2": "containerd-2.4", "gpu3": "containerd-1.7", "gpu4": "containerd-1.6"}
_OF_FOUR = (
    "--no-nvidia-runtime",
    "--gpu-nodes",
    str(len(FOUR_RUNTIMES)),
    "--gpus",
    ",".join(f"{node}=2x16" for node in FOUR_RUNTIMES),
    "--runtime",
    ",".join(f"{node}={runtime}" for node, runtime in FOUR_RUNTIMES.items()),
)
VISIBILITY = Shape("visibility", _OF_FOUR, seconds=3600)
#: The release of Kubernetes before the lab's own.
_BEFORE = ("--kubernetes", released("1.36"))
RUNTIMES = Shape("runtimes", (*_BEFORE, *_OF_FOUR), seconds=3600)
#: Its GPU node has an older kubelet than the cluster, which is not the newest one either.
DOCKERSHIM = Shape(
    "dockershim", (*_BEFORE, "--no-nvidia-runtime", "--gpu-nodes", "1", "--gpus", "gpu1=2x16", "--runtime", "gpu1=dockershim"), seconds=3600
)
THREE_PLANES = Shape("three-planes", ("--control-planes", "3"))


def lab_name(instance: str) -> str:
    """The name of a lab that suites use. GPUSHARE_LABS: another prefix, for two runs side by side."""
    return f"{os.environ.get('GPUSHARE_LABS', 't')}-{instance}"


class Labs:
    """The lab of one run of pytest, which has one shape."""

    def __init__(self) -> None:
        self._borrowed = os.environ.get("GPUSHARE_LAB")
        self._shared = os.environ.get("GPUSHARE_SHARED_LAB")
        self._name = os.environ.get("GPUSHARE_OWN_LAB")
        self._own: Cluster | None = None
        self._state = ""

    def bare(self, shape: Shape) -> Cluster:
        """Hosts with Kubernetes that nobody has touched."""
        cluster = self._cluster(shape)
        if not self._borrowed:
            if BARE in self._saved(cluster):
                cluster.lab("restore", BARE, seconds=600)
            else:
                cluster.lab("down", seconds=300)
                cluster.lab("up", *shape.arguments, seconds=shape.seconds)
                # It has another authority than the one before of this run.
                vars(cluster).pop("api", None)
                if release := os.environ.get("GPUSHARE_SCHEDULER"):
                    _give_scheduler(cluster, shape, released(release))
                _write_variables(cluster, shape)
                self._save(cluster, BARE)
        self._state = BARE
        return cluster

    def installed(self, shape: Shape, install: Install = Cluster.playbook) -> Cluster:
        """The same after `install`; as it is now where that has been done in this run of pytest."""
        cluster = self._cluster(shape)
        if self._state == INSTALLED:
            return cluster
        if not self._borrowed and INSTALLED in self._saved(cluster):
            cluster.lab("restore", INSTALLED, seconds=600)
        else:
            if not self._borrowed and not self._state:
                self.bare(shape)
            install(cluster)
            self._save(cluster, INSTALLED)
        self._state = INSTALLED
        return cluster

    @property
    def current(self) -> Cluster | None:
        """The lab as the tests before have left it; None before the first."""
        return self._own if self._state else None

    def has_been_installed(self) -> None:
        """A test has run `install` itself."""
        if self._own:
            self._save(self._own, INSTALLED)
        self._state = INSTALLED

    def is_now(self, cluster: Cluster) -> None:
        """Tests have installed something else, which the next ones see in this way. Not saved."""
        self._own, self._state = cluster, INSTALLED

    def close(self) -> None:
        """Remove the lab if no other suite needs it."""
        if self._own and not self._shared:
            self._own.lab("down", seconds=300)

    def _cluster(self, shape: Shape) -> Cluster:
        if self._borrowed:
            return Cluster(self._borrowed)
        if self._own is None:
            self._own = Cluster(self._shared or self._name or lab_name(shape.name))
        return self._own

    def _saved(self, cluster: Cluster) -> list[str]:
        instance = lab_state.load(cluster.name) if self._shared else None
        return list(saved.listed(instance)) if instance else []

    def _save(self, cluster: Cluster, state: str) -> None:
        """Unless another suite has, in this lab."""
        if self._shared and state not in self._saved(cluster):
            cluster.lab("save", state, seconds=600)


def _give_scheduler(cluster: Cluster, shape: Shape, version: str) -> None:
    """Another kube-scheduler than kubeadm's on the control plane: its image, and that in its manifest."""
    assert "--control-planes" not in shape.arguments, "one control plane is given it"
    image, program = f"registry.k8s.io/kube-scheduler:v{version}", components.kube_scheduler(the_cache(), version) / "kube-scheduler"
    give_image_of(cluster, [CONTROL_PLANE], image, {"usr/bin/kube-scheduler": File(program.resolve(), 0o755)}, "kube-scheduler")
    cluster.on(CONTROL_PLANE, "sed", "-i", f"s|image: .*|image: {image}|", "/etc/kubernetes/manifests/kube-scheduler.yaml")

    def runs() -> bool:
        status = cluster.pod(f"kube-scheduler-{CONTROL_PLANE}", "kube-system")["status"]
        return any(one["image"] == image and one["ready"] for one in status["containerStatuses"])

    cluster.until(f"kube-scheduler {version} is ready", runs, 180)


def _write_variables(cluster: Cluster, shape: Shape) -> None:
    folder = cluster.inventory.parent / "host_vars"
    for host, variables in shape.variables.items():
        folder.mkdir(exist_ok=True)
        (folder / f"{host}.yml").write_text(json.dumps(variables))
