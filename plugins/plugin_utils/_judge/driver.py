# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gather the facts of a host in one call, and plan its driver on the controller with the data of its distribution."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...module_utils._driver.apply import reboot_reason
from ...module_utils._driver.facts import HostFacts
from ...module_utils._driver.plan import Wish, make
from ...module_utils._facts.driver import Driver
from .._answers import ask
from .._driver.data import data_of
from .judge import Judge


class DriverJudge(Judge):
    """Fails with every reason at once."""

    options = {
        "data": {"type": "path", "required": True},
        "version": {"type": "str", "required": True},
        "source": {"type": "str", "choices": ["nvidia", "distribution", "run_file"], "default": "nvidia"},
        "module": {"type": "str", "choices": ["auto", "open", "proprietary"], "default": "auto"},
        "build": {"type": "str", "choices": ["auto", "dkms", "precompiled"], "default": "auto"},
        "run_file": {"type": "str", "default": ""},
        "change_ok": {"type": "bool", "default": False},
        "own_key": {"type": "bool", "default": False},
        "persistenced": {"type": "bool", "default": True},
        "fabric": {"type": "str", "choices": ["auto", "never"], "default": "auto"},
        "repository": {"type": "str", "default": ""},
        "key": {"type": "str", "default": ""},
        "fingerprints": {"type": "list", "elements": "str", "default": []},
        "module_options": {"type": "list", "elements": "str", "default": []},
        "root": {"type": "path", "default": "/"},
    }

    def answer(self, arguments: dict[str, Any]) -> dict[str, Any]:
        folder, root = Path(arguments.pop("data")), arguments.pop("root")
        info = ask(self._action, self._known, "gpushare.kubernetes.gpushare_driver", {"what": "facts", "root": root})
        if info.get("failed") or "facts" not in info:
            return info
        facts = HostFacts.from_dict(info["facts"])
        wish: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()}
        plan = make(facts, Wish(**wish), data_of(folder, facts))
        due = plan.disturbs(info["driver"]["loaded"], info["processes"])
        # The reasons for which the role would then reboot, also after an earlier run that was not permitted to.
        pending = reboot_reason(Driver(**info["driver"]), plan.version, plan.module, plan.options)
        answer = {key: info[key] for key in ("processes", "machine_id", "boot_id", "driver", "problem")}
        planned = {**asdict(plan), "packages": _named(plan.packages), "headers": _named(plan.headers)}
        result = {"changed": False, "plan": planned, "info": answer, "due": due, "pending": pending, "warnings": list(plan.notes)}
        if plan.rejected:
            many = f"{len(plan.rejected)} reasons" if len(plan.rejected) > 1 else "one reason"
            words = f"the driver cannot be installed as required, for {many}; nothing was changed:"
            reasons = [f"{rejection.check}: {rejection}" for rejection in plan.rejected]
            return {**result, "failed": True, "msg": "\n".join([words, *reasons])}
        return result


def _named(packages: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
    """As gpushare_packages takes them."""
    return [{"name": name, "version": version} for name, version in packages]
