# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The certificates between kube-scheduler and the extender on one host. Not for the daemons: it loads `cryptography`."""
