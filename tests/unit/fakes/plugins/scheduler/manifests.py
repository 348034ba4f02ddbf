# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Files of a control plane as kubeadm writes them, for the tests of what we make of them."""

from __future__ import annotations

from dataclasses import replace

from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.scheduler_config import ExtenderEntry

MANIFEST_PATH = "/etc/kubernetes/manifests/kube-scheduler.yaml"
CONFIG_PATH = "/etc/kubernetes/gpushare/kube-scheduler.yaml"
RESOURCES = ("aliyun.com/gpu-mem", "aliyun.com/gpu-count", "aliyun.com/gpu-core.percentage")
EXTENDER = ExtenderEntry("http://127.0.0.1:32766/gpushare-scheduler", 10, "1s", RESOURCES)
TLS = replace(EXTENDER, url_prefix="https://127.0.0.1:32766/gpushare-scheduler", tls_dir="/etc/gpushare/pki/scheduler")

MANIFEST = """\
apiVersion: v1
kind: Pod
metadata:
  labels:
    component: kube-scheduler
    tier: control-plane
  name: kube-scheduler
  namespace: kube-system
spec:
  containers:
  - command:
    - kube-scheduler
    - --authentication-kubeconfig=/etc/kubernetes/scheduler.conf
    - --authorization-kubeconfig=/etc/kubernetes/scheduler.conf
    - --bind-address=127.0.0.1
    - --kubeconfig=/etc/kubernetes/scheduler.conf
    - --leader-elect=true
    image: registry.k8s.io/kube-scheduler:v1.36.3
    imagePullPolicy: IfNotPresent
    livenessProbe:
      httpGet:
        host: 127.0.0.1
        path: /livez
        port: probe-port
        scheme: HTTPS
    name: kube-scheduler
    volumeMounts:
    - mountPath: /etc/kubernetes/scheduler.conf
      name: kubeconfig
      readOnly: true
  hostNetwork: true
  volumes:
  - hostPath:
      path: /etc/kubernetes/scheduler.conf
      type: FileOrCreate
    name: kubeconfig
status: {}
"""

# A configuration of somebody else, mounted as a file under another name than it has on the host.
OTHERS_CONFIG = """\
# rack 7, see ticket 4711
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: /etc/kubernetes/scheduler.conf
  qps: 400   # measured
profiles:
- schedulerName: default-scheduler
  plugins:
    score:
      disabled: [{name: ImageLocality}]
extenders:
- urlPrefix: http://127.0.0.1:8888/fpga
  filterVerb: filter
  managedResources:
  - name: example.com/fpga
"""

# What kubeadm writes from a ClusterConfiguration with our argument and volumes: arguments and volumes by name.
REGENERATED = (
    MANIFEST.replace("    - --kubeconfig=", "    - --config=/etc/kubernetes/gpushare/kube-scheduler.yaml\n    - --kubeconfig=")
    .replace(
        "    volumeMounts:\n",
        """\
    volumeMounts:
    - mountPath: /etc/gpushare/pki/scheduler
      name: gpushare-pki
      readOnly: true
    - mountPath: /etc/kubernetes/gpushare
      name: gpushare-scheduler-config
      readOnly: true
""",
    )
    .replace(
        "  volumes:\n",
        """\
  volumes:
  - hostPath:
      path: /etc/gpushare/pki/scheduler
      type: Directory
    name: gpushare-pki
  - hostPath:
      path: /etc/kubernetes/gpushare
      type: DirectoryOrCreate
    name: gpushare-scheduler-config
""",
    )
)
