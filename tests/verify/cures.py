# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Reads a cure that verify prints, and does it: its commands word for word on the host of the finding, and `run site.yml again`.

A cure is a sentence for people. Its commands stand between `: `, `; `, `, then: ` and `, or `; what only looks, such as journalctl, is
not run. Of two ways one is taken: the commands, or else site.yml.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from e2e.cluster import CONTROL_PLANE, Cluster

_CHANGING = ("chmod", "chown", "hostnamectl", "kubeadm", "kubectl", "mount", "mv", "nvidia-ctk", "rm", "systemctl")
_ONLY_LOOKS = re.compile(r"systemctl (?:status|cat)\b|kubectl (?:describe|get)\b")
_SITE = re.compile(r"(?:then )?run site\.yml again\b")
_SEPARATOR = re.compile(r"(; |, or:? |, then:? |, and |: | \(|\? )")


@dataclass(frozen=True)
class Cure:
    """commands: in their order; site: whether site.yml is to be run after them."""

    commands: tuple[str, ...]
    site: bool


def read(text: str) -> Cure:
    """The steps of a cure; none for one that only hands can do."""
    commands: list[str] = []
    site = False
    for ways in _steps(text):
        chosen = [way for way in ways if way.split(" ", 1)[0] in _CHANGING and not _ONLY_LOOKS.match(way)]
        if chosen:
            commands.append(chosen[0])
        elif any(_SITE.match(way) for way in ways):
            site = True
    return Cure(tuple(commands), site)


def _steps(text: str) -> Iterator[list[str]]:
    """The ways to do each step."""
    parts = _SEPARATOR.split(text)
    ways = [parts[0]]
    for separator, part in zip(parts[1::2], parts[2::2], strict=True):
        if not separator.startswith(", or"):
            yield ways
            ways = []
        words = part[:-1] if part.endswith(")") and part.count("(") < part.count(")") else part
        ways.append(words)
    yield ways


def do(cluster: Cluster, cures: Sequence[tuple[str, str]], *, site: bool = True) -> Cure:
    """Do the cures of several findings: (host, text), "" for the cluster. What was done. site: whether to run site.yml where they ask."""
    read_ones = [(host or CONTROL_PLANE, read(text)) for host, text in cures]
    for host, cure in read_ones:
        for command in cure.commands:
            # kubectl asks the API server as people do, from a machine with a kubeconfig.
            place = CONTROL_PLANE if command.startswith("kubectl ") else host
            cluster.on(place, "env", "KUBECONFIG=/etc/kubernetes/admin.conf", "sh", "-ec", command, seconds=180)
    site = site and any(cure.site for _, cure in read_ones)
    if site:
        cluster.playbook()
    return Cure(tuple(command for _, cure in read_ones for command in cure.commands), site)
