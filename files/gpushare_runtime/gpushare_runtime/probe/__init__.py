# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The GPUs that a container has got, for the verification of a cluster by a pod."""
