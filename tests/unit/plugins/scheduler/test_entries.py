# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which extender entries of a scheduler's configuration are others', and which of them does not answer."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler import entries

OURS = "https://127.0.0.1:32766/gpushare-scheduler"


def test_a_port_that_nobody_has_is_silent_and_one_with_a_listener_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as shut:
        # Bound, and not listening: nobody else gets it meanwhile.
        shut.bind(("127.0.0.1", 0))
        answers, refuses = (f"http://127.0.0.1:{one.getsockname()[1]}/x" for one in (server, shut))
        found = entries.silent([f'extenders:\n- urlPrefix: {answers}\n- filterVerb: a\n  urlPrefix: "{refuses}"\n'])
    assert list(found) == [refuses]
    assert "refused" in found[refuses]


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        (f"urlPrefix: {OURS}", []),
        ("urlPrefix: http://a/b", [("a", 80)]),
        ("urlPrefix: https://a/b # a comment", [("a", 443)]),
        ("{'extenders': [{'urlPrefix': 'http://a:1/b'}, {\"urlPrefix\":\"http://b:2\"}]}", [("a", 1), ("b", 2)]),
        ("urlPrefix: http://a:99999/b", []),
        ("urlPrefix: unix:///run/x", []),
        ("\n".join(f"urlPrefix: http://a:{port}" for port in range(1, 100)), [("a", port) for port in range(1, 9)]),
    ],
)
def test_who_is_asked(text: str, asked: list[tuple[str, int]]) -> None:
    seen: list[tuple[str, int]] = []
    entries.silent([text, text], lambda name, port: seen.append((name, port)) or "")  # type: ignore[func-returns-value]
    assert seen == asked


@pytest.mark.parametrize(
    ("entry", "stops"),
    [
        ({"urlPrefix": "http://a"}, True),
        ({"urlPrefix": "http://a", "ignorable": True}, False),
        ({"urlPrefix": "http://a", "managedResources": [{"name": "aliyun.com/gpu-mem"}]}, False),
        ({"urlPrefix": "http://a", "managedResources": [{"name": "example.com/fpga"}]}, True),
        ({"urlPrefix": "http://b"}, False),
        ("nonsense", False),
        ({}, False),
    ],
)
def test_what_a_dead_one_stops(entry: Any, stops: bool) -> None:
    found = entries.dead({"extenders": [{"urlPrefix": OURS}, entry]}, {"http://a": "refused", OURS: "refused"})
    assert bool(found) == stops
    for place, of, why in found:
        assert (place, of, why) == (1, entry, "refused")
        words = entries.words("/etc/config.yaml", place, of, why)
        assert "extenders[1] of /etc/config.yaml" in words[0]
        assert ("example.com/fpga" in words[0]) == ("managedResources" in entry)
