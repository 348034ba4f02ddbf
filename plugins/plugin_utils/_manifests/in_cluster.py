# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything that gpushare is in a cluster: what the playbook `cluster` applies, docs/manifests prints and the chart renders.

Pure.
"""

from __future__ import annotations

from ...module_utils._cluster.names import NAMESPACE
from ...module_utils._cluster.public import public
from . import accounts, openshift, policies, workloads
from .policies import Json
from .values import Values


def objects(values: Values) -> list[Json]:
    """Those that others need first: the policies are there before the accounts whose rights they restrict."""
    rules: list[Json] = []
    if values.policies:
        rules = policies.in_cluster(values.namespace, values.writers, values.mutating, values.default_scheduler)
    rights = accounts.in_cluster(values.namespace, values.evict, values.default_scheduler)
    own = [] if values.namespace == NAMESPACE else [workloads.namespace(values)]
    use = openshift.objects(values.namespace) if values.openshift else []
    return [*own, *rules, *rights, *use, *public(values.prometheus), *workloads.workloads(values)]
