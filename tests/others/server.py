# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""An API server alone, with kubectl: no node, no controller. CRDs of others have the fields that we read and write, and no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import Kubectl

from bench.scheduling.control_plane import ControlPlane
from gpushare_lab import components
from gpushare_lab.prepare import the_cache

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 60


def crd(group: str, version: str, kind: str, plural: str, properties: Json, required: tuple[str, ...] = ()) -> Json:
    """Of a kind without namespaces. properties: beside metadata; required: of them."""
    schema = {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Cluster", "names": names, "versions": [served]},
    }


def _object(properties: Json) -> Json:
    return {"type": "object", "properties": properties, "x-kubernetes-preserve-unknown-fields": True}


#: As GPU Operator 26.7 defines it (api/nvidia/v1/clusterpolicy_types.go, read on 2026-08-21): whatever else it has stays as it is.
CLUSTER_POLICY = crd(
    "nvidia.com", "v1", "ClusterPolicy", "clusterpolicies", {"spec": _object({"devicePlugin": _object({"enabled": {"type": "boolean"}})})}
)
#: As GPU Operator 26.7.0 defines it (deployments/gpu-operator/crds, read on 2026-11-29): served beside the other kind, in another version.
GPU_CLUSTER = crd("nvidia.com", "v1alpha1", "GPUCluster", "gpuclusters", {"spec": _object({})})
_NULLABLE_TEXTS = {"type": "array", "items": {"type": "string"}, "nullable": True}
_STRATEGY = {"type": "object", "nullable": True, "properties": {"type": {"type": "string"}}}
_BOOLEANS = (
    *("allowHostDirVolumePlugin", "allowHostIPC", "allowHostNetwork", "allowHostPID", "allowHostPorts"),
    *("allowPrivilegedContainer", "readOnlyRootFilesystem"),
)
#: As openshift/api defines it (security/v1/types.go and its CRD, read on 2026-11-25). The server cuts other fields off.
CONSTRAINTS = crd(
    "security.openshift.io",
    "v1",
    "SecurityContextConstraints",
    "securitycontextconstraints",
    {
        **{key: {"type": "boolean"} for key in (*_BOOLEANS, "allowPrivilegeEscalation")},
        **dict.fromkeys(
            ("allowedCapabilities", "defaultAddCapabilities", "requiredDropCapabilities", "seccompProfiles", "volumes"), _NULLABLE_TEXTS
        ),
        **dict.fromkeys(("fsGroup", "runAsUser", "seLinuxContext", "supplementalGroups"), _STRATEGY),
        "priority": {"type": "integer", "format": "int32", "nullable": True},
    },
    (*_BOOLEANS, "allowedCapabilities", "defaultAddCapabilities", "priority", "requiredDropCapabilities", "volumes"),
)


class Server:
    """The API server and its clients."""

    def __init__(self, folder: Path) -> None:
        self.plane = ControlPlane(folder, components.KUBERNETES, with_kwok=False)
        self.program = components.kubernetes(the_cache(), components.KUBERNETES) / "kubectl"

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(self._run, str(self.program), str(self.plane.kubeconfig))

    def apply(self, *objects: Json, manager: str = "kubectl") -> None:
        document = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.kubectl.text(["apply", "--server-side", f"--field-manager={manager}", "-f", "-"], document)

    def define(self, *definitions: Json) -> None:
        """Apply CRDs, and wait until they are served."""
        self.apply(*definitions)
        names = [f"crd/{one['metadata']['name']}" for one in definitions]
        self.kubectl.text(["wait", "--for=condition=Established", f"--timeout={_SECONDS}s", *names])

    def get(self, kind: str, name: str) -> Json:
        found: Json = self.kubectl.json(["get", kind, name])
        return found

    def delete(self, kind: str) -> None:
        self.kubectl.text(["delete", kind, "--all", "--wait=true"])

    def played(self, folder: Path, *arguments: str) -> str:
        """The output of cluster.yml with this server's kubeconfig. folder: for Ansible's own files."""
        settings = {"gpushare_kubectl": str(self.program), "gpushare_kubeconfig": str(self.plane.kubeconfig), "gpushare_uninstall_wait": 0}
        program = Path(sys.executable).parent / "ansible-playbook"
        command: list[str | Path] = [program, ROOT / "playbooks/cluster.yml", "-e", json.dumps(settings), *arguments]
        environment = {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_LOCAL_TEMP": str(folder)}
        local = ["-e", json.dumps({"ansible_python_interpreter": sys.executable})]
        done = subprocess.run(
            [*command, *local], env=os.environ | environment, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
        )
        return done.stdout + done.stderr

    @staticmethod
    def _run(argv: list[str], data: str | None) -> tuple[int, str, str]:
        done = subprocess.run(argv, input=data or "", capture_output=True, text=True, timeout=2 * _SECONDS, check=False)
        return done.returncode, done.stdout, done.stderr


def without_server_fields(item: Json) -> Json:
    """What people have written of it."""
    kept = {key: value for key, value in item["metadata"].items() if key in ("name", "labels", "annotations")}
    return {**{key: value for key, value in item.items() if key not in ("metadata", "status")}, "metadata": kept}
