# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The back end of Kubernetes' dynamic resource allocation (DRA): ResourceSlices from the GPUs of a node, and claims for kubelet."""
