# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Tokens by their claims, when a daemon needs a seed, and what is asked of the cluster for it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import Kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._identity.kubeconfig import NoClusterError, daemon_kubeconfig, where
from ansible_collections.gpushare.kubernetes.plugins.module_utils._identity.seeds import daemons_of, identify
from ansible_collections.gpushare.kubernetes.plugins.module_utils._identity.token import (
    TokenClaims,
    ask_api_server,
    own_token,
    read_token,
    subject,
    taken,
    why_seed,
)

from unit.fakes.plugins.identity.tokens import NOW, SUBJECT, WEEK, claims, jwt


def test_a_token_says_whose_it_is_and_how_long() -> None:
    assert read_token(jwt(claims()) + "\n") == TokenClaims(SUBJECT, "u1", NOW, NOW + WEEK)
    assert subject("kube-system", "gpushare-extender") == SUBJECT


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "x",
        "a.b.c",
        jwt([]),
        jwt({"sub": SUBJECT}),
        jwt(claims(**{"kubernetes.io": {}})),
        jwt(claims(exp=None)),
        jwt(claims(exp=float("inf"))),
        jwt(claims(iat=float("-inf"))),
        jwt(claims(exp=10**400)),
        jwt(claims(iat=-1)),
        f"a.{base64.urlsafe_b64encode(b'[' * 200_000).decode()}.c",
        "\u00e4.\u00e4.\u00e4",
    ],
)
def test_anything_else_is_no_token(text: str | None) -> None:
    assert read_token(text) is None


def own(**changes: Any) -> TokenClaims:
    return TokenClaims(**{"subject": SUBJECT, "uid": "u1", "issued": NOW, "expires": NOW + WEEK, **changes})


@pytest.mark.parametrize(
    ("token", "uid", "age", "words"),
    [
        (own(), "u1", 0, ""),
        (own(), "u1", WEEK * 3 // 4, ""),
        (own(accepted=True), "u1", 0, ""),
        (own(), "u1", WEEK * 3 // 4 + 7000, "24% of its life left"),
        (own(), "u1", WEEK, "has expired"),
        (own(), "u2", 0, "a ServiceAccount that is gone"),
        (own(), None, 0, "a ServiceAccount that is gone"),
        (own(subject="system:serviceaccount:a:b"), "u1", 0, "that of system:serviceaccount:a:b"),
        (own(accepted=False), "u1", 0, "the API server rejects"),
        (None, "u1", 0, "no token of its own yet"),
    ],
)
def test_a_seed_is_due_when_the_own_token_is_no_good(token: TokenClaims | None, uid: str | None, age: int, words: str) -> None:
    why = why_seed(token, SUBJECT, uid, NOW + age)
    assert (words in why) if words else (why == "")


def test_a_seed_is_taken_when_there_is_a_younger_token_of_the_same_account() -> None:
    seed = own(issued=NOW + 100)
    assert taken(own(issued=NOW + 100), seed)
    assert not taken(own(issued=NOW), seed)
    assert not taken(own(issued=NOW + 200, uid="u0"), seed)
    assert not taken(None, seed)


class Cluster:
    """kubectl with two ServiceAccounts, which makes a token per request and remembers for whom."""

    def __init__(self, **uids: str) -> None:
        self.uids = uids
        self.made: list[tuple[str, int]] = []
        self.ca: str | None = "PEM"

    def __call__(self, argv: list[str], data: str | None = None) -> tuple[int, str, str]:
        words = argv[4:]
        if words[0] == "config":
            return 0, json.dumps({"clusters": [{"cluster": {"server": "https://admin:6443"}}]}), ""
        if words[0] == "create":
            account = words[2].split("/")[-2]
            self.made.append((account, json.loads(data or "")["spec"]["expirationSeconds"]))
            return 0, json.dumps({"status": {"token": f"seed-of-{account}"}}), ""
        found = [
            {"kind": "ServiceAccount", "metadata": {"name": name.replace("_", "-"), "uid": uid}}
            for name, uid in self.uids.items()
            if f"serviceaccount/{name.replace('_', '-')}" in words
        ]
        found += [{"kind": "ConfigMap", "metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": self.ca}}] if self.ca else []
        return 0, json.dumps({"kind": "List", "items": found}), ""

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(self, "kubectl", "admin.conf")


def test_seeds_are_made_for_those_that_need_one() -> None:
    cluster = Cluster(gpushare_extender="u1")
    good, dead = own().as_dict(), own(expires=NOW).as_dict()
    daemons = daemons_of({"cp1": "gpushare-extender", "cp2": "gpushare-extender", "cp3": "gpushare-extender"}, {"cp1": good, "cp2": dead})
    found = identify(cluster.kubectl, "kube-system", daemons, "", NOW, True)
    assert sorted(found.due) == ["cp2", "cp3"]
    assert found.seeds == {"cp2": "seed-of-gpushare-extender", "cp3": "seed-of-gpushare-extender"}
    assert cluster.made == [("gpushare-extender", 3600)] * 2
    assert where(found.kubeconfig) == ("https://admin:6443", "PEM")


def test_check_mode_makes_no_token_even_where_there_is_no_account_yet() -> None:
    cluster = Cluster()
    found = identify(cluster.kubectl, "kube-system", daemons_of({"gpu1": "gpushare-device-plugin-gpu1"}, {}), "https://lb", NOW, False)
    assert (list(found.due), found.seeds, cluster.made) == (["gpu1"], {}, [])
    assert where(found.kubeconfig) == ("https://lb", "PEM")


def test_a_cluster_without_its_authority_is_named() -> None:
    cluster = Cluster(gpushare_extender="u1")
    cluster.ca = None
    with pytest.raises(NoClusterError, match="kube-controller-manager"):
        identify(cluster.kubectl, "kube-system", daemons_of({"cp1": "gpushare-extender"}, {}), "", NOW, True)


def test_the_api_server_is_asked_about_a_token_that_is_there(tmp_path: Path) -> None:
    token, kubeconfig = tmp_path / "token", tmp_path / "kubeconfig"
    asked: list[tuple[str, str, str]] = []

    def ask(*words: str) -> bool:
        asked.append((words[0], words[1], words[2]))
        return False

    assert own_token(str(token), str(kubeconfig), ask) is None
    token.write_text(jwt(claims()) + "\n")
    assert own_token(str(token), str(kubeconfig), ask) == own()
    assert asked == []
    kubeconfig.write_text(daemon_kubeconfig("https://api:6443", "PEM"))
    assert own_token(str(token), str(kubeconfig), ask) == own(accepted=False)
    assert asked == [("https://api:6443", "PEM", jwt(claims()))]


def test_an_api_server_that_does_not_answer_says_nothing_about_a_token() -> None:
    assert ask_api_server("https://127.0.0.1:1", "no PEM", "t") is None
    assert ask_api_server("nonsense", "", "t") is None
