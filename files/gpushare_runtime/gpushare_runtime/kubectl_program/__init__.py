# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The program `kubectl gpushare`: its arguments and their completion, and the function that each command calls."""
