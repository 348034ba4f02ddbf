# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Who the daemons are to the API server and to each other: tokens, certificates, and their repair."""

from __future__ import annotations

import re
import time

import pytest

from e2e import checks
from e2e.api import Api, ApiError
from e2e.clients import claims, own_token, unsigned, with_token
from e2e.cluster import CONTROL_PLANE, GPU_NODES, Cluster, annotations_of
from e2e.manifests import pod

SYSTEM = "/api/v1/namespaces/kube-system"
WEEK, HOUR = 604800, 3600
EXTENDER = (CONTROL_PLANE, "gpushare-extender", "gpushare-extender", "extender")
PLUGINS = tuple((node, "gpushare-device-plugin", f"gpushare-device-plugin-{node}", "device-plugin") for node in GPU_NODES)
DAEMONS = pytest.mark.parametrize(("node", "unit", "account", "short"), [EXTENDER, *PLUGINS], ids=lambda value: value)


def uid_of(cluster: Cluster, account: str) -> str:
    return str(cluster.api.get(f"{SYSTEM}/serviceaccounts/{account}")["metadata"]["uid"])


@DAEMONS
def test_each_daemon_has_a_bound_token_of_its_own(cluster: Cluster, node: str, unit: str, account: str, short: str) -> None:
    found = claims(own_token(cluster, node, unit))
    assert found["sub"] == f"system:serviceaccount:kube-system:{account}"
    assert found["kubernetes.io"]["serviceaccount"]["uid"] == uid_of(cluster, account)
    assert found["exp"] - found["iat"] == WEEK
    with_token(cluster, own_token(cluster, node, unit)).get("/version")


@DAEMONS
def test_it_was_swapped_for_a_seed_that_lives_an_hour(cluster: Cluster, node: str, unit: str, account: str, short: str) -> None:
    seed = cluster.on(node, "cat", f"/etc/gpushare/{short}.token").strip()
    assert claims(seed)["exp"] - claims(seed)["iat"] == HOUR
    assert claims(own_token(cluster, node, unit))["iat"] >= claims(seed)["iat"]
    modes = cluster.on(node, "stat", "-c", "%a %U", f"/etc/gpushare/{short}.token", f"/etc/gpushare/{short}.kubeconfig")
    assert modes.split("\n")[:2] == ["600 root", "600 root"]


@DAEMONS
def test_no_kubeconfig_and_no_secret_holds_a_token(cluster: Cluster, node: str, unit: str, account: str, short: str) -> None:
    assert not re.search(r"ey[\w-]{10,}\.ey[\w-]{10,}\.", cluster.on(node, "cat", f"/etc/gpushare/{short}.kubeconfig"))
    secrets = [secret["metadata"]["name"] for secret in cluster.api.items(f"{SYSTEM}/secrets")]
    assert not [name for name in secrets if name.startswith("gpushare")]


# Certificates.

ASK = """
import ssl, sys, urllib.error, urllib.request
context = ssl.create_default_context(cafile="/etc/gpushare/pki/ca.crt")
if sys.argv[2:]:
    context.load_cert_chain(*sys.argv[2:])
try:
    reply = urllib.request.urlopen("https://127.0.0.1:32766" + sys.argv[1], b"{}" if "filter" in sys.argv[1] else None, 10, context=context)
    print(reply.status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
CLIENT = ("/etc/gpushare/pki/scheduler/tls.crt", "/etc/gpushare/pki/scheduler/tls.key")
SERVED = "import ssl; print(ssl.get_server_certificate(('127.0.0.1', 32766)), end='')"


def ask(cluster: Cluster, *arguments: str) -> str:
    return cluster.on(CONTROL_PLANE, "python3", "-c", ASK, *arguments).strip()


def test_only_the_scheduler_may_ask_the_extender(cluster: Cluster) -> None:
    assert ask(cluster, "/healthz") == "200"
    assert ask(cluster, "/gpushare-scheduler/filter") == "403"
    assert ask(cluster, "/gpushare-scheduler/filter", *CLIENT) != "403"


def test_a_renewed_certificate_is_served_without_a_restart(cluster: Cluster) -> None:
    before = cluster.on(CONTROL_PLANE, "systemctl", "show", "-p", "MainPID", "gpushare-extender")
    old = cluster.on(CONTROL_PLANE, "python3", "-c", SERVED)
    cluster.on(CONTROL_PLANE, "rm", "/etc/gpushare/pki/extender.crt")
    cluster.on(CONTROL_PLANE, "systemctl", "start", "gpushare-pki.service")
    new = cluster.on(CONTROL_PLANE, "cat", "/etc/gpushare/pki/extender.crt")
    assert new.split() != old.split()
    served = "the extender serves the new certificate"
    cluster.until(served, lambda: cluster.on(CONTROL_PLANE, "python3", "-c", SERVED).split() == new.split(), 20)
    assert cluster.on(CONTROL_PLANE, "systemctl", "show", "-p", "MainPID", "gpushare-extender") == before
    assert "active" in cluster.on(CONTROL_PLANE, "systemctl", "is-active", "gpushare-pki.timer")


def test_another_authority_is_made_as_the_documentation_says(cluster: Cluster) -> None:
    """docs/reference/permissions.md: for a key that has leaked."""
    old = cluster.on(CONTROL_PLANE, "cat", "/etc/gpushare/pki/ca.crt")
    cluster.on(CONTROL_PLANE, "rm", "-r", "/etc/gpushare/pki")
    cluster.playbook("--limit", CONTROL_PLANE)
    assert cluster.on(CONTROL_PLANE, "cat", "/etc/gpushare/pki/ca.crt").split() != old.split()
    assert ask(cluster, "/gpushare-scheduler/filter", *CLIENT) != "403"
    try:
        cluster.until_running(cluster.create(pod("identity-authority", memory=1))["metadata"]["name"])
    finally:
        cluster.delete("identity-authority")


# Repair, at the end: it restarts daemons.


def is_rejected(api: Api) -> bool:
    try:
        api.get("/version")
    except ApiError as error:
        return error.status == 401
    return False


def test_what_does_not_renew_itself_is_repaired_by_the_next_run(cluster: Cluster) -> None:
    """A ServiceAccount that was deleted, and an extender's host that was off for longer than its tokens live."""
    revoked = with_token(cluster, own_token(cluster, "gpu2", "gpushare-device-plugin"))
    cluster.api.delete(f"{SYSTEM}/serviceaccounts/gpushare-device-plugin-gpu2")
    # So a leaked token is revoked, too. The API server remembers a good one for some seconds.
    cluster.until("its token is rejected", lambda: is_rejected(revoked), 60)
    cluster.stop(CONTROL_PLANE, "gpushare-extender")
    node, unit, account, short = EXTENDER
    now = int(time.time())
    old = claims(own_token(cluster, node, unit)) | {"iat": now - 2 * WEEK, "exp": now - WEEK}
    cluster.lab("exec", node, "sh", "-c", f"cat > /var/lib/{unit}/token", stdin=unsigned(old))
    cluster.lab("exec", node, "sh", "-c", f"cat > /etc/gpushare/{short}.token", stdin=unsigned(old))
    untouched = own_token(cluster, "gpu1", "gpushare-device-plugin")
    plugins = cluster.on("gpu2", "systemctl", "show", "-p", "MainPID", "gpushare-device-plugin")

    cluster.playbook()
    for node, unit, account, _short in (EXTENDER, *PLUGINS):
        assert claims(own_token(cluster, node, unit))["kubernetes.io"]["serviceaccount"]["uid"] == uid_of(cluster, account)
        with_token(cluster, own_token(cluster, node, unit)).get("/version")
    assert own_token(cluster, "gpu1", "gpushare-device-plugin") == untouched
    assert cluster.on("gpu2", "systemctl", "show", "-p", "MainPID", "gpushare-device-plugin") == plugins
    assert checks.check_changes_nothing(cluster) == []
    annotations = annotations_of(cluster.node("gpu2"))
    assert "gpushare/gpus" in annotations


def test_without_a_good_token_the_api_server_rejects(cluster: Cluster) -> None:
    """What the repair is measured by."""
    old = claims(own_token(cluster, *EXTENDER[:2])) | {"exp": int(time.time()) - 1}
    with pytest.raises(ApiError, match="401"):
        with_token(cluster, unsigned(old)).get("/version")
