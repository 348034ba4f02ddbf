# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the verbs did, as numbers."""

from __future__ import annotations

import ast
import inspect
from typing import get_args

from gpushare_runtime.core.reasons import BindReason
from gpushare_runtime.daemon.exposition import render
from gpushare_runtime.extender import binder, binding, http_server
from gpushare_runtime.extender.metrics import ERROR, OK, UNSCHEDULABLE, Meters
from unit.fakes.runtime.exposition import read


def test_calls_by_verb_and_result() -> None:
    meters = Meters()
    meters.took("filter", OK, 0.0002)
    meters.took("filter", UNSCHEDULABLE, 0.003)
    meters.took("bind", ERROR, 7.0)
    meters.not_bound("no-room")
    assert (meters.count("filter"), meters.count("filter", OK), meters.count("bind", UNSCHEDULABLE, ERROR), meters.count("preempt")) == (
        2,
        1,
        1,
        0,
    )
    families = read("".join(render(meters.families())))
    seconds = families["gpushare_extender_verb_duration_seconds"].samples
    assert seconds["_bucket", (("le", "0.00025"), ("verb", "filter"))] == 1
    assert seconds["_bucket", (("le", "0.005"), ("verb", "filter"))] == 2
    assert seconds["_bucket", (("le", "5.0"), ("verb", "bind"))] == 0
    assert seconds["_count", (("verb", "bind"),)] == 1
    # Those that never happened are there too: a rate needs the zero before the first.
    assert seconds["_count", (("verb", "preempt"),)] == 0
    failures = families["gpushare_extender_bind_failures_total"].samples
    assert {dict(labels)["cause"]: value for (_, labels), value in failures.items()} == dict.fromkeys(get_args(BindReason), 0) | {
        "no-room": 1
    }


def test_every_bind_error_has_a_cause_that_is_counted() -> None:
    found = set()
    for module in (binder, binding, http_server):
        tree = ast.parse(inspect.getsource(module))
        calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "BindError"]
        literals = {node.value for call in calls for node in ast.walk(call.args[1]) if isinstance(node, ast.Constant)}
        found |= literals
    assert {str(cause) for cause in found} | {"api-rejected", "api-unreachable"} == set(get_args(BindReason))
