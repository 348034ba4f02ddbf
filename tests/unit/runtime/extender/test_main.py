# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The process: arguments, readiness, end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest
from aiohttp import web

from gpushare_runtime import __version__
from gpushare_runtime.core import protocol
from gpushare_runtime.daemon.runner import EXIT_SETTINGS, FatalError, Signals
from gpushare_runtime.extender import cache, leadership, requeue, sizes
from gpushare_runtime.extender import main as extender
from gpushare_runtime.extender.cache import incomplete
from gpushare_runtime.extender.main import main
from gpushare_runtime.extender.options import ExtenderSettings, parse_arguments
from gpushare_runtime.kube.client import KubeClient
from gpushare_runtime.settings.common import Address
from unit.fakes.runtime.extender.process import free_port, start
from unit.fakes.runtime.kube.fake_api import FakeApi, kubeconfig, serving, until
from unit.fakes.runtime.kube.tokens import TokenApi, jwt
from unit.fakes.runtime.pods import container, inventory, pod
from unit.golden import Golden

pytestmark = pytest.mark.usefixtures("on_uvloop")

T = TypeVar("T")


async def served(settings: ExtenderSettings) -> None:
    await extender.serve(settings, Signals())


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--listen", "32766"], "'32766' is not an IP address and a port from 1 to 65535, such as 127.0.0.1:32766"),
        (["--listen", "localhost:32766"], "'localhost:32766' is not an IP address and a port"),
        (["--listen", "127.0.0.1:0"], "'127.0.0.1:0' is not an IP address and a port"),
        (["--listen", "127.0.0.1:x"], "'127.0.0.1:x' is not an IP address and a port"),
        (["--log-level", "warn"], "'warn' is not one of debug, info, warning, error"),
        (["--most-nodes", "all"], "'all' is not a number from 0 to 100000"),
        (["--port", "1"], "unrecognized arguments: --port"),
        (["--lease", "kube-scheduler"], "'kube-scheduler' is not namespace and name, such as kube-system/kube-scheduler, or none"),
        (["--token-file", "/t"], "--seed-token-file and --token-file go together"),
        (["--metrics-listen", "0.0.0.0:9441"], "give --metrics-token-file as well, or 127.0.0.1"),
    ],
)
def test_bad_arguments(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_beside_a_scheduler_in_a_pod_the_defaults_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both containers have the pod's loopback and its host name, which kube-scheduler writes into its Lease."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(socket, "gethostname", lambda: "gpushare-scheduler-7d4b9-x2x")
    settings = parse_arguments(["--lease", "gpushare/gpushare-scheduler"])
    assert (settings.listen, settings.tls, settings.kubeconfig) == (Address("127.0.0.1", 32766), None, None)
    assert (settings.lease, settings.scheduler_host) == ("gpushare/gpushare-scheduler", "gpushare-scheduler-7d4b9-x2x")


def test_log_level_of_the_environment_is_checked_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LOG_LEVEL", "loud")
    with pytest.raises(SystemExit):
        main([])
    said = capsys.readouterr().err
    assert ("LOG_LEVEL" in said, "loud" in said) == (True, True)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"gpushare-extender {__version__}\n"


def test_a_missing_kubeconfig(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert main(["--kubeconfig", str(tmp_path / "nowhere")]) == EXIT_SETTINGS
    assert "nowhere: no such file; expected a kubeconfig there" in caplog.text


async def test_ready_when_synced_then_bind_through_the_end(tmp_path: Path) -> None:
    gate, listed = asyncio.Event(), asyncio.Event()

    async def slow(_: object) -> None:
        listed.set()
        await gate.wait()

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        loop = asyncio.get_running_loop()
        async with serving(FakeApi()) as api, aiohttp.ClientSession() as session:
            annotations = {protocol.ANNOTATION_GPUS: inventory(16).to_json()}
            await api.put("/api/v1/nodes/n", {"metadata": {"name": "n", "annotations": annotations}})
            raw = pod(container(mem=6), uid="uid")
            await api.put("/api/v1/namespaces/default/pods/p", raw)
            api.faults = [slow, slow]
            port = free_port()
            alone = ("--lease", "none", "--log-level", "debug")
            process = await start(
                tmp_path, api, port, alone, NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="300000", WATCHDOG_PID=""
            )
            await asyncio.wait_for(listed.wait(), 20)
            url = f"http://127.0.0.1:{port}"
            async with session.get(f"{url}/healthz") as response:
                assert response.status == 503
                assert "the list of nodes and of pods" in (await response.json())["not_ready"]
            gate.set()
            seen = set()
            async with asyncio.timeout(20):
                while not seen >= {b"READY=1", b"WATCHDOG=1"}:
                    # READY=1 comes with a STATUS.
                    seen.add((await loop.sock_recv(systemd, 1000)).partition(b"\n")[0])
            leadership = "not asked yet"
            async with asyncio.timeout(60):
                while leadership:
                    async with session.get(f"{url}/healthz") as response:
                        assert response.status == 200
                        leadership = (await response.json())["leadership"]
                    # Also, so that the watchdog's messages do not fill the socket.
                    await loop.sock_recv(systemd, 100)

            binding, finish = asyncio.Event(), asyncio.Event()

            async def hold(_: object) -> None:
                binding.set()
                await finish.wait()

            api.faults = [hold]
            body = {"PodName": "p", "PodNamespace": "default", "PodUID": "uid", "Node": "n"}
            asked = asyncio.create_task(session.post(f"{url}{protocol.EXTENDER_PREFIX}/bind", data=json.dumps(body)))
            await asyncio.wait_for(binding.wait(), 10)
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(20):
                while b"STOPPING=1" not in seen:
                    seen.add(await loop.sock_recv(systemd, 100))
            finish.set()
            async with await asked as response:
                assert await response.json() == {"Error": ""}
            _, log = await asyncio.wait_for(process.communicate(), 20)
            assert process.returncode == 0, log.decode()
            assert "DEBUG gpushare_runtime.extender.binder: bind default/p to node n: 6 units, GPU 0" in log.decode()
            assert "Traceback" not in log.decode()


async def test_tokens_that_are_over_then_a_new_seed(tmp_path: Path) -> None:
    seed, own = tmp_path / "seed", tmp_path / "token"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        loop = asyncio.get_running_loop()
        async with serving(TokenApi()) as api, aiohttp.ClientSession() as session:
            assert isinstance(api, TokenApi)
            api.now = time.time()
            seed.write_text(jwt(api.now - 7200, api.now - 3600))
            port = free_port()
            options = ["--seed-token-file", str(seed), "--token-file", str(own)]
            process = await start(tmp_path, api, port, options, NOTIFY_SOCKET=str(tmp_path / "notify"))
            message = b""
            async with asyncio.timeout(20):
                while not message.startswith(b"STATUS=token: no token works: "):
                    message = await loop.sock_recv(systemd, 1000)
            url = f"http://127.0.0.1:{port}"
            async with session.get(f"{url}/healthz") as response:
                assert response.status == 503
                words = (await response.json())["not_ready"]
                assert f"{own} is missing; the seed {seed} has expired" in words
            async with session.post(f"{url}{protocol.EXTENDER_PREFIX}/filter", data=b"{}") as response:
                assert (await response.json())["Error"] == words
            seed.write_text(api.give(3600))
            async with asyncio.timeout(20):
                while not message.startswith(b"READY=1\n"):
                    message = await loop.sock_recv(systemd, 1000)
            async with asyncio.timeout(20):
                while not own.exists():  # noqa: ASYNC110 - the condition is in another process
                    await asyncio.sleep(0.01)
            assert own.read_text().strip() in api.good
            process.terminate()
            _, log = await asyncio.wait_for(process.communicate(), 20)
            assert "Traceback" not in log.decode()
            assert own.read_text().strip() not in log.decode()


async def test_with_preempt_it_is_not_ready_before_it_knows_the_budgets(tmp_path: Path, api: FakeApi) -> None:
    asked, gate = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> None:
        if request.path == "/apis/policy/v1/poddisruptionbudgets":
            asked.set()
            await gate.wait()

    async with aiohttp.ClientSession() as session:
        api.faults = [slow] * 50
        port, metrics, health_port = free_port(), free_port(), free_port()
        options = ["--preempt", "--metrics-listen", f"127.0.0.1:{metrics}", "--health-listen", f"127.0.0.1:{health_port}"]
        process = await start(tmp_path, api, port, options)
        await asyncio.wait_for(asked.wait(), 20)

        async def health() -> tuple[int, str]:
            async with session.get(f"http://127.0.0.1:{port}/healthz") as response:
                return response.status, (await response.json())["not_ready"]

        async def lines() -> list[str]:
            async with session.get(f"http://127.0.0.1:{metrics}/metrics") as response:
                return (await response.text()).splitlines()

        async def probe(page: str) -> tuple[int, str]:
            async with session.get(f"http://127.0.0.1:{health_port}/{page}") as response:
                return response.status, await response.text()

        await eventually(health, lambda found: "the list of poddisruptionbudgets from" in found[1])
        assert (await probe("healthz"), await probe("readyz")) == ((200, "ok\n"), (503, "not ready: caches\n"))
        assert "gpushare_extender_ready 0.0" in await lines()
        gate.set()
        await eventually(health, lambda found: found == (200, ""))
        assert await probe("readyz") == (200, "ready\n")
        found = await lines()
        assert "gpushare_extender_ready 1.0" in found
        assert 'gpushare_extender_watch_lists_total{resource="poddisruptionbudgets"} 1.0' in found
        process.terminate()
        _, log = await asyncio.wait_for(process.communicate(), 20)
        assert process.returncode == 0, log.decode()
        assert "Traceback" not in log.decode()


async def eventually(ask: Callable[[], Awaitable[T]], good: Callable[[T], bool]) -> None:
    async with asyncio.timeout(20):
        while not good(await ask()):  # noqa: ASYNC110 - the condition is in another process
            await asyncio.sleep(0.02)


def test_a_reload_before_it_listens_does_not_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reloaded(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        raise OSError(98, "that is all of it")

    monkeypatch.setattr(extender, "listen", reloaded)
    (tmp_path / "kubeconfig").write_text(kubeconfig("http://127.0.0.1:9", token="t"))
    unheard = list[int]()
    before = signal.signal(signal.SIGHUP, lambda number, _: unheard.append(number))
    try:
        settings = ExtenderSettings(Address("127.0.0.1", free_port()), kubeconfig=str(tmp_path / "kubeconfig"))
        with pytest.raises(FatalError, match="that is all of it"):
            asyncio.run(served(settings))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert not unheard


async def test_the_parts_of_one_extender_know_each_other(
    monkeypatch: pytest.MonkeyPatch, api: FakeApi, client: KubeClient, golden: Golden
) -> None:
    """The tests of each part join it to others themselves. What the process joins has its effects here."""
    monkeypatch.setattr(leadership, "DRAINED_SECONDS", 0.0)
    monkeypatch.setattr(leadership, "TAKEOVER_SECONDS", 0.0)
    monkeypatch.setattr(requeue, "LATE_SECONDS", 0.01)
    monkeypatch.setattr(sizes, "INTERVAL_SECONDS", 0.05)
    for name in ("FORCED_SECONDS", "EXPIRY_SECONDS"):
        monkeypatch.setattr(cache, name, 0.05)
    pods, lease = "/api/v1/namespaces/default/pods", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/x"

    def gpu_pod(name: str, units: int = 16, **spec: Any) -> dict[str, Any]:
        raw = pod(container(mem=units), uid=name, labels={"app": name})
        return {"metadata": {**raw["metadata"], "name": name}, "spec": {**raw["spec"], **spec}}

    async with aiohttp.ClientSession() as session:
        for name in ("n", "m"):
            annotations = {protocol.ANNOTATION_GPUS: inventory(16, 1).to_json()}
            await api.put(f"/api/v1/nodes/{name}", {"metadata": {"name": name, "annotations": annotations}})
        selector = {"spec": {"selector": {"matchLabels": {"app": "first"}}}, "status": {"disruptionsAllowed": 0}}
        budget = {"metadata": {"name": "b", "namespace": "default", "uid": "b", "generation": 1}, **selector}
        await api.put("/apis/policy/v1/poddisruptionbudgets/b", budget)
        await api.put(lease, {"metadata": {"name": "x", "uid": "x"}, "spec": {"holderIdentity": "here_1"}})
        await api.put(sizes.CONFIG_MAP, {"metadata": {"name": "gpushare-gpus"}})
        settings = ExtenderSettings(
            Address("127.0.0.1", free_port()), lease="kube-system/x", scheduler_host="here", most_nodes=1, preempt=True
        )
        task = asyncio.create_task(extender.Extender(settings, client).run(Signals()))

        async def ask(verb: str, body: dict[str, Any]) -> Any:
            async with session.post(f"http://{settings.listen}{protocol.EXTENDER_PREFIX}/{verb}", data=json.dumps(body)) as response:
                return await response.json()

        async def health() -> dict[str, Any]:
            async with session.get(f"http://{settings.listen}/healthz") as response:
                return dict(await response.json())

        async def filtered(raw: dict[str, Any]) -> dict[str, Any]:
            with contextlib.suppress(aiohttp.ClientConnectionError):
                found: dict[str, Any] = await ask("filter", {"Pod": raw, "NodeNames": ["n", "m"]})
                return found
            return {"Error": "it does not listen yet"}

        first, foreign, waiting = gpu_pod("first"), gpu_pod("foreign", nodeName="m"), gpu_pod("waiting", priority=1)
        await eventually(lambda: filtered(first), lambda found: not found["Error"] and len(found["NodeNames"]) == 1)
        await until(lambda: '"largest_gpu":16' in api.objects[sizes.CONFIG_MAP].get("data", {}).get("sizes", ""))
        await api.put(f"{pods}/first", first)
        bind = {"PodName": "first", "PodNamespace": "default", "PodUID": "first", "Node": "n"}
        assert await ask("bind", bind) == {"Error": ""}
        foreign["metadata"]["annotations"] = {protocol.ANNOTATION_ALLOCATION: '{"0":{"0":16}}'}
        await api.put(f"{pods}/foreign", foreign)
        await until(lambda: any(one.get("reason") == protocol.EVENT_SECOND_SCHEDULER for one in api.objects.values()))
        await api.put(f"{pods}/waiting", waiting)
        assert (await filtered(waiting))["NodeNames"] == []
        some = {name: {"Pods": [{"UID": "without a GPU"}], "NumPDBViolations": 0} for name in ("n", "m")}
        found = (await ask("preempt", {"Pod": waiting, "NodeNameToMetaVictims": some}))["NodeNameToMetaVictims"]
        assert {name: one["NumPDBViolations"] for name, one in found.items()} == {"n": 1, "m": 0}

        def requeued() -> int:
            return sum(method == "PATCH" and path.startswith(pods) for method, path, _ in api.requests)

        # Of a pod that is deleted by force the units are free when their time is over.
        await api.remove(f"{pods}/foreign")
        await until(lambda: requeued() == 1)
        assert protocol.ANNOTATION_REQUEUED in api.objects[f"{pods}/waiting"]["metadata"]["annotations"]
        # The next time it waits until this host's scheduler is the active one again.
        await api.put(f"{pods}/foreign", foreign)
        await eventually(lambda: filtered(waiting), lambda found: found["NodeNames"] == [])
        read, gate = asyncio.Event(), asyncio.Event()

        async def hold(request: web.Request) -> None:
            if request.path == f"{pods}/late":
                read.set()
                await gate.wait()
            else:
                api.faults.append(hold)

        # No watch shows this pod, so that bind reads it. Meanwhile another host's scheduler becomes the active one.
        api.objects[f"{pods}/late"], api.faults = gpu_pod("late", 1), [hold]
        late = asyncio.create_task(ask("bind", {"PodName": "late", "PodNamespace": "default", "PodUID": "late", "Node": "n"}))
        await asyncio.wait_for(read.wait(), 20)
        await api.put(lease, {"metadata": {"name": "x", "uid": "x"}, "spec": {"holderIdentity": "there_1", "leaseTransitions": 1}})
        await eventually(lambda: filtered(waiting), lambda found: "there" in found["Error"])
        gate.set()
        golden((await late)["Error"])
        await api.put(f"{pods}/foreign", {**foreign, "status": {"phase": "Succeeded"}})
        await eventually(health, lambda found: found["pods"] == 1)
        assert requeued() == 1
        await api.put(lease, {"metadata": {"name": "x", "uid": "x"}, "spec": {"holderIdentity": "here_1", "leaseTransitions": 2}})
        await until(lambda: requeued() == 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_cache_that_nobody_has_confirmed_for_minutes_is_not_answered_from(golden: Golden) -> None:
    class Watch:
        def __init__(self, age: float, synced: bool = True) -> None:
            self.age, self.synced = age, asyncio.Event()
            if synced:
                self.synced.set()

    def words(**watches: Watch) -> str:
        return incomplete(watches)  # type: ignore[arg-type]

    assert words(nodes=Watch(300.0), pods=Watch(0.0)) == ""
    assert "sent nothing for more than 300 s about nodes (301 s); expected" in words(nodes=Watch(301), pods=Watch(0.0))
    assert "about nodes (301 s) and pods (4000 s)" in words(nodes=Watch(301), pods=Watch(4000))
    golden(words(nodes=Watch(5000, False), pods=Watch(4000)))


async def test_a_port_that_is_taken(tmp_path: Path, api: FakeApi) -> None:
    port = int(api.url.rsplit(":", 1)[1])
    process = await start(tmp_path, api, port)
    _, log = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 1
    assert f"ERROR gpushare_runtime.daemon.runner: cannot listen on 127.0.0.1:{port}: " in log.decode()
    assert "give another --listen" in log.decode()
    assert "Traceback" not in log.decode()
