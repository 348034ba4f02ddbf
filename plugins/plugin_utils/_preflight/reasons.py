# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reasons why nothing may be changed: what they are made of, those of the inventory as a whole, and the verdict.

Pure. Every reason is found before anything is changed, not the first one only.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...module_utils._formats.finding import ERROR, WARNING, Finding, HostFindings, few
from ...module_utils._formats.versions import numbers
from .._report import count, problems

#: Checks of hosts of which nothing else is known.
_SILENT = ("unreachable", "facts", "become", "identity")
#: The checks that a host of another distribution fails for this reason alone.
_OF_KNOWN_HOSTS = ("api", "control_plane", "kubelet", "node", "runtime", "scheduler", "strategy")
_SHOWN = 80
#: Of API server and kubelets: older ones were never run with the daemons. Their kubelets and schedulers have playbooks of their own.
OLDEST_KUBERNETES = (1, 25)
OLDEST_IN_WORDS = "1.25 or newer"
#: From here on the API server has ValidatingAdmissionPolicy.
OLDEST_WITH_POLICIES = (1, 30)
#: Of meta/runtime.yml, for which Ansible itself only warns.
OLDEST_ANSIBLE = (2, 18)
# Ansible's words, and those of sudo, su and doas: what the two last ones say, they say of themselves.
_NOT_ROOT = re.compile(
    r"(?:Incorrect|Missing) \S+ password|sudoers|is not allowed to (?:execute|run)|may not run sudo"
    r"|waiting for (?:become success|privilege escalation prompt)|(?:^|\s)(?:su|doas): \S"
    r"|sudo: (?:a password is required|a terminal is required|no tty present)"
)
_NO_PYTHON = re.compile("not found|No such file or directory")


@dataclass(frozen=True)
class Judgement:
    """The facts found on one host. node_name: of its Kubernetes node, None where nothing could be asked."""

    host: str
    node_name: str | None
    reasons: tuple[Finding, ...]

    def as_dict(self) -> dict[str, Any]:
        return {"host": self.host, "node_name": self.node_name, "reasons": [asdict(reason) for reason in self.reasons]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Judgement:
        return cls(values["host"], values["node_name"], tuple(Finding(**reason) for reason in values["reasons"]))


def _end(why: str) -> str:
    """The end of what a host has said, where the error stands."""
    return why if len(why) <= _SHOWN else f"…{why[-_SHOWN:]}"


def unreachable(host: str, why: str) -> Judgement:
    """A host that could not be connected to."""
    cure = "bring it back, take it out of the inventory, or leave it out of this run with --limit"
    found = f"no connection ({_end(why)})"
    return Judgement(host, None, (Finding("unreachable", found, "every host of the run to answer", cure, host=host),))


def not_gathered(host: str, why: str, become: str = "") -> Judgement:
    """A host that was connected to, but on which the facts could not be gathered.

    become: by which program Ansible becomes root there, if the module has printed nothing; then Python was perhaps never reached.
    """
    if _NOT_ROOT.search(why):
        cure = "correct ansible_become_password or ansible_become_method of this host, or permit its ansible_user every command by sudo"
        return not_root(host, f"no way to root ({_end(why)})", cure)
    if become and not _NO_PYTHON.search(why):
        cure = (
            f"see whether ansible_user becomes root there by {become[:_SHOWN]}: correct ansible_become_method and ansible_become_password "
            "of this host, or else ansible_python_interpreter (Python 3.8 or newer)"
        )
        return not_root(host, f"a module that printed nothing ({_end(why)})", cure)
    cure = "Ansible needs Python 3.8 or newer there (ansible_python_interpreter), and root by way of become"
    found = f"a module that failed ({_end(why)})"
    return Judgement(host, None, (Finding("facts", found, "gpu_node_info to run on the host", cure, host=host),))


def not_root(
    host: str, found: str, cure: str = "correct ansible_become and ansible_become_user of this host, or leave them out"
) -> Judgement:
    """A host on which Ansible is not root: what it shows to others would not be a reason."""
    return Judgement(host, None, (Finding("become", found, "Ansible to become root there", cure, host=host),))


def failure_of(result: Mapping[str, Any]) -> str:
    """Why a module failed, on one line. Where it could not even start, with a terminal sudo's words are in its standard output."""
    words = f"{result.get('module_stdout') or ''} {result.get('module_stderr') or ''}".split() or str(result.get("msg") or result).split()
    return " ".join(words)[-300:]


def is_silent(result: Mapping[str, Any]) -> bool:
    """Whether a module that failed has printed nothing at all, so that it may never have run."""
    return "module_stdout" in result and not str(result["module_stdout"]).strip()


def no_plan(host: str, check: str, why: str) -> Finding:
    """A host on which a role has found out, without changing anything, that it cannot do its part."""
    words = " ".join(why.split())
    return Finding(check, f"no plan for this part ({words[-600:]})", "a plan without errors", "do what the message states", host=host)


def judge_inventory(
    judgements: Collection[Judgement],
    groups: Mapping[str, Sequence[str]],
    control_planes: str,
    gpu_nodes: str,
    machines: Mapping[str, str] | None = None,
) -> list[Finding]:
    """The reasons against the hosts as a whole. groups: the inventory's; the next two: names of those that are used.

    machines: host to its machine id, "" if unknown.
    """
    found = HostFindings("")
    for name, variable, what in (
        (control_planes, "gpushare_control_plane_group", "the control planes"),
        (gpu_nodes, "gpushare_gpu_group", "the GPU nodes"),
    ):
        if not groups.get(name):
            near = difflib.get_close_matches(name, [group for group, hosts in groups.items() if hosts], 1)
            seen = f"no host in the group {name!r}" + (f", but hosts in {near[0]!r}" if near else "")
            found.error("groups", seen, f"{what} in it", f"add them to the inventory, or name your group in {variable}")
    by_node: dict[str, list[str]] = {}
    for judgement in judgements:
        if judgement.node_name:
            by_node.setdefault(judgement.node_name, []).append(judgement.host)
    for node, hosts in sorted(by_node.items()):
        if len(hosts) > 1:
            seen = f"{', '.join(sorted(hosts))} which are all the node {node!r}"
            cure = "if it is one machine under several names, keep one; if not, give each kubelet its own --hostname-override"
            found.error("node_names", seen, "one inventory host for each node", cure)
    by_machine: dict[str, list[str]] = {}
    for host, machine in (machines or {}).items():
        by_machine.setdefault(machine, []).append(host)
    for machine, hosts in sorted(by_machine.items()):
        if machine and len(hosts) > 1:
            seen = f"{few(sorted(hosts))} with the same /etc/machine-id {machine}"
            cure = "on each clone: rm /etc/machine-id; systemd-machine-id-setup; reboot it. DHCP and logs take them for one machine"
            found.warn("machine_id", seen, "one machine id for each host", cure)
    return found.list


@dataclass(frozen=True)
class Answer:
    """The answers of the API server to one control plane. nodes: None where it says nothing, and why."""

    plane: str
    nodes: tuple[str, ...] | None
    version: str = ""
    may_grant: bool = True
    why: str = ""
    authorities: tuple[str, ...] = ()
    in_cluster: tuple[str, ...] = ()

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> Answer:
        """From a result of gpushare_api."""
        if "nodes" not in result:
            return cls(str(result["item"]), None, why=failure_of(result))
        nodes, authorities, pods = (tuple(map(str, result.get(key) or ())) for key in ("nodes", "authorities", "in_cluster"))
        return cls(str(result["item"]), nodes, str(result["version"]), bool(result["may_grant"]), "", authorities, pods)


def judge_authorities(known: Mapping[str, Collection[str]]) -> list[Finding]:
    """Whether all hosts belong to one cluster. known: host to the hashes of its cluster's authorities, none where it has not said.

    Hosts with an authority in common are of one cluster, also over others: while it is exchanged, not all have both.
    """
    clusters: list[tuple[set[str], set[str]]] = []
    for host, hashes in sorted(known.items()):
        if not hashes:
            continue
        same = [cluster for cluster in clusters if cluster[1].intersection(hashes)]
        clusters = [cluster for cluster in clusters if cluster not in same]
        clusters.append(({host}.union(*(cluster[0] for cluster in same)), set(hashes).union(*(cluster[1] for cluster in same))))
    if len(clusters) < 2:
        return []
    parts = []
    for hosts, hashes in sorted(clusters, key=lambda cluster: min(cluster[0])):
        parts.append(f"{few(sorted(hosts))} (authority {min(hashes)[:12]})")
    cure = (
        "give each cluster groups of its own, and name those of one cluster in gpushare_control_plane_group and gpushare_gpu_group (-e): "
        "each cluster is a run of its own"
    )
    seen = f"hosts of {len(clusters)} clusters: {'; '.join(parts)}"
    return [Finding("clusters", seen, "one cluster in the groups of a run", cure)]


def judge_controller(ansible: str) -> list[Finding]:
    """Whether the controller's ansible-core has what the roles use."""
    version = numbers(ansible)
    if version is None or version[:2] >= OLDEST_ANSIBLE:
        return []
    oldest = ".".join(map(str, OLDEST_ANSIBLE))
    return [Finding("controller", f"ansible-core {ansible[:80]} on the controller", f"{oldest} or newer", "upgrade ansible-core")]


def judge_cluster(
    judgements: Collection[Judgement],
    answers: Sequence[Answer],
    without_policies: bool = False,
    evicts: Collection[str] = (),
    pods: bool = False,
) -> list[Finding]:
    """Whether the control planes may ask the API server, what it is, and whether the hosts of the run are its nodes.

    without_policies, evicts: what the inventory accepts, and the variables by which pods may be evicted; pods: whether the daemons will be
    pods, of which the role in_cluster judges the rest.
    """
    found: list[Finding] = []
    unasked = {judgement.host for judgement in judgements if not judgement.node_name}
    of_run = {judgement.host for judgement in judgements} - unasked
    planes = [answer.plane for answer in answers]
    nobody = all(answer.nodes is None for answer in answers)
    if planes and nobody and unasked.issuperset(planes):
        cure = "see the reasons of each control plane"
        seen = f"no control plane to ask ({', '.join(planes)})"
        of_planes = [reason.check for judgement in judgements if judgement.host in planes for reason in judgement.reasons]
        because = next((check for check in of_planes if check in _SILENT), "")
        found.append(Finding("api", seen, "one that reaches the API server", cure, because=because))
    for answer in answers:
        # One that is gone is said elsewhere; another one can be asked.
        if answer.nodes is None and (answer.plane in of_run or (nobody and answer.plane not in unasked)):
            found.append(no_answer(answer.why, "this host", "gpushare_admin_kubeconfig", answer.plane))
        elif answer.nodes is not None and not answer.may_grant:
            cure = "name one that may in gpushare_admin_kubeconfig"
            seen = "a kubeconfig that may not create ClusterRoleBindings"
            found.append(Finding("api", seen, "an administrator's", cure, host=answer.plane))
    asked = next((answer for answer in answers if answer.nodes is not None), None)
    if asked is None:
        return found
    if asked.in_cluster and not pods:
        seen = f"gpushare as pods (DaemonSet {asked.in_cluster[0][:_SHOWN]})"
        found.append(other_mode(seen, "set gpushare_deploy_mode: kubernetes", asked.plane))
    version = numbers(asked.version)
    if version is not None and version[:2] < OLDEST_KUBERNETES:
        cure = (
            "upgrade it: the daemons were never run on an older one; the playbooks kubelet_gates and scheduler_extender change kubelet and "
            "scheduler alone"
        )
        found.append(Finding("kubernetes", f"Kubernetes {asked.version}", OLDEST_IN_WORDS, cure, host=asked.plane))
    elif version is not None and version[:2] < OLDEST_WITH_POLICIES:
        seen = f"Kubernetes {asked.version}, whose API server has no ValidatingAdmissionPolicy"
        oldest = f"{'.'.join(map(str, OLDEST_WITH_POLICIES))} or newer"
        if without_policies and not evicts:
            cure = "nothing to do: gpushare_without_policies accepts it"
            found.append(Finding("policies", seen, oldest, cure, WARNING, asked.plane))
        else:
            cure = "upgrade it, or accept that nothing restricts the daemons' tokens further: gpushare_without_policies"
            if without_policies:
                chosen = " and ".join(evicts)
                seen, cure = f"{seen}, and {chosen}: evict", f"upgrade it, or set {chosen}: report"
            found.append(Finding("policies", seen, oldest, cure, host=asked.plane))
    for judgement in judgements:
        if judgement.node_name and judgement.node_name not in (asked.nodes or ()):
            seen = f"no node {judgement.node_name[:80]!r} in the cluster of {asked.plane}"
            cure = "join the host to the cluster first, or leave it out with --limit; another cluster needs an inventory of its own"
            found.append(Finding("node", seen, "each host to be a node of the cluster", cure, host=judgement.host))
    return found


def no_answer(why: str, machine: str, kubeconfig: str, host: str = "") -> Finding:
    """The API server does not answer kubectl on this machine. kubeconfig: the variable that names its kubeconfig."""
    cure = f"name the kubeconfig of the cluster's administrator in {kubeconfig}, and kubectl in gpushare_kubectl"
    return Finding("api", f"no answer from the API server ({why})", f"one to kubectl on {machine}", cure, host=host)


def other_mode(found: str, keep: str, host: str = "") -> Finding:
    """A part of gpushare that the other mode has installed. keep: how it stays."""
    cure = f"keep one mode: change it by the playbook change_mode with the inventory of the hosts, or {keep}"
    return Finding("deploy_mode", found, "no gpushare of the other mode", cure, host=host)


def accept(reasons: Iterable[Finding], accepted: Collection[str]) -> list[Finding]:
    """The reasons, with the errors of the accepted checks as warnings. Errors come first, and causes before what follows from them.

    On a host of another distribution, reasons are left out whose cures are for the hosts that a run knows.
    """
    softened = [replace(reason, severity=WARNING) if reason.check in accepted else reason for reason in reasons]
    others = {reason.host for reason in softened if reason.check == "distribution" and reason.severity == ERROR}
    softened = [reason for reason in softened if reason.host not in others or reason.check not in _OF_KNOWN_HOSTS]
    left = {reason.check for reason in softened if reason.severity == ERROR}
    marked = [reason if reason.because in left else replace(reason, because="") for reason in softened]
    return sorted(marked, key=lambda reason: (reason.severity != ERROR, bool(reason.because), reason.host, reason.check))


def summary(reasons: Sequence[Finding]) -> str:
    """How many problems there are, on one line: those that are blocks, and the hosts of which nothing is known."""
    errors = [reason for reason in reasons if reason.severity == ERROR]
    away = len({reason.host for reason in errors if reason.check == "unreachable"})
    return f"{count(problems(errors), 'problem')}, nothing was changed" + (f" ({count(away, 'host')} unreachable)" if away else "")
