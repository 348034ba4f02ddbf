# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Processes of pods that tests start and end."""

from __future__ import annotations

from collections.abc import Set


class FakeProcesses:
    """live: UIDs of the pods that have a process; up: pod → names of the containers that have one, where that can be told; looks: how
    often somebody looked for pods."""

    def __init__(self) -> None:
        self.live: set[str] = set()
        self.up: dict[str, set[str]] = {}
        self.looks = 0

    def pods(self, uids: Set[str]) -> Set[str]:
        self.looks += 1
        return uids & self.live

    def containers(self, uid: str) -> Set[str] | None:
        return self.up.get(uid, None if uid in self.live else set())
