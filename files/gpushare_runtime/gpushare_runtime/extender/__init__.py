# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The scheduler extender: which node has a card that fits, and the Binding that says which card it is."""
