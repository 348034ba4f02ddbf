# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""filter and prioritize, answered from the ledger: no I/O, no HTTP."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpushare_runtime.extender.wire import Arguments, Filtered
from gpushare_runtime.ledger import Ledger, NodeLedger
from gpushare_runtime.placement import Policy
from gpushare_runtime.reasons import refusals
from gpushare_runtime.request import Request, RequestError, parse_request

log = logging.getLogger(__name__)


class Service:
    """The verbs that change nothing. refused: told the UID of each pod that fits nowhere now."""

    def __init__(self, ledger: Ledger, policy: Policy, refused: Callable[[str], None] = lambda uid: None) -> None:
        self._ledger = ledger
        self._policy = policy
        self._refused = refused

    def filter(self, args: Arguments) -> Filtered:
        """The nodes that have a card (or empty cards) for the pod; the others with a reason."""
        try:
            request = parse_request(args.pod)
        except RequestError as error:
            return self._refuse(args, str(error))
        if request is None:
            return Filtered(args.names)
        if request.unsupported is not None:
            return self._refuse(args, request.unsupported)
        known = self._ledger.nodes
        fitting: list[str] = []
        refused: list[NodeLedger] = []
        for name in args.names:
            node = known.get(name)
            if node is not None and node.leftover(request) is not None:
                fitting.append(name)
            else:
                refused.append(node or NodeLedger(name))
        if not fitting:
            self._refused((args.pod.get("metadata") or {}).get("uid", ""))
        log.info("filter %s, %s: %d of %d nodes fit", pod_name(args.pod), amount(request), len(fitting), len(args.names))
        return Filtered(fitting, refusals(request, refused) if refused else {})

    def prioritize(self, args: Arguments) -> Mapping[str, int]:
        """Node name → 0 … 10. Nodes that are left out get 0."""
        try:
            request = parse_request(args.pod)
        except RequestError:
            return {}
        if request is None or request.unsupported is not None:
            return {}
        return self._policy.rank(request, self._nodes(args.names))

    def _nodes(self, names: Iterable[str]) -> Iterable[NodeLedger]:
        known = self._ledger.nodes
        return (known[name] for name in names if name in known)

    def _refuse(self, args: Arguments, reason: str) -> Filtered:
        log.info("filter %s: refused on every node: %s", pod_name(args.pod), reason)
        return Filtered(failed=dict.fromkeys(args.names, reason), hopeless=True)


def pod_name(pod: Mapping[str, Any]) -> str:
    """namespace/name for a log line."""
    metadata = pod.get("metadata") or {}
    return f"{metadata.get('namespace')}/{metadata.get('name')}"


def amount(request: Request) -> str:
    """What a request asks for, for a log line."""
    if request.cards:
        return f"{request.cards} whole {'card' if request.cards == 1 else 'cards'}"
    return f"{request.units} {'unit' if request.units == 1 else 'units'}"
