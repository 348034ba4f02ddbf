# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The verbs over real HTTP, in front of an API server over real HTTP."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gpushare_runtime import __version__
from gpushare_runtime.core import protocol
from gpushare_runtime.extender import extender_v1, http_server
from gpushare_runtime.extender.verbs import Verbs
from unit.fakes.runtime.extender.over_http import VERBS, extending, synced
from unit.fakes.runtime.kube.fake_api import fail, until
from unit.fakes.runtime.pods import container, pod

PODS = "/api/v1/namespaces/default/pods/"


def gpu_pod(name: str, units: int) -> dict[str, Any]:
    raw = pod(container(mem=units), uid=f"uid-{name}")
    raw["metadata"]["name"] = name
    return raw


def ask(raw: dict[str, Any]) -> dict[str, Any]:
    return {"Pod": raw, "Nodes": None, "NodeNames": ["gpu1", "gpu2"]}


def to(name: str, node: str) -> dict[str, Any]:
    return {"PodName": name, "PodNamespace": "default", "PodUID": f"uid-{name}", "Node": node}


async def test_filter_prioritize_bind(tmp_path: Path) -> None:
    async with extending(tmp_path) as extender:
        await synced(extender)
        raw = gpu_pod("a", 20)
        await extender.api.put(f"{PODS}a", raw)
        answer = await extender.verb("filter", ask(raw))
        assert answer["NodeNames"] == ["gpu2"]
        assert set(answer["FailedNodes"]) == {"gpu1"}
        assert await extender.verb("prioritize", ask(raw)) == [{"Host": "gpu2", "Score": 10}]
        assert await extender.verb("bind", to("a", "gpu2")) == {"Error": ""}
        bound = extender.api.objects[f"{PODS}a"]
        assert bound["spec"]["nodeName"] == "gpu2"
        assert bound["metadata"]["annotations"][protocol.ANNOTATION_ALLOCATION] == '{"0":{"1":20}}'
        await until(lambda: not extender.cluster.pending and not extender.cluster.ledger.is_assumed("uid-a"))
        assert await extender.verb("bind", to("a", "gpu1")) == {
            "Error": "pod default/a is already bound to node gpu2; it cannot be bound to node gpu1"
        }
        await extender.api.put(f"{PODS}a", {**bound, "status": {"phase": "Succeeded"}})
        await until(lambda: not extender.cluster.ledger.nodes["gpu2"].pods)


async def test_what_prioritize_is_asked_is_not_read_again_where_filter_was_asked_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[bytes] = []
    read = extender_v1.read_arguments
    monkeypatch.setattr(extender_v1, "read_arguments", lambda body: (reads.append(body), read(body))[1])
    async with extending(tmp_path) as extender:
        await synced(extender)
        small, large = ask(gpu_pod("a", 4)), ask(gpu_pod("b", 20))
        for verb, body, count in (
            ("filter", small, 1),
            ("prioritize", small, 1),
            ("prioritize", large, 2),
            ("filter", large, 2),
            ("prioritize", small, 3),
        ):
            answer = await extender.verb(verb, body)
            hosts = answer["NodeNames"] if verb == "filter" else [host["Host"] for host in answer]
            assert (hosts == ["gpu2"]) == (body is large or count == 3), "beside the other it fits best there"
            assert len(reads) == count
        # What is too large to keep, and what is no question.
        monkeypatch.setattr(http_server, "_REMEMBERED_BYTES", 10)
        await extender.verb("filter", large)
        await extender.verb("prioritize", large)
        await extender.verb("prioritize", b"{")
        assert len(reads) == 6


async def test_prioritize_is_answered_while_the_scheduler_reads_what_filter_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    prioritize = Verbs.prioritize
    monkeypatch.setattr(Verbs, "prioritize", lambda self, args: (asked.append(args.pod["metadata"]["uid"]), prioritize(self, args))[1])
    async with extending(tmp_path) as extender:
        await synced(extender)
        first, other, large = ask(gpu_pod("a", 4)), ask(gpu_pod("b", 4)), ask(gpu_pod("c", 20))
        both = ["gpu1", "gpu2"]
        for verb, body, count, answer in (
            ("filter", first, 1, both),
            ("prioritize", first, 1, ["gpu1"]),
            # Once: the next time the ledger may be another one.
            ("prioritize", first, 2, ["gpu1"]),
            ("filter", first, 3, both),
            # Another pod, other nodes, and the same pod as it is now.
            ("prioritize", other, 4, ["gpu1"]),
            ("filter", first, 5, both),
            ("prioritize", {**first, "NodeNames": ["gpu2"]}, 6, ["gpu2"]),
            ("filter", first, 7, both),
            ("prioritize", ask(gpu_pod("a", 20)), 8, ["gpu2"]),
            # What fits on some nodes is asked about those, and one node alone is not asked about.
            ("filter", {**first, "NodeNames": [*both, "none"]}, 9, both),
            ("prioritize", first, 9, ["gpu1"]),
            ("filter", large, 9, ["gpu2"]),
        ):
            said = await extender.verb(verb, body)
            assert (said["NodeNames"] if verb == "filter" else [host["Host"] for host in said if host["Score"] == 10]) == answer
            assert len(asked) == count, (verb, body)
        await extender.verb("filter", first)
        assert extender.cluster.ledger.is_reserved("uid-a"), "before prioritize is asked"


async def test_a_burst_on_two_nodes_takes_exactly_what_there_is(tmp_path: Path) -> None:
    async with extending(tmp_path) as extender:
        await synced(extender)
        for n in range(14):
            await extender.api.put(f"{PODS}p{n}", gpu_pod(f"p{n}", 5))
        # 3 + 3 on gpu1, 3 + 4 on gpu2: whoever asks for which node, 13 of 14 fit, one of them after being rejected.
        answers = await asyncio.gather(*(extender.verb("bind", to(f"p{n}", "gpu1" if n % 2 else "gpu2")) for n in range(14)))
        rejected = [n for n, answer in enumerate(answers) if answer["Error"]]
        assert [n % 2 for n in rejected] == [1]
        assert "at most 1 are free on one (2 of 32 in total)" in answers[rejected[0]]["Error"]
        assert not any(node.overbooked() for node in extender.cluster.ledger.nodes.values())


async def test_healthz_and_no_answer_before_the_caches_are_complete(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def wait(_: object) -> None:
        await gate.wait()

    async with extending(tmp_path) as extender:
        extender.api.faults = [wait, wait]
        status, text = await extender.get("/healthz")
        assert (status, json.loads(text)["synced"], json.loads(text)["last_filter_call"]) == (503, False, None)
        assert await extender.verb("filter", ask(gpu_pod("a", 1))) == {
            "Nodes": None,
            "NodeNames": None,
            "FailedNodes": {},
            "FailedAndUnresolvableNodes": {},
            "Error": "not synced yet",
        }
        assert await extender.verb("bind", to("a", "gpu1")) == {"Error": "not synced yet"}
        assert await extender.verb("prioritize", ask(gpu_pod("a", 1))) == []
        gate.set()
        await synced(extender)
        health = json.loads((await extender.get("/healthz"))[1])
        assert health.pop("last_filter_call").endswith("Z")
        assert health == {
            "synced": True,
            "not_ready": "",
            "leadership": "",
            "version": __version__,
            "nodes": 2,
            "pods": 0,
            "pending": 0,
            "filter_calls": 1,
            "prioritize_calls": 1,
            "preempt_calls": 0,
            "binds": 0,
            "bind_failures": 1,
            "unauthorized_calls": 0,
        }


async def test_other_paths(tmp_path: Path) -> None:
    async with extending(tmp_path) as extender:
        assert await extender.get("/version") == (200, f"{__version__}\n")
        status, text = await extender.get("/nowhere")
        assert (status, "/gpushare-scheduler/filter" in text) == (404, True)
        status, text = await extender.get(f"{VERBS}/filter")
        assert (status, text) == (405, "/gpushare-scheduler/filter takes POST, not GET\n")


async def test_the_ledger_is_shown(tmp_path: Path) -> None:
    async with extending(tmp_path) as extender:
        await synced(extender)
        await extender.api.put(f"{PODS}a", gpu_pod("a", 20))
        assert await extender.verb("bind", to("a", "gpu2")) == {"Error": ""}
        await until(lambda: not extender.cluster.ledger.is_assumed("uid-a"))
        prefix = protocol.EXTENDER_PREFIX
        status, body = await extender.get(f"{prefix}/inspect/gpu2")
        (node,) = json.loads(body)["nodes"]
        assert (status, node["name"], node["usedGPU"]) == (200, "gpu2", 20)
        status, body = await extender.get(f"{prefix}/inspect/nowhere")
        assert (status, json.loads(body)["nodes"]) == (200, [])
        assert "gpu1, gpu2" in json.loads(body)["error"]
        status, body = await extender.get(f"{prefix}/inspect")
        assert [node["name"] for node in json.loads(body)["nodes"]] == ["gpu1", "gpu2"]
        status, body = await extender.get(f"{prefix}/ledger")
        assert [pod["by_gpu"] for node in json.loads(body)["nodes"] for pod in node["pods"]] == [{"1": 20}]


async def test_preempt_names_who_must_go_on_the_gpu(tmp_path: Path) -> None:
    async with extending(tmp_path) as extender:
        await synced(extender)
        await extender.api.put(f"{PODS}a", gpu_pod("a", 20))
        assert await extender.verb("bind", to("a", "gpu2")) == {"Error": ""}
        await until(lambda: not extender.cluster.ledger.is_assumed("uid-a"))
        urgent = gpu_pod("urgent", 24)
        urgent["spec"]["priority"] = 1000
        victims = {"Pods": [{"UID": "uid-a"}], "NumPDBViolations": 0}
        args = {"Pod": urgent, "NodeNameToMetaVictims": {"gpu1": victims, "gpu2": victims}}
        # On gpu1 no GPU is that large, whoever goes.
        assert await extender.verb("preempt", args) == {"NodeNameToMetaVictims": {"gpu2": victims}}


async def test_failures_are_a_200_with_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with extending(tmp_path) as extender:
        await synced(extender)
        assert "the body is not JSON" in (await extender.verb("filter", b"{"))["Error"]
        assert "PodNamespace must be" in (await extender.verb("bind", {}))["Error"]
        assert await extender.verb("prioritize", b"") == []
        await extender.api.put(f"{PODS}a", gpu_pod("a", 1))
        await until(lambda: extender.cluster.pending)
        extender.api.faults = [fail(403, "Forbidden", "pods/binding is forbidden")]
        assert "pods/binding is forbidden (403 Forbidden)" in (await extender.verb("bind", to("a", "gpu1")))["Error"]
        assert not extender.cluster.ledger.nodes["gpu1"].pods
        monkeypatch.setattr(Verbs, "filter", lambda *_: 1 / 0)
        assert "gpushare-extender failed (ZeroDivisionError" in (await extender.verb("filter", ask(gpu_pod("a", 1))))["Error"]
        assert (await extender.verb("bind", to("a", "gpu1")))["Error"] == ""


async def test_a_body_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MOST_BYTES", 1024 * 1024)
    async with extending(tmp_path) as extender:
        await synced(extender)
        for verb in ("filter", "bind"):
            answer = await extender.verb(verb, b" " * (2 * 1024 * 1024))
            assert "the body is larger than 1 MiB; set nodeCacheCapable: true" in answer["Error"]
        assert (await extender.verb("filter", ask(gpu_pod("a", 1))))["Error"] == ""
