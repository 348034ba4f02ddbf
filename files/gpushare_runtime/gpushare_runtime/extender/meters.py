# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""How often the verbs were called, what became of it and how long it took. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from gpushare_runtime.metrics import Family, Histogram, Sample

VERBS: Final = ("filter", "prioritize", "preempt", "bind")

OK: Final = "ok"
REFUSED: Final = "refused"
ERROR: Final = "error"
RESULTS: Final = (OK, REFUSED, ERROR)
"""refused: no node fits, no eviction helps, or the pod is not bound, and the answer says why; error: the question could not be
answered: it is no such question, the caches are not complete, or a fault of ours."""

CAUSES: Final = ("no-room", "elsewhere", "gone", "invalid", "not-ready", "api-refused", "api-unreachable", "api-unknown")
"""Why a pod was not bound. no-room: the node's cards were given to others after filter; elsewhere: it is on another node, or on
its way there; api-unreachable: no Binding was sent; api-unknown: the API server has not said whether the Binding happened."""


class Meters:
    """What the verbs have done since the start. Each call of the scheduler costs one `took`."""

    def __init__(self) -> None:
        self.refused_callers = 0
        """Calls without the client certificate that verbs expect."""
        self._results: Counter[tuple[str, str]] = Counter()
        self._seconds = {verb: Histogram() for verb in VERBS}
        self._causes: Counter[str] = Counter()

    def took(self, verb: str, result: str, seconds: float) -> None:
        """A call has been answered. seconds: from its body to its answer, what others did meanwhile included."""
        self._results[verb, result] += 1
        self._seconds[verb].observe(seconds)

    def not_bound(self, cause: str) -> None:
        """A call of bind has bound nothing. cause: one of CAUSES."""
        self._causes[cause] += 1

    def count(self, verb: str, *results: str) -> int:
        """Calls of a verb that ended so; without results, all."""
        return sum(self._results[verb, result] for result in results or RESULTS)

    def families(self) -> Iterator[Family]:
        """All of it as metrics."""
        yield Family(
            "gpushare_extender_verb_duration_seconds",
            "histogram",
            "Time from a call's body to its answer",
            [sample for verb, histogram in self._seconds.items() for sample in histogram.samples({"verb": verb})],
        )
        yield Family(
            "gpushare_extender_verb_results_total",
            "counter",
            "Calls of each verb by what became of them",
            [Sample(self._results[verb, result], {"verb": verb, "result": result}) for verb in VERBS for result in RESULTS],
        )
        yield Family(
            "gpushare_extender_bind_failures_total",
            "counter",
            "Calls of bind that bound nothing, by why",
            [Sample(self._causes[cause], {"cause": cause}) for cause in CAUSES],
        )
        yield Family(
            "gpushare_extender_callers_refused_total",
            "counter",
            "Calls without kube-scheduler's certificate",
            [Sample(self.refused_callers)],
        )
