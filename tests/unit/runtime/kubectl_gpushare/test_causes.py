# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Who has stopped a pod, by messages as Kubernetes and our extender write them; and who has not."""

from __future__ import annotations

import pytest

from gpushare_runtime.extender.leadership import TAKEOVER_SECONDS, Leadership, Lease
from gpushare_runtime.kubectl_gpushare.causes import cause_in
from unit.golden import Golden

LEASE = "kube-system/kube-scheduler"
ENTRY = ": start its program, or remove its entry from kube-scheduler's configuration"
REFUSED = "dial tcp 127.0.0.1:9443: connect: connection refused"


def waits_for(reported: str) -> str:
    cause = cause_in(reported)
    assert cause is not None, reported
    return cause.in_words()


@pytest.mark.parametrize(
    ("reported", "words"),
    [
        (f'Post "http://127.0.0.1:32766/gpushare-scheduler/filter": {REFUSED}', "the extender, which does not answer"),
        ('Post "https://127.0.0.1:7000/gpushare-scheduler/bind": context deadline exceeded (Client.Timeout exceeded)',
         "the extender, which does not answer"),
        ('Post "https://127.0.0.1:32766/gpushare-scheduler/filter": tls: failed to verify certificate: x509: certificate has expired',
         "the extender, which does not answer"),
        # Go before 1.14, of Kubernetes before 1.19.
        (f"Post http://127.0.0.1:32766/gpushare-scheduler/filter: {REFUSED}", "the extender, which does not answer"),
        ("failed bind with extender at URL http://127.0.0.1:32766/gpushare-scheduler/bind, code 404",
         "the extender, which answers with HTTP status 404"),
        (f'Post "http://127.0.0.1:9443/filter": {REFUSED}',
         "an extender that is not gpushare's, at http://127.0.0.1:9443, which does not answer" + ENTRY),
        (f'Post "http://[::1:9443/filter": {REFUSED}',
         "an extender that is not gpushare's, at http://[::1:9443, which does not answer" + ENTRY),
        (f'Post "http://{200 * "a"}/filter": {REFUSED}',
         f"an extender that is not gpushare's, at http://{73 * 'a'}, which does not answer" + ENTRY),
        ('Internal error occurred: failed calling webhook "guard.example.com": failed to call webhook: Post '
         f'"https://guard.infra.svc:443/gpushare-scheduler/bind?timeout=10s": {REFUSED}',
         "the admission webhook guard.example.com, which does not answer the API server"),
        ('running Bind plugin "DefaultBinder": admission webhook "guard.example.com" denied the request: not today',
         "the admission webhook guard.example.com, which rejects it"),
        ("pods \"w\" is forbidden: ValidatingAdmissionPolicy 'no-gpus' with binding 'all' denied request: closed",
         "the admission policy no-gpus, which rejects it"),
        ("policy 'strip' with binding 'all' denied request: expression failed", "the admission policy strip, which rejects it"),
    ],
)  # fmt: skip
def test_who_stops_a_pod(reported: str, words: str) -> None:
    assert waits_for(reported) == words


@pytest.mark.parametrize(
    "reported",
    [
        "",
        "0/3 nodes are available: 1 Insufficient cpu, 2 gpu1: needs 3 GiB on one GPU, at most 1 are free on one.",
        # Calls of kube-scheduler to the API server, and words in which the former patterns saw the extender.
        f'running PreBind plugin "VolumeBinding": binding volumes: Post "https://10.96.0.1:443/api/v1/namespaces/d/pods": {REFUSED}',
        "0/3 nodes are available: 3 node(s) didn't match the release of certificate-manager",
        "the pod was released by its queue",
    ],
)
def test_a_message_about_something_else_names_nobody(reported: str) -> None:
    assert cause_in(reported) is None


def test_the_words_of_our_extender_about_the_lease(golden: Golden) -> None:
    """As `Leadership` writes them: one who asks without the Lease is none who has just become the leader."""
    now = [100.0]
    leadership = Leadership(LEASE, "cp1", clock=lambda: now[0], on_foreign_binding=lambda pod, words: None)
    said = [waits_for(leadership.problem())]
    leadership.observe(Lease("uid", "", 0), now[0])
    said.append(waits_for(leadership.problem()))
    leadership.observe(Lease("uid", "cp1_1", 0), now[0])
    said.append(waits_for(leadership.problem()))
    now[0] += TAKEOVER_SECONDS
    leadership.observe(Lease("uid", "cp1_1", 0), now[0])
    said.append(waits_for(leadership.problem()))
    for words in said:
        golden(words)
