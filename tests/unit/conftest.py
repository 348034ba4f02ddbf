# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What all unit tests have in common: a busy machine fails none of them."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("whatever the machine does", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("whatever the machine does")
