# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""NVIDIA's own controller and validator on a real API server, by hand: GPUSHARE_GPU_OPERATOR names a checkout of its gpu-operator with
both programs in it (docs/project/testing.md). Without a kubelet: the test runs the validator's init containers as the controller wrote
them, on a node's files with a simulated GPU, and takes the CUDA sample as ended. What came out goes to docs/project/benchmarks.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._takeover.operator import RESOURCE, WITHOUT_PLUGIN

from bench.scheduling.control_plane import Process
from gpushare_lab import components, debian
from gpushare_lab.prepare import the_cache
from gpushare_lab.process import until
from lab.nvml import gpus
from others.server import Json, Server

FOLDER = os.environ.get("GPUSHARE_GPU_OPERATOR", "")
RESULT = Path(__file__).resolve().parents[2] / "docs/project/benchmarks/nvidia-operator.json"
pytestmark = [
    pytest.mark.skipif(not FOLDER, reason="the GPU Operator's own programs: by hand, GPUSHARE_GPU_OPERATOR names no checkout of it"),
    pytest.mark.timeout(1800),
]

_SECONDS = 360
SPACE, CHART = "gpu-operator", "deployments/gpu-operator"
VALIDATOR, PLUGIN, CUDA = "nvidia-operator-validator", "nvidia-device-plugin-daemonset", "app=nvidia-cuda-validator"
OF_DISCOVERY = {
    "feature.node.kubernetes.io/pci-10de.present": "true",
    "feature.node.kubernetes.io/system-os_release.ID": "ubuntu",
    "feature.node.kubernetes.io/system-os_release.VERSION_ID": "24.04",
    "feature.node.kubernetes.io/kernel-version.full": "6.8.0-60-generic",
}
LABEL_ALONE = {"nvidia.com/gpu.deploy.device-plugin": "false"}
# The driver is there, without the operator's container. Device nodes of this machine stay as they are.
VALUES = ("nfd.enabled=false", "driver.enabled=false", "dcgmExporter.enabled=false", "migManager.enabled=false")
NO_LINKS = ("validator.driver.env[0].name=DISABLE_DEV_CHAR_SYMLINK_CREATION", "validator.driver.env[0].value=true")
FIELDS = {"metadata.namespace": SPACE, "spec.nodeName": "gpu1"}
INSIDE = 'mount --bind "$0/run" /run; mount --bind "$0/opt" /opt; exec "$@"'
NOT_RUN = (
    "kubelet and the operator's images: the init containers ran as programs",
    "vectorAdd: there is no CUDA device; its pod was set to Succeeded",
    "the toolkit's injection: nvidia-smi of the driver's folder was in the container's PATH",
    "links below /dev/char: switched off by the operator's own setting",
)


class Operator:
    """The controller, and what a node has: everything of it in a folder, which is /run and /opt of both programs."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server, self.folder, self.source = server, folder, Path(FOLDER)
        for name, place in (("assets", "gpu-operator"), ("manifests", "gpu-operator/manifests"), ("validator", "validator")):
            shutil.copytree(self.source / name, folder / "opt" / place)
        (folder / "opt/bin").mkdir()
        for name in ("gpu-operator", "nvidia-validator"):
            shutil.copy2(self.source / name, folder / "opt/bin")
        driver = folder / "run/nvidia/driver"
        shutil.copytree(components.nvml(the_cache()), driver / "usr/lib/x86_64-linux-gnu", symlinks=True)
        (driver / "usr/bin").mkdir()
        shutil.copy2(debian.nvidia_smi(the_cache()), driver / "usr/bin")
        (folder / "run/nvidia/validations").mkdir()
        gpus.write_state(folder / "gpus.state", gpus.State(gpus=tuple(gpus.gpus_from_spec("1x16", "gpu1", "s"))))
        (folder / "dev").mkdir()
        (folder / "dev/nvidia0").touch()
        server.define(*(yaml.safe_load(one.read_text()) for one in sorted((self.source / CHART / "crds").glob("*.yaml"))))
        server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
        environment = {**os.environ, "KUBECONFIG": str(server.plane.kubeconfig), "OPERATOR_NAMESPACE": SPACE}
        addresses = ("--metrics-bind-address=0", "--health-probe-bind-address=0")
        self.controller = Process("gpu-operator", self._inside("/opt/bin/gpu-operator", *addresses), folder, environment)

    @property
    def version(self) -> str:
        (found,) = re.findall(r"^VERSION \?= (\S+)$", (self.source / "versions.mk").read_text(), re.MULTILINE)
        return str(found)

    def policy(self) -> Json:
        """The ClusterPolicy of the operator's own chart."""
        values = [word for one in (*VALUES, *NO_LINKS) for word in ("--set-string" if "value=" in one else "--set", one)]
        argv: list[str | Path] = [components.helm(the_cache()) / "helm", "template", "gpu-operator", self.source / CHART, *values]
        made = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True).stdout
        (found,) = (one for one in yaml.safe_load_all(made) if one and one["kind"] == "ClusterPolicy")
        return dict(found)

    def validation(self) -> list[Json]:
        """The init containers of the validator, none while there is no validator."""
        return self._read()[1]

    def state(self) -> dict[str, Any]:
        """The validator's init containers, and the nodes that the selectors of both DaemonSets choose."""
        nodes, containers = self._read()
        return {
            "validation": [one["name"] for one in containers],
            "validator_on": nodes.get(VALIDATOR, []),
            "device_plugin_on": nodes.get(PLUGIN, []),
        }

    def _read(self) -> tuple[dict[str, list[str]], list[Json]]:
        listed = self.server.kubectl.items(["get", "nodes,daemonsets", "--namespace", SPACE])
        labels = {one["metadata"]["name"]: one["metadata"].get("labels", {}) for one in listed if one["kind"] == "Node"}
        sets = {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in listed if one["kind"] == "DaemonSet"}
        nodes = {
            name: sorted(node for node, has in labels.items() if pod.get("nodeSelector", {}).items() <= has.items())
            for name, pod in sets.items()
        }
        return nodes, list(sets[VALIDATOR]["initContainers"]) if VALIDATOR in sets else []

    def run(self, container: Json) -> dict[str, Any]:
        """An init container on gpu1, with the rights of its pod's account."""
        secrets = self.folder / "run/secrets/kubernetes.io/serviceaccount"
        secrets.mkdir(parents=True, exist_ok=True)
        (secrets / "token").write_text(self.server.kubectl.text(["create", "token", VALIDATOR, "--namespace", SPACE]).strip())
        (secrets / "namespace").write_text(SPACE)
        (cluster,) = json.loads(self.server.plane.kubeconfig.read_text())["clusters"]
        shutil.copy2(cluster["cluster"]["certificate-authority"], secrets / "ca.crt")
        _, host, port = re.split(r"://|:", cluster["cluster"]["server"])
        environment = {one["name"]: self._value(one) for one in container["env"]}
        toolkit = container["name"] == "toolkit-validation"
        environment |= {
            "PATH": "/opt/bin:/usr/bin:/bin" + (":/run/nvidia/driver/usr/bin" if toolkit else ""),
            **({"LD_LIBRARY_PATH": "/run/nvidia/driver/usr/lib/x86_64-linux-gnu"} if toolkit else {}),
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
            "GPUSHARE_LAB_NVML_STATE": str(self.folder / "gpus.state"),
            "GPUSHARE_LAB_NVML_DEV": str(self.folder / "dev"),
        }
        begin = time.monotonic()
        argv = ["timeout", f"{_SECONDS}", *self._inside(*container["command"], *container["args"])]
        with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
            if container["name"] == "cuda-validation":
                self._end_of_sample()
            said, _ = running.communicate()
        seconds = round(time.monotonic() - begin, 1)
        return {"exit": running.returncode, "seconds": seconds, "said": said}

    def _end_of_sample(self) -> None:
        """The pod of the CUDA sample, which asks for no resource of any device plugin, has ended well."""
        select = ["pods", "--namespace", SPACE, f"--selector={CUDA}"]
        (pod,) = until("the pod of the CUDA sample", _SECONDS / 2, lambda: self.server.kubectl.items(["get", *select]))
        assert [one.get("resources", {}) for one in (*pod["spec"]["initContainers"], *pod["spec"]["containers"])] == [{}, {}]
        assert pod["spec"]["nodeName"] == "gpu1"
        self.set_status({"phase": "Succeeded"}, "pod", pod["metadata"]["name"], "--namespace", SPACE)

    def set_status(self, status: Json, *of: str) -> None:
        self.server.kubectl.text(["patch", *of, "--subresource=status", "--type=merge", "--patch", json.dumps({"status": status})])

    def _inside(self, *argv: str) -> list[str | Path]:
        return ["unshare", "--mount", "--propagation=private", "sh", "-ec", INSIDE, self.folder, *argv]

    @staticmethod
    def _value(variable: Json) -> str:
        source = variable.get("valueFrom")
        return FIELDS[source["fieldRef"]["fieldPath"]] if source else str(variable.get("value", ""))


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """With the ClusterPolicy of its chart, a node that has only our resources and the label, and another one of the operator alone."""
    server = Server(tmp_path_factory.mktemp("server"))
    try:
        made = Operator(server, tmp_path_factory.mktemp("operator"))
        try:
            for name, labels in (("gpu1", OF_DISCOVERY | LABEL_ALONE), ("gpu2", OF_DISCOVERY)):
                server.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
            made.set_status({"capacity": {"aliyun.com/gpu-mem": "16", "aliyun.com/gpu-count": "1"}}, "node", "gpu1")
            server.apply(made.policy())
            yield made
        finally:
            made.controller.stop()
    finally:
        server.plane.stop()


@pytest.fixture(scope="module")
def record(operator: Operator) -> Iterator[dict[str, Any]]:
    """What both tests have found: a file if both are green."""
    found: dict[str, Any] = {}
    yield found
    if {"label_alone", "switched_off"} <= found.keys():
        head = {"date": f"{datetime.now(timezone.utc):%Y-%m-%d}", "gpu_operator": operator.version, "kubernetes": components.KUBERNETES}
        RESULT.write_text(json.dumps({**head, **found, "not_run": NOT_RUN}, indent=1) + "\n")


def settled(operator: Operator, wanted: dict[str, Any]) -> dict[str, Any]:
    def why() -> str:
        return f"found {operator.state()}\n{operator.controller.ended() or operator.controller.log.read_text()[-3000:]}"

    until(f"the controller makes {wanted}", _SECONDS, lambda: operator.state() == wanted, why_not=why, every_s=1)
    return wanted


def test_with_the_label_alone_the_validator_waits_for_the_device_plugin_and_fails(operator: Operator, record: dict[str, Any]) -> None:
    names = ["driver-validation", "toolkit-validation", "cuda-validation", "plugin-validation"]
    found = settled(operator, {"validation": names, "validator_on": ["gpu1", "gpu2"], "device_plugin_on": ["gpu2"]})
    ended = operator.run(operator.validation()[-1])
    said = ended.pop("said")
    assert (ended["exit"], said.count("GPU resources are not yet discovered by the node, retry")) == (1, 30), said
    assert "GPU resources are not discovered by the node" in said
    record["label_alone"] = {**found, "ran": {"plugin-validation": ended}}


def test_switched_off_the_validator_is_green_on_our_node(operator: Operator, record: dict[str, Any]) -> None:
    operator.server.kubectl.text(["patch", RESOURCE, "cluster-policy", "--type=merge", "--patch", WITHOUT_PLUGIN])
    names = ["driver-validation", "toolkit-validation", "cuda-validation"]
    found = settled(operator, {"validation": names, "validator_on": ["gpu1", "gpu2"], "device_plugin_on": []})
    ran = {}
    for container in operator.validation():
        ran[container["name"]] = operator.run(container)
        said = ran[container["name"]].pop("said")
        assert ran[container["name"]]["exit"] == 0, said
    files = sorted(one.name for one in (operator.folder / "run/nvidia/validations").iterdir())
    assert files == ["cuda-ready", "driver-ready", "toolkit-ready"]
    record["switched_off"] = {**found, "ran": ran}
