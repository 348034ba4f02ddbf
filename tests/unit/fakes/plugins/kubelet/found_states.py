# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Hosts as installers leave them, written after their documentation; the health check's port is replaced by the test's own.

kubeadm 1.8, 1.9: the drop-in of the Debian package as kubernetes.io, "Installing kubeadm" of 1.9 describes it, without environment files.
kubeadm 1.11 to 1.38: kubernetes.io, "Configuring each kubelet in your cluster using kubeadm", with `/etc/default/kubelet` (deb) or
`/etc/sysconfig/kubelet` (rpm). kubespray: `kubelet.env`, `kubelet-config.yaml` and its unit, of the templates of its role
kubernetes/node. Seeds: what people write into them.
"""

from __future__ import annotations

from gpushare_lab.versions import released
from unit.fakes.plugins.kubelet.fake_kubelet import CONFIG, DROP_IN, UNIT

OLD_DROP_IN = """\
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_SYSTEM_PODS_ARGS=--pod-manifest-path=/etc/kubernetes/manifests --allow-privileged=true"
Environment="KUBELET_NETWORK_ARGS=--network-plugin=cni --cni-conf-dir=/etc/cni/net.d --cni-bin-dir=/opt/cni/bin"
Environment="KUBELET_CADVISOR_ARGS=--cadvisor-port=0 --healthz-port=10248"
Environment="KUBELET_CERTIFICATE_ARGS=--rotate-certificates=true --cert-dir=/var/lib/kubelet/pki"
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_SYSTEM_PODS_ARGS $KUBELET_NETWORK_ARGS \\
    $KUBELET_CADVISOR_ARGS $KUBELET_CERTIFICATE_ARGS $KUBELET_EXTRA_ARGS
"""
NEW_DROP_IN = """\
# Note: This dropin only works with kubeadm and kubelet v1.11+
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
# Written by kubeadm init and kubeadm join
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"""
RPM_DROP_IN = NEW_DROP_IN.replace("/etc/default/", "/etc/sysconfig/")
FLAGS = 'KUBELET_KUBEADM_ARGS="--network-plugin=cni --pod-infra-container-image=k8s.gcr.io/pause:3.5"\n'
CONFIG_TEXT = """\
apiVersion: kubelet.config.k8s.io/v1beta1
authentication:
  anonymous:
    enabled: false
clusterDNS:
- 10.96.0.10   # of kubeadm
healthzBindAddress: 127.0.0.1
healthzPort: 10248
kind: KubeletConfiguration
rotateCertificates: true
"""
KUBESPRAY_UNIT = """\
[Service]
EnvironmentFile=-/etc/kubernetes/kubelet.env
ExecStart=
ExecStart=/usr/bin/kubelet $KUBE_LOGTOSTDERR $KUBELET_ARGS $KUBELET_CUSTOM_FLAGS
"""
KUBESPRAY_LATER_UNIT = """\
[Service]
EnvironmentFile=-/etc/kubernetes/kubelet.env
ExecStart=
ExecStart=/usr/bin/kubelet \\
\t\t$KUBE_LOGTOSTDERR \\
\t\t$KUBE_LOG_LEVEL \\
\t\t$KUBELET_ADDRESS \\
\t\t$KUBELET_HOSTNAME \\
\t\t$KUBELET_ARGS \\
\t\t$KUBELET_NETWORK_PLUGIN \\
\t\t$KUBELET_CLOUDPROVIDER
"""
KUBESPRAY_LATER_ENV = """\
KUBE_LOG_LEVEL="--v=2"
KUBELET_ADDRESS="--node-ip=10.0.0.1"

KUBELET_ARGS="--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \\
--config=/etc/kubernetes/kubelet-config.yaml \\
--kubeconfig=/etc/kubernetes/kubelet.conf \\
--runtime-cgroups=/systemd/system.slice \\
 --node-labels=  GATES"
KUBELET_CLOUDPROVIDER=""

PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin
"""
KUBESPRAY_CONFIG = "/etc/kubernetes/kubelet-config.yaml"
KUBESPRAY_ENV = """\
KUBE_LOGTOSTDERR="--logtostderr=true"
KUBELET_ARGS="--kubeconfig=/etc/kubernetes/kubelet.conf --healthz-port=10248 --pod-manifest-path=/etc/kubernetes/manifests"
KUBELET_CUSTOM_FLAGS=""
"""

#: Name to (version, files).
STATES: dict[str, tuple[str, dict[str, str]]] = {
    "kubeadm 1.8": ("1.8.15", {DROP_IN: OLD_DROP_IN}),
    "kubeadm 1.9": ("1.9.6", {DROP_IN: OLD_DROP_IN}),
    "kubeadm 1.9 with arguments": (
        "1.9.6",
        {
            DROP_IN: OLD_DROP_IN.replace(
                "ExecStart=\n", 'Environment="KUBELET_EXTRA_ARGS=--config=/var/lib/kubelet/config.yaml"\nExecStart=\n', 1
            ),
            CONFIG: CONFIG_TEXT,
        },
    ),
    "a package's unit with arguments": (
        "1.9.6",
        {UNIT: OLD_DROP_IN.replace("ExecStart=\n", 'Environment="KUBELET_EXTRA_ARGS=--config=/etc/missing.yaml"\n')},
    ),
    "seed 004": (
        "1.9.6",
        {
            DROP_IN: OLD_DROP_IN.replace(
                "ExecStart=\n", 'Environment="KUBELET_EXTRA_ARGS=--feature-gates=DevicePlugins=true"\nExecStart=\n', 1
            )
        },
    ),
    "seed 002": ("1.10", {DROP_IN: OLD_DROP_IN.replace("$KUBELET_EXTRA_ARGS", '--feature-gates="Accelerators=true"')}),
    "kubeadm 1.10 without a configuration file": ("1.10.4", {DROP_IN: OLD_DROP_IN}),
    "kubeadm 1.10 with another gate": (
        "1.10.4",
        {
            DROP_IN: OLD_DROP_IN.replace(
                "ExecStart=\n", 'Environment="KUBELET_EXTRA_ARGS=--feature-gates=CPUManager=false"\nExecStart=\n', 1
            )
        },
    ),
    "kubespray 1.9": ("1.9.6", {DROP_IN: KUBESPRAY_UNIT, "/etc/kubernetes/kubelet.env": KUBESPRAY_ENV}),
    "kubespray 1.15, switched off in kubelet.env": (
        "1.15.12",
        {
            DROP_IN: KUBESPRAY_LATER_UNIT,
            KUBESPRAY_CONFIG: CONFIG_TEXT,
            "/etc/kubernetes/kubelet.env": KUBESPRAY_LATER_ENV.replace("GATES", " --feature-gates=CPUManager=true,DevicePlugins=false "),
        },
    ),
    "kubespray 1.25, switched off in the configuration": (
        "1.25.16",
        {
            DROP_IN: KUBESPRAY_LATER_UNIT,
            KUBESPRAY_CONFIG: CONFIG_TEXT + "featureGates:\n  DevicePlugins: false\n",
            "/etc/kubernetes/kubelet.env": KUBESPRAY_LATER_ENV.replace("GATES", ""),
        },
    ),
    "kubespray 1.36": (
        "1.36.3",
        {
            DROP_IN: KUBESPRAY_LATER_UNIT,
            KUBESPRAY_CONFIG: CONFIG_TEXT,
            "/etc/kubernetes/kubelet.env": KUBESPRAY_LATER_ENV.replace("GATES", ""),
        },
    ),
    "rpm 1.9 with sysconfig": (
        "1.9.6",
        {DROP_IN: OLD_DROP_IN.replace("ExecStart=\n", "EnvironmentFile=-/etc/sysconfig/kubelet\nExecStart=\n", 1)},
    ),
    "kubeadm 1.10 with a configuration file": (
        "1.10.4",
        {DROP_IN: NEW_DROP_IN, CONFIG: CONFIG_TEXT, "/var/lib/kubelet/kubeadm-flags.env": FLAGS},
    ),
    "kubeadm 1.15": ("1.15.12", {DROP_IN: NEW_DROP_IN, CONFIG: CONFIG_TEXT, "/var/lib/kubelet/kubeadm-flags.env": FLAGS}),
    "kubeadm 1.15, switched off in kubeadm-flags.env": (
        "1.15.12",
        {
            DROP_IN: NEW_DROP_IN,
            CONFIG: CONFIG_TEXT,
            "/var/lib/kubelet/kubeadm-flags.env": FLAGS.replace('"--net', '"--feature-gates=CPUManager=true,DevicePlugins=false --net'),
        },
    ),
    "kubeadm 1.15, switched off in /etc/default/kubelet": (
        "1.15.12",
        {
            DROP_IN: NEW_DROP_IN.replace("=-/etc/default", "=/etc/default"),
            CONFIG: CONFIG_TEXT,
            "/var/lib/kubelet/kubeadm-flags.env": FLAGS.replace('"--net', '"--feature-gates=CPUManager=true --net'),
            "/etc/default/kubelet": "# mine\nKUBELET_EXTRA_ARGS=--node-ip=10.0.0.1 --feature-gates=DevicePlugins=false\n",
        },
    ),
    "kubeadm 1.25, switched off in the configuration": (
        "1.25.16",
        {DROP_IN: RPM_DROP_IN, CONFIG: CONFIG_TEXT + "featureGates:\n  CPUManager: true # pinned\n  DevicePlugins: false\n"},
    ),
    "kubeadm 1.27": ("1.27.16", {DROP_IN: RPM_DROP_IN, CONFIG: CONFIG_TEXT}),
    **{f"kubeadm {version}": (version, {DROP_IN: RPM_DROP_IN, CONFIG: CONFIG_TEXT}) for version in map(released, ("1.36", "1.37", "1.38"))},
}
