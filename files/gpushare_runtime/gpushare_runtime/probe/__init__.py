# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a container has got of the GPUs, for the verification of a cluster by a pod."""
