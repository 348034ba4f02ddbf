# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Command line of `kubectl inspect gpushare`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from gpushare_runtime import __version__
from gpushare_runtime.core import protocol
from gpushare_runtime.errors import GpushareError
from gpushare_runtime.kube.client import KubeError
from gpushare_runtime.kube.credentials import Credentials
from gpushare_runtime.kubectl_gpushare.api import Objects, explain_error, read_cluster
from gpushare_runtime.kubectl_gpushare.errors import InputError
from gpushare_runtime.kubectl_gpushare.inspect_tables import details, summary
from gpushare_runtime.kubectl_gpushare.inspect_usage import ClusterUsage, NodeUsage, read_usage
from gpushare_runtime.kubectl_gpushare.kubeconfig import KUBECONFIG_HELP, find_kubeconfig, load_kubeconfig


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0, 1 after an error that was explained on standard error, 2 for a wrong command line."""
    arguments = _parser().parse_args(argv)
    try:
        credentials = load_kubeconfig(find_kubeconfig(arguments.kubeconfig), context=arguments.context)
        nodes, pods, by_claims = _read(credentials, arguments.nodes)
        shown, warnings = _select(nodes, pods, by_claims, arguments.nodes)
    except GpushareError as error:
        print(f"kubectl inspect gpushare: {error}", file=sys.stderr)
        return 1
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    sys.stdout.write(details(shown) if arguments.details else summary(shown, wide=arguments.output == "wide"))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kubectl inspect gpushare", description="Show how much of which GPU is allocated, on every node or on those named."
    )
    parser.add_argument("nodes", nargs="*", metavar="NODE", help="only this node; default: all nodes that have shared GPUs")
    parser.add_argument("-d", dest="details", action="store_true", help="details: the pods on every GPU")
    parser.add_argument("-o", dest="output", choices=["wide"], help="wide: one column more, how containers get the node's GPUs")
    parser.add_argument("--kubeconfig", metavar="FILE", help=KUBECONFIG_HELP)
    parser.add_argument("--context", metavar="NAME", help="default: the kubeconfig's current-context")
    parser.add_argument("--version", action="version", version=f"kubectl-inspect-gpushare {__version__}")
    return parser


def _read(credentials: Credentials, names: Sequence[str]) -> tuple[Objects, Objects, Objects]:
    try:
        return asyncio.run(read_cluster(credentials, names))
    except KubeError as error:
        raise InputError(explain_error(error, credentials.server, "nodes, and pods in all namespaces")) from None


def _select(nodes: Objects, pods: Objects, by_claims: Objects, names: Sequence[str]) -> tuple[Sequence[NodeUsage], Sequence[str]]:
    """The nodes to show, and the warnings."""
    existing = {node["metadata"]["name"] for node in nodes}
    usage = read_usage([node for node in nodes if not names or node["metadata"]["name"] in names], pods, by_claims)
    shown = {node.name for node in usage.nodes}
    for name in names:
        if name not in shown:
            fault = f"has no {protocol.RESOURCE_MEMORY}" if name in existing else "does not exist"
            raise InputError(f"node {name!r} {fault}; {_known(nodes, by_claims)}")
    if not shown:
        return usage.nodes, [*usage.warnings, f"no node publishes {protocol.RESOURCE_MEMORY}: is gpushare-device-plugin running on any?"]
    return usage.nodes, usage.warnings


def _known(nodes: Objects, by_claims: Objects) -> str:
    known: ClusterUsage = read_usage(nodes, [], by_claims)
    if not known.nodes:
        return "no node has shared GPUs"
    return f"nodes with shared GPUs: {', '.join(node.name for node in known.nodes)}"


if __name__ == "__main__":
    sys.exit(main())
