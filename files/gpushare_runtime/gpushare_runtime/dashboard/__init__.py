# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The dashboard: a web page that follows a cluster's GPUs, for one person (`kubectl gpushare dashboard`) or as a service."""
