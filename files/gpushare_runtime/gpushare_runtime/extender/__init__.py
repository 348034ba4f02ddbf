# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The scheduler extender: which node has a GPU that fits, and the Binding that says which GPU it is."""
