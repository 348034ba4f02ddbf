# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes what a run did as JSON lines: each task, each result, each module that was really executed on a host, each `hostvars[host]`.

tests/results.py reads them.
"""

from __future__ import annotations

import functools
import json
import os
import resource
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.plugins.callback import CallbackBase
from ansible.vars.hostvars import HostVars

DOCUMENTATION = """
name: gpushare_results
type: notification
short_description: Results of tasks and executions of modules as JSON lines
description: Appends to the file that the environment variable E(GPUSHARE_RESULTS) names.
"""


class CallbackModule(CallbackBase):
    """One line per event; the workers are forked from this process and write to the same file."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "gpushare_results"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # A file opened for appending takes whole lines from several processes.
        self._file = os.open(os.environ["GPUSHARE_RESULTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._play = ""
        count_modules(self._write)
        count_reads(self._write)

    def _write(self, event: str, **values: Any) -> None:
        os.write(self._file, (json.dumps({"event": event, **values}) + "\n").encode())

    def _result(self, result: Any, status: str) -> None:
        task, content = result._task, result._result
        self._write(
            "result",
            play=self._play,
            task=task.get_name(),
            action=task.action,
            host=result._host.get_name(),
            delegate=task.delegate_to or "",
            run_once=bool(task.run_once),
            status=status,
            changed=bool(content.get("changed", False)) and status == "ok",
        )

    def v2_playbook_on_play_start(self, play: Any) -> None:
        self._play = play.get_name()

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        self._write("task", play=self._play, task=task.get_name(), controller_seconds=spent())

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        self.v2_playbook_on_task_start(task, False)

    def v2_runner_on_ok(self, result: Any) -> None:
        self._result(result, "ok")

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._result(result, "ignored" if ignore_errors else "failed")

    def v2_runner_on_skipped(self, result: Any) -> None:
        self._result(result, "skipped")

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._result(result, "unreachable")

    def v2_playbook_on_stats(self, stats: Any) -> None:
        self._write("end", controller_seconds=spent())


def spent() -> float:
    """CPU seconds of Ansible and of what it has started and waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def count_modules(write: Any) -> None:
    """Have every execution of a module written, those that action plugins start included."""
    execute = ActionBase._execute_module

    @functools.wraps(execute)
    def counted(
        action: ActionBase, module_name: Any = None, module_args: Any = None, tmp: Any = None, task_vars: Any = None, **more: Any
    ) -> Any:
        task = action._task
        host = (task_vars or {}).get("inventory_hostname", "")
        delegate, once = task.delegate_to or "", bool(task.run_once)
        write("module", module=module_name or task.action, task=task.get_name(), host=host, delegate=delegate, run_once=once)
        return execute(action, module_name, module_args, tmp, task_vars, **more)

    ActionBase._execute_module = counted


def count_reads(write: Any) -> None:
    """Have every reading of all variables of a host by another template or plugin written: `hostvars[host]`."""
    read = HostVars.raw_get

    @functools.wraps(read)
    def counted(hosts: HostVars, host_name: str) -> Any:
        write("read", host=str(host_name))
        return read(hosts, host_name)

    HostVars.raw_get = counted
