# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What we say to a cluster: the exact calls of kubectl, what applying would change, and the kubeconfigs of our daemons."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl as cluster_kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import objects
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import Kubectl, KubectlError, for_module
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts import kubernetes
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host import host
from ansible_collections.gpushare.kubernetes.plugins.module_utils._identity import kubeconfig
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler import candidate

from unit.fakes.plugins.fake_root import FakeRoot


@pytest.mark.parametrize(
    ("there", "named", "wanted"),
    [
        (["/etc/kubernetes/admin.conf", "/etc/rancher/k3s/k3s.yaml"], "/etc/kubernetes/admin.conf", "/etc/kubernetes/admin.conf"),
        (["/etc/rancher/k3s/k3s.yaml"], "/etc/kubernetes/admin.conf", "/etc/rancher/k3s/k3s.yaml"),
        (["/etc/rancher/rke2/rke2.yaml"], "/etc/kubernetes/admin.conf", "/etc/rancher/rke2/rke2.yaml"),
        (["/etc/rancher/rke2/rke2.yaml"], "/root/mine.conf", "/root/mine.conf"),
        ([], "/etc/kubernetes/admin.conf", "/etc/kubernetes/admin.conf"),
    ],
)
def test_the_kubeconfig_is_that_of_the_distribution(tmp_path: Path, there: list[str], named: str, wanted: str) -> None:
    root = FakeRoot(tmp_path)
    for path in there:
        root.file(path)
    assert cluster_kubectl.kubeconfig(host.Host(str(root)), named) == wanted


class Answers:
    """Answers each call with the next of (exit status, standard output, standard error), and remembers them."""

    def __init__(self, *answers: tuple[int, str, str]) -> None:
        self.answers = list(answers)
        self.calls: list[list[str]] = []

    def __call__(self, argv: list[str], data: str | None = None) -> tuple[int, str, str]:
        self.calls.append(argv)
        return self.answers.pop(0)


def test_a_list_that_ends_in_the_middle_or_is_not_there_is_an_error_where_it_must_be_there() -> None:
    first = json.dumps({"items": [{"kind": "Pod"}], "metadata": {"continue": "x"}})
    gone = (1, "", "Error from server (NotFound): the server could not find the requested resource")
    for answers in ([(0, first, ""), gone], [gone]):
        with pytest.raises(KubectlError, match="get --raw /api/v1/pods: the API server does not have this kind"):
            Kubectl(Answers(*answers), "kubectl", "admin.conf").pages("/api/v1/pods")
    assert Kubectl(Answers(gone), "kubectl", "admin.conf").pages("/apis/node.k8s.io/v1/runtimeclasses", optional=True) == []


def role(verbs: list[str], **metadata: Any) -> dict[str, Any]:
    return {"kind": "ClusterRole", "metadata": {"name": "x", **metadata}, "rules": [{"verbs": verbs}]}


def test_kubectl_is_called_with_its_kubeconfig_and_a_bound() -> None:
    run = Answers((0, '{"kind": "List", "items": [{"kind": "Pod"}]}', ""), (0, "", ""), (1, "", "no route to host\n"))
    kubectl = Kubectl(run, "/usr/bin/kubectl", "/etc/kubernetes/admin.conf")
    assert kubectl.items(["get", "pods"]) == [{"kind": "Pod"}]
    assert run.calls[0] == [
        *("/usr/bin/kubectl", "--kubeconfig", "/etc/kubernetes/admin.conf", "--request-timeout=20s"),
        *("get", "pods", "-o", "json"),
    ]
    assert kubectl.items(["get", "pods"]) == []
    with pytest.raises(KubectlError, match=r"kubectl get pods -o json failed with exit status 1: no route to host"):
        kubectl.json(["get", "pods"])


def test_only_what_the_server_would_change_counts() -> None:
    live = role(["get"], resourceVersion="7", uid="u", managedFields=[{}], creationTimestamp="t", annotations={"of": "others"})
    same = role(["get"], resourceVersion="8", annotations={"of": "others"})
    assert objects.changes([live], [same]) == []
    (change,) = objects.changes([live], [role(["get", "list"], annotations={"of": "others"})])
    assert change.title == "ClusterRole x"
    (new,) = objects.changes([], [same])
    assert new.before is None


def test_the_values_of_a_secret_are_in_no_diff() -> None:
    secret = {"kind": "Secret", "metadata": {"name": "x", "namespace": "kube-system"}, "data": {"token": "c2VjcmV0"}}
    (change,) = objects.changes([], [secret])
    assert change.title == "Secret kube-system/x"
    assert "c2VjcmV0" not in json.dumps(objects.diff([change]))


def test_the_api_server_is_the_one_of_the_administrator() -> None:
    assert kubeconfig.api_server({"clusters": [{"cluster": {"server": "https://api:6443"}}]}) == "https://api:6443"
    with pytest.raises(kubeconfig.NoClusterError, match="gpushare_api_server"):
        kubeconfig.api_server({"clusters": None})


def test_a_daemons_kubeconfig_says_where_the_cluster_is_and_holds_no_secret() -> None:
    made = kubeconfig.daemon_kubeconfig("https://api:6443", "PEM\n")
    assert kubeconfig.where(made) == ("https://api:6443", "PEM\n")
    assert json.loads(made)["users"] == [{"name": "daemon", "user": {}}]
    assert [kubeconfig.where(text) for text in (None, "", "apiVersion: v1", '{"clusters": []}')] == [None] * 4


def test_the_certificate_authority_is_the_clusters_own() -> None:
    assert kubeconfig.root_ca({"data": {"ca.crt": "PEM"}}) == "PEM"
    for missing in (None, {}, {"data": {}}):
        with pytest.raises(kubeconfig.NoClusterError, match=r"kube-root-ca\.crt"):
            kubeconfig.root_ca(missing)


@pytest.mark.parametrize(
    ("argv", "name", "root"),
    [
        (["kubelet"], "host", "/var/lib/kubelet"),
        (["kubelet", "--hostname-override=GPU-7.example", "--root-dir", "/data/kubelet"], "gpu-7.example", "/data/kubelet"),
        (["kubelet", "--hostname-override", "a", "--hostname-override=b"], "b", "/var/lib/kubelet"),
        (["kubelet", "--hostname-override="], "host", "/var/lib/kubelet"),
    ],
)
def test_the_node_is_called_as_kubelet_calls_it(argv: list[str], name: str, root: str) -> None:
    assert kubernetes.from_argv(1, argv, "Host") == kubernetes.Kubelet(1, name, root)


IMAGE = "registry.k8s.io/kube-scheduler:v1.36.3"
ACCEPTED = (0, "kind: KubeSchedulerConfiguration\n", "")


def test_the_candidate_is_read_by_the_manifests_own_image() -> None:
    run = Answers(ACCEPTED)
    assert candidate.check(run, "ctr", IMAGE, [("/tmp/c", "/candidate")], ["kube-scheduler", "--config=/candidate"]) is None
    assert run.calls == [
        [
            *("ctr", "--namespace", "k8s.io", "run", "--rm", "--mount=type=bind,src=/tmp/c,dst=/candidate,options=rbind:ro"),
            *(IMAGE, "gpushare-scheduler-candidate", "kube-scheduler", "--config=/candidate"),
        ]
    ]


def test_what_a_killed_run_left_is_removed_first() -> None:
    run = Answers((1, "", 'ctr: container "gpushare-scheduler-candidate": already exists'), (0, "", ""), (0, "", ""), ACCEPTED)
    assert candidate.check(run, "ctr", IMAGE, [], []) is None


def test_a_rejection_is_told_from_a_check_that_could_not_be_made() -> None:
    rejection = (1, "", 'E1121 run.go:72] "command failed" err="unknown field \\"bogus\\""\n')
    with pytest.raises(candidate.CandidateError, match="unknown field"):
        candidate.check(Answers(rejection), "ctr", IMAGE, [], [])
    why = candidate.check(Answers((1, "", "ctr: failed to dial: no such file\n")), "ctr", IMAGE, [], [])
    assert why == "the candidate was not checked: ctr: failed to dial: no such file"
    why = candidate.check(Answers((0, "Kubernetes v1.36.3\n", "")), "ctr", IMAGE, [], [])
    assert "printed no configuration" in (why or "")


class Module:
    """Of an AnsibleModule what for_module may use: not its search path, which is sudo's."""

    def __init__(self, kubectl: str) -> None:
        self.params = {"kubectl": kubectl, "kubeconfig": "admin.conf"}
        self.ran: list[list[str]] = []

    def run_command(self, argv: list[str], data: str | None = None) -> tuple[int, str, str]:
        self.ran.append(argv)
        return 0, "", ""

    def fail_json(self, msg: str) -> None:
        raise SystemExit(msg)


def test_kubectl_is_looked_for_where_preflight_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "local/kubectl"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setattr(host, "PROGRAM_FOLDERS", (str(tmp_path), str(program.parent)))
    for name in ("kubectl", str(program)):
        module = Module(name)
        for_module(module).text(["version"])
        assert module.ran[0][0] == str(program)
    with pytest.raises(SystemExit, match=r"there is no program kubectl-1\.30 in /.*: install kubectl, or name its path in gpushare_k"):
        for_module(Module("kubectl-1.30"))
    with pytest.raises(SystemExit, match="there is no program /opt/kubectl: install"):
        for_module(Module("/opt/kubectl"))


def test_no_module_looks_for_programs_elsewhere() -> None:
    """On the controller, where the bundle is made, the caller's own PATH is right."""
    root = Path(__file__).resolve().parents[4] / "plugins"
    files = [path for folder in ("modules", "module_utils", "action") for path in (root / folder).rglob("*.py")]
    assert files
    assert [path.name for path in files if re.search(r"get_bin_path|shutil\.which", path.read_text())] == []


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ('Error from server (NotFound): nodes "n" not found', "not_found"),
        ("error: the server could not find the requested resource", "not_found"),
        ("Error from server (Conflict): Operation cannot be fulfilled on nodes", "changed"),
        ("The request is invalid: the server rejected our request due to an error in our request: test operation failed", "changed"),
        ("testing path /status failed", "changed"),
        ("Unable to connect to the server", "kubectl"),
        ("", "kubectl"),
    ],
)
def test_the_words_of_kubectl_are_read_once_and_become_a_reason(said: str, reason: str) -> None:
    kubectl = Kubectl(lambda argv, data: (1, "", said), "kubectl", "/k")
    with pytest.raises(KubectlError) as error:
        # A name in the arguments decides nothing.
        kubectl.text(["get", "pod", "NotFound"])
    assert error.value.reason == reason
