# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""`kubectl gpushare` on the largest cluster that Kubernetes is built for."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from bench.kubectl.__main__ import (
    API_SERVER,
    FILE,
    IDLE_PODS,
    NODES,
    PODS_PER_NODE,
    TARGET_BYTES,
    TARGET_MIB,
    TARGET_SECONDS,
    api_server,
    run,
    sources,
    use_of,
)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[str]]]:
    with api_server() as server:
        yield sources(tmp_path_factory.mktemp("kubectl"), server)


#: Lines of each view.
LINES = {
    ("nodes",): NODES + 3,
    ("gpus",): NODES * 8 + 1,
    ("pods", "-A"): NODES * PODS_PER_NODE + 1,
    ("namespaces",): 11,
    ("top", "-A"): NODES * PODS_PER_NODE + 1,
    ("idle", "-A"): NODES * IDLE_PODS + 1,
}


@pytest.mark.parametrize(
    ("argv", "source"), [*((argv, API_SERVER) for argv in LINES), *((argv, FILE) for argv in LINES if argv[0] in ("nodes", "pods"))]
)
def test_5000_nodes_and_50000_pods(
    argv: tuple[str, ...], source: str, given: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    took, text = run(argv, given[source])
    assert len(text.splitlines()) == LINES[argv]
    with capsys.disabled():
        print(f"\nkubectl gpushare {' '.join(argv)} from the {source}: {took.cpu:.1f} s of CPU, {took.mib:.0f} MiB")
    # On a busy machine CPU time grows as well.
    assert took.cpu < 10 * TARGET_SECONDS
    assert took.mib < 2 * TARGET_MIB


def test_what_a_node_publishes_of_ten_pods_is_small() -> None:
    assert len(use_of(NODES - 1, time.time())) <= TARGET_BYTES
