# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Sources of apt and rpm: what others have written stays, except the repositories that ours takes over."""

from __future__ import annotations

import configparser
import time
from collections.abc import Callable, Sequence

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._packages import sources
from ansible_collections.gpushare.kubernetes.plugins.module_utils._packages.dnf import excluded, excluding, without

OURS = ["https://nvidia.github.io/libnvidia-container/stable/deb/amd64", "https://nvidia.github.io/nvidia-docker"]
# As nvidia-docker's own instructions of 2019 made it, with apt-key.
DOCKER_LIST = """\
deb https://nvidia.github.io/libnvidia-container/stable/debian10/$(ARCH) /
deb https://nvidia.github.io/nvidia-container-runtime/stable/debian10/$(ARCH) /
deb [arch=amd64] https://nvidia.github.io/nvidia-docker/debian10/$(ARCH) /
# a word of the administrator
"""
STANZAS = """\
# Debian
Types: deb
URIs: http://mirror.example/debian
Suites: bookworm
Components: main

Types: deb
URIs: https://user:secret@nvidia.github.io/libnvidia-container/stable/deb/amd64/
Suites: /
Signed-By: /x.gpg
"""


def test_lines_of_these_addresses_become_comments() -> None:
    text = sources.without_lines(DOCKER_LIST, OURS)
    changed = [line for line in text.splitlines() if line not in DOCKER_LIST.splitlines()]
    assert changed == [sources.TAKEN + DOCKER_LIST.splitlines()[2]]
    assert not sources.names_only(text)
    everything = sources.without_lines(DOCKER_LIST, ["http://nvidia.github.io/"])
    assert sources.names_only(everything)
    assert sources.without_lines(everything, ["http://nvidia.github.io/"]) == everything


def test_stanzas_of_these_addresses_are_switched_off() -> None:
    text = sources.without_stanzas(STANZAS, OURS)
    first, second = text.split("\n\n")
    assert first == STANZAS.split("\n\n")[0]
    assert "Enabled: no\n" in second
    assert sources.without_stanzas(text, OURS) == text
    two = STANZAS.replace("URIs: http://mirror.example/debian", f"URIs: http://mirror.example/debian {OURS[0]}")
    assert sources.without_stanzas(two, OURS) == text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (sources.without_stanzas, f"URIs: https://example.org {' '.join(f'{OURS[0]}/{number}' for number in range(4000))}\n"),
        (sources.without_stanzas, f"URIs: https://example.org {OURS[0]}\nX:{' ' * 100_000}\n"),
        (sources.without_sections, f"[a]\nbaseurl=https://example.org/a\n{chr(10) * 100_000}"),
    ],
    ids=["addresses", "blanks", "empty lines"],
)
def test_a_file_costs_what_it_is_long(change: Callable[[str, Sequence[str]], str], text: str) -> None:
    """Of CPU it takes some 20 ms; where it went by the square of the length, a minute."""
    began = time.process_time()
    assert change(text, OURS)
    assert time.process_time() - began < 2


def test_an_address_that_only_begins_alike_is_another() -> None:
    assert not sources.same("https://nvidia.github.io/nvidia-docker2/x", OURS)
    assert sources.same("http://nvidia.github.io/nvidia-docker/debian10/amd64", OURS)


def test_sections_of_these_addresses_are_switched_off() -> None:
    text = "[a]\nname=A\nbaseurl=https://nvidia.github.io/nvidia-docker/rhel7/$basearch\nenabled=1\n\n[b]\nbaseurl=https://example.org/b\nenabled=1\n"
    parsed = configparser.ConfigParser(interpolation=None)
    changed = sources.without_sections(text, OURS)
    parsed.read_string(changed)
    assert (parsed["a"]["enabled"], parsed["b"]["enabled"]) == ("0", "1")
    assert sources.without_sections(changed, OURS) == changed
    assert "enabled=0" in sources.without_sections("[a]\nbaseurl=https://nvidia.github.io/nvidia-docker/x\n", OURS)


def test_excludes_of_others_stay() -> None:
    for text in (
        "[main]\ngpgcheck=1\n",
        "[main]\nexcludepkgs=kernel*\n    kmod-x\ngpgcheck=1\n",
        "",
        "[main]\nexclude = kernel* , kmod-x\n",
    ):
        held = excluding(text, [*excluded(text), "tk", "tk-base"])
        assert excluded(held) == [*excluded(text), "tk", "tk-base"]
        configparser.ConfigParser(strict=True).read_string(held)
        assert excluded(without(held, ["tk", "tk-base"])) == excluded(text)
    assert excluding("[main]\ngpgcheck=1\n", ["tk"]) == "[main]\nexcludepkgs=tk\ngpgcheck=1\n"
    assert without("[main]\nexcludepkgs=tk\ngpgcheck=1\n", ["tk"]) == "[main]\ngpgcheck=1\n"
