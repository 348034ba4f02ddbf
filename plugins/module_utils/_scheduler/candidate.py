# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let the kube-scheduler of the manifest's own image read a configuration before it is put in place."""

from __future__ import annotations

from typing import Optional, Sequence, Tuple

from .._formats.failure import Failure
from .._host.command import Run

CONTAINER = "gpushare-scheduler-candidate"
# The words of kube-scheduler about a policy that it rejects, and those about a policy that it accepts and then cannot print.
_WRONG_POLICY = ("invalid policy", "policy config", "couldn't create scheduler", "multiple extender", "unknown field")
_TAKEN = "is registered for version"


class CandidateError(Failure, ValueError):
    """kube-scheduler rejects the configuration; the message is its own."""


def check(
    run: Run, ctr: str, image: str, mounts: Sequence[Tuple[str, str]], command: Sequence[str], kind: str = "KubeSchedulerConfiguration"
) -> Optional[str]:
    """None if kube-scheduler accepts the candidate, else why the check could not be made. CandidateError if kube-scheduler rejects it.

    ctr: the path of containerd's ctr. mounts: (host, container), read-only. kind: the kind of the candidate: kube-scheduler 1.22 reads a
    Policy and then fails to print the configuration that it has made of it.
    """
    # The container runs once and without the host's network.
    options = [f"--mount=type=bind,src={source},dst={target},options=rbind:ro" for source, target in mounts]
    argv = [ctr, "--namespace", "k8s.io", "run", "--rm", *options, image, CONTAINER, *command]
    status, out, err = run(argv)
    if status != 0 and "already exists" in err:  # left by a run that was killed
        run([ctr, "--namespace", "k8s.io", "tasks", "rm", "--force", CONTAINER])
        run([ctr, "--namespace", "k8s.io", "containers", "rm", CONTAINER])
        status, out, err = run(argv)
    if status == 0 and "kind: KubeSchedulerConfiguration" in out:
        return None
    if status == 0:
        return f"the candidate was not checked: {image} printed no configuration"
    if err.lstrip().startswith("ctr:"):
        return f"the candidate was not checked: {err.strip()}"
    if kind == "Policy" and not any(words in err for words in _WRONG_POLICY):
        return None if _TAKEN in err else f"the candidate was not checked: {_own_words(err)}"
    raise CandidateError(_own_words(err))


def _own_words(text: str) -> str:
    """The error lines of what kube-scheduler printed, without the usage text that may follow."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(("Usage:", "Flags:", "  "))]
    return "\n".join(lines[-10:]) or "it ended without a word"
