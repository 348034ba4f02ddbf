# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""When a client certificate of Kubernetes is near its end.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...module_utils._formats.finding import ERROR, WARNING

# kubelet renews its certificate between 70 % and 90 % of its life (kubernetes.io, "Certificate Rotation").
_LATE, _LATE_SECONDS = 0.1, 14 * 86400.0


def near_end(life: Sequence[float] | None, now: float) -> tuple[str, str] | None:
    """(the severity, when it ends or ended) of one that has little of its life left; None for any other. life, now: Unix times."""
    if life is None:
        return None
    begin, end = life
    left = end - now
    if left <= 0:
        return ERROR, f"ended {-left / 86400:.1f} days ago"
    return (WARNING, f"ends in {left / 86400:.1f} days") if left < min(_LATE_SECONDS, (end - begin) * _LATE) else None
