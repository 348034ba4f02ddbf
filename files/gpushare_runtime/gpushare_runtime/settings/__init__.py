# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The settings of the daemons: one dataclass each, from which files, options, variables, chart and docs are made."""
