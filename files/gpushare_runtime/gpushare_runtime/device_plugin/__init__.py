# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The node side: GPUs by NVML, two extended resources for kubelet, and which container gets which GPU."""
