# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The ground that both daemons stand on. It knows nothing of GPUs and of Kubernetes."""
