# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Events and quotas that the dashboard reads when somebody looks: bounded, in order, with the reason where there are none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpushare_runtime.dashboard import lookups
from gpushare_runtime.dashboard.lookups import Lookups
from gpushare_runtime.kube.client import KubeClient, KubeError
from unit.fakes.runtime.kube.fake_api import FakeApi, fail

Json = dict[str, Any]


async def event(api: FakeApi, name: str, **fields: object) -> None:
    await api.put(f"/api/v1/namespaces/team/events/{name}", {"metadata": {"name": name, "namespace": "team"}, **fields})


async def test_the_newest_events_come_first_whichever_way_they_tell_their_time(api: FakeApi, client: KubeClient) -> None:
    first = {"firstTimestamp": "2026-11-29T10:00:00Z", "source": {"component": "kube-scheduler"}}
    await event(api, "old", type="Normal", reason="Scheduled", message="a", **first)
    series = {"series": {"count": 7, "lastObservedTime": "2026-11-29T12:00:00.123456Z"}, "eventTime": "2026-11-29T09:00:00.5Z"}
    await event(api, "series", type="Warning", reason="FailedScheduling", message="b", reportingComponent="gpushare-scheduler", **series)
    await event(api, "counted", type="Warning", reason="GPUShareNoFit", message="c", count=3, lastTimestamp="2026-11-29T11:00:00Z")
    found = await Lookups().events(client.get, "team", "p")
    assert [(one["reason"], one["count"], one["source"]) for one in found["events"]] == [
        ("FailedScheduling", 7, "gpushare-scheduler"),
        ("GPUShareNoFit", 3, ""),
        ("Scheduled", 1, "kube-scheduler"),
    ]
    assert found["events"][1]["time"] == 1795950000
    assert found["problem"] == ""
    # The API server chooses them, and sends no more than so many.
    assert api.requests[-1][2] == {"fieldSelector": "involvedObject.kind=Pod,involvedObject.name=p", "limit": "500"}


HOSTILE = "\x1b[31m<script>\u202e" + "A" * 100_000


async def test_what_others_have_written_is_short_printable_and_of_the_types_that_the_page_expects(api: FakeApi, client: KubeClient) -> None:
    await event(api, "a", type=HOSTILE, reason=HOSTILE, message=HOSTILE, count=2**70, lastTimestamp=HOSTILE, source=HOSTILE)
    await event(api, "b", type=7, reason=[HOSTILE], message={"x": 1}, count="many", series=[], lastTimestamp=17, source={"component": [1]})
    for at in range(60):
        await event(api, f"c{at}", reason="x", lastTimestamp="2026-11-29T10:00:00Z")
    found = await Lookups().events(client.get, "team", "p")
    assert len(found["events"]) == lookups.MOST_EVENTS
    assert len(json.dumps(found)) < 20_000
    api.objects = {path: raw for path, raw in api.objects.items() if path[-1] in "ab"}
    for one in (await Lookups().events(client.get, "team", "p"))["events"]:
        assert [type(one[key]) for key in ("type", "reason", "message", "count", "time", "source")] == [str, str, str, int, int, str]
        assert all(value.isprintable() and len(value) <= 1024 for value in one.values() if isinstance(value, str))
        assert (one["time"], 1 <= one["count"] <= 2**53) == (0, True)


async def test_an_answer_without_end_is_not_read_to_its_end(api: FakeApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "MOST_BYTES", 10_000)
    await event(api, "a", message=HOSTILE)
    found = await Lookups().events(client.get, "team", "p")
    assert found["events"] == []
    assert "longer than 10000 bytes" in found["problem"]
    with pytest.raises(KubeError, match="longer than 50 bytes"):
        await client.get("/api/v1/namespaces/team/events", most=50)
    assert (await client.get("/api/v1/namespaces/team/events", most=1_000_000))["kind"] == "List"


@pytest.mark.parametrize(
    ("namespace", "name"), [("team", "p,involvedObject.name=q"), ("..", "p"), ("team", "A B"), ("team/secrets", "p"), ("", "p")]
)
async def test_a_name_that_no_object_has_is_not_sent(api: FakeApi, client: KubeClient, namespace: str, name: str) -> None:
    found = await Lookups().events(client.get, namespace, name)
    assert (found["events"], "no object" in found["problem"], api.requests) == ([], True, [])


async def test_without_the_right_or_an_answer_the_reason_is_there(api: FakeApi, client: KubeClient) -> None:
    api.faults += [fail(403, "Forbidden", "no"), fail(500, "InternalError", "broken"), fail(403, "Forbidden", "no")]
    assert (await Lookups().events(client.get, "team", "p"))["problem"] == "the rights to list events in the namespace team are missing"
    assert (await Lookups().events(client.get, "team", "p"))["problem"] == "the API server gave none: 'broken'"
    assert "resourcequotas" in (await Lookups().quotas(client.get, "team"))["problem"]
    assert (await Lookups().quotas(None, "team"))["problem"] == "a file has none of them"


async def test_quotas_have_our_resources_alone(api: FakeApi, client: KubeClient) -> None:
    async def quota(name: str, status: object) -> None:
        await api.put(f"/api/v1/namespaces/team/resourcequotas/{name}", {"metadata": {"name": name, "namespace": "team"}, "status": status})

    await quota("gpus", {"hard": {"requests.aliyun.com/gpu-mem": "8", "requests.cpu": "4"}, "used": {"requests.aliyun.com/gpu-mem": "3"}})
    await quota("none", {"hard": {"requests.aliyun.com/gpu-count": "0", "requests.aliyun.com/gpu-mem": "1k"}})
    await quota("odd", {"hard": {"requests.aliyun.com/gpu-mem": "9" * 400, "requests.aliyun.com/gpu-count": "-1"}, "used": 7})
    await quota("odder", [])
    found = await Lookups().quotas(client.get, "team")
    assert found == {
        "problem": "",
        "quotas": [
            {"quota": "none", "resource": "aliyun.com/gpu-count", "hard": 0, "used": 0},
            {"quota": "gpus", "resource": "aliyun.com/gpu-mem", "hard": 8, "used": 3},
            {"quota": "none", "resource": "aliyun.com/gpu-mem", "hard": 1000, "used": 0},
        ],
    }
