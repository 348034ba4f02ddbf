# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The settings of gpushare-extender."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare_runtime.core.constraints import PLACEMENTS
from gpushare_runtime.core.protocol import EXTENDER_PORT
from gpushare_runtime.settings import common
from gpushare_runtime.settings.common import Address
from gpushare_runtime.settings.schema import CLUSTER, CONTROL_PLANES, ChoiceType, NumberType, SwitchType, TextType, folder, setting

#: kube-scheduler's own, and the word for a scheduler that runs without leader election.
DEFAULT_LEASE: Final = "kube-system/kube-scheduler"
NO_LEASE: Final = "none"
_LABEL: Final = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_TLS: Final = "PEM (all three, or none for plain http on a loopback address)"


@dataclass(frozen=True)
class ExtenderConfig:
    """As a file or a command line has them. The order is that of the file and of the docs."""

    listen: Address = setting(
        Address("127.0.0.1", EXTENDER_PORT),
        "address and port",
        common.listen_address(f"127.0.0.1:{EXTENDER_PORT}"),
        metavar="ADDRESS:PORT",
        agrees="any address beyond loopback requires TLS",
    )
    kubeconfig: str | None = common.kubeconfig()
    placement: str = setting(
        "binpack",
        "policy between nodes",
        ChoiceType(PLACEMENTS),
        variable="gpushare_placement",
        scope=CONTROL_PLANES,
        chart="placement",
        description="Placement policy between the nodes that a pod fits on. V(binpack) fills one GPU after the other, V(spread) takes the "
        "emptiest.",
    )
    gpu_placement: str = setting(
        "",
        "policy between the GPUs of a node (default: the same)",
        ChoiceType(("", *PLACEMENTS)),
        variable="gpushare_gpu_placement",
        scope=CONTROL_PLANES,
        chart="gpuPlacement",
        description="Placement policy for the GPUs within a node. Empty means the same as C(gpushare_placement). A node's label or a "
        "pod's annotation takes precedence.",
    )
    preempt: bool = setting(
        False,
        "kube-scheduler calls preempt here: watch disruption budgets for it",
        SwitchType(),
        variable="gpushare_preemption",
        scope=CONTROL_PLANES,
        chart="preemption",
        preset=True,
        agrees="kube-scheduler's entry for the extender must name the verb",
        description="Whether kube-scheduler calls the extender before it evicts pods of lower priority for one that requests GPU memory or "
        "GPUs. Without that call it evicts by the nodes' sums, which may not make room on one GPU.",
    )
    evict: bool = setting(
        False,
        "evict pods that use more than their units, or can never start, when their nodes request it",
        SwitchType(),
        agrees="requires the right to evict, and `overuse: evict` or `unstartable: evict` of the device plugins",
    )
    eviction_pause: int = setting(
        0,
        "time between two evictions of pods",
        NumberType(0, 3600, "seconds"),
        metavar="SECONDS",
        variable="gpushare_eviction_pause",
        scope=CONTROL_PLANES,
        chart="evictionPause",
        agrees="has an effect with `evict`",
        description="Seconds from 0 to 3600 between two evictions of pods by the extender, with C(gpushare_overuse=evict) or "
        "C(gpushare_unstartable=evict). With 0 all pods that are due are evicted at once. With a pause a wrong limit of many pods costs a "
        "few of them before an administrator sees the Events.",
        meaning="Seconds from 0 to 3600 between two evictions of pods by the extender, with `overuse: evict`. With 0 all pods that are due "
        "are evicted at once. With a pause a wrong limit of many pods costs a few of them before an administrator sees the Events.",
    )
    lease: str = setting(
        DEFAULT_LEASE,
        f"Lease of kube-scheduler's leader election, or {NO_LEASE} where one scheduler runs alone without it",
        TextType(f"namespace and name, such as {DEFAULT_LEASE}, or {NO_LEASE}", rf"{NO_LEASE}|{_LABEL}/[a-z0-9](?:[-.a-z0-9]*[a-z0-9])?"),
        metavar="NAMESPACE/NAME",
        variable="gpushare_scheduler_lease",
        scope=CLUSTER,
        agrees="must be the Lease of the kube-scheduler that calls it",
        description="Namespace and name of the Lease by which the kube-schedulers elect their leader. Only the extender beside the leader "
        "answers. V(none) if the only scheduler runs without leader election. The role C(scheduler) rejects a scheduler with another "
        "Lease.",
    )
    scheduler_host: str = setting(
        "", "this scheduler's host in the lease; default: this host's name", TextType("a host name", r"[^\s\0]{0,253}"), metavar="NAME"
    )
    most_nodes: int = setting(
        0,
        "filter returns only the N best of the nodes that fit; 0: all of them",
        NumberType(0, 100000),
        metavar="N",
        variable="gpushare_most_nodes",
        scope=CONTROL_PLANES,
        chart="mostNodes",
        description="Maximum number of nodes that the extender returns to kube-scheduler per pod, best first. V(0) means no limit. Use it "
        "in clusters of thousands of GPU nodes, with C(gpushare_percentage_of_nodes_to_score=100). Then the extender considers every node, "
        "and kube-scheduler scores only the returned ones.",
    )
    tls_cert: Path | None = setting(None, f"the certificate for TLS, {_TLS}", folder(), metavar="FILE")
    tls_key: Path | None = setting(None, f"its key, {_TLS}", folder(), metavar="FILE")
    client_ca: Path | None = setting(None, f"the CA of kube-scheduler's client certificate, {_TLS}", folder(), metavar="FILE")
    seed_token_file: Path | None = common.seed_token_file()
    token_file: Path | None = common.token_file()
    token_seconds: int = common.token_seconds()
    metrics_listen: Address | None = common.metrics_listen("127.0.0.1:9441")
    metrics_token_file: Path | None = common.metrics_token_file()
    health_listen: Address | None = common.health_listen("0.0.0.0:9443")
    log_level: str = common.log_level()
