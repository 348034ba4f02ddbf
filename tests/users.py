# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Somebody with the token of a ServiceAccount, who types kubectl and `kubectl gpushare`; and the first pod of the page for users."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from gpushare_lab.process import until
from gpushare_runtime.core.protocol import RESOURCE_MEMORY
from tree import REPOSITORY

PAGE: Final = "docs/use/first-pod.md"
_LINE: Final = f"{RESOURCE_MEMORY}: 2 "
_SECONDS: Final = 120.0


def first_pod(units: str) -> str:
    """The manifest of the page, with another amount."""
    manifest: str = re.findall(r"```yaml\n(.*?)```", (REPOSITORY / PAGE).read_text(), re.S)[0]
    assert _LINE in manifest
    return manifest.replace(_LINE, f"{RESOURCE_MEMORY}: {units} ")


def granted(name: str, namespace: str, roles: Sequence[str]) -> list[dict[str, Any]]:
    """A namespace with an account that has these ClusterRoles there."""
    account = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    group = "rbac.authorization.k8s.io"
    bindings = [
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": role.replace(":", "-"), "namespace": namespace},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [account],
        }
        for role in roles
    ]
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}},
        *bindings,
    ]


class User:
    """program: kubectl. admin: the kubeconfig of somebody who may create tokens. file: where this user's is written.

    kubectl, gpushare: (exit status, output) of a command.
    """

    def __init__(self, program: Path, admin: Path, account: str, namespace: str, file: Path) -> None:
        self._program, self.kubeconfig = str(program), file
        wanted = ("create", "token", account, "-n", namespace, "--duration=1h")
        code, token = _run(self._program, *wanted, f"--kubeconfig={admin}")
        assert code == 0, token
        config = yaml.safe_load(admin.read_text())
        config["users"][0]["user"] = {"token": token.strip()}
        config["contexts"][0]["context"]["namespace"] = namespace
        file.write_text(json.dumps(config))

    def kubectl(self, *arguments: str, text: str = "") -> tuple[int, str]:
        return _run(self._program, *arguments, f"--kubeconfig={self.kubeconfig}", text=text)

    def gpushare(self, *arguments: str, text: str = "") -> tuple[int, str]:
        program = (sys.executable, "-m", "gpushare_runtime.kubectl_program.main")
        return _run(*program, *arguments, f"--kubeconfig={self.kubeconfig}", text=text)

    def create(self, manifest: str) -> None:
        code, said = self.kubectl("create", "-f", "-", text=manifest)
        assert code == 0, said

    def delete(self, pod: str) -> None:
        code, said = self.kubectl("delete", "pod", pod, "--grace-period=1", "--timeout=60s")
        assert code == 0, said

    def until_told(self, pod: str, words: str) -> str:
        """The first line of `explain`, as soon as it has the words."""
        said = [""]

        def told() -> bool:
            said[0] = self.gpushare("explain", pod)[1].partition("\n")[0]
            return words in said[0]

        until(f"explain {pod} says {words!r}", _SECONDS, told, why_not=lambda: f"it says: {said[0]}")
        return said[0]


def _run(*argv: str, text: str = "") -> tuple[int, str]:
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=_SECONDS, check=False)
    return done.returncode, done.stdout + done.stderr
