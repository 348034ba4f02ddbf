# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The kubectl plugins: `kubectl gpushare`, and `kubectl inspect gpushare` as the original prints it."""
