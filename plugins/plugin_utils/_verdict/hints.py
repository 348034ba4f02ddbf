# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The next step where a component of others, such as kubelet or a container runtime, has said in its own words why it fails.

Pure. The words are those of Kubernetes 1.37, containerd 2.4, runc 1.4 and containernetworking/cni 1.3, read on 2026-11-30.
"""

from __future__ import annotations

import re

NEW_CERTIFICATE = (
    "on a control plane: kubeadm kubeconfig user --org system:nodes --client-name system:node:NODE > kubelet.conf; on this host move "
    "/var/lib/kubelet/pki/kubelet-client* away, put that file to /etc/kubernetes/kubelet.conf, and: systemctl restart kubelet"
)
_CURRENT = "/var/lib/kubelet/pki/kubelet-client-current.pem"
#: The first that matches counts; its groups fill the text.
_HINTS = tuple(
    (re.compile(words), cure)
    for words, cure in (
        (
            r"failed to find plugin \\?\"(\w[\w.-]{0,59})\\?\" in path \[(/[\w./-]{1,120})\]",
            "install the network plugin {0} into {1}; or, if its network was removed, move the file that names it away: grep -l {0} "
            "/etc/cni/net.d/* (the runtime takes the first file there by name)",
        ),
        (
            r"no IP addresses available in range set",
            "addresses of pods that are gone are still taken: below /var/lib/cni/networks remove the files whose content is not a pod of: "
            "crictl pods -q --no-trunc",
        ),
        (
            r"unable to load bootstrap kubeconfig",
            f"kubelet has no client certificate {_CURRENT}: where a kubelet-client-DATE.pem is beside it: ln -sfn $(ls -t "
            f"/var/lib/kubelet/pki/kubelet-client-2*.pem | head -1) {_CURRENT} && systemctl restart kubelet; where none is, "
            f"{NEW_CERTIFICATE}",
        ),
        (
            r"[Tt]oo many open files",
            "systemctl show containerd kubelet -p LimitNOFILE -p DropInPaths names the limit and who set it, sysctl fs.inotify those of "
            "watches: raise the one that is low, and start that service again",
        ),
        (
            r"[Rr]esource temporarily unavailable|can't get final child's PID|pthread_create failed",
            "it may make no more processes: correct podPidsLimit in kubelet's configuration (/var/lib/kubelet/config.yaml), or TasksMax of "
            "the runtime's service (systemctl show containerd -p TasksMax -p DropInPaths), and start that service again",
        ),
        (
            # The second ones are containerd's: a runtime that may not be executed is not found. Of a container's own program runc says it.
            r"(?:no runtime binary found from candidate list: \[|unable to retrieve OCI runtime error \([^)]{0,300}\): exec: \\?\")"
            r"(\w[\w. -]{0,59})(?:\]|\\?\": executable file not found)",
            "ls -lL /usr/bin/{0} /usr/sbin/{0} on that host: where it is not there, install its package; where it may not be executed: "
            "chmod 0755 $(ls /usr/bin/{0} /usr/sbin/{0} /usr/local/sbin/{0} 2>/dev/null)",
        ),
        (
            # Of a container's own program runc says the same, after it has begun with the container.
            r"^(?!.*(?:container init|container process)).*"
            r"exec: \\?\"(/[\w./-]{1,120})\\?\": (?:stat [\w./-]+: )?(?:permission denied|no such file)",
            "ls -lL {0} on that host: install the package that brings it, or, where it may not be executed: chmod 0755 {0}",
        ),
        (
            r"validate CRI v1 \w+ API.*(?:DeadlineExceeded|deadline exceeded)",
            "the container runtime does not answer in the time that kubelet gives it: is runtimeRequestTimeout in kubelet's configuration "
            "(/var/lib/kubelet/config.yaml) too short (2m without it)? If it is not set, the runtime hangs: crictl info; then: systemctl "
            "restart kubelet",
        ),
        (
            # The node authorizer says the other of each object that no pod of the node has: it takes no right away.
            r"is forbidden: User \\?\"system:(kube-scheduler|kube-controller-manager|node:[\w.-]{1,253})\\?\" cannot"
            r"(?!.*no relationship found between node)",
            "system:{0} has lost a right that Kubernetes gives it: kube-apiserver writes its own roles and bindings again when it starts: "
            "move kube-apiserver.yaml out of the folder of static pods and back after 20 s; for a node, is Node in --authorization-mode?",
        ),
        (r"[Rr]ead-only file system", "findmnt -T PATH names the mount of that path: mount -o remount,rw it; dmesg says why"),
        (r"[Nn]o space left on device", "df -h and df -i of the path that it names: remove files there"),
        (
            r"[Ff]ailed to pull (?:and unpack )?image|ErrImagePull|ImagePullBackOff",
            "this node has the image and pulled it all the same: make its registry answer, or take AlwaysPullImages out of "
            "--enable-admission-plugins of kube-apiserver, or remove the policy that sets imagePullPolicy",
        ),
    )
)


def hint(words: str) -> str:
    """The cure of what a component said, "" where these words are not known."""
    found = ((pattern.search(words), cure) for pattern, cure in _HINTS)
    return next((cure.format(*match.groups()) for match, cure in found if match), "")
