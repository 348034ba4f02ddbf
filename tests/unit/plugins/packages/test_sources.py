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


U = OURS[0]
STANZA = f"Types: deb\nURIs: {U}\nSuites: /\n"
OFF = f"Types: deb\nEnabled: no\nURIs: {U}\nSuites: /\n"


@pytest.mark.parametrize(
    ("text", "after"),
    [
        (STANZA, OFF),
        (f"TYPES: deb\nuris: {U}\nsuites: /\n", f"TYPES: deb\nEnabled: no\nuris: {U}\nsuites: /\n"),
        (f"Types : deb\nURIs : {U}\nSuites : /\n", f"Types : deb\nEnabled: no\nURIs : {U}\nSuites : /\n"),
        (STANZA.replace("\n", "\r\n"), OFF.replace("\n", "\r\n")),
        # Switched off already, in each of apt's words.
        *((f"{STANZA}Enabled: {word}\n", f"{STANZA}Enabled: {word}\n") for word in ("no", "False", "off", "0", "without", "disable")),
        (f"{STANZA}Enabled:\n no\n", f"{STANZA}Enabled:\n no\n"),
        (f"{STANZA}Enabled: nope\n", OFF),
        # Of several fields of one name, the last one counts.
        (f"{STANZA}Enabled: no\nEnabled: yes\n", OFF),
        (f"{STANZA}Enabled: yes\nEnabled: no\n", f"{STANZA}Enabled: yes\nEnabled: no\n"),
        (f"URIs: http://a.example\nURIs: {U}\nSuites: /\n", f"URIs: http://a.example\nEnabled: no\nURIs: {U}\nSuites: /\n"),
        # An address on a line of its own goes with the line: an empty one would end the stanza, and apt would not work at all.
        (f"URIs:\n {U}\n http://b.example\nSuites: /\n", "URIs:\n http://b.example\nSuites: /\n"),
        (f"URIs: http://a.example\n# c\n {U}\nSuites: /\n", "URIs: http://a.example\n# c\nSuites: /\n"),
        (f"# URIs: {U}\nURIs: http://a.example\n", f"# URIs: {U}\nURIs: http://a.example\n"),
    ],
)
def test_a_stanza_is_read_as_apt_reads_it(text: str, after: str) -> None:
    """apt 2.6.1 fetches none of these addresses from what they become, and all others."""
    assert sources.without_stanzas(text, OURS) == after


@pytest.mark.parametrize(
    "url",
    [
        U,
        f"{U}/",
        U.replace("https", "http"),
        U.replace("nvidia.github", "NVIDIA.GitHub"),
        U.replace("amd64", "%61md64"),
        U.replace("amd64", "$(ARCH)"),
        U.replace(".io/", ".io:443/"),
        U.replace("/stable", "//stable"),
        U.replace("https://", "https://me:x@"),
    ],
)
def test_an_address_is_the_same_in_each_form_that_apt_takes(url: str) -> None:
    assert sources.same(url, [U])
    for line in (
        f"deb {url} /\n",
        f"\tdeb\t{url}\t/ # c\n",
        f'deb "{url}" /\n',
        f"deb [ signed-by=/x.gpg ] {url} /\r\n",
        f"deb [] {url} /\n",
    ):
        assert sources.names_only(sources.without_lines(line, [U]))


@pytest.mark.parametrize(
    ("text", "after"),
    [
        # The header of a section may have a comment, and be indented: what follows is not part of the section before.
        (
            f"[base]\nbaseurl=http://a\nenabled=1\n[nvidia] # ours\nbaseurl={U}\nenabled=1\n",
            f"[base]\nbaseurl=http://a\nenabled=1\n[nvidia] # ours\nbaseurl={U}\nenabled=0\n",
        ),
        (f"[base]\nbaseurl=http://a\n  [nvidia]\nbaseurl={U}\n", f"[base]\nbaseurl=http://a\n  [nvidia]\nenabled=0\nbaseurl={U}\n"),
        # Several addresses, on one line and on more.
        (f"[x]\nbaseurl = http://a, {U}\n", f"[x]\nenabled=0\nbaseurl = http://a, {U}\n"),
        (f"[x]\nbaseurl=http://a\n        {U}\nenabled=1\n", f"[x]\nbaseurl=http://a\n        {U}\nenabled=0\n"),
        (f"[x]\nname={U}\nbaseurl=http://a\n", f"[x]\nname={U}\nbaseurl=http://a\n"),
    ],
)
def test_a_section_is_read_as_libdnf_reads_it(text: str, after: str) -> None:
    assert sources.without_sections(text, OURS) == after


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (sources.without_sections, f"[a]\nbaseurl=https://example.org/a\n{'  b' * 30_000}\n{(' c' + chr(10)) * 30_000}"),
        (sources.without_stanzas, f"URIs: https://example.org {OURS[0]}\n{(' ' + OURS[0] + chr(10)) * 4000}"),
        (sources.without_stanzas, f"A{' ' * 100_000}"),
        (sources.without_stanzas, f"URIs: https://example.org {' '.join(f'{OURS[0]}/{number}' for number in range(4000))}\n"),
        (sources.without_stanzas, f"URIs: https://example.org {OURS[0]}\nX:{' ' * 100_000}\n"),
        (sources.without_sections, f"[a]\nbaseurl=https://example.org/a\n{chr(10) * 100_000}"),
    ],
    ids=["continuations", "lines", "a blank name", "addresses", "blanks", "empty lines"],
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
