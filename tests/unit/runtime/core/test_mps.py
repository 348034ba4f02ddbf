# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The state of a control daemon, what a container gets, and what the ledger makes of MPS."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_runtime.core.bounds import ReportError
from gpushare_runtime.core.constraints import Rules
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.ledger import Ledger
from gpushare_runtime.core.mps import FRESH_SECONDS, MOST_CLIENTS, MpsState, client_access, ending_of, ending_to_json
from gpushare_runtime.core.placement import explain
from gpushare_runtime.core.placement.policies import Placement
from gpushare_runtime.core.placement.preemption import Preemption, Victims
from gpushare_runtime.core.request import Request, parse_request
from unit.fakes.runtime.pods import allocated_pod, container, inventory, ledger_of, memory, on, pending, pod
from unit.golden import Golden

MPS = replace(inventory(100, 100), isolation="mps", core=100, clients=MOST_CLIENTS)


def ledger(having: Inventory = MPS) -> Ledger:
    return ledger_of(having)


def asked(*containers: dict[str, Any], **metadata: Any) -> Request:
    request = parse_request(pod(*containers, **metadata))
    assert request is not None
    return request


@pytest.mark.parametrize(
    ("state", "now", "words"),
    [
        (MpsState(100), 100.0, ""),
        (MpsState(100), 100 + FRESH_SECONDS - 0.1, ""),
        (MpsState(100), 119.9, ""),
        (MpsState(100), 120.0, "has not answered"),
        (MpsState(100), 100 + FRESH_SECONDS + 1, "has not answered"),
        # Its writer rounds; a clock that went back further is another boot's.
        (MpsState(100), 99.0, ""),
        (MpsState(100), 98.9, "has not answered"),
        (MpsState(100), 50.0, "has not answered"),
        (MpsState(100, "it was stopped"), 100.0, "is not usable: it was stopped"),
    ],
)
def test_a_state_counts_while_it_is_fresh(state: MpsState, now: float, words: str) -> None:
    why = MpsState.from_json(state.to_json()).unusable(now)
    assert (why == "") == (words == "")
    assert words in why


@pytest.mark.parametrize(
    "text", ["", "[]", '{"v":1}', '{"v":1,"at":-1,"problem":"","servers":0}', '{"v":1,"at":0,"problem":7,"servers":0}']
)
def test_a_state_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ReportError):
        MpsState.from_json(text)


def test_a_state_of_any_size_is_written_and_shown_within_its_bounds() -> None:
    assert MpsState(7) == MpsState(7, "", 0, 0)
    long = MpsState.from_json(MpsState(2**40, "x" * 10_000).to_json())
    assert (long.at, len(long.problem), len(long.unusable(0))) == (2**40, 512, 512)
    with pytest.raises(ReportError):
        MpsState.from_json(MpsState(2**40 + 1).to_json())


def test_the_processes_of_pods_that_end_are_listed_by_gpu() -> None:
    text = ending_to_json({"GPU-a": [(7, 100), (8, 200), (7, 100)], "GPU-b": [(9, 300)]})
    assert (ending_of(text, "GPU-a"), ending_of(text, "GPU-b"), ending_of(text, "GPU-c")) == ({(7, 100), (8, 200)}, {(9, 300)}, set())
    assert ending_of(ending_to_json({}).rjust(4 * 1024 * 1024), "GPU-a") == set()


OF_A_GPU = (b"7", b"[7]", b"[[7]]", b"[[7,1,1]]", b'[["7",1]]', b"[[-7,1]]", b"[[0,1]]", b"[[true,1]]")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"v":2,"clients":{}}',
        b'{"v":1}',
        b'{"v":1,"clients":[]}',
        *(b'{"v":1,"clients":{"GPU-a":%s}}' % found for found in OF_A_GPU),
        b"[" * 100_000,
        b'{"v":1,"clients":{}}'.rjust(4 * 1024 * 1024 + 1),
    ],
)
def test_a_list_of_another_form_is_an_error(text: bytes) -> None:
    with pytest.raises(ReportError):
        ending_of(text, "GPU-a")


def test_a_container_gets_its_memory_by_index_and_its_share_of_the_compute() -> None:
    access = client_access("GPU-a", 4096, 25)
    assert dict(access.environment) == {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/gpushare-mps/pipe",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4096M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
    }
    assert [(one.inside, one.outside, one.read_only) for one in access.mounts] == [
        ("/run/gpushare-mps/pipe", "/run/gpushare-mps/GPU-a/pipe", True),
        ("/dev/shm", "/run/gpushare-mps/GPU-a/shm", False),
        ("/dev/shm/cuda_injection_path_shm", "/dev/null", True),
    ]
    assert dict(client_access("GPU-a", None, 0).environment) == {"CUDA_MPS_PIPE_DIRECTORY": "/run/gpushare-mps/pipe"}


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from([0, 5, 30, 50, 100]), st.integers(1, 3)), max_size=80))
def test_no_gpu_has_more_compute_or_more_clients_than_it_has(asks: list[tuple[int, int, int]]) -> None:
    """Pods come as long as they fit; counted by hand."""
    made, cores, clients, units = ledger(), [0, 0], [0, 0], [0, 0]
    for number, (size, core, count) in enumerate(asks):
        parts = [container(f"c{i}", mem=size, **({"core": core // count // 5 * 5} if core // count >= 5 else {})) for i in range(count)]
        request = asked(*parts)
        states = made.nodes["n"].candidates(request)
        fits = [
            index
            for index in (0, 1)
            if units[index] + request.units <= 100 and cores[index] + request.core <= 100 and clients[index] + count <= MOST_CLIENTS
        ]
        assert [state.gpu.index for state in states] == fits
        assert (made.nodes["n"].remaining_after(request) is not None) == bool(fits)
        if fits:
            index = fits[0]
            given = {place: {index: size} for place in range(count)}
            made.apply(replace(allocated_pod(f"p{number}", request, on(index, size)), node="n", allocation=type(on(0, 1)).of(given)))
            units[index] += request.units
            cores[index] += request.core
            clients[index] += count
    assert max(cores) <= 100
    assert max(clients) <= MOST_CLIENTS
    assert made.nodes["n"].problems() == []


def test_the_reason_names_clients_and_compute(golden: Golden) -> None:
    made = ledger(replace(MPS, gpus=MPS.gpus[:1], clients=1))
    made.apply(allocated_pod("a", memory(4), on(0, 4)))
    assert "1 GPU with as many MPS clients as the driver allows" in explain.exact(memory(4), made.nodes["n"])
    assert not made.nodes["n"].fits_when_empty(asked(container("a", mem=1), container("b", mem=1)))
    share = asked(container(mem=4, core=30))
    assert ledger().nodes["n"].remaining_after(share) == 96
    assert ledger(inventory(16)).nodes["n"].remaining_after(share) is None
    golden(explain.exact(share, ledger(inventory(16)).nodes["n"]))
    driver = replace(inventory(16), isolation="driver", core=100)
    assert ledger(driver).nodes["n"].remaining_after(share) == 12


def test_memory_of_several_gpus_is_not_for_a_node_with_mps(golden: Golden) -> None:
    several = asked(container(mem=4), labels={"aliyun.com/gpu-count": "2"})
    assert ledger().nodes["n"].remaining_after(several) is None
    assert not ledger().nodes["n"].fits_when_empty(several)
    assert ledger(inventory(16, 16)).nodes["n"].remaining_after(several) is not None
    golden(explain.exact(several, ledger().nodes["n"]))


def test_a_pod_may_require_mps() -> None:
    strict = replace(memory(4), rules=Rules(isolation="mps"))
    fits = {
        name: ledger(replace(inventory(16), isolation=name)).nodes["n"].remaining_after(strict) for name in ("mps", "driver", "watch", "")
    }
    assert fits == {"mps": 12, "driver": None, "watch": None, "": None}


def test_the_inventory_carries_it() -> None:
    assert Inventory.from_json(MPS.to_json()) == MPS
    assert '"core":100,"clients":48' in MPS.to_json()


def test_a_pod_that_stays_keeps_as_many_clients_as_it_has_containers() -> None:
    """Of four clients a pod of two has two; so beside another one of two only the pods of one go, both of them."""
    one, two = asked(container(mem=1)), asked(container(mem=1), container("second", mem=1))
    made = ledger(replace(MPS, gpus=MPS.gpus[:1], clients=4))
    for uid, request in (("a", one), ("b", two), ("c", one)):
        made.apply(allocated_pod(uid, request, on(0, len(request.containers))))
    found = Preemption(made, Placement()).victims(replace(pending(two), priority=10), {"n": Victims(("a",), 0)})
    assert found == {"n": Victims(("a", "c"), 0)}
