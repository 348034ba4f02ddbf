# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Twenty faults that a reviewer planted unannounced. verify found eleven of them then."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final

from e2e.api import Api, ApiError, Json
from e2e.cluster import CONTROL_PLANE, GPU_NODES, MEMORY, OTHER_KUBELET_ROOT, Cluster
from e2e.manifests import pod
from verify import faults
from verify.conftest import SHARING
from verify.faults import MANIFEST, MUTATING, PLUGIN, SCHEDULER_CONF, WEBHOOK, Fault, program, sh
from verify.strangers import Stranger

REVIEW: Final = "a review"
LABEL: Final = "gpushare.kubernetes/node"
RENAMED: Final = "gpu1-rack7"
#: Their namespaces are spared by most programs of this kind.
USERS: Final[Json] = {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}]}


def _as_planted(fault: Fault) -> Callable[[Cluster, str, contextlib.ExitStack], None]:
    """A fault that knows its host."""
    return lambda cluster, _host, later: fault(cluster, later)


def _by_hand(cure: Callable[[Cluster], None]) -> Callable[[Cluster, str], None]:
    return lambda cluster, _host: cure(cluster)


def _is(host: str, script: str, wanted: str) -> Callable[[Cluster], bool]:
    """Whether a command on that host prints this."""
    return lambda cluster: sh(cluster, host, f"{script} || :").strip() == wanted


def _guarded(cluster: Cluster) -> bool:
    """Whether a user's pod that names its GPU itself is denied."""
    bare = {"name": "guard", "annotations": {"ALIYUN_COM_GPU_MEM_IDX": "0"}}
    spec = {"containers": [{"name": "none", "image": "none.invalid/none"}]}
    # The policy does not bind administrators.
    users = Api(cluster.kubeconfig, {"Impersonate-User": "system:serviceaccount:default:default", "Impersonate-Group": "system:masters"})
    try:
        users.create("/api/v1/namespaces/default/pods", {"metadata": bare, "spec": spec}, dryRun="All")
    except ApiError as error:
        return "gpushare" in str(error)
    return False


def _labelled(cluster: Cluster, host: str, later: contextlib.ExitStack) -> None:
    """A node without GPUs that a careless selector has given the label."""
    later.callback(cluster.kubectl, "label", "node", CONTROL_PLANE, f"{LABEL}-")
    cluster.kubectl("label", "node", CONTROL_PLANE, f"{LABEL}=true")


def _unlabelled(cluster: Cluster) -> bool:
    return LABEL not in cluster.node(CONTROL_PLANE)["metadata"]["labels"]


def _no_election(cluster: Cluster, host: str, later: contextlib.ExitStack) -> None:
    later.callback(_election, cluster)
    changed = f"sed 's/--leader-elect=true/--leader-elect=false/' {MANIFEST} > /run/test-new"
    sh(cluster, CONTROL_PLANE, f"{changed}; grep -q elect=false /run/test-new; cp /run/test-new {MANIFEST}")
    _until_scheduler(cluster, "--leader-elect=false")


def _election(cluster: Cluster, host: str = "") -> None:
    sh(cluster, CONTROL_PLANE, f"sed 's/--leader-elect=false/--leader-elect=true/' {MANIFEST} > /run/test-new; cp /run/test-new {MANIFEST}")
    _until_scheduler(cluster, "--leader-elect=true")


def _until_scheduler(cluster: Cluster, flag: str) -> None:
    def runs() -> bool:
        found = cluster.pod(f"kube-scheduler-{CONTROL_PLANE}", "kube-system")
        given = any(flag in one["command"] for one in found["spec"]["containers"])
        return given and any("running" in status["state"] for status in found["status"].get("containerStatuses", ()))

    cluster.until(f"the scheduler runs with {flag}", runs, 120)


def _record_lost(cluster: Cluster, host: str, later: contextlib.ExitStack) -> None:
    """The advice of many threads, with pods that run. What the node has again afterwards are new pods."""
    sh(cluster, host, "rm -rf /var/lib/kubelet/device-plugins/*; systemctl restart kubelet")
    cluster.until("kubelet has its units again", lambda: faults.allocatable(cluster, host, MEMORY) > 0, 60)


def _pod_again(cluster: Cluster, host: str) -> None:
    """As an owner does once its pod is deleted, which the cure asks for."""
    name = SHARING[GPU_NODES.index(host)]
    cluster.delete(name)
    cluster.create(pod(name, memory=2, node=host))
    cluster.until_running(name)


def _new_python(cluster: Cluster, host: str, later: contextlib.ExitStack) -> None:
    """The host's Python is upgraded: the environment has its packages in the folder of the former one."""
    sh(cluster, host, 'old=$(echo /opt/gpushare/current/lib/python3*); mv "$old" "${old%/*}/python3.0"')


def _certificate_ended(cluster: Cluster, host: str, later: contextlib.ExitStack) -> None:
    """One year after kubeadm has signed it."""
    later.callback(faults.scheduler_leads, cluster, "pkill -x kube-scheduler || true")
    faults.kept(cluster, later, CONTROL_PLANE, SCHEDULER_CONF)
    program(cluster, CONTROL_PLANE, "age_kubeconfig.py", SCHEDULER_CONF, "/etc/kubernetes/pki", "-1")
    sh(cluster, CONTROL_PLANE, "pkill -x kube-scheduler")
    time.sleep(70)  # Verify calls a Lease old after 60 s.


def _scheduler_moved(cluster: Cluster, host: str) -> None:
    """As the cure has it: with the new certificate."""
    sh(cluster, CONTROL_PLANE, f"kubeadm certs renew scheduler.conf; mv {MANIFEST} /run/test-scheduler.yaml; sleep 20")
    faults.scheduler_leads(cluster, f"mv /run/test-scheduler.yaml {MANIFEST}")


def _renamed(cluster: Cluster, host: str, later: contextlib.ExitStack) -> None:
    later.callback(sh, cluster, host, f"hostnamectl set-hostname {host}; systemctl restart kubelet")
    # podman mounts that file, which cannot be replaced then.
    sh(cluster, host, f"! mountpoint -q /etc/hostname || umount /etc/hostname; echo {host} > /etc/hostname")
    sh(cluster, host, f"hostnamectl set-hostname {RENAMED}; systemctl restart --no-block kubelet")


def _other_authority(cluster: Cluster, host: str, later: contextlib.ExitStack) -> None:
    """The cluster was built anew."""
    file = "/etc/gpushare/device-plugin.kubeconfig"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 90 -subj /CN=kubernetes -keyout /dev/null"
    put = r's#\("certificate-authority-data": \)"[^"]*"#\1"'
    sh(
        cluster,
        host,
        f"other=$({make} 2>/dev/null | base64 -w0); before=$(sha256sum {file}); sed -i '{put}'\"$other\"'\"#' {file}; "
        f'test "$before" != "$(sha256sum {file})"; systemctl restart {PLUGIN}',
    )


def _cordoned(cluster: Cluster, host: str, later: contextlib.ExitStack) -> None:
    later.callback(cluster.kubectl, "uncordon", host)
    cluster.kubectl("cordon", host)


def _webhook(cluster: Cluster, host: str, later: contextlib.ExitStack) -> None:
    """Of a program whose pods are gone, on the Bindings of users' pods."""
    kind = WEBHOOK.replace("validating", "mutating")
    later.callback(cluster.kubectl, "delete", "mutatingwebhookconfiguration", "binds", "--ignore-not-found")
    client = {"service": {"namespace": "default", "name": "gone", "path": "/"}}
    hook = {"name": "bind.example.com", "rules": [faults.BINDS], "clientConfig": client, "sideEffects": "None"}
    hook.update(admissionReviewVersions=["v1"], namespaceSelector=USERS, failurePolicy="Fail")
    cluster.api.create(kind, {"metadata": {"name": "binds"}, "webhooks": [hook]})


def _cdi_twice(cluster: Cluster, host: str, later: contextlib.ExitStack) -> None:
    """On a node with the strategy cdi no container gets a GPU then."""
    later.callback(cluster.on, host, "rm", "-f", "/run/cdi/others.yaml")
    sh(cluster, host, "cp /run/cdi/nvidia.yaml /run/cdi/others.yaml")


def _restored(cluster: Cluster, host: str, later: contextlib.ExitStack) -> None:
    """A backup that was restored with the number of another user."""
    sh(cluster, CONTROL_PLANE, "chown -R 1000 /etc/gpushare")


def _other_root(cluster: Cluster, host: str, later: contextlib.ExitStack) -> None:
    """kubelet on another disk, with pods that run."""
    file = "/etc/default/kubelet"
    later.callback(_root_as_before, cluster, host)
    sh(cluster, host, f"test ! -e {file} || cp -p {file} /run/test-kubelet-options; mkdir -p {OTHER_KUBELET_ROOT}")
    sh(cluster, host, f"echo KUBELET_EXTRA_ARGS=--root-dir={OTHER_KUBELET_ROOT} > {file}; systemctl restart kubelet")
    cluster.until("kubelet has its units again", lambda: faults.allocatable(cluster, host, MEMORY) > 0, 60)


def _root_as_before(cluster: Cluster, host: str) -> None:
    file = "/etc/default/kubelet"
    sh(
        cluster,
        host,
        f"rm -f {file}; test ! -e /run/test-kubelet-options || mv /run/test-kubelet-options {file}; systemctl restart kubelet",
    )
    cluster.playbook()


def _plugin_asks_there(cluster: Cluster) -> bool:
    return "--root-dir" not in sh(cluster, "gpu2", "cat /etc/default/kubelet || :") or OTHER_KUBELET_ROOT in sh(
        # Its options name the file of its settings. verify, which is green by then, compares the process with that file.
        cluster,
        "gpu2",
        f"cat /etc/gpushare/{PLUGIN}.yaml",
    )


def _stripped(cluster: Cluster, host: str, later: contextlib.ExitStack) -> None:
    """The annotations of users' Bindings, which tell the device plugin which GPU a pod has."""
    later.callback(cluster.kubectl, "delete", "mutatingadmissionpolicies", "strips", "--ignore-not-found")
    later.callback(cluster.kubectl, "delete", "mutatingadmissionpolicybindings", "strips", "--ignore-not-found")
    patch = '[JSONPatch{op: "remove", path: "/metadata/annotations"}]'
    change = {"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}
    has = {"name": "has", "expression": "has(object.metadata.annotations)"}
    spec = {
        "matchConstraints": {"resourceRules": [faults.BINDS], "namespaceSelector": USERS},
        "matchConditions": [has],
        "reinvocationPolicy": "Never",
        "mutations": [change],
    }
    cluster.api.create(MUTATING, {"metadata": {"name": "strips"}, "spec": spec})
    binding = {"metadata": {"name": "strips"}, "spec": {"policyName": "strips"}}
    cluster.api.create(MUTATING.replace("policies", "policybindings"), binding)


def _strips_nothing(cluster: Cluster, host: str = "") -> None:
    for kind in ("mutatingadmissionpolicybindings", "mutatingadmissionpolicies"):
        cluster.kubectl("delete", kind, "strips", "--ignore-not-found")


#: In the order of the review.
REVIEWED: Final = (
    Stranger(
        "an API server without ValidatingAdmissionPolicy",
        REVIEW,
        _as_planted(faults.policies_not_enforced),
        "--disable-admission-plugins",
        _by_hand(faults.policies_enforced),
        "",
        _guarded,
    ),
    Stranger(
        "kubelet is masked",
        REVIEW,
        _as_planted(faults.kubelet_masked),
        "masked",
        host="gpu1",
        gone=_is("gpu1", "systemctl is-active kubelet", "active"),
    ),
    Stranger(
        "a drop-in for all units with a prefix",
        REVIEW,
        _as_planted(faults.plugin_hardened),
        "10-hardening.conf",
        host="gpu2",
        gone=_is("gpu2", f"systemctl is-active {PLUGIN}", "active"),
    ),
    Stranger(
        "the timer of the certificates is off",
        REVIEW,
        _as_planted(faults.timer_off),
        "gpushare-pki.timer",
        host=CONTROL_PLANE,
        gone=_is(CONTROL_PLANE, "systemctl is-active gpushare-pki.timer", "active"),
    ),
    Stranger("the label of a GPU node, on the control plane", REVIEW, _labelled, f"{CONTROL_PLANE} {LABEL}-", host="", gone=_unlabelled),
    Stranger("a scheduler without leader election", REVIEW, _no_election, "--leader-elect=true", _election, ""),
    Stranger("the folder of device plugins emptied, and kubelet restarted", REVIEW, _record_lost, "no record", _pod_again, "gpu1"),
    Stranger("the host's Python was upgraded", REVIEW, _new_python, "No module named", host="gpu2"),
    Stranger("the scheduler's certificate has expired", REVIEW, _certificate_ended, "scheduler.conf", _scheduler_moved, CONTROL_PLANE),
    Stranger("the host was renamed", REVIEW, _renamed, "hostnamectl set-hostname gpu1", host="gpu1", gone=_is("gpu1", "hostname", "gpu1")),
    Stranger("another authority in the plugin's kubeconfig", REVIEW, _other_authority, "CERTIFICATE_VERIFY_FAILED", host="gpu2"),
    Stranger("a forgotten cordon", REVIEW, _cordoned, "kubectl uncordon gpu2", host="gpu2"),
    Stranger("a webhook on Bindings without its program", REVIEW, _webhook, "bind.example.com", host=""),
    Stranger(
        "containerd and kubelet with two cgroup drivers",
        REVIEW,
        _as_planted(faults.cgroup_drivers_differ),
        "SystemdCgroup = false",
        _by_hand(faults.cgroup_driver_set),
        "gpu2",
    ),
    Stranger("a second CDI spec with the same GPUs", REVIEW, _cdi_twice, "/run/cdi/others.yaml", host="gpu1"),
    Stranger(
        "/etc/gpushare of another user",
        REVIEW,
        _restored,
        "/etc/gpushare/pki/ca.key",
        host=CONTROL_PLANE,
        gone=_is(CONTROL_PLANE, "find /etc/gpushare ! -user 0", ""),
    ),
    Stranger(
        "the entry of an extender that was removed",
        REVIEW,
        _as_planted(faults.extender_of_others),
        "127.0.0.1:9",
        _by_hand(faults.entry_removed),
        CONTROL_PLANE,
    ),
    Stranger("kubelet has another root folder", REVIEW, _other_root, OTHER_KUBELET_ROOT, host="gpu2", gone=_plugin_asks_there),
    Stranger(
        "the image of pod sandboxes is gone",
        REVIEW,
        _as_planted(faults.sandbox_image_gone),
        "pause",
        _by_hand(faults.sandbox_image_back),
        "gpu2",
    ),
    Stranger("a policy that takes the annotations of Bindings", REVIEW, _stripped, "strips", _strips_nothing, ""),
)
#: Places in REVIEWED, from 1 as the review counts. Faults of a group are planted at once.
GROUPS: Final = ((1, 2, 3), (4, 5, 7, 8), (6, 11), (9, 10), (12, 13, 15), (16, 19), (14, 17), (20, 18))
