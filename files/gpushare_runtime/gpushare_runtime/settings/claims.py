# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The settings of gpushare-claims, which has the same ones in every cluster: no variable and no value of the chart sets any."""

from __future__ import annotations

from dataclasses import dataclass

from gpushare_runtime.settings import common
from gpushare_runtime.settings.common import Address


@dataclass(frozen=True)
class ClaimsConfig:
    """As a file or a command line has them."""

    kubeconfig: str | None = common.kubeconfig()
    health_listen: Address | None = common.health_listen("0.0.0.0:9443")
    log_level: str = common.log_level()
