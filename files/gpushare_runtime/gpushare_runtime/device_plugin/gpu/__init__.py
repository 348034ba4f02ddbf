# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The cards of this host through NVML: which there are, how they are, and their XID errors."""
