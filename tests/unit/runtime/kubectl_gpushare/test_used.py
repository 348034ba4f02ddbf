# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Memory in use from Prometheus: what is asked and shown, and answers that are none. tests/monitoring asks a real one."""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import gpushare_runtime.kubectl_program.main as program
from gpushare_runtime.core.overuse import STARTS_NEVER, EvictionRequest, Evictions
from gpushare_runtime.core.use_report import GpuUse, PodUse, UseReport
from gpushare_runtime.kubectl_gpushare import live, used
from gpushare_runtime.kubectl_gpushare.api import fill_from_files
from gpushare_runtime.kubectl_gpushare.cluster import Cluster, Used
from gpushare_runtime.kubectl_gpushare.errors import InputError, PrometheusError
from gpushare_runtime.kubectl_gpushare.used import CONFIG_MAP, find_address
from gpushare_runtime.kubectl_program.main import main
from unit.fakes.runtime.kube.fake_api import FakeApi, connected, serving, until
from unit.fakes.runtime.kubectl_gpushare.objects import node, pod
from unit.fakes.runtime.pods import inventory
from unit.golden import Golden

MIB = 1024 * 1024
GPUS = inventory(16, 16)
POD, GPU = "gpushare_device_plugin_pod_memory_used_bytes", "gpushare_device_plugin_gpu_memory_used_bytes"
Server = Callable[..., str]


def vector(*samples: tuple[dict[str, Any], object]) -> bytes:
    result = [{"metric": labels, "value": [1.0, str(value)]} for labels, value in samples]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


@pytest.fixture
def asked() -> list[tuple[str, str | None]]:
    """(query, Authorization) of each request."""
    return []


@pytest.fixture
def serve(asked: list[tuple[str, str | None]]) -> Iterator[Server]:
    """Starts a server with one body for each metric, and the status; its URL."""
    servers = []

    def start(pods: bytes, gpus: bytes, status: int = 200, times: bytes = b"") -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = parse_qs(urlsplit(self.path).query)["query"][0]
                asked.append((query, self.headers.get("Authorization")))
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "http://127.0.0.1:1/")
                self.end_headers()
                self.wfile.write(times if "count_over_time" in query else pods if POD in query else gpus)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A node with two GPUs; pod a has 4 units of the first, b 2 of the second."""
    items = [node("n", "10.0.0.1", gpus=GPUS) | {"kind": "Node"}]
    for name, gpu, units in (("a", 0, 4), ("b", 1, 2)):
        said = {"scheduler.framework.gpushare.allocation": json.dumps({"0": {str(gpu): units}})}
        items.append(pod(name, "n", annotations=said, mem=units, namespace=f"team-{name}") | {"kind": "Pod"})
    (tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "items": items}))
    return str(tmp_path / "cluster.json")


def uid(file: str, name: str) -> str:
    found: str = next(i["metadata"]["uid"] for i in json.loads(Path(file).read_text())["items"] if i["metadata"]["name"] == name)
    return found


def column(text: str, title: str, rows: int) -> list[str]:
    """Of the first rows of a table, by the position of its title: it is aligned to the right."""
    header, *lines = text.splitlines()
    end = header.index(title) + len(title)
    return [line[:end].split()[-1] for line in lines[:rows]]


def test_what_is_used_stands_beside_what_is_allocated(
    serve: Server, asked: list[Any], file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (gpu.uuid for gpu in GPUS.gpus)
    url = serve(
        # One byte more than 2560 MiB; the pod b has nothing in use that anybody knows of.
        vector(({"uid": uid(file, "a"), "uuid": first}, 1536 * MIB), ({"uid": uid(file, "a"), "uuid": second}, 1024 * MIB + 1)),
        vector(({"uuid": first}, 2048 * MIB), ({"uuid": second}, 0)),
    )
    source = ["--from-file", file, "--prometheus", f"{url}/"]
    expected = {"gpus": ["2", "0"], "namespaces": ["2.5", "-"]}
    for view, shown in expected.items():
        assert main([view, "-o", "wide", *source]) == 0
        assert column(capsys.readouterr().out, "USED", len(shown)) == shown, view
    for argv in (["pods", "-A"], ["top", "-A"], ["nodes"]):
        assert main([*argv, *source]) == 0
        assert ("2.5 GiB" if "-A" in argv else " 2/6/") in capsys.readouterr().out
    assert main(["pods", "-A", "-o", "json", *source]) == 0
    (found,) = json.loads(capsys.readouterr().out)["nodes"]
    assert [one["used_mib"] for one in found["pods"]] == [2561, None]
    assert [one["used_mib"] for one in found["gpus"]] == [2048, 0]
    assert {query for query, _ in asked} == {
        f"max by (uid, uuid) ({POD})",
        f"max by (uuid) ({GPU})",
        "max by (uid, uuid) (100 * gpushare_device_plugin_pod_sm_utilization_ratio)",
        "max by (uuid) (100 * gpushare_device_plugin_gpu_sm_utilization_ratio)",
        "max by (uid, uuid) (gpushare_device_plugin_pod_idle_since_timestamp_seconds)",
    }
    assert {token for _, token in asked} == {None}


def test_a_token_is_sent(serve: Server, asked: list[Any], file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "token").write_text("secret\n")
    url = serve(vector(), vector())
    argv = ["nodes", "--from-file", file, "--prometheus", url, "--prometheus-token-file"]
    assert main([*argv, str(tmp_path / "token")]) == 0
    assert {token for _, token in asked} == {"Bearer secret"}
    for text in ("", "two\nlines"):
        (tmp_path / "token").write_text(text)
        assert main([*argv, str(tmp_path / "token")]) == 1
        assert "found no token" in capsys.readouterr().err
    assert main([*argv, str(tmp_path / "nowhere")]) == 1
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"<html>", 200, "found status 200 and '<html>'; expected the URL of Prometheus itself"),
        (b'{"status":"success"}', 200, "found status 200"),
        (b'{"status":"success","data":{"result":[1]}}', 200, "found status 200"),
        (b'{"status":"success","data":{"result":[{"metric":{},"value":[1,"x"]}]}}', 200, "found status 200"),
        (b"[]", 200, "found status 200"),
        (b'{"status":"error","error":"too many samples"}', 422, "rejected the query: 'too many samples'"),
        (b"\x1b[31m", 401, r"found status 401 and '\x1b[31m'"),
        (b"", 302, "found status 302"),
    ],
)
def test_answers_that_are_none(body: bytes, status: int, said: str, serve: Server, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    url = serve(body, vector(), status)
    assert main(["nodes", "--from-file", file, "--prometheus", url]) == 1
    assert said in capsys.readouterr().err


def test_values_that_no_gpu_can_have_are_left_out(serve: Server, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    values = ("NaN", "+Inf", "-1", "1e300")
    url = serve(vector(*(({"uid": uid(file, "a"), "uuid": f"u{n}"}, value) for n, value in enumerate(values)), ({}, 5)), vector())
    assert main(["pods", "-A", "-o", "json", "--from-file", file, "--prometheus", url]) == 0
    (found,) = json.loads(capsys.readouterr().out)["nodes"]
    assert [one["used_mib"] for one in found["pods"]] == [None, None]


def test_an_answer_without_end_is_cut_off(
    serve: Server, file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(used, "_MOST_BYTES", 100)
    # The other one is sound: whichever comes first, only one can be wrong.
    assert len(vector()) <= 100
    assert main(["nodes", "--from-file", file, "--prometheus", serve(b"x" * 101, vector())]) == 1
    assert "found an answer of more than 100 bytes" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["prometheus:9090", "ftp://x", "http://", "http://x:port", "http://x:0"])
def test_what_is_no_url_is_rejected(url: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nodes", "--from-file", file, "--prometheus", url]) == 1
    assert "expected the URL of Prometheus itself" in capsys.readouterr().err


def test_nobody_answers(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nodes", "--from-file", file, "--prometheus", "http://127.0.0.1:1"]) == 1
    assert "Prometheus at http://127.0.0.1:1 does not answer" in capsys.readouterr().err


def test_the_address_of_the_environment(
    serve: Server, file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUSHARE_PROMETHEUS", raising=False)
    monkeypatch.setenv("GPUSHARE_PROMETHEUS", serve(vector(({"uid": uid(file, "a"), "uuid": "x"}, 5 * 1024 * MIB)), vector()))
    assert main(["top", "-A", "--from-file", file]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith("125   -     -  bound, over")


def test_without_prometheus_only_what_nodes_publish_is_known(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.delenv("GPUSHARE_PROMETHEUS", raising=False)
    data = json.loads(Path(file).read_text())
    late = EvictionRequest(uid(file, "b"), 1, 0, 0, 0, STARTS_NEVER)
    for until_, used_by_a in ((time.time() + 60, "5 GiB"), (time.time() - 1, "-")):
        asked = Evictions((EvictionRequest(uid(file, "a"), 0, 5 * 1024, 4 * 1024, 90), late), int(until_))
        data["items"][0]["metadata"]["annotations"]["gpushare/evictions"] = asked.to_json()
        Path(file).write_text(json.dumps(data))
        assert main(["top", "-A", "--from-file", file]) == 0
        printed = capsys.readouterr()
        rows = {line.split()[1]: line for line in printed.out.splitlines()[1:]}
        assert used_by_a in rows["a"]
        over, rest = rows["a"].endswith("125   -     -  bound, over"), ["-", "2", "GiB", "-", "-", "-", "bound"]
        assert (over, rows["b"].split()[4:]) == (used_by_a != "-", rest)
        golden(printed.err)


def test_a_prometheus_that_the_installer_has_named_may_be_away(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Where nodes publish nothing either, and where somebody names it here, it is an error."""
    at = argparse.Namespace(command="top", prometheus="http://127.0.0.1:1", prometheus_token_file="", prometheus_by_installer=True)

    def add() -> Used:
        cluster = Cluster()
        fill_from_files(cluster, [file])
        asyncio.run(program._add_used(cluster, at, program._reader(cluster, at)))
        return cluster.used

    with pytest.raises(PrometheusError):
        add()
    publishing(file, UseReport(2000, pods={(uid(file, "a"), 0): PodUse(2000, 40)}).to_json())
    assert add().by_pod == {uid(file, "a"): 2000}
    assert capsys.readouterr().err.startswith("warning: ")
    at.prometheus_by_installer = False
    with pytest.raises(PrometheusError):
        add()


def test_the_address_of_the_installer_and_a_screen_that_follows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ConfigMap has the address; the memory in use is read again and again, and a failure is no end."""
    answers: list[Used | InputError] = [Used({"uid-p": 1}, {}), InputError("away"), Used({"uid-p": 2}, {})]
    seen: list[Used] = []

    async def run() -> None:
        async with serving(FakeApi()) as api, connected(api, tmp_path) as client:
            assert await find_address(client) == ""
            await api.put(CONFIG_MAP, {"metadata": {"name": "gpushare"}, "data": {"prometheus": "http://p:9090"}})
            assert await find_address(client) == "http://p:9090"

        async def used() -> Used:
            answer = answers.pop(0)
            if isinstance(answer, InputError):
                raise answer
            return answer

        cluster = Cluster()

        class Changed:
            @staticmethod
            def set() -> None:
                seen.append(cluster.used)

        task = asyncio.create_task(live._poll(cluster, used, SimpleNamespace(changed=Changed)))  # type: ignore[arg-type]
        await until(lambda: len(seen) == 3)
        task.cancel()

    monkeypatch.setattr(live, "USED_SECONDS", 0.01)
    asyncio.run(run())
    assert [one.by_pod for one in seen] == [{"uid-p": 1}, {}, {"uid-p": 2}]


def publishing(file: str, report: str, **node_changes: Any) -> None:
    """The node of the file publishes this."""
    data = json.loads(Path(file).read_text())
    found = data["items"][0]
    found["metadata"]["annotations"]["gpushare/use"] = report
    found.update(node_changes)
    Path(file).write_text(json.dumps(data))


def seen(file: str, capsys: pytest.CaptureFixture[str]) -> tuple[list[Any], list[Any]]:
    """(MiB, percent of SMs, idle since) of the pods, (MiB, percent) of the GPUs."""
    assert main(["pods", "-A", "-o", "json", "--from-file", file]) == 0
    (found,) = json.loads(capsys.readouterr().out)["nodes"]
    pods = [(one.get("used_mib"), one.get("sm_percent"), one.get("idle_since")) for one in found["pods"]]
    return pods, [(one.get("used_mib"), one.get("sm_percent")) for one in found["gpus"]]


def test_without_prometheus_it_is_what_the_nodes_publish(file: str, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    pods = {(uid(file, "a"), 0): PodUse(2000, 40), (uid(file, "b"), 1): PodUse(0, 0, 1000), ("uid-of-another-node", 0): PodUse(9, 9)}
    publishing(file, UseReport(2000, {0: GpuUse(3000, 50), 1: GpuUse(0, 0), 7: GpuUse(1)}, pods).to_json())
    assert seen(file, capsys) == ([(2000, 40, None), (0, 0, 1000.0)], [(3000, 50), (0, 0)])
    assert main(["idle", "-A", "--from-file", file]) == 0
    shown = capsys.readouterr()
    golden(shown.out.rpartition("  ")[2])
    assert shown.err == ""
    # What it said before it went away is old.
    gone = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
    publishing(file, UseReport(2000, {0: GpuUse(3000, 50)}, pods).to_json(), status=gone)
    assert seen(file, capsys) == ([(None, None, None)] * 2, [(None, None)] * 2)


def test_a_pod_of_which_one_gpu_is_not_known_has_no_sum(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    pods = {(uid(file, "a"), 0): PodUse(2000, 40), (uid(file, "a"), 1): PodUse(None, 40), (uid(file, "b"), 1): PodUse(7, 0)}
    publishing(file, UseReport(2000, {0: GpuUse(3000, 50)}, pods).to_json())
    assert [size for size, _, _ in seen(file, capsys)[0]] == [None, 7]


def test_a_pod_is_idle_if_nothing_is_left_unsaid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of its second GPU the node says nothing, as after a restart of the plugin while the GPU does not answer."""
    both = pod("both", "n", annotations={"scheduler.framework.gpushare.allocation": json.dumps({"0": {"0": 2, "1": 2}})}, mem=4)
    both["metadata"]["labels"] = {"aliyun.com/gpu-count": "2"}
    file = tmp_path / "both.json"
    file.write_text(json.dumps({"kind": "List", "items": [node("n", "10.0.0.1", gpus=GPUS) | {"kind": "Node"}, both | {"kind": "Pod"}]}))
    for indexes, known in (((0,), False), ((0, 1), True)):
        publishing(str(file), UseReport(2000, pods={("uid-both", index): PodUse(7, 0, 1000) for index in indexes}).to_json())
        assert [(size is not None, idle is not None) for size, _, idle in seen(str(file), capsys)[0]] == [(known, known)]


def test_an_annotation_that_nobody_can_read_is_one_warning_and_no_use(
    file: str, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    publishing(file, '{"v":1,"at":1,"gpus":[[0,-1,0]]}')
    assert main(["pods", "-A", "--from-file", file]) == 0
    golden(capsys.readouterr().err)
    assert main(["top", "-A", "--from-file", file]) == 0
    golden(capsys.readouterr().err)


def test_the_most_that_was_used_in_the_last_days(
    serve: Server, asked: list[tuple[str, str | None]], file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lasted = 3 * 86400 + 60
    url = serve(vector(({"uid": uid(file, "a")}, 1500 * MIB + 1)), vector(), times=vector(({"uid": uid(file, "a")}, lasted)))
    assert main(["simulate", "--as-used", "-A", "-o", "json", "--from-file", file, "--prometheus", url]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {w["workload"]: (w["peak_mib"], w["needed_units"]) for w in found["workloads"]} == {"Pod/a": (1501, 2), "Pod/b": (None, None)}
    assert {w["workload"]: w["seconds"] for w in found["workloads"]} == {"Pod/a": lasted, "Pod/b": None}
    assert url in found["source"]
    assert main(["simulate", "--as-used", "-n", "team-a", "--from-file", file, "--prometheus", url]) == 0
    expressions = [query for query, _ in asked if "max_over_time" in query]
    assert [f'{POD}{{namespace="team-a"}}[7d]' in query for query in expressions] == [False, True]
