# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The kubectl plugin `kubectl inspect gpushare`: who holds how much of which card."""
