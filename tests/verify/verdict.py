# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Runs playbooks/verify.yml on a lab and reads its verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.api import Json
from e2e.cluster import REPOSITORY, Cluster
from timeline import span


@dataclass(frozen=True)
class Verdict:
    """status: the playbook's exit status; findings: of the report; words: all that was printed."""

    status: int
    findings: list[Json]
    looked_at: Mapping[str, int]
    words: str

    @property
    def causes(self) -> set[tuple[str, str]]:
        """(host, code) of every error that does not follow from another one."""
        return {(one["host"], one["check"]) for one in self.findings if one["severity"] == "error" and not one["because"]}

    def one(self, code: str, host: str | None = None) -> Json:
        """The finding with this code, of this host where one is named; there must be one."""
        found = [finding for finding in self.findings if finding["check"] == code and host in (None, finding["host"])]
        assert len(found) == 1, self.words
        return found[0]


class Verify:
    """verify.yml on one lab. folder: for its reports."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.known_clean = False
        self.folder = folder

    def run(self, *arguments: str) -> Verdict:
        """One run; its exit status must agree with its report."""
        report = self.folder / "report.json"
        report.unlink(missing_ok=True)
        with span("playbook", " ".join(["verify.yml", *arguments])):
            done = self._play(report, arguments)
        words = done.stdout + done.stderr
        assert report.exists(), words
        content = json.loads(report.read_text())
        assert content["v"] == 1
        assert (done.returncode == 0) == content["ok"], words
        for finding in content["findings"]:
            assert finding["found"], finding
            assert finding["expected"], finding
            assert finding["cure"], finding
        return Verdict(done.returncode, content["findings"], content["looked_at"], words)

    def _play(self, report: Path, arguments: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                str(Path(sys.executable).with_name("ansible-playbook")),
                *("-i", self.cluster.lab("inventory").strip()),
                "playbooks/verify.yml",
                *("-e", f"gpushare_verify_report={report}"),
                *arguments,
            ],
            env={**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"), "ANSIBLE_FORCE_COLOR": "0"},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def passes(self) -> Verdict | None:
        """The verdict if there is nothing to say."""
        verdict = self.run()
        self.known_clean = not verdict.findings
        return verdict if self.known_clean else None
