# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""With which pods a pod shares a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushare_runtime.core.allocation import allocate
from gpushare_runtime.core.constraints import Context
from gpushare_runtime.core.ledger import Ledger
from gpushare_runtime.core.pods import AllocatedPod
from gpushare_runtime.core.request import Request, parse_request
from unit.fakes.runtime.pods import container, inventory, pending, pod


class Gpus:
    """One node of three GPUs, and pods on it by label app."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.ledger.set_inventory("n", inventory(16, 16, 16))

    def ask(self, app: str, **annotations: str) -> Request:
        request = parse_request(
            pod(container(mem=4), annotations={f"gpushare.request/{k.replace('_', '-')}": v for k, v in annotations.items()})
        )
        assert request is not None
        return self.ledger.for_pod(pending(request, "default", (("app", app),)))

    def gpus(self, app: str, **annotations: str) -> list[int]:
        node = self.ledger.nodes["n"]
        return [state.gpu.index for state in node.candidates(self.ask(app, **annotations))]

    def put(self, app: str, gpu: int, namespace: str = "default", **annotations: str) -> None:
        request = self.ask(app, **annotations).in_context(None)
        uid = f"{app}-{gpu}"
        self.ledger.apply(AllocatedPod(uid, namespace, uid, "n", request, allocate(request, [(gpu, 16)]), (("app", app),)))


@pytest.fixture
def world() -> Gpus:
    return Gpus()


def test_the_same_gpu_as_others(world: Gpus) -> None:
    assert world.gpus("client", same_gpu_as="app=server") == [], "there is none yet"
    world.put("server", 1)
    world.put("server", 2, namespace="elsewhere")
    assert world.gpus("client", same_gpu_as="app=server") == [1]


def test_the_first_of_a_group_is_so_in_its_own_namespace_and_with_its_own_labels(world: Gpus) -> None:
    world.put("server", 2, namespace="elsewhere")
    assert world.gpus("server", same_gpu_as="app=server") == [0, 1, 2]
    assert world.gpus("client", same_gpu_as="app=server") == []
    world.put("other", 1)
    assert world.gpus("server", same_gpu_as="app=server") == [0, 1, 2]


def test_another_nodes_pod_is_the_first_too(world: Gpus) -> None:
    world.ledger.set_inventory("m", inventory(16))
    request = world.ask("server").in_context(None)
    world.ledger.apply(AllocatedPod("u", "default", "u", "m", request, allocate(request, [(0, 16)]), (("app", "server"),)))
    assert world.gpus("server", same_gpu_as="app=server") == []
    world.ledger.apply(AllocatedPod("u", "default", "u", "m", request, None, (("app", "client"),)))
    assert world.gpus("server", same_gpu_as="app=server") == [0, 1, 2], "its labels have changed"


def test_both_rules_of_a_pod_must_hold(world: Gpus) -> None:
    world.put("server", 0)
    world.put("server", 1)
    world.put("noisy", 1)
    world.put("noisy", 2)
    assert world.gpus("client", same_gpu_as="app=server", not_with="app=noisy") == [0]


def test_a_namespaces_rules_are_its_own(world: Gpus) -> None:
    world.put("noisy", 0, namespace="elsewhere")
    world.put("quiet", 1, namespace="elsewhere", not_with="app=noisy")
    assert world.gpus("quiet", not_with="app=noisy") == [0, 1, 2]
    assert world.gpus("noisy") == [0, 1, 2]


def test_the_pod_is_named_only_where_rules_about_neighbours_matter(world: Gpus) -> None:
    plain, fussy = world.ask("a"), world.ask("a", not_with="app=b")
    assert plain.context is None
    assert world.ask("a", models="T4").context is None
    world.put("plain", 1, models="T4")
    assert world.ask("a").context is None
    assert fussy.context == Context("default", ())
    assert world.ask("a", same_gpu_as="app=a").context == Context("default", (), starts_group=True)
    assert world.ask("a", same_gpu_as="app=b").context == Context("default", (), starts_group=False)
    world.put("fussy", 0, not_with="app=a")
    assert world.ask("a").context == Context("default", (("app", "a"),))
    assert world.ledger.for_pod(pending(world.ask("a"), "default", (("app", "a"),))) == world.ask("a")
    assert world.ledger.for_pod(pending(world.ask("a"), "other", (("app", "a"),))).context is None, "rules stop at the namespace"
    assert world.ask("b").context is None, "nobody minds it"
    world.ledger.remove("fussy-0")
    assert world.ask("a").context is None
    assert world.ledger.for_pod(pending(fussy.in_context(None), "x", ())).context == Context("x", ())


def test_pods_that_differ_in_what_no_rule_looks_at_ask_the_same(world: Gpus) -> None:
    """As those of Jobs and StatefulSets do: what is remembered of one is good for the others."""
    world.put("fussy", 0, not_with="app=a")
    asked = world.ask("a")
    jobs = {world.ledger.for_pod(pending(asked, "default", (("app", "a"), ("job-name", str(number))))).key for number in range(9)}
    assert jobs == {asked.key}
    world.put("second", 0, not_with="job-name=3,app=a")
    jobs = {world.ledger.for_pod(pending(asked, "default", (("app", "a"), ("job-name", str(number))))).key for number in range(9)}
    assert len(jobs) == 2


def test_rules_that_a_pod_loses_bind_nobody_any_more(world: Gpus) -> None:
    world.put("quiet", 0, not_with="app=noisy")
    assert world.gpus("noisy") == [1, 2]
    world.put("quiet", 0)
    assert world.gpus("noisy") == [0, 1, 2]
    world.put("quiet", 0, not_with="app=other")
    world.put("quiet", 1, not_with="app=noisy")
    world.ledger.remove("quiet-0")
    assert world.gpus("noisy") == [0, 2]


def test_labels_that_a_pod_loses_bind_nobody_any_more(world: Gpus) -> None:
    world.put("noisy", 0)
    assert world.gpus("quiet", not_with="app=noisy") == [1, 2]
    (pod,) = world.ledger.nodes["n"].pods
    world.ledger.apply(replace(pod, labels=()))
    assert world.gpus("quiet", not_with="app=noisy") == [0, 1, 2]
