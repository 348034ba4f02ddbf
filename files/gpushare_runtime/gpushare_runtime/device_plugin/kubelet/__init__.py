# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kubelet's side: the gRPC service and its registration, the checkpoint, podresources."""
