# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The dashboard as a service that site.yml installs: open to those with the token and to nobody else, verified, and removed."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from e2e.cluster import CONTROL_PLANE, GPU_NODES, Cluster
from gpushare_lab import state as lab_state
from verify.verdict import Verify

pytestmark = pytest.mark.suite("dashboard")

PORT: Final = 9442
TOKEN: Final = "0123456789abcdef-of-the-lab"
UNIT: Final = "gpushare-dashboard"
FOLDER: Final = "/etc/gpushare"


def variables(state: str, token: str = TOKEN) -> tuple[str, str]:
    """Of the inventory: the control plane serves, or does no more."""
    there = f"{{{{ '{state}' if inventory_hostname == '{CONTROL_PLANE}' else 'absent' }}}}"
    given = {"address": "{{ ansible_host }}", "host_names": ["dashboard.example.org"], "title": "lab", "token": token, "state": there}
    return "-e", json.dumps({f"gpushare_dashboard_{name}": value for name, value in given.items()})


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with the dashboard; afterwards without."""
    cluster.clear()
    cluster.playbook(*variables("present"))
    yield cluster
    cluster.playbook(*variables("absent"))


def address(cluster: Cluster) -> str:
    return next(node.address for node in lab_state.existing(cluster.name).nodes if node.name == CONTROL_PLANE)


def get(cluster: Cluster, path: str, token: str = "", host: str = "", authority: str | None = None) -> tuple[int, str]:
    """Status and body of a request from this machine. authority: the certificate that is trusted, None for the host's own."""
    ca = cluster.on(CONTROL_PLANE, "cat", f"{FOLDER}/dashboard-pki/ca.crt") if authority is None else authority
    headers = {**({"Authorization": f"Bearer {token}"} if token else {}), **({"Host": host} if host else {})}
    request = urllib.request.Request(f"https://{address(cluster)}:{PORT}{path}", headers=headers)
    context = ssl.create_default_context(cadata=ca) if ca else ssl.create_default_context()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def changes(output: str) -> dict[str, int]:
    """How many tasks of a playbook reported a change, by host."""
    return {host: int(count) for host, count in re.findall(r"^(\S+)\s+: ok=\d+\s+changed=(\d+)", output, re.MULTILINE)}


def test_the_page_is_open_to_those_with_the_token_and_to_nobody_else(served: Cluster) -> None:
    assert get(served, "/healthz") == (200, "ok\n")
    assert "<html" in get(served, "/")[1]
    for wrong in ("", "wrong", TOKEN + "x"):
        assert get(served, "/api/state", wrong)[0] == 401, wrong
    status, body = get(served, "/api/state", TOKEN)
    state = json.loads(body)
    assert (status, state["complete"], state["title"], state["sums"]["nodes"]) == (200, True, "lab", len(GPU_NODES))
    assert get(served, "/api/state", TOKEN, host="dashboard.example.org")[0] == 200
    assert get(served, "/api/state", TOKEN, host="elsewhere.example.org")[0] == 421
    # In clear text, and by those who do not know the authority of the host.
    with pytest.raises((OSError, http.client.HTTPException)):
        urllib.request.urlopen(f"http://{address(served)}:{PORT}/healthz", timeout=10)
    with pytest.raises(OSError, match="certificate verify failed"):
        get(served, "/healthz", authority="")


def test_it_has_the_rights_of_its_page_and_no_powers_on_its_host(served: Cluster) -> None:
    found = served.kubectl("auth", "can-i", "--list", f"--as=system:serviceaccount:kube-system:{UNIT}")
    rights = {line.split()[0]: line.rpartition("[")[2].rstrip("] ") for line in found.splitlines()[1:]}
    assert rights["pods"] == rights["nodes"] == "list watch"
    assert not {"secrets", "configmaps", "pods/exec", "pods/log", "*.*"} & set(rights)
    assert served.on(CONTROL_PLANE, "systemctl", "is-enabled", UNIT).strip() == "enabled"
    pid = served.on(CONTROL_PLANE, "systemctl", "show", "-P", "MainPID", UNIT).strip()
    status = served.on(CONTROL_PLANE, "cat", f"/proc/{pid}/status")
    assert re.search(r"^Uid:\s+[1-9]", status, re.MULTILINE)
    assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)
    assert TOKEN not in served.on(CONTROL_PLANE, "cat", f"/proc/{pid}/cmdline", f"/proc/{pid}/environ")
    assert served.on(CONTROL_PLANE, "stat", "-c", "%a %U", f"{FOLDER}/dashboard-viewer.token").strip() == "600 root"
    # The timer's service does its work within its sandbox.
    served.on(CONTROL_PLANE, "rm", f"{FOLDER}/dashboard-pki/dashboard.crt")
    served.on(CONTROL_PLANE, "systemctl", "start", "gpushare-dashboard-pki.service")
    served.until("the new certificate is served", lambda: get(served, "/healthz")[0] == 200, 90)


def test_verify_looks_at_it(served: Cluster, tmp_path: Path) -> None:
    verify = Verify(served, tmp_path)
    verdict = verify.run(*variables("present"))
    assert verdict.findings == [], verdict.words
    served.stop(CONTROL_PLANE, UNIT)
    try:
        verdict = verify.run(*variables("present"))
    finally:
        served.on(CONTROL_PLANE, "systemctl", "start", UNIT)
    assert verdict.causes == {(CONTROL_PLANE, "dashboard_down")}, verdict.words
    verdict = verify.run()
    assert [(one["host"], one["check"], one["severity"]) for one in verdict.findings] == [
        (CONTROL_PLANE, "dashboard_unexpected", "warning")
    ], verdict.words


def test_a_new_token_is_in_use_without_a_restart_and_nothing_else_changes(served: Cluster) -> None:
    before = served.on(CONTROL_PLANE, "systemctl", "show", "-P", "MainPID", UNIT)
    new = TOKEN[::-1]
    found = changes(served.playbook(*variables("present", new)))
    assert found == {CONTROL_PLANE: 1, **dict.fromkeys(GPU_NODES, 0)}
    assert served.on(CONTROL_PLANE, "systemctl", "show", "-P", "MainPID", UNIT) == before
    assert (get(served, "/api/state", new)[0], get(served, "/api/state", TOKEN)[0]) == (200, 401)


def test_absent_removes_it_and_nothing_else(served: Cluster) -> None:
    kept = ("gpushare-extender.env", "gpushare-pki.env", "extender.kubeconfig", "pki")
    served.playbook(*variables("absent"))
    left = served.on(CONTROL_PLANE, "sh", "-c", f"ls {FOLDER} /etc/systemd/system /var/lib /var/lib/private /run")
    assert [line for line in left.splitlines() if "dashboard" in line] == []
    assert set(kept) <= set(left.splitlines())
    assert served.on(CONTROL_PLANE, "systemctl", "is-active", "gpushare-extender").strip() == "active"
    with pytest.raises(OSError, match="refused"):
        get(served, "/healthz", authority="")
    assert changes(served.playbook(*variables("absent"))) == dict.fromkeys((CONTROL_PLANE, *GPU_NODES), 0)
