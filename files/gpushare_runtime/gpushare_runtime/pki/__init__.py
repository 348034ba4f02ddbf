# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The certificates of a host: between kube-scheduler and the extender, and of the dashboard. It loads `cryptography`: not for daemons."""
