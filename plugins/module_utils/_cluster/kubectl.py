# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The API server, reached through the host's own kubectl: JSON in, JSON out."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple
from urllib.parse import urlencode

from .._formats.failure import Failure
from .._host import host
from .._host.command import RunWithInput

ARGUMENTS: Dict[str, Dict[str, Any]] = {
    "kubectl": {"type": "str", "default": "kubectl"},
    "kubeconfig": {"type": "path", "default": "/etc/kubernetes/admin.conf"},
}


#: Where an administrator's kubeconfig is on a control plane: kubeadm's, RKE2's, k3s'. (docs.rke2.io and docs.k3s.io, cluster access.)
ADMIN = ("/etc/kubernetes/admin.conf", "/etc/rancher/rke2/rke2.yaml", "/etc/rancher/k3s/k3s.yaml")


#: Reason of a KubectlError → the words of kubectl and the API server for it. The first that has some of them counts.
_REASONS = {
    "not_found": ("NotFound", "the server could not find the requested resource"),
    "changed": ("Conflict", "the object has been modified", "test operation", "testing path"),
}


class KubectlError(Failure):
    """kubectl failed; the message has its arguments and its own words.

    The reason is not_found where the server has no such object or kind, and changed where another client has written the object since it
    was read. Else it is kubectl.
    """

    def __init__(self, message: str, said: str = "") -> None:
        """said: kubectl's own words, which decide the reason."""
        super().__init__(message)
        self.reason = next((reason for reason, words in _REASONS.items() if any(word in said for word in words)), type(self).reason)


class Kubectl:
    """kubectl with one kubeconfig. `run` executes it."""

    def __init__(self, run: RunWithInput, binary: str, kubeconfig: str) -> None:
        self._run = run
        self._command = [binary, "--kubeconfig", kubeconfig, "--request-timeout=20s"]

    def text(self, args: Sequence[str], data: Optional[str] = None) -> str:
        """Standard output. KubectlError if kubectl fails."""
        status, out, err = self._run([*self._command, *args], data)
        if status != 0:
            said = err.strip() or out.strip()
            raise KubectlError(f"kubectl {' '.join(args)} failed with exit status {status}: {said}", said)
        return out

    def json(self, args: Sequence[str], data: Optional[str] = None) -> Any:
        """The object that kubectl prints, None if it prints nothing."""
        out = self.text([*args, "-o", "json"], data)
        return json.loads(out) if out.strip() else None

    def items(self, args: Sequence[str], data: Optional[str] = None) -> List[Dict[str, Any]]:
        """The objects that kubectl prints, whether it wraps them in a List or prints a single one."""
        found = self.json(args, data)
        if found is None:
            return []
        if found.get("kind") == "List":
            return list(found["items"])
        return [found]

    def raw(self, path: str) -> Optional[Dict[str, Any]]:
        """The API server's answer to a GET of this path, None if it has nothing there."""
        try:
            found: Dict[str, Any] = json.loads(self.text(["get", "--raw", path]))
        except KubectlError as error:
            if error.reason == "not_found":
                return None
            raise
        return found

    def pages(self, path: str, optional: bool = False, **query: str) -> List[Dict[str, Any]]:
        """The items of a list, read in pages: one list of a large cluster is hundreds of MB.

        Where the server has no such kind that is a KubectlError, if optional [].
        """
        found: List[Dict[str, Any]] = []
        query = {"limit": "500", **query}
        while True:
            page = self.raw(f"{path}?{urlencode(query)}")
            if page is None:
                if optional:
                    return found
                raise KubectlError(f"kubectl get --raw {path}: the API server does not have this kind, which Kubernetes has")
            found += page.get("items") or []
            query["continue"] = str((page.get("metadata") or {}).get("continue") or "")
            if not query["continue"]:
                return found


def as_list(objects: Sequence[Mapping[str, Any]]) -> str:
    """Objects as one JSON document for `kubectl -f -`."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


def for_module(module: Any) -> Kubectl:
    """Kubectl for an AnsibleModule that has ARGUMENTS; fails the module where there is no kubectl."""

    def run(argv: List[str], data: Optional[str]) -> Tuple[int, str, str]:
        status, out, err = module.run_command(argv, data=data)
        return status, out, err

    name = module.params["kubectl"]
    # Preflight searches there, too: sudo's own search path leaves folders out.
    program = host.Host().program(name)
    if program is None:
        where = "" if name.startswith("/") else f" in {', '.join(host.PROGRAM_FOLDERS)}"
        module.fail_json(msg=f"there is no program {name[:80]}{where}: install kubectl, or name its path in gpushare_kubectl")
    return Kubectl(run, str(program), kubeconfig(host.Host(), module.params["kubeconfig"]))


def kubeconfig(here: host.Host, named: str) -> str:
    """The one that was named; where that is kubeadm's and there is none, that of the distribution that is there."""
    return next(iter(here.existing(ADMIN)), named) if named == ADMIN[0] else named
