# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Control planes of the corpus as the planner of the role scheduler finds them."""

from __future__ import annotations

from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._scheduler.plan import Found

from unit.fakes.plugins.real_files.corpus import Case
from unit.fakes.plugins.scheduler.generations import CONFIG_PATH, MANIFEST_PATH

#: The file of a case that is no file of the host, but kubeadm's ClusterConfiguration in the cluster.
CLUSTER = "/kubeadm-config.yaml"


def found(case: Case) -> Found:
    """The answers of a host with these files and no others; of the API server, whose version the manifest's image must have."""
    texts = dict(case.texts(MANIFEST_PATH))
    cluster = texts.pop(CLUSTER, None)
    return Found({CONFIG_PATH: None, **texts}, cluster=cluster, cluster_version="42", nodes=3, server="v1.36.3")
