# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the module of the task's name on the host, which sets no variables by it. meta/runtime.yml redirects modules to this action."""

from __future__ import annotations

from ..plugin_utils._answers import HostAction as ActionModule

__all__ = ["ActionModule"]
