# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""GPU sharing by memory for Kubernetes: device plugin, scheduler extender, kubectl inspect."""

__version__ = "0.1.0"
