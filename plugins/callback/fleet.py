# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The screen of a run over many hosts."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from ansible import constants as C
from ansible.plugins.callback.default import CallbackModule as Default

from ..plugin_utils._screen import CHANGED, FAILED, UNREACHABLE, WARNED, Screen

DOCUMENTATION = """
name: fleet
type: stdout
short_description: A run over many hosts on a few screens
version_added: 0.1.0
description:
  - Shows a line for each play or batch, with the time left, and one line for all hosts on which a task did the same. Nothing is shown
    of hosts on which a task changed nothing.
  - At the end it lists the hosts that are not done, by the task that stopped them.
  - With C(-v) the screen is that of P(ansible.builtin.default#callback).
requirements:
  - set as C(stdout_callback) in the section C(defaults) of C(ansible.cfg)
extends_documentation_fragment:
  - default_callback
  - result_format_callback
"""

_COLOURS = {CHANGED: C.COLOR_CHANGED, FAILED: C.COLOR_ERROR, UNREACHABLE: C.COLOR_UNREACHABLE, WARNED: C.COLOR_WARN}


def _or_default(method: Callable[..., None]) -> Callable[..., None]:
    """The method; with -v that of Ansible's own screen."""

    @functools.wraps(method)
    def shown(screen: Any, *arguments: Any, **options: Any) -> None:
        if screen._display.verbosity:
            getattr(Default, method.__name__)(screen, *arguments, **options)
        else:
            method(screen, *arguments, **options)

    return shown


def _with_v(name: str) -> Callable[..., None]:
    """A method that shows nothing without -v."""

    def nothing(_screen: Any, *_arguments: Any, **_options: Any) -> None:
        return

    nothing.__name__ = name
    return _or_default(nothing)


class CallbackModule(Default):
    """Collects the results of a task, and shows them when the next one begins."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "gpushare.kubernetes.fleet"

    def __init__(self) -> None:
        super().__init__()
        self._of_items: dict[str, str] = {}
        self._screen = Screen(lambda kind, line: self._display.display(line, color=_COLOURS.get(kind)), time.monotonic)

    v2_playbook_on_start = _with_v("v2_playbook_on_start")
    v2_playbook_on_include = _with_v("v2_playbook_on_include")
    v2_playbook_on_no_hosts_matched = _with_v("v2_playbook_on_no_hosts_matched")
    v2_runner_item_on_ok = _with_v("v2_runner_item_on_ok")
    v2_runner_item_on_skipped = _with_v("v2_runner_item_on_skipped")
    v2_runner_retry = _with_v("v2_runner_retry")

    @_or_default
    def v2_playbook_on_play_start(self, play: Any) -> None:
        known = play.get_variable_manager().get_vars(play=play)
        self._screen.play(play.get_name(), known.get("ansible_play_batch") or (), known.get("ansible_play_hosts_all") or ())

    @_or_default
    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        self._screen.task(task.get_name().strip())

    @_or_default
    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        self._screen.task(task.get_name().strip())

    @_or_default
    def v2_runner_item_on_failed(self, result: Any) -> None:
        # That of the whole loop says no more than that one has.
        self._of_items[_part(result, "host").get_name()] = str(_part(result, "result").get("msg") or "")

    @_or_default
    def v2_runner_on_ok(self, result: Any) -> None:
        self._add(result, CHANGED if _part(result, "result").get("changed") else "")

    @_or_default
    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._add(result, "" if ignore_errors else FAILED)

    @_or_default
    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._add(result, "" if _part(result, "task").ignore_unreachable else UNREACHABLE)

    @_or_default
    def v2_runner_on_skipped(self, result: Any) -> None:
        self._add(result, "")

    @_or_default
    def v2_playbook_on_stats(self, stats: Any) -> None:
        self._screen.end()

    def _add(self, result: Any, kind: str) -> None:
        host, content = _part(result, "host").get_name(), _part(result, "result")
        item = self._of_items.pop(host, "")
        words = item or str(content.get("msg") or "") if kind in (FAILED, UNREACHABLE) else ""
        self._screen.result(host, kind, words, [str(warning) for warning in content.get("warnings") or ()])


def _part(result: Any, name: str) -> Any:
    """The host, the task or the content of a result, whose names ansible-core 2.19 has changed."""
    return getattr(result, name) if hasattr(result, name) else getattr(result, f"_{name}")
