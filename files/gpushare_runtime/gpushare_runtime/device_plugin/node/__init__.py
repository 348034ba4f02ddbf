# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The decisions at this node: ids, environments and starts. No I/O; clocks and processes are passed in."""
