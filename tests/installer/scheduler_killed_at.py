# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Runs on a control plane: the core of kube_scheduler_extender. `read` prints what a plan is made from; `apply STATE VICTIM` carries out
the plan that it gets as its input, prints the points that it passes, and kills itself at the one named.
"""

import json
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import Kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler import apply
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.service import SchedulerHost

PKI = "/etc/gpushare/pki"
MANIFEST = "/etc/kubernetes/manifests/kube-scheduler.yaml"
CONFIG = "/etc/kubernetes/gpushare/kube-scheduler.yaml"


def run(argv: list[str], data: str | None = None) -> tuple[int, str, str]:
    done = subprocess.run(argv, input=data or "", capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


node = os.uname().nodename
host = SchedulerHost(node, node, MANIFEST, "https://127.0.0.1:32766/healthz", 120, f"{PKI}/ca.crt")
kubectl = Kubectl(run, "/usr/bin/kubectl", "/etc/kubernetes/admin.conf")
if sys.argv[1] == "read":
    print(json.dumps(apply.read(host, kubectl, CONFIG, f"{PKI}/scheduler", [])))
else:
    state, victim = sys.argv[2:]

    def point(name: str) -> None:
        print(name, flush=True)
        if name == victim:
            os.kill(os.getpid(), signal.SIGKILL)

    tools = apply.Tools(kubectl, run, "/usr/bin/ctr", "/tmp", point)
    apply.apply(host, tools, json.load(sys.stdin), "aliyun.com/gpu-mem", f"{PKI}/scheduler", state)
