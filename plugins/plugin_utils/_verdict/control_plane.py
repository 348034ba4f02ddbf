# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The findings of verify about one control plane: the scheduler's files against what runs, and both against the extender.

Pure. The controller has a YAML parser, hosts may have none.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import yaml

from ...module_utils._cluster.names import (
    ADMIN_CONF,
    ANNOTATION_SCHEDULER_CONFIG,
    EXTENDER,
    GPUS,
    KUBEADM_CERTIFICATES,
    KUBECONFIGS,
    MEMORY,
    NAMESPACE,
)
from ...module_utils._formats.failure import Failure
from ...module_utils._formats.finding import WARNING
from ...module_utils._scheduler import entries as scheduler_entries
from ...module_utils._scheduler import proof, releases, scheduler_config
from ...module_utils._scheduler.manifest import CONFIG, SchedulerError, SchedulerManifest, annotation_in, is_scheduler
from .. import _yaml
from .daemons import SITE, judge_metrics
from .doctor import Doctor
from .findings import VerifyFindings
from .hints import hint
from .near_end import near_end

_VERBS = ("filterVerb", "bindVerb")
_IN_TIME = "one that is renewed in time"
CONTROLLERS = "kube-controller-manager"
#: kubelet's word for a container that had no more memory.
_KILLED = "OOMKilled"
_OUT_OF_MEMORY = (
    "raise resources.limits.memory of kube-scheduler in {path}, or remove it (kubeadm sets none), and wait 20 s; without such a limit the "
    "host is out of memory (free -m; dmesg)"
)
_CONTROLLERS_MANIFEST = f"/etc/kubernetes/manifests/{CONTROLLERS}.yaml"


def judge_plane(found: VerifyFindings, seen: Mapping[str, Any], doctor: Doctor, mirror: Mapping[str, Any] | None, asked: bool) -> None:
    """seen: of gpushare_verify_host. doctor: its answer there. mirror: the API's copy of the scheduler's static pod on this node.

    asked: whether the API was.
    """
    judge_metrics(found, doctor, EXTENDER, seen["places"]["metrics_extender"])
    _certificates(found, seen["plane"]["lives"], seen["now"])
    _scheduler(found, seen, doctor, mirror, asked)


def _scheduler(found: VerifyFindings, seen: Mapping[str, Any], doctor: Doctor, mirror: Mapping[str, Any] | None, asked: bool) -> None:
    files, path = seen["plane"]["scheduler"], seen["places"]["scheduler_manifest"]
    if files["manifest"] is None:
        cure = "restore it (kubeadm init phase control-plane scheduler), then " + SITE
        found.say("scheduler_stopped", f"no manifest {path}", "kube-scheduler's static pod", cure)
        return
    try:
        manifest = SchedulerManifest.parsed(_yaml.load(files["manifest"]))
        location = manifest.location(seen["places"]["scheduler_config"])
    except (yaml.YAMLError, SchedulerError) as error:
        found.say("scheduler_not_configured", f"{path}: {error}", "a manifest that names its configuration", SITE)
        return
    _others(found, files["others"], path, manifest)
    config = files["configs"].get(location.host)
    named = CONFIG in manifest.flags
    if not named or config is None:
        lacks = f"no --config in {path}" if not named else f"no file {location.host}, which {path} means by --config"
        found.say("scheduler_not_configured", lacks, "a configuration that names the extender", SITE)
        return
    _config(found, seen, doctor, location.host, config["text"])
    noted = annotation_in(files["manifest"])
    if noted != config["sha256"]:
        old = f"a scheduler started with another {location.host} than the one on the disk"
        cure = f"{SITE}: it checks the file and restarts the scheduler with it; or put the file back as it was"
        found.say("scheduler_older_than_file", old, "the scheduler restarted after each change of its configuration", cure)
    elif asked:
        _running(found, manifest, mirror, noted, path, files["says"])


def _certificates(found: VerifyFindings, lives: Mapping[str, tuple[float, float]], now: float) -> None:
    """Whether the client certificates of the control plane's programs last. lives: by their kubeconfigs."""
    for path, (name, program) in KUBEADM_CERTIFICATES.items():
        late = near_end(lives.get(path), now)
        if late is not None:
            cure = f"kubeadm certs renew {name}; then move {program}.yaml out of the folder of static pods and back after 20 s"
            found.say("control_plane_certificate", f"the certificate {path}, which {late[1]}", _IN_TIME, cure, late[0])
    for path in KUBECONFIGS:
        late = near_end(lives.get(path), now)
        if late is None:
            continue
        severity, when = late
        name = posixpath.basename(path)
        cure = f"kubeadm certs renew {name}"
        if path != ADMIN_CONF:
            manifest = f"kube-{name.partition('.')[0]}.yaml"
            cure += (
                f"; then move {manifest} out of the folder of static pods and back after 20 s, which starts its program with the new one"
            )
        seen = f"the client certificate in {path}, which {when}"
        # Nothing stops with the administrator's, of which another may be in use.
        found.say("control_plane_certificate", seen, _IN_TIME, cure, WARNING if path == ADMIN_CONF else severity)


def judge_leader(planes: Mapping[str, Mapping[str, Any]], leases: Mapping[str, Mapping[str, Any]]) -> VerifyFindings:
    """Whether a scheduler leads: one that runs and does not lead places nothing. planes: host to what was seen. leases: as the API has
    them."""
    found = VerifyFindings("")
    locks: dict[str, list[str]] = {}
    for host, seen in planes.items():
        lock = lock_of(seen)
        if lock:
            locks.setdefault(lock, []).append(host)
    for name, hosts in locks.items():
        lease = leases.get(name)
        if lease is not None and lease["holder"] and lease["alive"]:
            continue
        why = "there is none" if lease is None else "it has no holder" if not lease["holder"] else f"{lease['holder']} no longer renews it"
        said = {host: planes[host]["plane"]["scheduler"] for host in hosts}
        # It leads through the API server, which may have failed before it.
        programs = (("kube-scheduler", "says"), ("kube-apiserver", "server_says"))
        says = [f"{program} on {host}: {said[host][key]}" for host in hosts for program, key in programs if said[host][key]]
        cure = (
            f"correct what the last error names, on {', '.join(hosts)} (an expired certificate of scheduler.conf, which `kubeadm certs "
            "check-expiration` shows: `kubeadm certs renew scheduler.conf`); then move the scheduler's manifest out of its folder and "
            "back, which starts it again"
        )
        words = f"; last errors: {'; '.join(says)}" if says else ""
        found.say(
            "scheduler_not_leading", f"the Lease {NAMESPACE}/{name}: {why}, so no pod is placed{words}", "a leader", hint(words) or cure
        )
    return found


def judge_controllers(planes: Mapping[str, Mapping[str, Any]], leases: Mapping[str, Mapping[str, Any]]) -> VerifyFindings:
    """Whether a kube-controller-manager leads: without it, no Deployment makes a pod, and no lost node is noticed. A cluster without such a
    Lease has controllers of another kind. Where they run alone, without leader election, an old one says nothing."""
    found, lease = VerifyFindings(""), leases.get(CONTROLLERS)
    if not planes or lease is None or (lease["holder"] and lease["alive"]):
        return found
    if not all(seen["plane"]["scheduler"]["controllers_elect"] for seen in planes.values()):
        return found
    why = f"{lease['holder']} no longer renews it" if lease["holder"] else "it has no holder"
    said = {host: seen["plane"]["scheduler"]["controllers_say"] for host, seen in planes.items()}
    words = "".join(f"; its last error on {host}: {says}" for host, says in said.items() if says)
    cure = (
        f"on {', '.join(planes)}: is {_CONTROLLERS_MANIFEST} there (kubeadm init phase control-plane controller-manager writes it)? "
        "Correct what its last error names; crictl logs and journalctl -u kubelet say why its container does not start"
    )
    seen = f"the Lease {NAMESPACE}/{CONTROLLERS}: {why}, so no Deployment, Job or StatefulSet makes pods{words}"
    found.say("controllers_not_leading", seen, "a leader", hint(words) or cure)
    return found


def files_of(seen: Mapping[str, Any]) -> tuple[SchedulerManifest, str]:
    """The manifest of this control plane's scheduler, and the text of its configuration, "" without one. yaml.YAMLError or SchedulerError
    for files that say nothing."""
    files = seen["plane"]["scheduler"]
    manifest = SchedulerManifest.parsed(_yaml.load(files["manifest"] or ""))
    config = files["configs"].get(manifest.location(seen["places"]["scheduler_config"]).host)
    return manifest, "" if config is None else config["text"]


def lock_of(seen: Mapping[str, Any]) -> str:
    """The Lease of this control plane's scheduler in kube-system; "" where it has none there, or its files say nothing."""
    try:
        manifest, text = files_of(seen)
        config = _yaml.load(text) if CONFIG in manifest.flags else {}
        lock = scheduler_config.lease(manifest, config if isinstance(config, dict) else {}, releases.release_of(manifest.image, ""))
    except (yaml.YAMLError, SchedulerError, AttributeError):
        return ""
    return lock.name if lock is not None and (lock.namespace, lock.by) == (NAMESPACE, "leases") else ""


def _others(found: VerifyFindings, others: Mapping[str, str], path: str, manifest: SchedulerManifest) -> None:
    """Other files beside the manifest that kubelet runs as kube-scheduler, too."""
    for other, text in sorted(others.items()):
        try:
            pod = _yaml.load(text)
            if not any(is_scheduler(container) for container in pod["spec"]["containers"]):
                continue
            same = pod["metadata"]["name"] == manifest.pod["metadata"]["name"] or _same_lease(SchedulerManifest.parsed(pod), manifest)
        except (yaml.YAMLError, SchedulerError, LookupError, TypeError, AttributeError):
            continue  # no pod, which kubelet passes over as well
        if same:
            seen = f"{other}, which kubelet runs as kube-scheduler beside {path}"
            cure = f"mv {other} /root/: kubelet runs every file in {posixpath.dirname(other)}, whatever it is called"
            found.say("stale_scheduler_file", seen, "one manifest of kube-scheduler", cure)


def _same_lease(other: SchedulerManifest, manifest: SchedulerManifest) -> bool:
    return CONFIG not in other.flags and scheduler_config.lease(other, {}) == scheduler_config.lease(manifest, {})


def _config(found: VerifyFindings, seen: Mapping[str, Any], doctor: Doctor, path: str, text: str) -> None:
    """Whether the configuration on the disk calls our extender, for our resources, where it listens."""
    try:
        config = _yaml.load(text) or {}
        extenders = list(config.get("extenders") or [])
        ours = [entry for entry in extenders if scheduler_entries.is_ours(entry)]
    except (yaml.YAMLError, AttributeError, TypeError) as error:
        found.say("scheduler_not_configured", f"{path}: {error}", "a KubeSchedulerConfiguration", SITE)
        return
    for place, entry, why in scheduler_entries.dead(config, seen["plane"]["scheduler"]["unreached"]):
        found.say("extender_of_others", *scheduler_entries.words(path, place, entry, why))
    if not ours:
        found.say("scheduler_not_configured", f"no extender of ours in {path}", "it among the extenders", SITE)
        return
    entry = ours[0]
    managed = [resource.get("name") for resource in entry.get("managedResources") or []]
    lacking = [name for name in (MEMORY, GPUS) if name not in managed]
    silent = [verb for verb in _VERBS if not entry.get(verb)]
    if managed and lacking:
        cure = f"{SITE}, or add {' and '.join(lacking)} to managedResources in {path} and restart the scheduler"
        found.say("extender_not_called", f"managedResources {managed} in {path}", f"{MEMORY} and {GPUS} among them", cure)
    elif not managed:
        found.say("extender_called_for_all", f"no managedResources in {path}", "only pods that ask for our resources", SITE)
    if silent:
        found.say("extender_not_called", f"no {' and '.join(silent)} in {path}", "the verbs of the extender", SITE)
    extender = doctor.daemons.get(EXTENDER)
    listens = (extender.listens if extender else "") or f"127.0.0.1:{seen['places']['extender_port']}"
    expected = f"{'https' if seen['places']['pki_dir'] else 'http'}://{listens}{scheduler_entries.PREFIX}"
    prefix = str(entry.get("urlPrefix", ""))
    if _address(prefix) != _address(expected):
        cure = f"{SITE}, or write {expected} into {path} and restart the scheduler"
        found.say("extender_address_wrong", f"urlPrefix {prefix!r} in {path}", f"{expected!r}, where the extender listens", cure)
    places = seen["places"]
    tls = posixpath.join(places["pki_dir"], "scheduler") if places["pki_dir"] else ""
    wanted = scheduler_config.ExtenderEntry(
        expected, places["extender_weight"], places["extender_http_timeout"], (), tls, places["preemption"]
    )
    differ = scheduler_config.differing(entry, wanted)
    if differ:
        words = (f"{name}: {found_} in {path}" for name, (found_, _) in differ.items())
        cure = f"{SITE}: it writes the entry and restarts the scheduler with it (site.yml --check --diff shows it before)"
        wishes = ", ".join(f"{name}: {wish}" for name, (_, wish) in differ.items())
        found.say("extender_entry_differs", ", ".join(words), f"{wishes}, as the role scheduler writes it", cure)
    port = seen["places"]["extender_port"]
    if _address(expected)[2] != port:
        cure = f"{SITE}, which moves extender and scheduler to that port; or correct gpushare_extender_port"
        found.say("extender_elsewhere", f"the extender listens on {listens}", f"port {port}, as gpushare_extender_port says", cure)


def _address(url: str) -> tuple[str, str, int | None, str]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "", "", None, ""
    return parts.scheme, (parts.hostname or "").replace("localhost", "127.0.0.1"), port, parts.path.rstrip("/")


def _running(
    found: VerifyFindings, manifest: SchedulerManifest, mirror: Mapping[str, Any] | None, noted: str | None, path: str, says: str
) -> None:
    """Whether the scheduler that runs is the one of the manifest. says: the last error of the one that runs, or ran last."""
    try:
        missing = proof.not_running(mirror, noted, manifest.shape)
    except Failure as error:
        missing = str(error)
    if missing is not None:
        annotations = (mirror or {}).get("metadata", {}).get("annotations") or {}
        older = mirror is not None and annotations.get(ANNOTATION_SCHEDULER_CONFIG) != noted
        code = "scheduler_older_than_file" if older else "scheduler_stopped"
        last = f"; its last error: {says}" if says else ""
        cure = _OUT_OF_MEMORY.format(path=path) if _KILLED in missing else _cure(path, older)
        found.say(code, f"a scheduler of which {missing}{last}", f"the one of {path} to run", cure)
    elif mirror is not None and (image := SchedulerManifest.parsed(mirror).image) != manifest.image:
        found.say("scheduler_older_than_file", f"a scheduler of image {image}", f"{manifest.image}, as {path} says", _cure(path, True))


def _cure(path: str, runs: bool) -> str:
    """runs: a scheduler does; without one site.yml stops before the first change."""
    return (
        f"wait 20 s and run verify again; if it stays: its Events (kubectl describe pod -n {NAMESPACE} of it) and journalctl -u kubelet "
        f"on this host name what is wrong in {path}: correct that{', or ' + SITE if runs else ''}; "
        "only if nothing is, move the file away and back"
    )
