# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Files of kubelet as people have them get its feature gates: PyYAML, json and a shell judge, not our own readers.

`kubelet_configuration` has configurations, as a kubelet 1.10 finds them, which lacks the gate Accelerators. `kubelet_start` has units and
environment files; the name of a case begins with its release.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected, Texts
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet import service
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet.arguments import StartFile, start_of
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet.plan import KubeletState, plan_present, without

from unit.fakes.plugins.kubelet.fake_kubelet import CONFIG, DROP_IN, FakeKubelet
from unit.fakes.plugins.kubelet.found_states import NEW_DROP_IN
from unit.fakes.plugins.real_files.corpus import Case, kept, line_ends, parameters

WANTED = ("Accelerators", "DevicePlugins")


def loaded(text: str) -> Any:
    """The first document, as Kubernetes takes it: JSON where it begins with a brace."""
    text = text.lstrip("\ufeff")
    return json.loads(text) if text.lstrip().startswith("{") else next(one for one in yaml.safe_load_all(text) if one)


def planned(text: str) -> Texts:
    start = start_of([StartFile(DROP_IN, NEW_DROP_IN)], [])
    texts, _notes = plan_present(KubeletState((1, 10), start, (CONFIG, text), {DROP_IN: NEW_DROP_IN}, [DROP_IN]), WANTED)
    return texts


def opened(line: str) -> str:
    """A line of JSON as it is where another one follows."""
    return line.rstrip(",}")


@pytest.mark.parametrize("case", parameters("kubelet_configuration"))
def test_a_configuration(case: Case) -> None:
    (before,) = case.texts(CONFIG).values()
    if case.is_rejected():
        with pytest.raises(Rejected) as caught:
            planned(before)
        assert [words for words in case.says if words not in str(caught.value)] == [], caught.value
        return
    texts = planned(before)
    assert list(texts) == [CONFIG]
    after = texts[CONFIG] or ""
    was, now = loaded(before), loaded(after)
    had = was.get("featureGates") or {}
    assert now == {**was, "featureGates": {**had, "Accelerators": True, **({"DevicePlugins": True} if "DevicePlugins" in had else {})}}
    if before.lstrip().startswith("{"):
        assert list(now) == list({**was, "featureGates": {}})
    else:
        assert kept("\n".join(map(opened, before.splitlines())), "\n".join(map(opened, after.splitlines())), "featureGates", *WANTED) == []
    assert after.count("#") == before.count("#")
    assert line_ends(after) <= (line_ends(before) or {"\n"})

    assert planned(after) == {}

    back = without(CONFIG, after, before)
    assert loaded(back) == {key: value for key, value in was.items() if key != "featureGates" or value}
    assert back.count("#") == before.count("#")


@pytest.fixture
def made(tmp_path: Path) -> Iterator[list[FakeKubelet]]:
    hosts: list[FakeKubelet] = []
    yield hosts
    for host in hosts:
        host.close()


def state(host: FakeKubelet) -> KubeletState:
    unit, paths = service.find_unit("kubelet.service", host.run)
    return service.look(Host(str(host.root)), unit, paths, host.run)


def write(host: FakeKubelet, texts: Texts) -> None:
    """These files, a daemon-reload and a restart."""
    for path, text in texts.items():
        place = host.root.folder / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        if text is not None:
            place.write_bytes(text.encode())
    host.reload()
    host.start()


def others(argv: list[str]) -> list[str]:
    """The arguments that are none of our business."""
    return [word for word in argv if not word.startswith("--feature-gates")]


@pytest.mark.parametrize("case", parameters("kubelet_start"))
def test_a_start(made: list[FakeKubelet], tmp_path: Path, case: Case) -> None:
    release, _underscore, _name = case.name.partition("_")
    host = FakeKubelet(tmp_path, f"{release}.9", case.texts(DROP_IN))
    made.append(host)
    before = state(host)
    assert before.start.argv == host.argv[1:]
    if case.is_rejected():
        with pytest.raises(Rejected) as caught:
            plan_present(before, WANTED)
        assert [words for words in case.says if words not in str(caught.value)] == [], caught.value
        return
    argv, gates = host.argv, host.gates
    # Accelerators is gone since 1.11, and DevicePlugins on by default since 1.10.
    on = {"Accelerators"} if release in ("1.8", "1.9", "1.10") else set()
    on |= {"DevicePlugins"} if release in ("1.8", "1.9") or "DevicePlugins" in gates else set()

    texts, _notes = plan_present(before, WANTED)
    old = {path: before.texts.get(path) for path in texts}
    write(host, texts)
    assert host.active == "active"
    assert host.gates == {**gates, **dict.fromkeys(on, True)}
    assert others(host.argv) == others(argv)
    for path, text in texts.items():
        assert [line for line in kept(old[path] or "", text or "", "feature-gates", "_ARGS=") if line.strip()] == []

    assert plan_present(state(host), WANTED)[0] == {}

    # As if others had changed it since.
    write(host, {path: without(path, text or "", old[path] or "") for path, text in texts.items()})
    assert (host.gates, host.argv) == (gates, argv)
