# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""gpushare-mps: runs the MPS control daemon of one GPU."""
