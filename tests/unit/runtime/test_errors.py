# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Every error of the runtime has a reason of its own, which its text does not change."""

from __future__ import annotations

from gpushare_runtime.device_plugin.gpu.discovery import NvmlError
from gpushare_runtime.errors import GpushareError
from gpushare_runtime.kube.http_post import NotSentError
from gpushare_runtime.pki.certificates import Broken


def test_the_reason_of_a_class_is_its_name() -> None:
    found = {kind.reason for kind in (NvmlError, NotSentError, Broken, GpushareError)}
    assert found == {"nvml", "not-sent", "broken", "gpushare"}


def test_a_class_may_have_a_reason_of_its_own() -> None:
    class Other(NotSentError):
        reason = "never"

    assert (Other("x").reason, NotSentError("x").reason) == ("never", "not-sent")
