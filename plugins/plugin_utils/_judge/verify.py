# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge what was seen on all hosts and in the cluster, once before probe pods and once after."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail  # type: ignore[import-untyped]

from ...module_utils._formats.finding import ERROR, Finding
from .._preflight.variables import impossible
from .._report import lines_of, write
from .._verdict.daemons import ReleaseHashes
from .._verdict.findings import Verdict
from .._verdict.judge import Evidence, judge, obstructed, placeable, scheduler_name
from .._wheel import WheelError, locked_requirements, wheel_hash
from .judge import Judge

_FIRST, _LAST = 200, 400
#: The roles of a host, each with the evidence that only such a host has: it decides about probe pods, the scheduler that they name, and
#: objects in the cluster.
ROLES = {"gpu_node": "gpu", "control_plane": "plane", "dashboard": None}


class VerifyJudge(Judge):
    """Reaches no host."""

    options = {
        "hosts": {"type": "list", "elements": "str", "required": True},
        "runtime": {"type": "path", "required": True},
        "seen": {"type": "str", "required": True},
        "cluster": {"type": "str", "required": True},
        "probed": {"type": "str", "default": ""},
        "probes": {"type": "dict", "default": {}},
        "unproven": {"type": "dict", "default": {}},
        "probe": {"type": "bool", "default": False},
        "required": {"type": "bool", "default": False},
        "image": {"type": "str", "default": ""},
        "namespace": {"type": "str", "default": "default"},
        "final": {"type": "bool", "default": True},
        "report": {"type": "str", "default": ""},
    }

    def answer(self, arguments: dict[str, Any]) -> dict[str, Any]:
        for wrong in impossible("", {"gpushare_verify_namespace": arguments["namespace"]}, {}):
            raise AnsibleActionFail(str(wrong))
        evidence = self._evidence(arguments, self._known)
        verdict = judge(evidence)
        if not arguments["final"]:
            return {"changed": False, "ok": verdict.ok, **self._plan(arguments, evidence, verdict)}
        write(arguments["report"], verdict.as_dict(), "gpushare_verify_report")
        self._action._display.display(verdict.words)
        warnings = lines_of(finding for finding in verdict.findings if finding.severity != ERROR)
        result = {"changed": False, "msg": verdict.summary, "warnings": warnings}
        # The failures are on the screen already: Ansible would print the whole result once more, on one line.
        return dict(result, report=verdict.as_dict()) if verdict.ok else dict(result, failed=True)

    def _evidence(self, arguments: dict[str, Any], task_vars: dict[str, Any]) -> Evidence:
        hostvars = task_vars["hostvars"]
        hosts = {host: _seen(hostvars[host].get(arguments["seen"])) for host in arguments["hosts"]}
        # All hosts have the same one. Ansible copies it each time it is read, and it is as large as the cluster.
        cluster = next((found for host in arguments["hosts"] if (found := hostvars[host].get(arguments["cluster"])) is not None), None)
        probed = {host: _seen(hostvars[host].get(arguments["probed"])) for host in arguments["hosts"]} if arguments["probed"] else {}
        return Evidence(
            hosts=hosts,
            cluster=_seen(cluster),
            artifact=_artifact(Path(arguments["runtime"]).resolve()),
            probed={host: seen for host, seen in probed.items() if not isinstance(seen, str)},
            probes=(arguments["probes"].get("pods") or _why(arguments["probes"])) if arguments["probes"] else None,
            rejected=str(arguments["probes"].get("rejected") or ""),
            moved=arguments["probes"].get("moved") or {},
            namespace=arguments["namespace"],
            unproven=arguments["unproven"],
            required=arguments["required"],
        )

    def _plan(self, arguments: dict[str, Any], evidence: Evidence, verdict: Verdict) -> dict[str, Any]:
        """Which probe pods to place. None where something is wrong: they would only say so again."""
        pods = [] if isinstance(evidence.cluster, str) else evidence.cluster["pods"]
        left = [f"{pod['namespace']}/{pod['name']}" for pod in pods if pod["probe"]]
        nodes: dict[str, str] = {}
        unproven: dict[str, dict[str, str]] = {}
        if arguments["probe"]:
            nodes, unproven = placeable(evidence, arguments["image"])
            unproven.update(obstructed(evidence, verdict))
            nodes = {node: image for node, image in nodes.items() if node not in unproven}
        return {"images": nodes, "unproven": unproven, "left_behind": left, "scheduler_name": scheduler_name(evidence)}


def wrong_role(seen: Mapping[str, Any], roles: Mapping[str, bool], again: bool) -> Finding | None:
    """Why the evidence is not that of a host with these roles, which the inventory's groups say."""
    for name, part in ROLES.items():
        there = part is not None and seen[part] is not None
        if seen["places"][name] != roles[name] or (there and not roles[name]) or (part and roles[name] and not there and not again):
            cure = "find out who else has root there: the groups of the inventory say what it is"
            return Finding("identity", f"evidence that does not fit {name}: {str(roles[name]).lower()}", "what such a host has", cure)
    return None


def _artifact(source: Path) -> ReleaseHashes:
    try:
        locks = (hashlib.sha256(locked_requirements(source, extra)).hexdigest() for extra in ("", "kubectl"))
        return ReleaseHashes(wheel_hash(source).sha256, *locks)
    except (WheelError, OSError) as error:
        raise AnsibleActionFail(str(error)) from error


def _seen(result: Any) -> Any:
    """The evidence that a module saw, or why it saw nothing."""
    if result is not None and "seen" in result:
        return result["seen"]
    return _why(result)


def _why(result: Any) -> str:
    if result is None:
        return "an earlier step failed on it"
    words = " ".join(str(result.get("module_stderr") or result.get("msg") or result).split())
    # The beginning names who answered; a traceback has its error at its end.
    return words if len(words) <= _FIRST + _LAST else f"{words[:_FIRST]} … {words[-_LAST:]}"
