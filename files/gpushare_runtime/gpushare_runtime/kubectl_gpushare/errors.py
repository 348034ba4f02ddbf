# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The errors of kubectl's commands."""

from __future__ import annotations

from gpushare_runtime.errors import GpushareError


class InputError(GpushareError):
    """A command, a file or a cluster with which a command cannot do its work."""


class PrometheusError(InputError):
    """A Prometheus that does not answer as it should."""


class UsageError(InputError):
    """A wrong command line, for which a program ends with another exit code."""
