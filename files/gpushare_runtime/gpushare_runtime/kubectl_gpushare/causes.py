# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The component that has stopped an attempt to place a pod, by the message of its scheduler: an extender, a webhook, a policy, or the
election of a leader. Pure.

The texts of others are those of Kubernetes 1.29 to 1.38: pkg/scheduler/extender.go, apiserver/pkg/util/webhook/error.go,
apiserver/pkg/admission/plugin/webhook/errors and …/policy, read on 2026-11-29.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import QUOTED, as_text

EXTENDER: Final = "extender"
FOREIGN: Final = "extender of others"
WEBHOOK: Final = "webhook"
POLICY: Final = "policy"
UNLED: Final = "no lease held"
CHANGED: Final = "change of leader"
UNREAD: Final = "lease not read"

_NAME: Final = r"""\\?["']([^"'\\\s]{1,253})\\?["']"""
_ADMISSION: Final = (
    (re.compile(rf"failed calling webhook {_NAME}"), WEBHOOK, True),
    (re.compile(rf"admission webhook {_NAME}"), WEBHOOK, False),
    (re.compile(rf"olicy {_NAME}(?: with binding {_NAME})? denied request"), POLICY, False),
)
# An error of Go's HTTP client: method, URL, error. Go before 1.14 writes the URL without quotes.
_CALL: Final = re.compile(r"""Post "?(https?://[^\s"]{1,1024}?)"?: """)
_CODE: Final = re.compile(r"failed [a-z]{1,20} with extender at URL (https?://\S{1,1024}), code (\d{3})")
# Of our own extender: extender/leadership.py.
_OF_OURS: Final = (
    (re.compile(r"lease (\S{1,512}) is held by .{1,512}, and this extender serves the scheduler of host"), UNLED),
    (re.compile(r"lease (\S{1,512}) cannot be read, so that"), UNREAD),
    (re.compile(r"the extender that was active before this one|after a change of the active extender()"), CHANGED),
)


@dataclass(frozen=True)
class Cause:
    """kind: of the words above. name: of a webhook or policy, a Lease, or the urlPrefix of an extender. silent: whether it gave no answer,
    else it rejects the pod. code: HTTP status of an extender, "" without."""

    kind: str
    name: str = ""
    silent: bool = False
    code: str = ""

    def in_words(self) -> str:
        """The object of "the pod waits for"."""
        does = "does not answer" if self.silent else f"answers with HTTP status {self.code}" if self.code else "rejects it"
        return {
            EXTENDER: f"the extender, which {does}",
            FOREIGN: f"an extender that is not gpushare's, at {self.name}, which {does}: start its program, or remove its entry from "
            "kube-scheduler's configuration",
            WEBHOOK: f"the admission webhook {self.name}, which {'does not answer the API server' if self.silent else does}",
            POLICY: f"the admission policy {self.name}, which {does}",
            UNLED: f"a kube-scheduler that has the Lease {self.name}. If this continues, the one that asks runs with leader election off: "
            "start it with --leader-elect=true",
            UNREAD: f"the extender, which cannot read the Lease {self.name}",
            CHANGED: "the extender, which waits after a change of leader",
        }[self.kind]


def cause_in(reported: str) -> Cause | None:
    """None for a message about nodes, such as that they have no room."""
    for pattern, kind, silent in _ADMISSION:
        if found := pattern.search(reported):
            return Cause(kind, as_text(found[1], QUOTED), silent)
    for of_ours, kind in _OF_OURS:
        if found := of_ours.search(reported):
            return Cause(kind, as_text(found[1] or "", QUOTED))
    if found := _CODE.search(reported):
        return _of_url(found[1], code=found[2])
    if found := _CALL.match(reported):
        return _of_url(found[1])
    # Within other words it is some call of kube-scheduler, unless it goes to our extender.
    called = _CALL.search(reported)
    return _of_url(called[1]) if called and _is_ours(called[1]) else None


def _of_url(url: str, code: str = "") -> Cause:
    if _is_ours(url):
        return Cause(EXTENDER, "", not code, code)
    # Its last part is the verb, and kube-scheduler's configuration has the rest as urlPrefix.
    return Cause(FOREIGN, as_text(url.rpartition("/")[0] if url.count("/") > 2 else url, QUOTED), not code, code)


def _is_ours(url: str) -> bool:
    try:
        return urlsplit(url).path.startswith(f"{protocol.EXTENDER_PREFIX}/")
    except ValueError:
        return False
