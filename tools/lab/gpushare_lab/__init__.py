# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The lab: a real Kubernetes with simulated NVIDIA GPUs on one machine."""
