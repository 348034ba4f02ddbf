# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The page in a real browser: `kubectl gpushare dashboard` on an API server of 3 nodes, 12 GPUs and 40 pods, which then changes."""

from __future__ import annotations

import colorsys
import json
import random
import shutil
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web

from dashboard.axe import axe_script
from dashboard.browser import Browser, Loop, Page
from dashboard.programs import Cluster, Running, bound_pod, kubectl_dashboard, publish_use, service, small_cluster, waiting_pod
from six_nodes import FAILED, six_nodes
from tree import REPOSITORY
from unit.fakes.runtime.kube.fake_api import kubeconfig
from unit.fakes.runtime.kubectl_gpushare.objects import node
from unit.fakes.runtime.pods import inventory

Json = dict[str, Any]
PICTURES: Final = REPOSITORY / "build" / "dashboard"
APPEARS_SECONDS: Final = 10.0
"""Five times what people are promised."""
HOSTILE: Final = '<img src=x onerror="window.broken=1"><script>window.broken=1</script>\x1b[31m\u202e'


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser(loop: Loop) -> Iterator[Browser]:
    made = Browser(loop)
    yield made
    made.close()


@pytest.fixture(scope="module")
def cluster(loop: Loop) -> Iterator[Cluster]:
    made = Cluster(loop)
    nodes, pods = small_cluster()
    made.put(*nodes, *pods)
    yield made
    made.close()


@pytest.fixture(scope="module")
def config(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("dashboard") / "kubeconfig"
    file.write_text(kubeconfig(cluster.api.url))
    return file


@pytest.fixture(scope="module")
def running(config: Path) -> Iterator[Running]:
    with kubectl_dashboard("--kubeconfig", str(config)) as found:
        yield found


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Six nodes with eight GPUs each, which publish the use of these, from a file."""
    nodes, pods = six_nodes()
    publish_use(nodes, pods, [FAILED[:2]])
    items = [{"kind": "Node", **one} for one in nodes] + [{"kind": "Pod", **one} for one in pods]
    file = tmp_path_factory.mktemp("six") / "six-nodes.json"
    file.write_text(json.dumps({"kind": "List", "items": items}))
    with kubectl_dashboard("--from-file", str(file)) as found:
        yield found


@pytest.fixture
def page(browser: Browser, running: Running) -> Iterator[Page]:
    with browser.page(running.url) as made:
        made.until("the nodes are there", "document.querySelectorAll('.row').length === 3")
        yield made
        assert made.errors == []


def go(page: Page, view: str) -> None:
    page.eval(f"location.hash = '#/{view}'")


def rows(page: Page) -> list[str]:
    """The name of each row, whose first link it is."""
    return list(page.eval("[...document.querySelectorAll('.row')].map(row => row.querySelector('a').textContent)"))


def fill(page: Page, field: str, value: str) -> None:
    page.eval(
        f"""(() => {{ const field = document.getElementById('filter-{field}'); field.value = {json.dumps(value)};
        field.dispatchEvent(new Event('input', {{bubbles: true}})); }})()"""
    )


def test_the_page_shows_what_kubectl_gpushare_shows(page: Page) -> None:
    text = page.text
    for expected in (
        "gpushare here",
        "95 of 272 GiB (34 %)",
        "4 × Tesla T4",
        "155 GiB",
        "10 usable of 12",
        "GPU 3 bad: XID 79",
        "GPU 2 cordoned",
        "GPU 3 5 orphaned",
        "10/16 GiB",
    ):
        assert expected in text
    names = [one["name"] for one in page.accessible() if one["role"] == "image"]
    assert "GPU 3: 0 of 16 GiB allocated, bad: XID 79" in names
    assert "GPU 0: 10 of 16 GiB allocated, ok; team-a/gpu1-0 1, team-a/gpu1-3 4, team-a/gpu1-6 3, team-a/gpu1-9 2" in names
    # Parts of a bar are as wide as what the pods have.
    widths = page.eval("[...document.querySelector('.gpus .bar').children].map(one => one.style.width)")
    assert widths == ["6.25%", "25%", "18.75%", "12.5%"]
    colours = page.eval("[...document.querySelectorAll('.gpus .bar i')].map(one => getComputedStyle(one).backgroundColor)")
    assert len(set(colours)) >= 3
    assert "rgba(0, 0, 0, 0)" not in colours[:12]


def test_nothing_is_loaded_from_elsewhere_and_the_token_is_nowhere_in_an_address(page: Page, running: Running) -> None:
    assert {url.split("/")[2] for url in page.urls} == {f"127.0.0.1:{running.port}"}
    assert not any(running.token in url for url in page.urls[1:])
    assert page.eval("location.href") == f"{running.origin}#/nodes"
    assert page.eval("document.cookie") == ""


def test_a_pod_that_is_created_appears_without_reload_and_goes_when_it_is_deleted(page: Page, cluster: Cluster) -> None:
    page.eval("window.same = true")
    # On an empty GPU.
    created = bound_pod("created", "gpu2", 3, 9, "team-new")
    cluster.put(created)
    page.until("the GPU is taken", "document.body.innerText.includes('9/16 GiB')", APPEARS_SECONDS)
    page.until("the sum follows", "document.getElementById('sums').innerText.includes('104 of 272')", APPEARS_SECONDS)
    go(page, "pods")
    fill(page, "namespace", "team-new")
    page.until("the pod is listed", "document.querySelector('.row a')?.textContent === 'team-new/created'")
    cluster.remove(created)
    page.until("the pod goes", "!document.querySelector('.row')", APPEARS_SECONDS)
    assert page.eval("window.same") is True


def test_a_pod_that_waits_shows_why_and_then_where_it_is(page: Page, cluster: Cluster) -> None:
    go(page, "waiting")
    page.until("those that wait", "document.querySelectorAll('.row').length === 4")
    assert "the largest GPU has 40; write at most 40" in page.text
    # What kube-scheduler says of all nodes gives way to what would help.
    page.until("the verdict", "document.body.innerText.includes('the GPUs fit on')")
    assert "0/3 nodes" not in page.text
    late = waiting_pod("late", 35, "team-w", "0/3 nodes are available: no room")
    cluster.put(late)
    page.until("one more", "document.querySelectorAll('.row').length === 5", APPEARS_SECONDS)
    go(page, "pod/team-w/late")
    page.until("the verdicts", "document.querySelectorAll('tbody tr').length === 3")
    shown = page.text
    assert "0/3 nodes are available: no room" not in shown
    page.eval("document.querySelector('summary').click()")
    page.until("the words", "document.body.innerText.includes('0/3 nodes are available: no room')")
    # It stays open when the page is read again.
    page.eval("window.before = document.querySelector('.page').lastChild")
    cluster.put(waiting_pod("late", 36, "team-w", "0/3 nodes are available: no room"))
    page.until("the new request", "document.body.innerText.includes('36 GiB')", APPEARS_SECONDS)
    assert "0/3 nodes are available: no room" in page.text
    assert "GPUs have room on 1 of 3 nodes" in shown
    assert "yes, GPU 3" in shown
    assert "its largest GPU has 16" in shown
    cluster.put(bound_pod("late", "gpu3", 3, 35, "team-w"))
    page.until("it is bound", "document.querySelector('.page').innerText.includes('35 of 40')", APPEARS_SECONDS)
    cluster.remove(late)
    page.until("it is gone", "document.querySelector('.page').innerText.includes('no such pod')", APPEARS_SECONDS)


def test_a_cure_is_copied_with_the_keyboard_and_the_page_says_so(browser: Browser, page: Page, cluster: Cluster) -> None:
    stuck = waiting_pod("stuck", 16, "team-w", "0/3 nodes are available: 3 no GPU has 16 GiB free")
    filling = bound_pod("filling", "gpu3", 3, 34, "team-w")
    cluster.put(
        stuck, filling, *(bound_pod(f"fill-{at}", "gpu3", at, 16, "team-w") for at in (1, 2)), bound_pod("four", "gpu2", 3, 1, "team-w")
    )
    go(page, "waiting")
    fill(page, "text", "stuck")
    row = "document.querySelector('.row')"
    page.until("the cure", f"{row}?.innerText.includes('cheapest change: ask for at most 15 GiB')", APPEARS_SECONDS)
    page.eval(f"{row}.querySelector('a').focus()")
    page.key("Tab")
    assert page.eval("document.activeElement.getAttribute('aria-label')") == "Copy: aliyun.com/gpu-mem: 15"
    context = page.send("Target.getTargetInfo")["targetInfo"]["browserContextId"]
    browser.send("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"], browserContextId=context)
    page.send("Page.bringToFront")
    page.key("Enter")
    page.until("it says so", "document.getElementById('copied').textContent === 'Copied: aliyun.com/gpu-mem: 15'")
    assert page.eval("navigator.clipboard.readText()") == "aliyun.com/gpu-mem: 15"
    assert page.eval("document.getElementById('copied').role") == "status"
    # As on a page without TLS, where no browser has a clipboard.
    page.eval("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.eval("document.querySelector('.copy').click()")
    field = "document.querySelector('#copied input')"
    page.until("the text is there", f"document.activeElement === {field}")
    assert page.eval(f"{field}.value.slice({field}.selectionStart, {field}.selectionEnd)") == "aliyun.com/gpu-mem: 15"
    go(page, "pod/team-w/stuck")
    page.until("its page", "document.querySelectorAll('tbody .copy').length > 2")
    copied = page.eval("[...document.querySelectorAll('.copy')].map(one => one.dataset.copy)")
    assert copied[0] == "aliyun.com/gpu-mem: 15"
    assert {"aliyun.com/gpu-mem: 14", "kubectl delete pod -n team-w four"} < set(copied)
    for one in ("stuck", "filling", "fill-1", "fill-2", "four"):
        cluster.remove(waiting_pod(one, 1, "team-w"))
    page.until("gone", "document.getElementById('waiting-count').textContent === '(4)'", APPEARS_SECONDS)


def test_filters(page: Page) -> None:
    fill(page, "state", "bad")
    assert rows(page) == ["gpu1"]
    fill(page, "state", "cordoned")
    assert rows(page) == ["gpu2"]
    fill(page, "state", "")
    fill(page, "model", "A100")
    assert rows(page) == ["gpu3"]
    fill(page, "model", "")
    fill(page, "text", "gpu2")
    assert rows(page) == ["gpu2"]
    assert page.eval("document.getElementById('view-text').textContent") == "1 of 3"
    fill(page, "text", "")
    fill(page, "sort", "free")
    assert rows(page)[0] == "gpu3"
    go(page, "pods")
    page.until("pods", "document.getElementById('view-title').textContent.startsWith('Pods')")
    fill(page, "namespace", "team-b")
    found = rows(page)
    assert len(found) == 12
    assert all(name.startswith("team-b/") for name in found)
    fill(page, "state", "orphaned")
    assert rows(page) == []
    assert "No pod has what the filter selects." in page.text
    page.eval("document.getElementById('filter-reset').click()")
    page.until("all again", "document.getElementById('view-text').textContent === '37'")
    fill(page, "state", "orphaned")
    assert rows(page) == ["team-a/gone"]


def test_everything_can_be_reached_with_the_keyboard(page: Page) -> None:
    def focused() -> str:
        return str(page.eval("document.activeElement.id || document.activeElement.textContent.trim()"))

    seen = []
    for _ in range(17):
        page.key("Tab")
        seen.append(focused())
        outline = page.eval("document.activeElement === document.body || getComputedStyle(document.activeElement).outlineStyle !== 'none'")
        assert outline, f"{seen[-1]} has the focus and does not show it"
    expected = ["Skip to content", "theme", "Nodes", "Pods", "Namespaces", "Waiting (4)", "History", "filter-text", "filter-namespace",
                "filter-model", "filter-state", "filter-sort", "filter-reset", "gpu1"]  # fmt: skip
    assert [one for one in seen if one in expected][: len(expected)] == expected
    page.eval("document.querySelector('.row a').focus()")
    for key, name in (
        ("ArrowDown", "gpu2"),
        ("End", "gpu3"),
        ("ArrowDown", "gpu3"),
        ("ArrowUp", "gpu2"),
        ("Home", "gpu1"),
        ("PageDown", "gpu3"),
    ):
        page.key(key)
        assert focused() == name
    page.key("Enter")
    page.until("the node's page", "document.getElementById('view-title').textContent === 'Node gpu3'")
    assert focused() == "view-title"
    page.eval("history.back()")
    page.until("back", "document.querySelectorAll('.row').length === 3")
    page.key("/")
    assert focused() == "filter-text"
    page.type("gpu1")
    page.until("filtered", "document.querySelectorAll('.row').length === 1")


def test_an_update_leaves_the_focus_where_it_is(page: Page, cluster: Cluster) -> None:
    page.eval("document.querySelectorAll('.row')[1].querySelector('a').focus()")
    created = bound_pod("meanwhile", "gpu2", 3, 7, "team-new")
    cluster.put(created)
    page.until("the update", "document.body.innerText.includes('7/16 GiB')", APPEARS_SECONDS)
    assert page.eval("document.activeElement.textContent") == "gpu2"
    cluster.remove(created)
    page.until("and back", "!document.body.innerText.includes('7/16 GiB')", APPEARS_SECONDS)


def test_the_pods_are_a_table_that_sorts(page: Page, cluster: Cluster) -> None:
    go(page, "pods")
    page.until("the columns", "!document.getElementById('view-head').hidden")
    columns = "[...document.querySelectorAll('#view-head button')]"
    assert page.eval(f"{columns}.map(one => one.textContent)") == ["Pod", "Node", "GPU", "Memory", "Unused", "SMs busy", "Age", "State"]
    cells = "[...document.querySelectorAll('.row')].map(row => [...row.children].map(one => one.textContent))"
    assert page.eval(cells)[0] == ["team-a/gone", "gpu3", "GPU 3: 5 GiB", "5 GiB", "–", "–", "–", "orphaned"]
    page.eval(f"{columns}.find(one => one.textContent === 'Memory').click()")
    sizes = [float(row[3].split()[0]) for row in page.eval(cells)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) > 2
    assert page.eval("document.activeElement.textContent") == "Memory"
    page.eval(f"{columns}.find(one => one.textContent === 'Node').click()")
    assert page.eval(cells)[0][1] == "gpu1"
    young = bound_pod("young", "gpu2", 1, 1, "team-new")
    young["metadata"]["creationTimestamp"] = (datetime.now(timezone.utc) - timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
    cluster.put(young)
    page.eval(f"{columns}.find(one => one.textContent === 'Age').click()")
    page.until("the youngest", f"{cells}[0][0] === 'team-new/young' && {cells}[0][6] === '5m'", APPEARS_SECONDS)
    cluster.remove(young)
    # Columns stand above their cells.
    left = "one => Math.round(one.getBoundingClientRect().left)"
    assert page.eval(f"{columns}.map({left})") == page.eval(f"[...document.querySelector('.row').children].map({left})")


def test_a_gpu_has_a_page_with_its_pods_and_what_has_changed(page: Page, cluster: Cluster) -> None:
    page.eval("document.querySelector('.row .label a').click()")
    page.until("the GPU's page", "document.getElementById('view-title').textContent === 'GPU 0 of gpu1'")
    page.until("its pods", "document.querySelectorAll('tbody tr').length === 4")
    assert "10 of 16 GiB" in page.text
    created = bound_pod("more", "gpu1", 0, 3, "team-new")
    cluster.put(created)
    page.until("one more", "document.querySelector('.page').innerText.includes('13 of 16 GiB')", APPEARS_SECONDS)
    assert "at most 13 since" in page.text
    cluster.remove(created)
    page.until("and back", "document.querySelector('.page').innerText.includes('10 of 16 GiB')", APPEARS_SECONDS)
    assert "10 of 16 GiB are allocated now, at most 13 since" in page.text
    go(page, "gpu/gpu1/9")
    page.until("there is none", "document.querySelector('.page')?.innerText.includes('no such GPU')")


def test_a_legend_names_the_colours(page: Page) -> None:
    entries = "[...document.querySelectorAll('#legend li')]"
    names = page.eval(f"{entries}.map(one => one.textContent)")
    assert {"team-a", "team-b", "team-c"} < set(names)
    assert names[-2:] == ["in use, no known pod", "takes no new pods"]
    mark = "getComputedStyle(one.querySelector('i')).backgroundColor"
    swatch = page.eval(f"{entries}.filter(one => one.textContent === 'team-a').map(one => {mark})[0]")
    parts = "[...document.querySelectorAll('.gpus .bar i')].filter(one => one.title.startsWith('team-a/gpu1-0:'))"
    assert swatch == page.eval(f"{parts}.map(one => getComputedStyle(one).backgroundColor)[0]")


def contrast(one: tuple[float, ...], two: tuple[float, ...]) -> float:
    """As WCAG 2 has it; colours as red, green and blue from 0 to 1."""

    def luminance(colour: tuple[float, ...]) -> float:
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    darker, lighter = sorted((luminance(one), luminance(two)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_colour_of_a_namespace_is_of_its_name_and_never_that_of_a_failure_or_a_warning(
    browser: Browser, six: Running, scheme: str
) -> None:
    script = """(async () => { const {swatch} = await import('/dom.js'); const canvas = document.createElement('canvas').getContext('2d');
        const pixel = (part, name) => { canvas.fillStyle = getComputedStyle(part).backgroundColor; canvas.fillRect(0, 0, 1, 1);
          return [name, [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map(one => one / 255)]; };
        return NAMES.map(name => { const made = swatch(name); document.body.append(made);
          const found = pixel(made.firstChild, name); made.remove(); return found; })
          .concat([pixel(document.querySelector('.gpus .bar:not(.unusable)'), 'free')]); })()"""
    names = [f"{word}-{number}" for word in ("team", "a", "ml-platform-research") for number in range(150)]
    found: list[dict[str, tuple[float, ...]]] = []
    for order in (names, names[::-1]):
        with browser.page(six.url) as page:
            page.scheme(scheme)
            page.until("the nodes", "document.querySelector('.gpus .bar:not(.unusable)') !== null")
            found.append({name: tuple(rgb) for name, rgb in page.eval(script.replace("NAMES", json.dumps(order)))})
    assert found[0] == found[1]
    free = found[0].pop("free")
    assert len(set(found[0].values())) > 200
    for name, rgb in found[0].items():
        hue = 360 * colorsys.rgb_to_hls(*rgb)[0]
        assert 60 < hue < 335, f"{name} has the hue {hue}"
        assert contrast(rgb, free) >= 3, f"{name} cannot be told from what is free"


SIX_VIEWS: Final = ("nodes", "pods", "waiting", "gpu/gpu4/6", "gpu/gpu1/6", "node/gpu1", "pod/notebooks/notebook-1",
                    "namespace/notebooks", "history")  # fmt: skip


@pytest.mark.parametrize(("width", "across"), [(420, 2), (800, 4), (1400, 4), (2560, 8)])
def test_nothing_overlaps_and_eight_gpus_are_in_rows_of_equal_length(browser: Browser, six: Running, width: int, across: int) -> None:
    with browser.page(six.url, width, 900) as page:
        page.until("the nodes", "document.querySelectorAll('.row').length > 1")
        lefts = page.eval("[...document.querySelector('.gpus').children].map(one => Math.round(one.getBoundingClientRect().left))")
        assert (len(lefts), len(set(lefts))) == (8, across)
        assert "offline" in page.eval("document.getElementById('status').textContent")
        page.until("what nodes publish", "document.querySelector('.gpus').innerText.includes('SM ')")
        for view in SIX_VIEWS:
            shown(page, view)
            assert page.eval("document.documentElement.scrollWidth") <= width, view
            overlapping = page.eval(
                """(() => { const boxes = [...document.querySelectorAll(
                    '#filters p > *, #view-head button, .gpus li, .row, .row .line > *, .cells > *, #legend li, header > *')]
                  .filter(one => one.offsetParent).map(one => [one, one.getBoundingClientRect()]);
                const over = [];
                for (const [a, one] of boxes) for (const [b, two] of boxes)
                  if (a !== b && !a.contains(b) && !b.contains(a) && a.compareDocumentPosition(b) & 4
                    && Math.min(one.right, two.right) - Math.max(one.left, two.left) > 1
                    && Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top) > 1)
                    over.push(`${a.tagName} ${a.textContent.slice(0, 30)} / ${b.tagName} ${b.textContent.slice(0, 30)}`);
                return over; })()"""
            )
            assert overlapping == [], f"{view} at {width}"
            for scheme in ("dark", "light"):
                page.scheme(scheme)
                page.picture(PICTURES / f"six-{view.replace('/', '-')}-{width}-{scheme}.png")
        assert page.errors == []


VIEWS: Final = (
    "nodes",
    "pods",
    "namespaces",
    "waiting",
    "history",
    "namespace/team-a",
    "node/gpu3",
    "gpu/gpu1/0",
    "pod/team-w/next",
    "pod/team-a/gpu1-0",
)


def shown(page: Page, view: str) -> None:
    go(page, view)
    page.until(f"{view} is shown", "!document.getElementById('view').hidden && document.getElementById('view-body').innerText.length > 20")
    page.until(f"{view} is read", "!document.getElementById('view-body').innerText.startsWith('Loading')")


def test_each_view_says_who_keeps_a_gpu_busy_and_who_has_it_for_nothing(browser: Browser, six: Running) -> None:
    with browser.page(six.url, 1280, 900) as page:
        page.until("the nodes", "document.querySelector('.gpus')?.innerText.includes('SM ')")
        cells = "row => [...row.children].map(cell => cell.textContent)"
        labels = page.eval("[...document.querySelector('.gpus').querySelectorAll('.figures')].map(one => one.textContent)")
        assert labels[:3] == ["72/80 GiB · SM 66 %", "78/80 GiB · SM 72 %", "80/80 GiB · SM 100 %"]
        texts = page.eval("[...document.querySelectorAll('.gpus li')].map(one => one.textContent)")
        (failed,) = [text for text in texts if "XID 79" in text]
        assert "SM" not in failed, "it does not answer"
        names = [one["name"] for one in page.accessible() if one["role"] == "image"]
        assert any(name.startswith("GPU 0: 72 of 80 GiB allocated, ok, SMs busy 66 %; ") for name in names)
        # Those at rest come first, those of which nothing is known last.
        shown(page, "pods")
        fill(page, "sort", "busy")
        page.until("sorted", "document.querySelector('.row').innerText.includes('notebook')")
        pods = page.eval(f"[...document.querySelectorAll('.row')].map({cells})")
        assert pods[0][0].startswith("notebooks/")
        assert pods[0][5] == "idle 27h"
        fill(page, "text", "ocr")
        page.until("these alone", "document.querySelector('.row').innerText.includes('vision/ocr')")
        assert page.eval(f"({cells})(document.querySelector('.row'))")[5] == "3 %"
        fill(page, "text", "")
        shown(page, "gpu/gpu1/6")
        assert "In use\n3 GiB" in page.text
        table = page.eval(f"[...document.querySelectorAll('.page tbody tr')].map({cells})")
        assert table == [[f"notebooks/notebook-{number}", "10 GiB", "0 %", "27h", "bound"] for number in range(1, 7)]
        shown(page, "node/gpu1")
        assert page.eval(f"[...document.querySelectorAll('.page tbody tr')].map({cells})")[0][5] == "66 %"
        shown(page, "pod/notebooks/notebook-1")
        assert "Nothing busy for\n27h" in page.text
        # A pod that keeps nothing busy is idle, however much memory it holds, and so is one that hardly holds any.
        shown(page, "namespace/notebooks")
        idle = page.eval(f"[...document.querySelectorAll('[aria-label=Idle] tbody tr')].map({cells})")
        assert len(idle) == page.eval("document.querySelectorAll('[aria-label=Pods] tbody tr').length")
        assert {row[5] for row in idle} == {"27h"}
        shown(page, "history")
        assert "The SMs of all GPUs are busy for" in page.text
        assert page.errors == []


def test_on_a_phone_the_first_gpu_is_in_sight_and_filters_are_behind_a_button(browser: Browser, six: Running) -> None:
    with browser.page(six.url, 420, 740) as page:
        page.until("the nodes", "document.querySelectorAll('.row').length > 1")
        assert page.eval("document.querySelector('.gpus .bar').getBoundingClientRect().bottom") < 740 / 2
        page.until("what nodes publish", "document.querySelector('.gpus').innerText.includes('SM ')")
        # The name of a GPU is not cut off by what stands beside it.
        names = "[...document.querySelectorAll('.gpus .label > :first-child')].slice(0, 8)"
        assert page.eval(f"{names}.filter(one => one.scrollWidth > one.clientWidth).map(one => one.textContent)") == []
        # Nor is the model of the node's GPUs.
        facts = "document.querySelector('.row .line > span')"
        assert page.eval(f"{facts}.textContent").endswith("NVIDIA A100-SXM4-80GB")
        assert page.eval(f"{facts}.scrollWidth <= {facts}.clientWidth")
        hidden = "document.getElementById('filter-text').offsetParent === null"
        assert page.eval(hidden)
        page.eval("document.getElementById('filter-toggle').focus()")
        page.key("Enter")
        page.until("the filters", f"!({hidden})")
        assert page.eval("document.getElementById('filter-toggle').ariaExpanded") == "true"
        fill(page, "text", "gpu2")
        assert page.eval("document.getElementById('filter-toggle').textContent") == "Filter (1)"
        fill(page, "text", "")
        shown(page, "node/gpu4")
        heads = page.eval("[...document.querySelectorAll('th')].map(one => one.textContent)")
        assert heads.index("State") < heads.index("Model")
        cells = "[...document.querySelectorAll('.page table')][0].querySelectorAll('tbody tr')[6].children"
        assert page.eval(f"{cells}[1].getBoundingClientRect().right") < 420
        # A name is in one line, however narrow the page is.
        lines = "one => one.getClientRects().length"
        assert page.eval(f"[...[...{cells}][6].querySelectorAll('span')].map({lines})") == [1]
        assert page.errors == []


def test_the_history_has_its_unit_at_the_axis_and_says_what_the_marks_are(page: Page) -> None:
    shown(page, "history")
    assert page.eval("[...document.querySelectorAll('svg .unit')].map(one => one.textContent)") == ["GiB", "pods"]
    assert page.eval("[...document.querySelectorAll('.legend li')].map(one => one.textContent)") == ["allocated", "all GPUs"]
    assert not page.eval("[...document.querySelectorAll('svg text')].some(one => /\\(/.test(one.textContent))")


def test_the_history_shows_how_busy_gpus_are_where_that_is_known(page: Page) -> None:
    data = {"source": "dashboard", "unit": "MiB", "problem": "", "time": [0, 30, 60], "total": [1024] * 3, "allocated": [0] * 3}
    data |= {"pending": [0] * 3, "busy": [None, 40, 20]}
    drawn = page.eval(
        "import('/chart.js').then(({chart}) => { const at = document.createElement('div'); "
        f"at.append(...chart({json.dumps(data)}, 600)); return [[...at.querySelectorAll('svg .unit')].map(one => one.textContent), "
        "[...at.querySelectorAll('tbody td:last-child')].map(one => one.textContent), at.textContent, "
        "[...[...at.querySelectorAll('svg.chart')].at(-1).querySelectorAll('.grid + text')].map(one => one.textContent).reverse()]; })"
    )
    assert drawn[:2] == [["GiB", "pods", "%"], ["–", "40", "20"]]
    assert drawn[3] == ["100", "50", "0"], "the load's scale, whatever the largest value"
    assert "busy for 20 % of the time, at most 40 %" in drawn[2]


def test_a_namespace_has_a_page_with_its_quota_and_its_pods(page: Page, cluster: Cluster) -> None:
    quota = {
        "metadata": {"name": "gpus", "namespace": "team-a"},
        "status": {"hard": {"requests.aliyun.com/gpu-mem": "64", "pods": "9"}, "used": {"requests.aliyun.com/gpu-mem": "31"}},
    }
    path = "/api/v1/namespaces/team-a/resourcequotas/gpus"
    cluster._loop.run(cluster.api.put(path, quota))
    go(page, "namespaces")
    page.until("the namespaces", "document.querySelectorAll('.row').length === 4")
    page.eval("[...document.querySelectorAll('.row a')].find(one => one.textContent === 'team-a').click()")
    page.until("its page", "document.querySelectorAll('.page table').length === 2")
    cells = "row => [...row.children].map(cell => cell.textContent)"
    tables = page.eval(f"[...document.querySelectorAll('.page table')].map(one => [...one.querySelectorAll('tbody tr')].map({cells}))")
    assert tables[0] == [["gpus", "units of memory", "31", "64", "33"]]
    assert len(tables[1]) == 13
    assert {row[0] for row in tables[1]} >= {"gone", "gpu1-0", "gpu3-9"}
    # It does not say that nothing is idle where it does not know.
    assert "Not known: no node publishes it" in page.text
    cluster._loop.run(cluster.api.remove(path))


def test_a_pod_has_its_events(page: Page, cluster: Cluster) -> None:
    event = {
        "metadata": {"name": "one", "namespace": "team-a"}, "type": "Warning", "reason": "GPUShareNoFit", "message": HOSTILE,
        "count": 3, "lastTimestamp": "2026-01-01T00:00:00Z", "source": {"component": "gpushare-extender"},
    }  # fmt: skip
    path = "/api/v1/namespaces/team-a/events/one"
    cluster._loop.run(cluster.api.put(path, event))
    go(page, "pod/team-a/gpu1-0")
    page.until("the Event", "document.querySelector('.page').innerText.includes('GPUShareNoFit')")
    assert "(3 times)" in page.text
    assert page.eval("window.broken") is None
    cluster._loop.run(cluster.api.remove(path))
    go(page, "pod/team-a/gpu1-3")
    page.until("no Event", "document.querySelector('.page').innerText.includes('None. Kubernetes keeps them')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_each_view_fits_in_both_themes_and_has_no_serious_fault_of_accessibility(page: Page, width: int, scheme: str) -> None:
    page.resize(width, 800)
    page.scheme(scheme)
    script = axe_script()
    assert script or not shutil.which("npm")
    for view in VIEWS:
        shown(page, view)
        assert page.eval("document.documentElement.scrollWidth") <= width, f"{view} is wider than {width}"
        light = page.eval("getComputedStyle(document.body).backgroundColor") == "rgb(245, 246, 248)"
        assert light == (scheme == "light")
        page.picture(PICTURES / f"{view.replace('/', '-')}-{width}-{scheme}.png")
        tree = page.accessible()
        assert [one["name"] for one in tree if one["role"] == "heading"][:1] != [""]
        for one in tree:
            if one["role"] in ("button", "link", "textbox", "searchbox", "combobox", "image", "table", "region", "list", "navigation"):
                assert one["name"] or one["role"] in ("list", "table"), f"{view}: a {one['role']} without a name"
        if script:
            if not page.eval("Boolean(window.axe)"):
                page.eval(script)
            found = page.eval("axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map(v => "
                              "[v.impact, v.id, v.nodes.map(n => n.target.join(' ') + ': ' + n.failureSummary).slice(0, 3)]))")  # fmt: skip
            assert [one for one in found if one[0] in ("serious", "critical")] == [], view


def test_the_chosen_theme_stays(page: Page, running: Running) -> None:
    page.scheme("light")
    for expected in ("light", "dark"):
        page.eval("document.getElementById('theme').click()")
        assert page.eval("document.documentElement.dataset.theme") == expected
    dark = page.eval("getComputedStyle(document.body).backgroundColor")
    page.eval("location.reload()")
    page.until("again", "document.querySelectorAll('.row').length === 3 && document.documentElement.dataset.theme === 'dark'")
    assert page.eval("getComputedStyle(document.body).backgroundColor") == dark == "rgb(20, 23, 27)"


def test_names_with_markup_are_text(page: Page, cluster: Cluster) -> None:
    bad_node = node(HOSTILE + "node", HOSTILE, gpus=inventory(16))
    bad_pod = waiting_pod(HOSTILE, 99, HOSTILE, HOSTILE * 1000)
    bound = bound_pod(HOSTILE + "bound", HOSTILE + "node", 0, 2, HOSTILE)
    # Under paths that the fake's own reader understands.
    loop, api = cluster._loop, cluster.api
    paths = ("/api/v1/nodes/bad", "/api/v1/namespaces/bad/pods/bad", "/api/v1/namespaces/bad/pods/bound")
    for path, value in zip(paths, (bad_node, bad_pod, bound), strict=True):
        loop.run(api.put(path, value))
    page.until("the node", "document.querySelectorAll('.row').length === 4", APPEARS_SECONDS)
    shown_name = HOSTILE.replace("\x1b", " ").replace("\u202e", " ")
    assert f"{shown_name}node" in rows(page)
    for view in ("pods", "waiting"):
        shown(page, view)
        link = page.until(
            "the pod", "[...document.querySelectorAll('.row a')].find(a => a.textContent.includes('onerror'))?.getAttribute('href')"
        )
        page.eval(f"location.hash = {json.dumps(link)}")
        page.until("its page", "document.getElementById('view-title').textContent.includes('onerror')")
        fill(page, "text", "")
    go(page, "nodes")
    page.until("nodes", "document.querySelectorAll('.row').length === 4")
    assert page.eval("window.broken") is None
    assert page.eval("document.querySelectorAll('img, main script').length") == 0
    for path in paths:
        loop.run(api.remove(path))
    page.until("gone", "document.querySelectorAll('.row').length === 3", APPEARS_SECONDS)


def test_what_the_page_holds_after_many_differences_is_the_whole(page: Page, cluster: Cluster) -> None:
    rng = random.Random(5)
    live: dict[str, Json] = {}
    for _ in range(60):
        name = f"churn-{rng.randrange(12)}"
        if name in live and rng.random() < 0.4:
            cluster.remove(live.pop(name))
        elif rng.random() < 0.5:
            live[name] = waiting_pod(name, rng.randrange(1, 90), "churn")
            cluster.put(live[name])
        else:
            live[name] = bound_pod(name, f"gpu{rng.randrange(1, 4)}", rng.randrange(3), 1, "churn")
            cluster.put(live[name])
    cluster.cut()
    page.eval(
        """(async () => {
        const {Model} = await import('/model.js'); const {Server} = await import('/stream.js');
        window.model = new Model(); const server = new Server(sessionStorage.token); window.changes = 0;
        const change = d => { window.changes++; model.apply(d); };
        server.follow({whole: d => model.replace(d), change, status() {}, reading() {}, lost() {}}, () => model.version);
        window.compare = async () => { const other = new Model(); other.replace(await server.get('/api/state'));
          const flat = m => JSON.stringify([m.sorted, [...m.waiting.values()].sort((a, b) => a.uid < b.uid ? -1 : 1), m.head.sums]);
          return other.version === model.version && flat(other) === flat(model); }; })()"""
    )
    page.until("the model is there", "model.version && compare()")
    for name in sorted(live):
        cluster.remove(live[name])
    for number in range(10):
        cluster.put(bound_pod(f"more-{number}", f"gpu{number % 3 + 1}", 0, 1, "churn"), waiting_pod(f"also-{number}", 50, "churn"))
    page.until("both are at the last version", "compare().then(same => same && changes > 0 && model.waiting.size === 14)", APPEARS_SECONDS)
    for number in range(10):
        cluster.remove(bound_pod(f"more-{number}", None, 0, 1, "churn"))  # type: ignore[arg-type]
        cluster.remove(waiting_pod(f"also-{number}", 50, "churn"))
    page.until("and again", "compare().then(same => same && model.waiting.size === 4)", APPEARS_SECONDS)
    # The pods that the page itself shows are those as well.
    page.until("the page, too", "document.getElementById('sums').innerText.includes('95 of 272')", APPEARS_SECONDS)


def test_a_page_of_the_service_survives_its_restart(browser: Browser, config: Path, cluster: Cluster, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("0123456789abcdef-of-the-test")
    with service(config, port, token) as url, browser.page(url) as page:
        page.until("the form", "!document.getElementById('login').hidden")
        page.type("0123456789abcdef-of-the-test")
        page.key("Enter")
        page.until("the nodes", "document.querySelectorAll('.row').length === 3")
        page.eval("window.same = true")
        first = page.eval("document.getElementById('sums').innerText")
    created = bound_pod("restarted", "gpu2", 3, 11, "team-new")
    with browser.page("about:blank") as page:
        with service(config, port, token) as url:
            page.open(f"{url}#token=0123456789abcdef-of-the-test")
            page.until("the nodes", "document.querySelectorAll('.row').length === 3")
            assert page.eval("document.getElementById('sums').innerText") == first
            page.eval("window.same = true")
        page.until("the page says so", "document.getElementById('status').textContent.includes('connection lost')", 60)
        cluster.put(created)
        with service(config, port, token):
            page.until("it is live again", "document.getElementById('status').textContent === 'live'", 60)
            page.until("and has the new pod", "document.body.innerText.includes('11/16 GiB')", 60)
            assert page.eval("window.same") is True
            cluster.remove(created)


def test_of_a_thousand_nodes_only_those_in_sight_are_in_the_document(browser: Browser, tmp_path: Path) -> None:
    items = [node(f"node-{at}", "10.0.0.1", *[16] * (1 + at % 8)) | {"kind": "Node"} for at in range(1000)]
    items += [bound_pod(f"pod-{at}", f"node-{at}", 0, 2, f"team-{at % 3}") | {"kind": "Pod"} for at in range(1000)]
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"kind": "List", "items": items}))
    with kubectl_dashboard("--from-file", str(file)) as running, browser.page(running.url, 700, 800) as page:
        page.until("nodes", "document.querySelectorAll('.row').length > 3")
        assert page.eval("document.querySelectorAll('.row').length") < 40
        page.eval("document.querySelector('.row a').focus()")
        page.key("End")
        assert page.eval("document.activeElement.textContent") == "node-999"
        assert page.eval("document.activeElement.closest('.row').getAttribute('aria-posinset')") == "1000"
        places = page.eval("""[...document.querySelectorAll('.row')].map(row => row.getBoundingClientRect())
            .map(box => [Math.round(box.top), Math.round(box.bottom)])""")
        assert all(before[1] == after[0] for before, after in pairwise(places)), "rows touch, and none covers another"
        page.eval("document.querySelector('.scroller').scrollTop = 20000")
        page.until("the middle", "[...document.querySelectorAll('.row')].some(r => r.getBoundingClientRect().top > 300)")
        assert page.eval("document.querySelectorAll('.row').length") < 40
        fill(page, "text", "node-77")
        page.until("filtered", "document.getElementById('view-text').textContent === '11 of 1000'")
        go(page, "pods")
        fill(page, "text", "")
        page.until("pods", "document.getElementById('view-text').textContent === '1000'")
        assert page.eval("document.querySelectorAll('.row').length") < 60
        assert page.errors == []


def test_memory_in_use_is_a_line_below_the_bar(browser: Browser, loop: Loop, config: Path) -> None:
    async def start() -> tuple[web.ServerRunner, str]:
        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            query = request.query.get("query", "")
            of_gpu = {"metric": {"uuid": "GPU-1-0"}, "value": [1, str(4 * 2**30)]}
            of_pod = {"metric": {"uid": "uid-gpu1-3", "uuid": "GPU-1-0"}, "value": [1, str(4 * 2**30)]}
            result = [of_gpu] if "gpu_memory_used" in query else [of_pod] if "pod_memory_used" in query else []
            return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})

        runner = web.ServerRunner(web.Server(answer), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"

    prometheus, url = loop.run(start())
    with kubectl_dashboard("--kubeconfig", str(config), "--prometheus", url) as running, browser.page(running.url) as page:
        label = page.until("the line", "document.querySelector('.used')?.getAttribute('aria-label')", 90)
        assert label == "4096 MiB used"
        assert page.eval("[...document.querySelectorAll('.used')].map(one => one.style.width)") == ["25%"]
        # A pod without a process on a GPU that answers uses nothing; of other GPUs nothing is known.
        go(page, "namespace/team-a")
        cells = "row => [...row.children].map(cell => cell.textContent).slice(0, 4)"
        idle = f"[...document.querySelectorAll('[aria-label=Idle] tbody tr')].map({cells})"
        page.until("the idle pods", f"{idle}.length > 0")
        assert page.eval(idle) == [
            ["gpu1-6", "gpu1", "3 GiB", "0 GiB"],
            ["gpu1-9", "gpu1", "2 GiB", "0 GiB"],
            ["gpu1-0", "gpu1", "1 GiB", "0 GiB"],
        ]
        assert "Of 9 more pods the memory in use is not known." in page.text
        assert "Unused\n6 GiB" in page.text
        assert page.errors == []
    loop.run(prometheus.cleanup())


def test_without_the_token_the_page_asks_for_it(browser: Browser, running: Running) -> None:
    with browser.page(running.origin) as page:
        page.until("the form", "!document.getElementById('login').hidden")
        assert page.eval("document.activeElement.id") == "token"
        page.type("wrong-token")
        page.key("Enter")
        page.until("rejected", "document.getElementById('login-text').textContent.includes('not valid')")
        page.type(running.token)
        page.key("Enter")
        page.until("the nodes", "document.querySelectorAll('.row').length === 3")
        # The browser logs the 401 itself.
        assert [error for error in page.errors if "401" not in error] == []


def test_another_process_without_the_token_reads_nothing(running: Running) -> None:
    def status(path: str, **headers: str) -> int:
        request = urllib.request.Request(f"{running.origin.rstrip('/')}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code

    assert status("/api/state") == 401
    assert status("/api/state", Authorization=f"Bearer {running.token}") == 200
    # As after DNS rebinding.
    assert status("/api/state", Authorization=f"Bearer {running.token}", Host=f"evil.example:{running.port}") == 421
    for file in ("cmdline", "environ"):
        assert running.token.encode() not in Path(f"/proc/{running.pid}/{file}").read_bytes()
