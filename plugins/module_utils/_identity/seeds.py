# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The credentials by which the API server knows daemons on several hosts: a kubeconfig, and a seed token where their own is unusable.

Speaks to the cluster through kubectl.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence

from .._cluster.kubectl import Kubectl
from .._formats.answers import ModuleAnswer
from .kubeconfig import api_server, daemon_kubeconfig, root_ca
from .token import SEED_SECONDS, TokenClaims, subject, why_seed

_CA = "kube-root-ca.crt"


@dataclass(frozen=True)
class DaemonAccount:
    """A daemon somewhere. key: what it is called here, such as its host. account: its ServiceAccount. own: the token that it has."""

    key: str
    account: str
    own: Optional[TokenClaims]


@dataclass(frozen=True)
class Identity(ModuleAnswer):
    """The answer of gpushare_cluster about credentials. kubeconfig: the same for all. due: why a daemon needs a seed, by key. seeds:
    those that were made, by key.
    """

    kubeconfig: str
    due: Dict[str, str]
    seeds: Dict[str, str]


def identify(kubectl: Kubectl, namespace: str, daemons: Sequence[DaemonAccount], server: str, now: float, make: bool) -> Identity:
    """now: Unix time; make: whether to have seeds made. NoClusterError and KubectlError say what is missing."""
    accounts = sorted({daemon.account for daemon in daemons})
    names = [f"configmap/{_CA}", *(f"serviceaccount/{name}" for name in accounts)]
    found = {
        (item["kind"], item["metadata"]["name"]): item
        for item in kubectl.items(["get", "--namespace", namespace, "--ignore-not-found", *names])
    }
    uids = {name: str(found["ServiceAccount", name]["metadata"]["uid"]) for name in accounts if ("ServiceAccount", name) in found}
    reasons = {d.key: why_seed(d.own, subject(namespace, d.account), uids.get(d.account), now) for d in daemons}
    due = {key: reason for key, reason in reasons.items() if reason}
    url = server or api_server(kubectl.json(["config", "view", "--minify"]))
    kubeconfig = daemon_kubeconfig(url, root_ca(found.get(("ConfigMap", _CA))))
    seeds = {d.key: seed(kubectl, namespace, d.account) for d in daemons if d.key in due} if make else {}
    return Identity(False, kubeconfig, due, seeds)


def seed(kubectl: Kubectl, namespace: str, account: str) -> str:
    """A new bound token of this ServiceAccount. By the API's own path: `kubectl create token` is there only since 1.24."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": SEED_SECONDS}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    answer: Dict[str, Any] = json.loads(kubectl.text(["create", "--raw", path, "--filename", "-"], json.dumps(request)))
    return str(answer["status"]["token"])


def daemons_of(accounts: Mapping[str, str], tokens: Mapping[str, Optional[Mapping[str, Any]]]) -> List[DaemonAccount]:
    """From a module's options. TypeError, with the key, if a token is not what gpushare_daemon returns."""
    found = []
    for key, account in accounts.items():
        try:
            own = tokens.get(key)
            found.append(DaemonAccount(key, account, None if own is None else TokenClaims.from_dict(own)))
        except TypeError as error:
            raise TypeError(f"{key[:80]}: {error}") from error
    return found
