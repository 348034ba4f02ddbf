# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The writes of this node through the API server: annotations of its node and pods, and the ConfigMap of unhealthy GPUs."""
