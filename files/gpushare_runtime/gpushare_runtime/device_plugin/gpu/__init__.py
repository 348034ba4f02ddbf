# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The GPUs of this host through NVML: discovery, health and XID errors."""
