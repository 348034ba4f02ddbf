# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The kubectl plugin `kubectl inspect gpushare`: which pod has how much of which card."""
