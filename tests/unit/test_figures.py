# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Every number with a unit on the pages is that of the code or of a saved result, or is listed here with its origin."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.variables import variables

from figures import FIGURES, OPERATE, REFERENCE, plain, rewritten
from gpushare_lab import debian
from gpushare_runtime.device_plugin.gpu import discovery
from gpushare_runtime.extender import leadership
from measured import read, span
from tree import REPOSITORY, files

ROWS = [(page, words, values) for page, rows in FIGURES.items() for words, values in rows]
#: (page, words, where the number comes from)
ELSEWHERE = [
    (
        f"{OPERATE}/migrate.md",
        "deletes them 30 s after the driver has gone",
        "kubelet 1.37.2, pkg/kubelet/cm/dra: its delay before it wipes them",
    ),
    *(
        (f"{OPERATE}/kubernetes.md", words, "what tests/cluster_mode/test_killed.py has printed at full size")
        for words in (
            "with two GPU nodes",
            "with 100 pods pending, 5 times",
            "of 304 pods with 55 pods of scheduler",
            "failed 9 pods",
            "with 8 pods |",
            "its GPU | 44.5–61.0 s",
            "bound after at most 22.3 s",
            "the last after 26.7 s",
            "extender 43 MiB",
            "device plugin 59 MiB",
        )
    ),
    (f"{OPERATE}/failures.md", "Kubernetes' Lease takes 15 s", "kube-scheduler's default"),
    (
        f"{OPERATE}/failures.md",
        "8 of 8 bare pods with GPUs failed at a reboot, and the node had all units 15.2 s after power-on",
        "what tests/cluster_mode/test_killed.py has printed",
    ),
    *(("docs/project/faults.md", words, "what the suite verify has printed") for words in ("it took 8.0 s", "and 13.3 s with probe pods")),
    (
        "docs/project/faults.md",
        "it took 19 and 29 s, and 29 and 34 s with probe pods",
        "what tests/verify/test_quiet.py has printed, 2026-11-29",
    ),
    *(
        ("docs/project/faults.md", words, "a limit that was planted")
        for words in ("kube-scheduler with 20 MiB of memory", "gives the device plugin 8 MiB")
    ),
    ("docs/project/faults.md", "`verify` took 31 to 197 s", "what the suite verify has printed, 2026-11-30"),
    ("docs/project/faults.md", "ran into the 300 seconds of a test", "the timeout of tests in pyproject.toml"),
    ("docs/project/dra.md", "with at least 6 GiB that no other claim", "an example"),
    (f"{OPERATE}/eks.md", "a node that is 30 days old (`expireAfter`)", "Karpenter's default of spec.template.spec.expireAfter, 720h"),
    *(
        (
            "docs/project/dra.md",
            words,
            "what bench.placement has printed: filled, openb default and gpuspec25, seed 42; the extender's of placement.json",
        )
        for words in (
            "| 90 % | 85.1 % | 85.1 % | 90.0 % |",
            "| 100 % | 93.4 % | 93.5 % | 94.3 % |",
            "| 130 % | 95.1 % | 95.1 % | 94.6 % |",
            "it is 87.4 % with both when pods ask for 100 %, and 94.5 % with both at 130 %",
            "would be 0.5 writes for each pod",
        )
    ),
    ("docs/project/dra.md", "every 10 s", "_HEALTH_SECONDS of dra/driver.py"),
    ("docs/project/dra.md", "about one claim every 20 s", "TURN_SECONDS of dra/prepared.py"),
    ("docs/project/dra.md", "forgets it after 30 s", "kubelet 1.37.2, pkg/kubelet/cm/dra/healthinfo.go: DefaultHealthTimeout"),
    ("docs/project/dra.md", "ran 94 s after power-on", "what tests/dra/test_reboot.py has printed, 2026-11-30"),
    *(
        ("docs/project/dra.md", words, "rounds of bench.scheduling with these parts left out by hand, 2026-12-01")
        for words in (
            "with the same 500 nodes and 600 pods",
            "| nothing | 61 | 23 ms |",
            "selector | 76 | 16 ms |",
            "for people | 64 | 18 ms |",
            "| these three | 73 | 16 ms |",
            "of the class | 81 | 14 ms |",
        )
    ),
    ("docs/use/dra.md", "no GPU has 25 GiB", "the GPUs of the lab's table"),
    *(
        (page, "63 characters", "Kubernetes, the length of a label of DNS (RFC 1123)")
        for page in ("docs/project/dra.md", "docs/use/dra.md")
    ),
    (f"{REFERENCE}/events.md", "8 GiB of GPU 2 (NVIDIA A100 80GB)", "an example"),
    *(
        (f"{OPERATE}/capacity.md", words, "docs/project/benchmarks/gpu-nvidia-h100-80gb-hbm3.json and -h200.json, step memory")
        for words in ("with driver 580 494 MiB on an H100", "and 629 MiB on an H200")
    ),
    (f"{REFERENCE}/device-plugin.md", "went through 20 of 20 such losses", "tests/e2e/test_node_life.py with GPUSHARE_FULL=1, 2026-11-27"),
    ("docs/project/gpu-proof.md", "`site` took 82.7 s", "docs/project/benchmarks/one-node-h100.json"),
    ("docs/project/gpu-proof.md", "it computed 3.2 s later", "the same"),
    ("docs/project/gpu-proof.md", "with 8, 16 and 53 units had the 79 units", "the same"),
    ("docs/project/gpu-proof.md", "states a limit of 81559", "nvidia-cuda-mps-control of 580.159.04 on an H100"),
    ("docs/project/gpu-proof.md", "as `79G`", "the same"),
    ("docs/project/gpu-proof.md", "with 36 MiB", "what gpu_proof.pack has printed for this lock"),
    (f"{OPERATE}/offline.md", "17 MB of wheels on a GPU node, 31 MB on a control plane", "by this lock"),
    ("docs/project/release.md", "it would have 214 MB", "169.4 MB by the lock of 2026-11-24, and one image of 44.5 MB"),
    (f"{OPERATE}/high-availability.md", "another takes it within 2 s", "kube-scheduler's retryPeriod"),
    (f"{OPERATE}/high-availability.md", "kube-scheduler retries after 1, 2, 4 and 8 s", "kube-scheduler's backoff"),
    (f"{OPERATE}/high-availability.md", "the try after 7 s", "their sum"),
    (f"{OPERATE}/high-availability.md", "expires after 15 s (kube-scheduler's default)", "kube-scheduler's leaseDuration"),
    (f"{OPERATE}/high-availability.md", "of which the Lease takes 15 s", "the same"),
    (f"{OPERATE}/high-availability.md", "after 5 minutes at most", "kube-scheduler's podMaxInUnschedulablePodsDuration"),
    (f"{OPERATE}/high-availability.md", "the limit is 1 minute", "kube-scheduler's unschedulableQTimeInterval"),
    (f"{OPERATE}/high-availability.md", "longer than 2 minutes in a cluster where nothing else happened", "tests/generations"),
    (f"{OPERATE}/failures.md", "kubelet sends its node status every 10 s", "kubelet's default"),
    (f"{REFERENCE}/device-plugin.md", "kubelet tries it again after 10 to 15 s", "kubelet's backOffPeriod and its jitter"),
    (f"{OPERATE}/migrate-original.md", "with 50 pods that the original had started", "the test of that section starts them"),
    (f"{OPERATE}/monitoring/README.md", "After 5 minutes the extender returns errors", "below"),
    (f"{OPERATE}/troubleshooting.md", "Wait 10 s.", "below"),
    (f"{OPERATE}/troubleshooting.md", "a warning in its last 14 days", "_LATE_SECONDS of plugin_utils/_verdict/near_end.py"),
    (f"{REFERENCE}/device-plugin.md", "`PreStartContainer` (at most 30 s)", "kubelet's timeout"),
    (f"{REFERENCE}/device-plugin.md", "further start, up to 5 min", "kubelet's CrashLoopBackOff"),
    (f"{REFERENCE}/kubectl.md", "50,000 pods would cause thousands of writes", "an example"),
    ("README.md", "2 GiB of free memory and 8 GiB of free disk", "docs/start/demo.md"),
    ("README.md", "reserves 8 GiB of one GPU", "the manifest above it"),
    ("README.md", "ask for at most 20 GiB", "docs/pictures/explain.svg"),
    ("README.md", "use 6 of 80 GiB", "an example: an A100 of 80 GiB"),
    ("docs/start/demo.md", "takes about 10 minutes", "587 s with a cold cache, where Kubernetes was built from source"),
    ("docs/use/first-pod.md", "Ask for 0.5 GiB more than your data need", "518 MiB in docs/project/gpu-proof.md"),
    ("docs/use/first-pod.md", "Allocated 2 GiB of GPU 1 (NVIDIA L40S)", "an example"),
    ("docs/use/first-pod.md", "not your 2 GiB. Where", "the sample"),
    ("docs/use/first-pod.md", "8` means 8 GiB by default", "an example"),
    ("docs/use/first-pod.md", "has 64 MiB by default", "containerd's and docker's default"),
    (f"{OPERATE}/capacity.md", "by default 1 GiB", "gpushare_memory_unit"),
    (f"{OPERATE}/capacity.md", "openb (1213 nodes with GPUs, 310 without)", "openb_node_list_all_node.csv"),
    (f"{OPERATE}/capacity.md", "92.3 % of the GPUs instead of 85.8 %", "the former binpack on openb default, in a model of kube-scheduler"),
    (f"{OPERATE}/capacity.md", "An L40S of 48 GB reports 46068 MiB", "an example"),
    (f"{OPERATE}/integrations.md", "a queue with 16 GiB and three Jobs with 8 GiB each", "the sample"),
    ("docs/start/demo.md", "2 GiB of free memory and 8 GiB of free disk", "tools/lab/README.md"),
    ("docs/start/demo.md", "had 1.9 GB of memory in use by `podman stats`", "976, 438 and 437 MB in a lab of 2026-11-29"),
    ("docs/start/demo.md", "2.0 GB of disk by `podman ps --size`", "747, 644 and 644 MB in the same"),
    ("docs/start/demo.md", "had 1.4 GiB by `du`", "1426 MiB in ~/.cache/gpushare-lab on the same day"),
    ("docs/start/quickstart.md", "Its three pods request 6 GiB", "the sample"),
    ("docs/start/quickstart.md", "GPUs of 16, 16, 16 and 24 GiB", "an example"),
    ("docs/use/frameworks.md", "The examples leave 0.6 GiB for it", "test_frameworks.py"),
    ("docs/use/requests.md", "4 units on each of 2 GPUs", "an example"),
    ("docs/use/samples/README.md", "three pods with 6 GiB each", "the sample"),
]
UNITS = (
    r"s|ms|seconds?|minutes?|hours?|days?|years?|MiB|GiB|%|times|connections|entries|characters|gpus|pods|points|specs|nodes|pages|binds"
)
NUMBER = re.compile(rf"(?<![\w.])\d[\d.,]*(?:[–-]\d[\d.,]*)?\*{{0,2}}\s(?:{UNITS})\b")
#: What users read, without the pages of benchmarks, which have a test of their own, and what is generated as a whole.
PAGES = [
    path
    for path in files()
    if re.fullmatch(r"(?:README|SECURITY|docs/(?:project|operate|reference|start|use)/.*|docs/README|roles/.*/README)\.md", path)
    and not path.startswith("docs/project/benchmarks/")
    and path != f"{OPERATE}/variables.md"
]


@pytest.mark.parametrize(("page", "words", "values"), ROWS, ids=[f"{Path(page).stem}: {words[:50]}" for page, words, _ in ROWS])
def test_a_number_is_that_of_the_code_or_of_a_result(page: str, words: str, values: tuple[Any, ...]) -> None:
    assert words.format(*values) in plain(page)


def unexplained(page: str, text: str) -> list[str]:
    """Numbers with a unit that stand in no words of this file."""
    known = [words.format(*values) for where, words, values in ROWS if where == page]
    known += [words for where, words, _ in ELSEWHERE if where == page]
    covered = [found.span() for words in known for found in re.finditer(re.escape(words), text)]
    return [
        f"{found[0]}: …{text[max(0, found.start() - 40) : found.end() + 20]}…"
        for found in NUMBER.finditer(text)
        if not any(begin <= found.start() < end for begin, end in covered)
    ]


@pytest.mark.parametrize("page", PAGES)
def test_every_number_on_a_page_has_an_origin(page: str) -> None:
    assert unexplained(page, plain(page)) == [], "give each its row in FIGURES, or in ELSEWHERE with its origin"


def test_a_number_without_an_origin_is_found() -> None:
    text = "It clears within 60 s. It takes 70 s, 1.5–2 s, **5** s, or 12 GiB. See 1.36.3 and 8 others."
    found = unexplained(f"{OPERATE}/troubleshooting.md", text)
    assert [one.partition(":")[0] for one in found] == ["70 s", "1.5–2 s", "5** s", "12 GiB"]


@pytest.mark.parametrize(("page", "words"), [(page, words) for page, words, _ in ELSEWHERE])
def test_words_with_a_number_from_elsewhere_are_on_their_page(page: str, words: str) -> None:
    assert words in plain(page)


def test_numbers_that_are_rounded_or_compared() -> None:
    from gpushare_runtime.extender.cache import STALE_SECONDS

    assert leadership.TAKEOVER_SECONDS < 10, "the page lets people wait for 10 s"
    assert STALE_SECONDS == 5 * 60
    # As many ids of one GPU, and of eight, fit in kubelet's message.
    uuids = [f"GPU-00000000-0000-0000-0000-00000000000{index}" for index in range(8)]
    assert discovery.list_bytes([(uuids[0], 66_500)]) <= discovery.KUBELET_MESSAGE_BYTES
    assert discovery.list_bytes([(one, 68_000 // 8) for one in uuids]) > discovery.KUBELET_MESSAGE_BYTES
    assert "about 67,000 ids" in plain(f"{REFERENCE}/device-plugin.md")
    assert "about 67,000" in variables(REPOSITORY)["gpushare_memory_unit"].spec["description"]


def test_the_demo_lists_the_packages_that_it_installs() -> None:
    (listed,) = re.findall(r"stay installed:\n\n```text\n(.*?)```", (REPOSITORY / "docs/start/demo.md").read_text(), re.S)
    by_make = re.findall(r"missing\+=\(([\w-]+)\)|\"\$\$\{missing\[@\]\}\" (libc6-dev)", (REPOSITORY / "Makefile").read_text())
    assert set(listed.split()) == {*debian.HOST_PACKAGES, *(name for pair in by_make for name in pair if name)}


def test_the_times_that_a_log_has_and_the_span_of_all_runs() -> None:
    log = "x\nmeasured: a GPU: published: 0.4 s\n.\nmeasured: a GPU: published: 12.0 s. [ 5%]\nmeasured: b: 3 s\nsays measured: c: 1.0 s\n"
    seconds = read(log)
    assert seconds == {"a GPU: published": [0.4, 12.0]}
    runs = [{"seconds": seconds}, {"seconds": {"b": [3.0]}}]
    assert (span(runs, "a GPU: published"), span(runs, "b"), span(runs, "a GPU: published", "b")) == ("0.4–12 s", "3.0 s", "0.4–12 s")
    with pytest.raises(KeyError, match="c"):
        span(runs, "b", "c")


ROW = ("ends after {:g} s, and {} of {:,} pods", (2.5, "5–6", 1000))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("It ends after 3 s, and\n4 of 900 pods.", "It ends after 2.5 s, and\n5–6 of 1,000 pods."),
        ("It ends after 2.5 s, and 5–6 of 1,000 pods.", "It ends after 2.5 s, and 5–6 of 1,000 pods."),
    ],
)
def test_a_page_gets_its_numbers_and_keeps_all_else(before: str, after: str) -> None:
    assert rewritten(before, [ROW]) == after


@pytest.mark.parametrize("text", ["It ends soon.", "It ends after 3 s, and 4 of 9 pods. It ends after 3 s, and 4 of 9 pods."])
def test_words_that_a_page_does_not_have_once_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="ends after"):
        rewritten(text, [ROW])


def test_every_page_has_its_numbers_and_gets_those_of_a_changed_constant() -> None:
    for page, rows in FIGURES.items():
        text = (REPOSITORY / page).read_text()
        assert rewritten(text, rows) == text
        changed = [rewritten(text, [(words, tuple(value + 1 for value in values))]) for words, values in rows if _are_apart(words, values)]
        assert [other for other in changed if other == text or len(other.split()) != len(text.split())] == []


def _are_apart(words: str, values: tuple[object, ...]) -> bool:
    return "}–{" not in words and all(type(value) is int for value in values)
