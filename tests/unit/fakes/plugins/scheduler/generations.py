# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Control planes as installers of each generation leave them, written after their documentation.

kubeadm: `cmd/kubeadm/app/phases/controlplane/manifests.go` of its releases and kubernetes.io, "Customizing components with the kubeadm
API". Those of 1.22, 1.24 and of 1.34 on are compared with what the real one writes: tests/generations/test_kubeadm.py.
kubespray: the templates `kubescheduler-config.yaml` and `kubeadm-config` of its role kubernetes/control-plane, and the policy of before
2.20. Policies: the original gpushare's installation guide, and kubernetes.io, "Scheduling Policies" of 1.18.
"""

from __future__ import annotations

import json

import yaml

from gpushare_lab.versions import released

MANIFEST_PATH = "/etc/kubernetes/manifests/kube-scheduler.yaml"
CONFIG_PATH = "/etc/kubernetes/gpushare/kube-scheduler.yaml"
POLICY_PATH = "/etc/kubernetes/scheduler-policy-config.json"


def manifest(release: str, *flags: str, mounts: tuple[tuple[str, str], ...] = ()) -> str:
    """kubeadm's static pod. mounts: (path on the host, path in the container) besides its own."""
    major_minor = tuple(int(part) for part in release.split(".")[:2])
    old = ["--address=127.0.0.1"] if major_minor < (1, 12) else ["--bind-address=127.0.0.1"]
    insecure = ["--port=0"] if (1, 18) <= major_minor <= (1, 22) else []
    secure = ["authentication", "authorization"] if major_minor >= (1, 16) else []
    arguments = [
        *(f"--{name}-kubeconfig=/etc/kubernetes/scheduler.conf" for name in secure),
        *old,
        "--kubeconfig=/etc/kubernetes/scheduler.conf",
        "--leader-elect=true",
        *insecure,
        *flags,
    ]
    registry = "k8s.gcr.io" if major_minor < (1, 25) else "registry.k8s.io"
    lines = [
        "apiVersion: v1",
        "kind: Pod",
        "metadata:",
        "  labels:",
        "    component: kube-scheduler",
        "    tier: control-plane",
        "  name: kube-scheduler",
        "  namespace: kube-system",
        "spec:",
        "  containers:",
        "  - command:",
        "    - kube-scheduler",
        *(f"    - {argument}" for argument in arguments),
        f"    image: {registry}/kube-scheduler:v{release}",
        "    name: kube-scheduler",
        "    volumeMounts:",
        "    - mountPath: /etc/kubernetes/scheduler.conf",
        "      name: kubeconfig",
        "      readOnly: true",
    ]
    for number, (_source, target) in enumerate(mounts):
        lines += [f"    - mountPath: {target}", f"      name: extra-{number}", "      readOnly: true"]
    lines += [
        "  hostNetwork: true",
        "  volumes:",
        "  - hostPath:",
        "      path: /etc/kubernetes/scheduler.conf",
        "      type: FileOrCreate",
    ]
    lines += ["    name: kubeconfig"]
    for number, (source, _target) in enumerate(mounts):
        lines += ["  - hostPath:", f"      path: {source}", f"    name: extra-{number}"]
    return "\n".join([*lines, "status: {}", ""])


def cluster(version: str, release: str) -> str:
    return (
        f"apiServer:\n  timeoutForControlPlane: 4m0s\napiVersion: kubeadm.k8s.io/{version}\nkind: ClusterConfiguration\n"
        f"kubernetesVersion: v{release}\nscheduler: {{}}\n"
    )


#: What the original's guide has people write, and what others have in theirs.
SEED_POLICY = """\
{
  "kind": "Policy",
  "apiVersion": "v1",
  "extenders": [
    {
      "urlPrefix": "http://127.0.0.1:32766/gpushare-scheduler",
      "filterVerb": "filter",
      "bindVerb":   "bind",
      "enableHttps": false,
      "nodeCacheCapable": true,
      "managedResources": [
        {
          "name": "aliyun.com/gpu-mem",
          "ignoredByScheduler": false
        }
      ],
      "ignorable": false
    }
  ]
}
"""
RICH_POLICY = (
    json.dumps(
        {
            "kind": "Policy",
            "apiVersion": "v1",
            "predicates": [{"name": "PodFitsHostPorts"}, {"name": "PodFitsResources"}, {"name": "MatchNodeSelector"}],
            "priorities": [{"name": "LeastRequestedPriority", "weight": 1}, {"name": "ServiceSpreadingPriority", "weight": 2}],
            "extenders": [{"urlPrefix": "http://127.0.0.1:8888/fpga", "filterVerb": "filter", "httpTimeout": 5000000000}],
            "hardPodAffinitySymmetricWeight": 10,
        },
        indent=4,
    )
    + "\n"
)
YAML_POLICY = """\
# volumes across zones
kind: Policy
apiVersion: v1
predicates:
- name: NoVolumeZoneConflict   # kubespray
- name: PodFitsResources
"""


def configuration(version: str, more: str = "") -> str:
    return (
        f"# ours since 2020\napiVersion: kubescheduler.config.k8s.io/{version}\nkind: KubeSchedulerConfiguration\nclientConnection:\n"
        f"  kubeconfig: /etc/kubernetes/scheduler.conf\nleaderElection:\n  leaderElect: true\n{more}"
    )


PROFILES = """\
profiles:
- schedulerName: default-scheduler
- schedulerName: packed
  plugins:
    score:
      disabled:
      - name: NodeResourcesLeastAllocated
extenders:
- urlPrefix: http://127.0.0.1:8888/fpga
  filterVerb: filter
  enableHTTPS: false
  httpTimeout: 5s
"""
KUBESPRAY_CONFIG = "/etc/kubernetes/kubescheduler-config.yaml"
KUBESPRAY_TEXT = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: "/etc/kubernetes/scheduler.conf"
leaderElection:
  leaseDuration: 15s
  renewDeadline: 10s
"""
KUBESPRAY_CLUSTER = f"""\
apiServer: {{}}
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.36.3
scheduler:
  extraArgs:
  - name: bind-address
    value: "127.0.0.1"
  - name: config
    value: "{KUBESPRAY_CONFIG}"
  - name: profiling
    value: "False"
  extraVolumes:
  - name: kubescheduler-config
    hostPath: {KUBESPRAY_CONFIG}
    mountPath: {KUBESPRAY_CONFIG}
    readOnly: true
"""
_FOLDER = (("/etc/kubernetes/sched", "/etc/kubernetes/sched"),)
_FILE = ((POLICY_PATH, POLICY_PATH),)
_CONFIG = "/etc/kubernetes/sched/config.yaml"


def as_json(text: str) -> str:
    """The same document as JSON, which Kubernetes reads, too."""
    return json.dumps(yaml.safe_load(text), indent=2) + "\n"


_MOUNTED = manifest("1.36.3", f"--config={_CONFIG}", mounts=_FOLDER)
_V1 = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
# An alias, so that it is written as a whole; strings that are none to Kubernetes without their quotes; a document behind it.
_LABELS = "    component: &name kube-scheduler\n    app: *name\n    rack: '08'\n    row: 'y'\n    build: '12e4'\n"
_ALIAS = _MOUNTED.replace("    component: kube-scheduler\n", _LABELS).replace(
    "\n  name: kube-scheduler\n", "\n  name: kube-scheduler\n  creationTimestamp: 2026-11-29T10:00:00Z\n"
)

#: Name to (files, kubeadm's ClusterConfiguration or None, policy in the ConfigMap kube-system/scheduler-policy or None).
STATES: dict[str, tuple[dict[str, str], str | None, str | None]] = {
    "kubeadm 1.11": ({MANIFEST_PATH: manifest("1.11.10")}, None, None),
    "kubeadm 1.15": ({MANIFEST_PATH: manifest("1.15.12")}, cluster("v1beta2", "1.15.12"), None),
    "kubeadm 1.18": ({MANIFEST_PATH: manifest("1.18.20")}, cluster("v1beta2", "1.18.20"), None),
    "kubeadm 1.19": ({MANIFEST_PATH: manifest("1.19.16")}, cluster("v1beta2", "1.19.16"), None),
    "kubeadm 1.21": ({MANIFEST_PATH: manifest("1.21.14")}, cluster("v1beta2", "1.21.14"), None),
    "kubeadm 1.22": ({MANIFEST_PATH: manifest("1.22.17")}, cluster("v1beta3", "1.22.17"), None),
    "kubeadm 1.23": ({MANIFEST_PATH: manifest("1.23.17")}, cluster("v1beta3", "1.23.17"), None),
    "kubeadm 1.24": ({MANIFEST_PATH: manifest("1.24.17")}, cluster("v1beta3", "1.24.17"), None),
    "kubeadm 1.25": ({MANIFEST_PATH: manifest("1.25.16")}, cluster("v1beta3", "1.25.16"), None),
    **{
        f"kubeadm {release}": ({MANIFEST_PATH: manifest(released(release))}, cluster("v1beta4", released(release)), None)
        for release in ("1.34", "1.35", "1.36", "1.37", "1.38")
    },
    "seed 000": (
        {MANIFEST_PATH: manifest("1.15.12", f"--policy-config-file={POLICY_PATH}", mounts=_FILE), POLICY_PATH: SEED_POLICY},
        cluster("v1beta2", "1.15.12"),
        None,
    ),
    "seed 000 with 1.22": (
        {MANIFEST_PATH: manifest("1.22.17", f"--policy-config-file={POLICY_PATH}", mounts=_FILE), POLICY_PATH: SEED_POLICY},
        cluster("v1beta3", "1.22.17"),
        None,
    ),
    "1.22 with a rich policy": (
        {MANIFEST_PATH: manifest("1.22.17", f"--policy-config-file={POLICY_PATH}", mounts=_FILE), POLICY_PATH: RICH_POLICY},
        cluster("v1beta3", "1.22.17"),
        None,
    ),
    "kubespray 2.8 with a policy": (
        {
            MANIFEST_PATH: manifest(
                "1.12.10",
                "--policy-config-file=/etc/kubernetes/sched/kube-scheduler-policy.yaml",
                "--use-legacy-policy-config=true",
                mounts=_FOLDER,
            ),
            "/etc/kubernetes/sched/kube-scheduler-policy.yaml": YAML_POLICY,
        },
        None,
        None,
    ),
    "kubespray 1.36": (
        {
            MANIFEST_PATH: manifest(
                "1.36.3", f"--config={KUBESPRAY_CONFIG}", "--profiling=False", mounts=((KUBESPRAY_CONFIG, KUBESPRAY_CONFIG),)
            ).replace("extra-0", "kubescheduler-config"),
            KUBESPRAY_CONFIG: KUBESPRAY_TEXT,
        },
        KUBESPRAY_CLUSTER,
        None,
    ),
    "1.16 with a policy ConfigMap": (
        {MANIFEST_PATH: manifest("1.16.15", "--policy-configmap=scheduler-policy")},
        cluster("v1beta2", "1.16.15"),
        RICH_POLICY,
    ),
    "1.15 with v1alpha1 that names a policy": (
        {
            MANIFEST_PATH: manifest("1.15.12", f"--config={_CONFIG}", mounts=_FOLDER),
            _CONFIG: configuration("v1alpha1", "algorithmSource:\n  policy:\n    file:\n      path: /etc/kubernetes/sched/policy.json\n"),
            "/etc/kubernetes/sched/policy.json": RICH_POLICY,
        },
        cluster("v1beta2", "1.15.12"),
        None,
    ),
    **{
        f"{release} with {version}": (
            {
                MANIFEST_PATH: manifest(release, f"--config={_CONFIG}", mounts=_FOLDER),
                _CONFIG: configuration(version, PROFILES.replace("LeastAllocated", score)),
            },
            cluster("v1beta3", release),
            None,
        )
        for release, version, score in (
            ("1.22.17", "v1beta1", "LeastAllocated"),
            ("1.22.17", "v1beta2", "Fit"),
            ("1.24.17", "v1beta2", "Fit"),
            ("1.24.17", "v1beta3", "Fit"),
            ("1.27.16", "v1beta3", "Fit"),
            ("1.36.3", "v1", "Fit"),
        )
    },
    "1.36.3 in JSON": (
        {MANIFEST_PATH: as_json(_MOUNTED), _CONFIG: as_json(configuration("v1", PROFILES.replace("LeastAllocated", "Fit")))},
        as_json(cluster("v1beta4", "1.36.3")),
        None,
    ),
    "1.36.3 in braces": (
        {
            MANIFEST_PATH: as_json(_MOUNTED).replace('"name": "kube-scheduler"', "name: kube-scheduler"),
            _CONFIG: "# of rack 7\n{apiVersion: kubescheduler.config.k8s.io/v1, kind: KubeSchedulerConfiguration,\n"
            ' clientConnection: {kubeconfig: /etc/kubernetes/scheduler.conf}, "leaderElection": {leaderElect: true}}\n',
        },
        cluster("v1beta4", "1.36.3"),
        None,
    ),
    "1.36.3 with an alias": (
        {
            MANIFEST_PATH: f"{_ALIAS}---\n",
            _CONFIG: f"---\n{_V1}clientConnection: &all\n  kubeconfig: /etc/kubernetes/scheduler.conf\n  burst: 1e2\n"
            "leaderElection: {leaderElect: on, leaseDuration: 15s, renewDeadline: 10s}\n---\nkind: Other\n",
        },
        cluster("v1beta4", "1.36.3") + "---\n",
        None,
    ),
}
