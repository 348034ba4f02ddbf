# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kubelet, the device plugin, the API server and the node stop and come back: what runs is untouched, what is new is right."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime

import pytest

from e2e.api import ApiError, Json
from e2e.checks import check_devices, check_environment, check_follows, check_registers_again, check_runs, check_totals
from e2e.cluster import CONTROL_PLANE, GPUS, MEMORY, Cluster, CommandError, allocation, is_running
from e2e.manifests import pod
from e2e.running import NODE, PEOPLE, SPEC, NodeState, Say, Seen, check_untouched, ensure_people, node_state, on_two_gpus

pytestmark = pytest.mark.suite("failures")

PLUGIN = "gpushare-device-plugin"
CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
HELD = "/var/lib/gpushare-device-plugin/held.json"
UNITS = 48
FULL = os.environ.get("GPUSHARE_FULL") == "1"
OUTAGE_SECONDS = 60.0 if FULL else 20.0
JOINT_RESTARTS = 20 if FULL else 4
# So long kubelet waits for a plugin that waits for the driver.
STARTS_WITHIN = 20.0


@pytest.fixture(scope="module")
def three_gpus(cluster: Cluster) -> Iterator[Cluster]:
    """The node to disturb has three GPUs."""
    cluster.clear()
    cluster.lab("gpu", NODE, "--gpus", SPEC)
    try:
        assert check_follows(cluster, NODE) == []
        yield cluster
    finally:
        cluster.clear()
        cluster.lab("gpu", NODE, "--gpus", "2x16")
        assert check_follows(cluster, NODE) == []


@pytest.fixture
def people(three_gpus: Cluster) -> Cluster:
    """The cluster with pods of every kind that run on that node, and none else."""
    ensure_people(three_gpus)
    return three_gpus


def proven(cluster: Cluster, *names: str) -> list[str]:
    """What is wrong with these pods: they run, have exactly their annotated GPUs and say so; and no GPU is over-booked."""
    problems = [problem for name in names for problem in check_runs(cluster, name, seconds=60)]
    cluster.until(f"the annotations of {names} are true", lambda: not check_devices(cluster, map(cluster.pod, names)), 20, *names)
    pods = [cluster.pod(name) for name in names]
    return problems + check_devices(cluster, pods) + check_environment(cluster, pods) + check_totals(cluster)


def new_ones_are_right(cluster: Cluster) -> None:
    """New pods get what they ask for, and what runs keeps what it has even from a pod that no scheduler has placed."""
    cluster.create(pod("new", memory=5, node=NODE))
    cluster.create(on_two_gpus("new-two", 4))
    assert proven(cluster, "new", "new-two") == []
    greedy = pod("greedy", memory=16)
    greedy["spec"]["nodeName"] = NODE
    cluster.create(greedy)
    rejected = cluster.until("kubelet rejects a pod for which no GPU is free", lambda: failed(cluster, "greedy"), 30, "greedy")
    assert f"{MEMORY}: asked for 16 units" in rejected, rejected
    assert "delete the pod so that the scheduler places it again" in rejected
    cluster.delete("new", "new-two", "greedy")


def failed(cluster: Cluster, name: str) -> str:
    status = cluster.pod(name)["status"]
    return str(status.get("message", "no message")) if status.get("phase") == "Failed" else ""


def seconds_until(cluster: Cluster, what: str, probe: Callable[[], object]) -> float:
    started = time.monotonic()
    cluster.until(what, probe, 25)
    return time.monotonic() - started


def offered(cluster: Cluster) -> bool:
    allocatable = cluster.node(NODE)["status"]["allocatable"]
    return (allocatable.get(MEMORY), allocatable.get(GPUS)) == (str(UNITS), "3")


# kubelet and the device plugin.


def test_kubelet_restarts(people: Cluster, say: Say) -> None:
    before = node_state(people)
    problems, seconds = check_registers_again(people, NODE)
    for resource, after in seconds.items():
        say(f"{resource} registered after kubelet made its socket", after)
    assert problems == []
    assert check_follows(people, NODE) == []
    assert check_untouched(before, node_state(people)) == []
    new_ones_are_right(people)
    assert check_untouched(before, node_state(people)) == []


# As an administrator, and as needrestart, which sorts the services and restarts all in one call of systemctl (3.11, 2026-11-29).
TOGETHER = (("kubelet", PLUGIN), (f"{PLUGIN}.service", "kubelet.service"))


@pytest.mark.timeout(300 + JOINT_RESTARTS * 60)
def test_kubelet_and_the_plugin_restart_together(people: Cluster) -> None:
    """kubelet admits the pods again, and asks for the ids of an init container that has ended: none would fail if they were there.

    A plugin whose start takes its time would be too late for a kubelet that does not wait for it.
    """
    before, slowly = node_state(people), f"/run/systemd/system/{PLUGIN}.service.d/slowly.conf"
    with ExitStack() as later:
        later.callback(people.on, NODE, "sh", "-ec", f"rm -r $(dirname {slowly}); systemctl daemon-reload")
        drop_in = f"mkdir -p $(dirname {slowly}); printf '[Service]\\nExecStartPre=/bin/sleep 3\\n' >{slowly}; systemctl daemon-reload"
        people.on(NODE, "sh", "-ec", drop_in)
        restarted_together(people, before)
    assert check_follows(people, NODE) == []
    assert proven(people, *PEOPLE) == []


def restarted_together(people: Cluster, before: NodeState) -> None:
    for number in range(JOINT_RESTARTS):
        people.on(NODE, "systemctl", "restart", *TOGETHER[number % 2])
        # kubelet admits the oldest pods first. This one is not rejected because of units that were freed a moment ago.
        people.create(pod("last", node=NODE))
        people.until_running("last", seconds=60)
        lost = {name: message for name in PEOPLE if (message := failed(people, name))}
        assert (number, lost) == (number, {})
        people.until_running(*PEOPLE)
        people.delete("last")
        assert (number, check_untouched(before, node_state(people))) == (number, [])


def test_a_driver_that_hangs_does_not_hold_up_kubelet(people: Cluster, say: Say) -> None:
    """Who reads a pipe into which nobody writes waits as in the driver."""
    before, state = node_state(people), "/var/lib/gpushare-lab/gpus.state"
    people.on(NODE, "sh", "-ec", f"mv {state} {state}.kept; mkfifo {state}")
    try:
        started = time.monotonic()
        people.on(NODE, "systemctl", "restart", "kubelet", PLUGIN, seconds=5 * STARTS_WITHIN)
        say("kubelet restarted together with a plugin that waits for the driver", time.monotonic() - started)
        status = people.on(NODE, "systemctl", "show", PLUGIN, "-p", "ActiveState", "-p", "StatusText")
        assert "ActiveState=active" in status, status
        assert "NVML has not answered for 10 s" in status, status
        # Without a request of an init container running pods need no id.
        assert check_untouched(before, node_state(people), but=["others/main", "others/sidecar"]) == []
    finally:
        people.on(NODE, "sh", "-ec", f"rm {state}; mv {state}.kept {state}; systemctl kill -s KILL {PLUGIN}")
    assert check_follows(people, NODE) == []
    # kubelet asks for its init container's ids again, and on a busy machine rejects it only while the next test runs.
    people.delete("others")


def test_the_plugin_is_killed_in_a_burst_of_admissions(people: Cluster, say: Say) -> None:
    before = node_state(people)
    one = pod("burst", memory=1, node=NODE)
    template = {"metadata": {"labels": {"app": "burst"}}, "spec": one["spec"]}
    spec = {"replicas": 8, "selector": {"matchLabels": {"app": "burst"}}, "template": template}
    people.api.create("/apis/apps/v1/namespaces/default/deployments", {"metadata": {"name": "burst"}, "spec": spec})

    def burst() -> list[Json]:
        return [p for p in people.pods() if p["metadata"].get("labels", {}).get("app") == "burst"]

    people.until("the burst is being admitted", lambda: sum(bool(p["spec"].get("nodeName")) for p in burst()) >= 3, 30)
    say("kubelet has the plugin again after kill -9", killed_and_back(people))
    people.until("the whole burst runs", lambda: sum(map(is_running, burst())) == 8, 60)
    lost = [p["status"].get("message", "") for p in burst() if p["status"].get("phase") == "Failed"]
    print(f"pods of the burst that failed and were replaced: {len(lost)} {lost}")
    assert proven(people, *(p["metadata"]["name"] for p in burst() if is_running(p))) == []
    assert check_untouched(before, node_state(people)) == []
    people.api.delete("/apis/apps/v1/namespaces/default/deployments/burst", propagationPolicy="Foreground")
    people.until("the burst is gone", lambda: not burst(), 60)


FROZEN_SECONDS = 30.0


def is_registered(cluster: Cluster) -> bool:
    said = cluster.on(NODE, "systemctl", "show", PLUGIN, "-p", "ActiveState", "-p", "StatusText")
    return "ActiveState=active" in said and all(f"{resource}: registered with kubelet" in said for resource in (MEMORY, GPUS))


def test_kubelet_is_frozen_while_the_plugin_is_restarted_and_killed(people: Cluster, say: Say) -> None:
    """When kubelet awakes it finds the requests of two processes. From 1.37 on it keeps each by its socket, and rejects another there."""
    before, kubelet = node_state(people), people.on(NODE, "systemctl", "show", "-p", "MainPID", "--value", "kubelet").strip()
    started = time.monotonic()
    people.on(NODE, "kill", "-STOP", kubelet)
    try:
        people.on(NODE, "systemctl", "restart", PLUGIN, seconds=5 * STARTS_WITHIN)
        say("the plugin restarted while kubelet was frozen", time.monotonic() - started)
        people.on(NODE, "systemctl", "kill", "-s", "KILL", PLUGIN)
        time.sleep(max(0.0, started + FROZEN_SECONDS - time.monotonic()))
    finally:
        people.on(NODE, "kill", "-CONT", kubelet)
    thawed = time.monotonic()
    people.until("kubelet takes the plugin", lambda: is_registered(people), 60)
    say("kubelet has the plugin after it was frozen", time.monotonic() - thawed)
    assert check_follows(people, NODE) == []
    for _ in range(2):
        people.on(NODE, "systemctl", "restart", PLUGIN)
        people.until("kubelet takes the next process", lambda: is_registered(people), 60)
        assert check_follows(people, NODE) == []
    assert check_untouched(before, node_state(people)) == []
    new_ones_are_right(people)


OTHER = f"""
import asyncio, grpc.aio
from gpushare_runtime.device_plugin.kubelet.proto import deviceplugin_pb2 as pb, deviceplugin_pb2_grpc as rpc
folder = "unix:/var/lib/kubelet/device-plugins/"
class Other(rpc.DevicePluginServicer):
    async def GetDevicePluginOptions(self, request, context):
        return pb.DevicePluginOptions()
    async def ListAndWatch(self, request, context):
        yield pb.ListAndWatchResponse(devices=[pb.Device(ID="another", health="Healthy")])
        await asyncio.sleep(60)
async def main():
    server = grpc.aio.server()
    rpc.add_DevicePluginServicer_to_server(Other(), server)
    server.add_insecure_port(folder + "another.sock")
    await server.start()
    async with grpc.aio.insecure_channel(folder + "kubelet.sock") as channel:
        asked = pb.RegisterRequest(version="v1beta1", endpoint="another.sock", resource_name="{MEMORY}")
        await rpc.RegistrationStub(channel).Register(asked)
    await asyncio.sleep(5)
asyncio.run(main())
"""


def test_another_device_plugin_for_the_memory_registers_and_ends(people: Cluster, say: Say) -> None:
    """kubelet reads the list of ours all the time, and has nothing of it."""
    before, process = node_state(people), main_process(people)
    people.on(NODE, "/opt/gpushare/current/bin/python", "-c", OTHER)
    ended = time.monotonic()
    people.until("the log says so", lambda: "another device plugin has registered" in people.on(NODE, "journalctl", f"_PID={process}"), 180)
    people.until("kubelet has all ids again", lambda: check_follows(people, NODE, 1) == [], 60)
    say("kubelet has all units after another plugin has ended", time.monotonic() - ended)
    assert (main_process(people), check_untouched(before, node_state(people))) == (process, [])
    new_ones_are_right(people)


# The API server.


@contextmanager
def no_api_server(cluster: Cluster) -> Iterator[None]:
    """Its manifest is moved away, as an administrator stops it, and comes back after the outage; then it answers."""
    manifest, aside = "/etc/kubernetes/manifests/kube-apiserver.yaml", "/etc/kubernetes/kube-apiserver.yaml"
    cluster.on(CONTROL_PLANE, "mv", manifest, aside)
    try:
        cluster.until("the API server has ended", lambda: not answers(cluster), 60)
        yield
    finally:
        cluster.on(CONTROL_PLANE, "mv", aside, manifest)
        cluster.until("the API server answers", lambda: answers(cluster), 120)


def answers(cluster: Cluster) -> bool:
    try:
        cluster.api.get("/version")
    except (ApiError, OSError):
        return False
    return True


def test_the_api_server_is_away(people: Cluster, say: Say) -> None:
    """Pods that are bound already start without it, a container that ends starts again with its GPU, the plugin itself restarts."""
    people.create(pod("restarts", memory=1, node=NODE))
    people.until_running("restarts")
    bound = ("bound-2", "bound-3")
    # kubelet waits for the answer about the first, and so has seen both and started neither when the API server ends.
    people.on(NODE, "systemctl", "kill", "-s", "STOP", PLUGIN)
    try:
        for name in bound:
            wanted = pod(name, memory=int(name[-1]), node=NODE)
            # A token for the container kubelet would have to fetch.
            wanted["spec"]["automountServiceAccountToken"] = False
            people.create(wanted)
        people.until("both are bound", lambda: all(people.pod(name)["spec"].get("nodeName") for name in bound), 30)
        before = node_state(people)
        with no_api_server(people):
            started = time.monotonic()
            people.on(NODE, "systemctl", "kill", "-s", "CONT", PLUGIN)
            mains = {f"{name}/main" for name in bound}
            waited = seconds_until(people, "the bound pods start", lambda: mains <= set(node_state(people).containers))
            say("two bound pods start without the API server", waited)
            people.on(NODE, "kill", "-9", str(before.containers["restarts/main"].pid))
            again = people.until("the container starts again", lambda: restarted(people, before), 60)
            assert again.devices == before.containers["restarts/main"].devices
            say("kubelet has the plugin again after kill -9, without the API server", killed_and_back(people))
            during = node_state(people)
            assert check_untouched(before, during, but=["restarts/main"]) == []
            people.until("the outage is over", lambda: time.monotonic() - started >= OUTAGE_SECONDS, OUTAGE_SECONDS + 60)
    finally:
        people.on(NODE, "systemctl", "kill", "-s", "CONT", PLUGIN)
    assert proven(people, "restarts", *bound) == []
    assert check_untouched(during, node_state(people)) == []
    people.delete("restarts", *bound)
    new_ones_are_right(people)
    assert check_untouched(before, node_state(people), but=["restarts/main"]) == []


def restarted(cluster: Cluster, before: NodeState) -> Seen | None:
    now = node_state(cluster).containers.get("restarts/main")
    return now if now and now.id != before.containers["restarts/main"].id else None


def main_process(cluster: Cluster) -> str:
    return cluster.on(NODE, "systemctl", "show", "-p", "MainPID", "--value", PLUGIN).strip()


def killed_and_back(cluster: Cluster) -> float:
    """Seconds from the end of the plugin's process until its next one has told kubelet of the ids of both resources, by the journal."""
    before, since = main_process(cluster), time.time()
    cluster.on(NODE, "systemctl", "kill", "-s", "KILL", PLUGIN)

    def told() -> list[float]:
        now = main_process(cluster)
        entries = "" if now in ("0", before) else cluster.on(NODE, "journalctl", "-o", "json", f"_PID={now}")
        lines = [entry for entry in map(json.loads, entries.splitlines()) if "ids to kubelet, " in str(entry["MESSAGE"])]
        return [int(entry["__REALTIME_TIMESTAMP"]) / 1e6 for entry in lines][1:]

    return cluster.until("the new process tells kubelet of its ids", told, 25)[0] - since


# What was written down.

LOST = f"rm {CHECKPOINT}"
TORN = f"truncate -s 400 {CHECKPOINT}"
OLDER = f"""python3 - <<'END'
import json
path = "{CHECKPOINT}"
content = json.load(open(path))
for entry in content["Data"]["PodDeviceEntries"]:
    entry["DeviceIDs"] = [i for ids in entry["DeviceIDs"].values() for i in ids]
json.dump(content, open(path, "w"))
END"""


@pytest.mark.parametrize(
    "change", [LOST, OLDER, *([TORN] if FULL else [])], ids=["lost", "of_an_earlier_version", *(["torn"] if FULL else [])]
)
def test_kubelet_cannot_read_its_checkpoint(people: Cluster, say: Say, change: str) -> None:
    """kubelet then knows of no pod that has ids, and says so in its log: who has what, the plugin knows."""
    before = node_state(people)
    people.on(NODE, "systemctl", "stop", "kubelet")
    since = next_second()
    try:
        people.on(NODE, "sh", "-c", change)
    finally:
        people.on(NODE, "systemctl", "start", "kubelet")
    started = time.monotonic()
    people.until("kubelet offers all units", lambda: beats_since(people, since) and offered(people), 30)
    say("allocatable is back after kubelet starts without its checkpoint", time.monotonic() - started)
    said = people.on(NODE, "journalctl", "--no-pager", "-u", "kubelet", "--since", f"@{int(since)}")
    assert re.search("[Ff]ail(ed|ing) to read .*checkpoint", said), said
    assert check_untouched(before, node_state(people)) == []
    new_ones_are_right(people)
    # A container of a pod that kubelet has forgotten ends: it starts again, with the same GPU.
    one = before.containers["one/main"]
    people.on(NODE, "kill", "-9", str(one.pid))
    people.until("it starts again", lambda: node_state(people).containers.get("one/main", one).id != one.id, 60, "one")
    after = node_state(people)
    assert after.containers["one/main"].devices == one.devices
    assert check_untouched(before, after, but=["one/main"]) == []
    assert proven(people, *PEOPLE) == []
    # kubelet has no record of the others until they end.
    people.clear()


LOSSES = 20 if FULL else 2
MANY = 16
# kubelet tries a failed start again after 10 to 15 s, and waits longer from time to time.
STARTS_AGAIN = 300.0
# After kubelet's start: then the plugin registers anew, and kubelet starts containers without a record.
SETTLED = 20.0
READER = "reads-podresources"
READ = f"""
import asyncio, pathlib
from gpushare_runtime.device_plugin.kubelet.podresources import PodResourcesError, list_ids
async def read():
    while True:
        try:
            await list_ids(pathlib.Path("/var/lib/kubelet/pod-resources/kubelet.sock"), ["{MEMORY}"])
        except PodResourcesError:
            pass
        await asyncio.sleep(0.01)
asyncio.run(read())
"""


def resize_seen(one: Json) -> bool:
    """Whether kubelet has answered a resize in place to 200m of the pod's only container."""
    states = one["status"].get("containerStatuses", ())
    done = any(state.get("resources", {}).get("limits", {}).get("cpu") == "200m" for state in states)
    return done or any(condition["type"].startswith("PodResize") for condition in one["status"].get("conditions", ()))


def kubelet_process(cluster: Cluster) -> str:
    return cluster.on(NODE, "systemctl", "show", "kubelet", "-p", "MainPID", "-p", "NRestarts").strip()


def last_words(cluster: Cluster, seconds: float) -> str:
    """What kubelet said when it ended, and the device plugin in that time."""
    since = f"-{seconds + 5:.0f}s"
    kubelet = cluster.on(
        NODE, "sh", "-c", f"journalctl -u kubelet -o short-precise --since {since} | grep -A3 -m1 -E 'panic|fatal|Main process exited'; :"
    )
    return kubelet + cluster.on(NODE, "journalctl", "-u", PLUGIN, "-o", "short-precise", "--no-hostname", "--since", since)


@pytest.mark.timeout(60 + LOSSES * 400)
def test_all_containers_end_at_once_after_a_lost_checkpoint(three_gpus: Cluster, say: Say) -> None:
    """kubelet asks for all of them at once and does not lock what it shares between them; others read what it has, and resize a pod.

    That pod's own container goes on: with control groups of version 1 kubelet does not raise its pod's limit if it ends meanwhile.
    """
    names, resizes = [f"many-{number}" for number in range(MANY)], "resized"
    three_gpus.on(NODE, "systemd-run", f"--unit={READER}", "/opt/gpushare/current/bin/python", "-c", READ)
    reads = ["ActiveState=active", "NRestarts=0"]
    try:
        for _ in range(LOSSES):
            three_gpus.clear()
            for name in (*names, resizes):
                one = pod(name, memory=2, node=NODE)
                one["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "100m"
                three_gpus.create(one)
            three_gpus.until_running(*names, resizes, seconds=120)
            assert proven(three_gpus, *names, resizes) == []
            before = node_state(three_gpus)
            three_gpus.on(NODE, "sh", "-c", f"systemctl stop kubelet; {LOST}; systemctl start kubelet")
            started = time.monotonic()
            three_gpus.until("kubelet offers all units", lambda: offered(three_gpus), 60)
            time.sleep(max(0.0, started + SETTLED - time.monotonic()))
            process = kubelet_process(three_gpus)
            resized = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": "200m"}, "requests": {"cpu": "200m"}}}]}}
            three_gpus.kubectl("patch", "pod", resizes, "--subresource", "resize", "--patch", json.dumps(resized))
            mains = {name: before.containers[f"{name}/main"] for name in names}
            three_gpus.on(NODE, "kill", "-9", *(str(seen.pid) for seen in mains.values()))
            ended = time.monotonic()

            def again() -> int:
                now = node_state(three_gpus).containers
                return sum(f"{name}/main" in now and now[f"{name}/main"].id != seen.id for name, seen in mains.items())  # noqa: B023

            three_gpus.until("a container runs again", again, STARTS_AGAIN, *names)
            say("the first of 16 containers runs again after a lost checkpoint", time.monotonic() - ended)
            three_gpus.until("all containers run again", lambda: again() == MANY, STARTS_AGAIN, *names)
            say("all of 16 containers run again after a lost checkpoint", time.monotonic() - ended)
            assert kubelet_process(three_gpus) == process, last_words(three_gpus, time.monotonic() - started)
            three_gpus.until("kubelet has resized the pod, or says why not yet", lambda: resize_seen(three_gpus.pod(resizes)), 60, resizes)
            assert proven(three_gpus, *names, resizes) == []
            # Somebody has read podresources all the time.
            assert sorted(three_gpus.on(NODE, "systemctl", "show", READER, "-p", "ActiveState", "-p", "NRestarts").split()) == reads
    finally:
        three_gpus.on(NODE, "systemctl", "stop", READER)
        three_gpus.clear()


def test_the_plugin_cannot_read_what_it_wrote(people: Cluster) -> None:
    before = node_state(people)
    uids = {people.pod(name)["metadata"]["uid"] for name in PEOPLE}
    for change in (f"rm {HELD}", f"echo no JSON > {HELD}"):
        people.on(NODE, "systemctl", "stop", PLUGIN)
        try:
            people.on(NODE, "sh", "-c", change)
        finally:
            people.on(NODE, "systemctl", "start", PLUGIN)
        assert check_follows(people, NODE) == []
        people.until("it says again who has what", lambda: pods_held(people) == uids, 25)
        assert check_untouched(before, node_state(people)) == []
    new_ones_are_right(people)
    assert check_untouched(before, node_state(people)) == []


def pods_held(cluster: Cluster) -> set[str]:
    """The UIDs of the pods that hold something by the plugin's own record; none while it cannot be read."""
    try:
        return set(json.loads(cluster.on(NODE, "cat", HELD))["pods"])
    except (CommandError, ValueError):
        return set()


# The node.


def test_the_node_restarts(people: Cluster, say: Say, capsys: pytest.CaptureFixture[str]) -> None:
    """No process outlives it. kubelet admits the pods anew: those that come before the plugin fail, and their controllers replace them."""
    template = {"metadata": {"labels": {"app": "kept"}}, "spec": pod("kept", memory=2, node=NODE)["spec"]}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "kept"}}, "template": template}
    people.api.create("/apis/apps/v1/namespaces/default/deployments", {"metadata": {"name": "kept"}, "spec": spec})

    def kept(since: float = 0) -> list[Json]:
        return [p for p in people.pods() if p["metadata"].get("labels", {}).get("app") == "kept" and runs_since(p, since)]

    people.until("the Deployment runs", lambda: len(kept()) == 2, 60)
    gpus = {name: allocation(people.pod(name)) for name in PEOPLE}
    with suppress(CommandError):
        # The command ends with the node.
        people.on(NODE, "systemctl", "reboot", "--force", "--force")
    people.until("the node is off", lambda: not on(people), 60)
    since, started = next_second(), time.monotonic()
    people.lab("up", seconds=300)
    say("node restarted and Ready", time.monotonic() - started)
    people.until("all units are offered again", lambda: beats_since(people, since) and offered(people), 120)
    say("all units offered again after the restart", time.monotonic() - started)

    def settled() -> bool:
        pods = [people.pod(name) for name in PEOPLE]
        return all(runs_since(p, since) or p["status"].get("phase") == "Failed" for p in pods) and len(kept(since)) == 2

    people.until("every pod runs again or has failed", settled, 120, *PEOPLE)
    pods = {name: people.pod(name) for name in PEOPLE}
    lost = {name: p["status"].get("message", "") for name, p in pods.items() if not is_running(p)}
    with capsys.disabled():
        print(f"\nof {len(pods)} bare pods {len(pods) - len(lost)} run again, {len(lost)} failed {lost}", end="", flush=True)
    assert all(re.search("unregistered device|no healthy devices", message) for message in lost.values()), lost
    assert {name: allocation(pods[name]) for name in pods if name not in lost} == {n: c for n, c in gpus.items() if n not in lost}
    assert proven(people, *(name for name in pods if name not in lost), *(p["metadata"]["name"] for p in kept())) == []
    people.api.delete("/apis/apps/v1/namespaces/default/deployments/kept", propagationPolicy="Foreground")
    people.until("the Deployment's pods are gone", lambda: not kept(), 60)
    ensure_people(people)
    new_ones_are_right(people)


def runs_since(one: Json, when: float) -> bool:
    """Whether the pod's containers run and were started from then on: what the API has may be from before a restart."""
    running = [status["state"].get("running") for status in one["status"].get("containerStatuses", ())]
    return is_running(one) and all(since and datetime.fromisoformat(since["startedAt"]).timestamp() >= when for since in running)


def on(cluster: Cluster) -> bool:
    try:
        cluster.on(NODE, "true")
    except CommandError:
        return False
    return True


def test_a_folder_of_kubelet_that_is_made_anew_is_served_again(three_gpus: Cluster) -> None:
    """As by `kubeadm reset` and `join`. Only the folder that was there at its start is writable for the plugin."""
    three_gpus.clear()
    since = next_second()
    folder = "/var/lib/kubelet/device-plugins"
    three_gpus.on(NODE, "sh", "-ec", f"systemctl stop kubelet; rm -r {folder}; systemctl start kubelet")

    def again() -> bool:
        log = three_gpus.on(NODE, "journalctl", "-u", PLUGIN, "--since", f"@{int(since)}")
        _, ended, later = log.partition(f"{folder} was removed and created again")
        return bool(ended) and all(f"{resource}: reporting " in later for resource in (MEMORY, GPUS))

    three_gpus.until("the plugin has ended and been started again, and kubelet has its list", again, 60)
    assert check_follows(three_gpus, NODE, 60) == []
    three_gpus.create(pod("anew", memory=5, node=NODE))
    assert proven(three_gpus, "anew") == []
    three_gpus.delete("anew")


def next_second() -> float:
    """Waits for it and returns it. The API has times in whole seconds: what comes now could be taken for what was before."""
    since = float(int(time.time()) + 1)
    time.sleep(max(0.0, since - time.time()))
    return since


def beats_since(cluster: Cluster, when: float) -> bool:
    """Whether the node's own word is of then or later. kubelet says it once at its start, and then only what changes, for five minutes."""
    ready = next(c for c in cluster.node(NODE)["status"]["conditions"] if c["type"] == "Ready")
    return datetime.fromisoformat(ready["lastHeartbeatTime"]).timestamp() >= when and ready["status"] == "True"
