# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""filter and prioritize on a ledger."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpushare_runtime.core.allocation import Allocation
from gpushare_runtime.core.ledger import Ledger
from gpushare_runtime.core.objects import read_pending
from gpushare_runtime.core.placement import view
from gpushare_runtime.core.placement.budgets import Budget, Budgets, read_budget
from gpushare_runtime.core.placement.explain import amount, no_fit
from gpushare_runtime.core.placement.policies import Binpack
from gpushare_runtime.core.placement.preemption import Victims
from gpushare_runtime.core.pods import AllocatedPod, InvalidPod, PendingPod
from gpushare_runtime.core.request import parse_request
from gpushare_runtime.core.reservation import RESERVED_SECONDS
from gpushare_runtime.extender.extender_v1 import Arguments, PreemptArguments, write_filtered
from gpushare_runtime.extender.verbs import Verbs, pod_name
from unit.fakes.runtime.pods import container, inventory, memory, pod, whole

NAMES = ["gpu1", "gpu2", "plain"]


def hold(ledger: Ledger, node: str, gpu: int, units: int) -> None:
    request = parse_request(pod(container(mem=units)))
    assert request is not None
    uid = f"{node}-{gpu}-{units}"
    ledger.apply(AllocatedPod(uid, "default", uid, node, request, Allocation.of({0: {gpu: units}})))


@pytest.fixture
def ledger() -> Ledger:
    """The lab's two nodes."""
    ledger = Ledger()
    ledger.set_inventory("gpu1", inventory(16, 16))
    ledger.set_inventory("gpu2", inventory(16, 24))
    return ledger


def args(*containers: dict[str, Any], **options: Any) -> Arguments:
    return Arguments(pod(*containers, **options), NAMES)


def test_fits_and_rejects_with_numbers(ledger: Ledger) -> None:
    result = Verbs(ledger, Binpack()).filter(args(container(mem=20)))
    assert result.names == ["gpu2"]
    assert result.failed == {
        "gpu1": "gpu1: needs 20 GiB on one GPU, its largest GPU has 16 (32 in total on 2 GPUs)",
        "plain": "plain: no annotation gpushare/gpus on the node: gpushare-device-plugin has not run there",
    }
    assert not result.hopeless


def test_a_pod_that_asks_for_nothing_passes_everywhere(ledger: Ledger) -> None:
    service = Verbs(ledger, Binpack())
    for nothing in (args(container()), args(container(mem=0)), args(container(), uid="u", resourceVersion="1")):
        assert service.filter(nothing).names == NAMES
        assert service.prioritize(nothing) == {}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (args(container(mem=1, count=1)), "at once"),
        (args(container(mem=-1)), "-1 is negative"),
        (args(container(mem="1e30")), "more than any machine has"),
        (args(container(mem="1.5")), "not a whole number"),
        (args(container(mem=9), labels={"aliyun.com/gpu-count": "2"}), "cannot be spread evenly over 2 GPUs"),
        (args(container(mem=8, core=21)), "multiple of 5"),
        (args(container(mem=2), init=[container("first", mem=4)], labels={"aliyun.com/gpu-count": "2"}), "at random"),
        (args(container(mem=2), annotations={"gpushare.request/placement": "best"}), "'best' is not a policy"),
    ],
)
def test_bad_and_unsupported_requests_are_rejected_on_every_node(ledger: Ledger, wrong: Arguments, said: str) -> None:
    service = Verbs(ledger, Binpack())
    result = service.filter(wrong)
    assert result.names == []
    assert set(result.failed) == set(NAMES)
    assert len(set(result.failed.values())) == 1
    assert said in result.failed["gpu1"]
    assert result.hopeless
    assert result.error == ""
    assert service.prioritize(wrong) == {}


@pytest.mark.parametrize("nodes", [10, 11, 3000])
def test_what_is_wrong_in_the_pod_is_not_said_once_per_node(ledger: Ledger, nodes: int) -> None:
    names = [f"gpu-node-{n:04d}" for n in range(nodes)]
    for wrong in (
        pod(container(mem=1), annotations={"gpushare.request/models": "-" * 250_000}),
        pod(container(mem=1), annotations={"gpushare.request/placement": "x" * 250_000}),
        pod(container(mem="9" * 250_000)),
        pod(container(mem=1), labels={"aliyun.com/gpu-count": "x" * 63}),
    ):
        asked = Arguments(wrong, names)
        result = Verbs(ledger, Binpack()).filter(asked)
        assert (set(result.failed), result.hopeless, len(set(result.failed.values()))) == (set(names), True, 1 if nodes == 10 else 2)
        assert re.search(r"must be|is not a policy|is not a quantity|write at most", result.failed[names[0]])
        assert len(write_filtered(asked, result)) < 200 * nodes + 2000


def test_prioritize_prefers_the_fullest_and_knows_only_its_own(ledger: Ledger) -> None:
    hold(ledger, "gpu2", 0, 8)
    scores = Verbs(ledger, Binpack()).prioritize(args(container(mem=8)))
    assert scores == {"gpu2": 10}, "what is left out counts 0"


def test_the_best_nodes_alone_are_named_when_so_many_are_enough(ledger: Ledger) -> None:
    hold(ledger, "gpu2", 0, 8)
    ledger.set_inventory("gpu3", inventory(16))
    names = ["gpu3", "gpu2", "gpu1", "plain"]
    asked = Arguments(pod(container(mem=8)), names)
    assert Verbs(ledger, Binpack()).filter(asked).names == ["gpu3", "gpu2", "gpu1"]
    result = Verbs(ledger, Binpack(), most=2).filter(asked)
    assert result.names == ["gpu2", "gpu1"], "the fullest GPU, then the first of those that are empty"
    assert set(result.failed) == {"plain"}, "a node that fits has not failed"


def test_another_version_of_a_pod_is_read_anew(ledger: Ledger) -> None:
    service = Verbs(ledger, Binpack())
    for version, units, fitting in (("1", 20, ["gpu2"]), ("1", 20, ["gpu2"]), ("2", 16, ["gpu1", "gpu2"])):
        raw = pod(container(mem=units), uid="u", resourceVersion=version)
        assert service.filter(Arguments(raw, NAMES)).names == fitting


def test_a_pod_that_fits_nowhere_is_told_of_and_one_that_fits_is_not(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    told: list[tuple[str, Sequence[str]]] = []
    service = Verbs(ledger, Binpack(), lambda uid, rejected: told.append((uid, rejected)))
    for units, said in ((25, ["filter default/p, 25 units: 0 of 3 nodes fit: too-small on 2, no-inventory on 1"]), (20, []), (16, [])):
        caplog.clear()
        service.filter(args(container(mem=units), uid=f"u{units}"))
        assert [record.message for record in caplog.records] == said
    assert told == [("u25", NAMES), ("u20", ()), ("u16", ())]


def test_what_is_reserved_is_what_the_scheduler_will_take(ledger: Ledger) -> None:
    service = Verbs(ledger, Binpack(), clock=lambda: 100.0)
    service.filter(args(container(mem=16), uid="several"))
    assert ledger.pod("several") is None, "it asks which is best"
    service.filter(args(container(mem=20)))
    assert not any(node.pods for node in ledger.nodes.values()), "a pod without a UID cannot be told apart"
    service.filter(args(container(mem=20), uid="one", labels={"app": "x"}))
    one = ledger.pod("one")
    assert one is not None
    assert (one.namespace, one.name, one.node, one.labels, one.priority) == ("default", "p", "gpu2", (("app", "x"),), 0)
    assert one.allocation == Allocation.of({0: {1: 20}})
    assert ledger.is_reserved("one")
    assert not ledger.expire(100 + RESERVED_SECONDS - 0.1)
    assert ledger.expire(100 + RESERVED_SECONDS)
    service.prioritize(args(container(mem=16), uid="several"))
    assert ledger.is_reserved("several")
    # Asked again, also where it fits nowhere now, it keeps nothing.
    service.prioritize(args(container(mem=25), uid="several"))
    assert ledger.pod("several") is None


def test_a_pod_that_the_watch_has_shown_is_not_read_again(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the version that the scheduler sends, or not at all: then it is, and what the scheduler sends counts."""
    seen = {"a": read_pending(pod(container(mem=24), uid="a", resourceVersion="2")), "bad": InvalidPod("bad", "default", "p", "no")}
    service = Verbs(ledger, Binpack(), pending=seen)  # type: ignore[arg-type]

    def names(**metadata: Any) -> list[str]:
        """Where 16 units have room: on other nodes than the 24 of the pod that the watch has shown."""
        return list(service.filter(args(container(mem=16), **metadata)).names)

    assert names(uid="a", resourceVersion="2") == ["gpu2"]
    for other in ({"uid": "a", "resourceVersion": "3"}, {"uid": "b", "resourceVersion": "2"}, {"uid": "a"}, {"resourceVersion": "2"}):
        assert names(**other) == ["gpu1", "gpu2"]
    assert names(uid="bad", resourceVersion="1") == ["gpu1", "gpu2"]
    seen["a"] = read_pending(pod(container(mem=24), uid="a"))
    assert names(uid="a", resourceVersion="") == names(uid="a") == ["gpu1", "gpu2"]


def test_room_of_a_nominated_pod_is_nobodys_also_where_only_the_best_nodes_are_named(ledger: Ledger) -> None:
    ledger.nominate("vip", PendingPod("vip", "default", "vip", whole(2), (), 5, nominated="gpu1"))
    service = Verbs(ledger, Binpack(), most=1)
    result = service.filter(args(container(mem=8), uid="a"))
    assert (result.names, set(result.failed)) == (["gpu2"], {"gpu1", "plain"})
    assert result.unresolvable == {"plain"}
    assert Verbs(ledger, Binpack()).prioritize(args(container(mem=8), uid="a")) == {"gpu2": 10}
    assert ledger.is_reserved("a")
    ledger.release("a")
    assert service.filter(args(container(count=2), uid="vip")).names == ["gpu1"]
    hold(ledger, "gpu2", 1, 8)
    asked = args(container(mem=16), uid="b")
    assert service.prioritize(Arguments(asked.pod, ["gpu1", "plain"])) == {}
    assert service.prioritize(asked) == {"gpu2": 10}
    ledger.release("b")
    ledger.set_inventory("gpu3", inventory(16))
    both = Arguments(args(container(mem=16), uid="b").pod, ["gpu3", "gpu2"])
    assert Verbs(ledger, Binpack()).filter(both).names == ["gpu3", "gpu2"]
    assert service.filter(both).names == ["gpu2"], "of equals the one in use"
    assert service.prioritize(both)["gpu2"] == 10
    held = ledger.pod("b")
    assert held is not None
    assert held.node == "gpu2"


def test_a_pod_that_has_gpus_is_an_error_and_fits_nowhere_by_no_reason(ledger: Ledger) -> None:
    """Its own units would be in its way. It is tried again, so that it waits like a pod that fits nowhere."""
    waiting: list[tuple[str, Sequence[str]]] = []
    service = Verbs(ledger, Binpack(), lambda uid, nodes: waiting.append((uid, nodes)))
    pod_ = AllocatedPod("u", "default", "p", "gpu1", memory(20), Allocation.of({0: {0: 16}}))
    for happens, words in ((ledger.assume, "being bound to node gpu1"), (ledger.apply, "bound to node gpu1 already")):
        happens(pod_)
        result = service.filter(args(container(mem=16), uid="u"))
        assert (result.names, result.failed) == ([], {})
        assert "pod default/p is " + words in result.error
        assert waiting.pop() == ("u", NAMES)
        assert waiting == []


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
def test_what_is_reserved_is_no_gpu_of_pods_that_it_must_not_be_with(ledger: Ledger, verb: str) -> None:
    kept_alone = pod(container(mem=1), uid="alone", labels={"app": "a"}, annotations={"gpushare.request/not-with": "app=b"})
    alone = read_pending(kept_alone)
    assert isinstance(alone, PendingPod)
    ledger.apply(alone.allocated("gpu1", Allocation.of({0: {0: 1}})))
    # By what is free alone binpack would take GPU 0.
    asked = Arguments(pod(container(mem=1), uid="b", labels={"app": "b"}), ["gpu1"])
    getattr(Verbs(ledger, Binpack()), verb)(asked)
    reserved = ledger.pod("b")
    assert reserved is not None
    assert reserved.allocation == Allocation.of({0: {1: 1}})


def test_no_eviction_helps_where_the_pod_must_not_be_with_one_that_stays(ledger: Ledger) -> None:
    """The rule is the other one's, so that the request alone does not show it."""
    stays = read_pending(pod(container(mem=1), uid="stays", labels={"app": "a"}, annotations={"gpushare.request/not-with": "app=b"}))
    assert isinstance(stays, PendingPod)
    ledger.set_inventory("one", inventory(16))
    ledger.apply(replace(stays, priority=9).allocated("one", Allocation.of({0: {0: 1}})))
    ledger.apply(AllocatedPod("goes", "default", "goes", "one", memory(15), Allocation.of({0: {0: 15}})))
    proposed = {"one": Victims(("goes",))}
    for app, helped in (("b", {}), ("c", proposed)):
        raw = pod(container(mem=2), uid=app, labels={"app": app})
        raw["spec"]["priority"] = 5
        assert Verbs(ledger, Binpack()).preempt(PreemptArguments(raw, proposed)) == helped


def test_an_object_without_anything_in_it_asks_for_nothing(ledger: Ledger) -> None:
    for bare in ({}, {"metadata": None}, {"metadata": {}, "spec": None}):
        assert Verbs(ledger, Binpack()).filter(Arguments(bare, NAMES)).names == NAMES


@pytest.mark.parametrize("nominated", [False, True])
def test_a_node_with_a_fault_is_omitted_and_logged_until_the_faults_are_others(
    ledger: Ledger, nominated: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        ledger.set_inventory(name, inventory(16))
    if nominated:
        for name in ("a", "b"):
            vip = f"vip-{name}"
            ledger.nominate(vip, PendingPod(vip, "default", vip, memory(1), (), 5, nominated=name))
    service = Verbs(ledger, Binpack())

    def ask(*names: str) -> list[str]:
        """The nodes that are omitted, and those that the new lines of the log name."""
        caplog.clear()
        result = service.filter(Arguments(pod(container(mem=15), uid="u"), [*names, "gpu1"]))
        ledger.release("u")
        omitted = sorted(name for name, why in result.failed.items() if "internal fault" in why)
        assert result.names == [name for name in [*names, "gpu1"] if name not in omitted]
        logged = [name for record in caplog.records if record.levelname == "ERROR" for name in "ab" if f"node {name}:" in record.message]
        return [*omitted, "logged", *logged]

    assert ask("a", "b") == ["logged"]
    # Of a kind that nobody has thought of.
    for name in "ab":
        ledger.set_inventory(name, inventory(16, 1))
        ledger.nodes[name]._facts.pods["odd"] = None  # type: ignore[assignment]
    assert [ask("a"), ask("a")] == [["a", "logged", "a"], ["a", "logged"]]
    assert [ask("a", "b"), ask("b")] == [["a", "b", "logged", "b"], ["b", "logged"]]
    assert [ask(), ask("b")] == [["logged"], ["b", "logged", "b"]]


def test_preempt_does_nothing_for_what_cannot_be_meant(ledger: Ledger) -> None:
    service, victims = Verbs(ledger, Binpack()), {"gpu1": Victims(("gpu1-0-16",))}
    for odd in (args(container(mem="1.5")), args(container(mem=2), init=[container("i", mem=4)], labels={"aliyun.com/gpu-count": "2"})):
        assert service.preempt(PreemptArguments(odd.pod, victims)) == {}


def budget(name: str, allowed: int = 0) -> Budget:
    """Of all pods with labels."""
    selector = {"matchExpressions": [{"key": "absent", "operator": "DoesNotExist"}]}
    raw = {"metadata": {"namespace": "default", "name": name}, "spec": {"selector": selector}, "status": {"disruptionsAllowed": allowed}}
    return read_budget(raw)


def test_preempt_counts_the_budgets_of_the_moment_and_forgets_the_pods_own_reservation(ledger: Ledger) -> None:
    for gpu in (0, 1):
        hold(ledger, "gpu1", gpu, 16)
        ledger.apply(replace(ledger.nodes["gpu1"].pod(f"gpu1-{gpu}-16"), labels=(("app", "a"),)))
    budgets = Budgets()
    service = Verbs(ledger, Binpack(), budgets=budgets)
    raw = args(container(count=2), uid="a").pod
    raw["spec"]["priority"] = 1
    ledger.reserve(AllocatedPod("a", "default", "a", "gpu2", memory(16), Allocation.of({0: {0: 16}})), 1e9)
    proposed = {"gpu1": Victims(("gpu1-0-16",)), "plain": Victims(("x",))}
    for allowed, violations in ((2, 0), (1, 1)):
        budgets.event("ADDED", budget("b", allowed))
        assert service.preempt(PreemptArguments(raw, proposed)) == {"gpu1": Victims(("gpu1-0-16", "gpu1-1-16"), violations)}
    assert ledger.pod("a") is None


def test_namespaces_whose_budgets_are_not_counted_are_logged_until_they_are_others(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    for gpu in (0, 1):
        hold(ledger, "gpu1", gpu, 16)
        ledger.apply(replace(ledger.nodes["gpu1"].pod(f"gpu1-{gpu}-16"), labels=(("app", "a"),)))
    budgets = Budgets(budget(f"b{number}") for number in range(17))
    service = Verbs(ledger, Binpack(), budgets=budgets)
    raw = args(container(count=2), uid="a").pod
    raw["spec"]["priority"] = 1

    def logged() -> list[str]:
        caplog.clear()
        service.preempt(PreemptArguments(raw, {"gpu1": Victims(("gpu1-0-16",))}))
        return [record.message for record in caplog.records if record.levelname == "WARNING"]

    (line,) = logged()
    assert line.startswith(
        "disruption budgets of 1 namespaces are not counted, such as default: expected at most 16 that may cover one pod"
    )
    assert logged() == []
    budgets.event("DELETED", budget("b0"))
    assert logged() == []
    budgets.event("ADDED", budget("b0"))
    assert logged() == [line]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (pod(container(mem=1)), "1 unit"),
        (pod(container(mem=8)), "8 units"),
        (pod(container(mem=8, core=20)), "8 units and 20 % of compute"),
        (pod(container(mem=8), labels={"aliyun.com/gpu-count": "2"}), "8 units on 2 GPUs"),
        (pod(container(count=1)), "1 whole GPU"),
        (pod(container(count=3)), "3 whole GPUs"),
    ],
)
def test_an_amount_in_words(asked: dict[str, Any], words: str) -> None:
    request = parse_request(asked)
    assert request is not None
    assert amount(request) == words
    assert (pod_name(asked), pod_name({})) == ("default/p", "None/None")


def test_in_a_full_cluster_each_node_is_looked_at_once_until_it_changes(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    monkeypatch.setattr(view, "no_fit", lambda request, node: (looked_at.append(node.name), no_fit(request, node))[1])
    names = [f"n{number}" for number in range(30)]
    for number, name in enumerate(names):
        ledger.set_inventory(name, inventory(8 if number % 2 else 16))
        hold(ledger, name, 0, 8 if number % 2 else 16)
    service = Verbs(ledger, Binpack())

    def ask(units: int, uid: str) -> set[str]:
        """About a pod that fits on gpu1 or nowhere."""
        looked_at.clear()
        result = service.filter(Arguments(pod(container(mem=units), uid=uid), [*names, "gpu1", "plain"]))
        ledger.release(uid)
        large = [] if units > 16 else ["gpu1", *names[0::2]]
        assert result.names == large[:1]
        assert set(result.failed) == {*names, "gpu1", "plain"} - set(result.names)
        assert result.unresolvable == set(result.failed) - set(large), "an eviction could help where a GPU is large enough"
        assert result.failed["n0"] == f"needs {units} GiB on one GPU, at most 0 are free on one"
        return set(looked_at)

    assert ask(12, "a") == {*names, "plain"}
    assert ask(12, "b") == {"plain"}, "nothing is kept of what is not known"
    assert ask(17, "c") == {*names, "gpu1", "plain"}, "another kind of pod"
    ledger.set_inventory("n4", inventory(16, 4))
    assert ask(12, "d") == {"n4", "plain"}
    # Where somebody is nominated the pods see different nodes; the others are as they were.
    ledger.nominate("x", PendingPod("x", "default", "x", memory(4), priority=1, nominated="n6"))
    assert ask(12, "e") == {"n6", "plain"}
    ledger.set_inventory("n8", inventory(16, 4))
    assert ask(12, "f") == {"n6", "n8", "plain"}
    ledger.nominate("x", None)
    assert ask(12, "g") == {"plain"}
