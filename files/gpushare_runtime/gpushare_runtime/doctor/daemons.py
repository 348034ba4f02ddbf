# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""All that is asked of one daemon, in its order: what only runs or listens is asked of a daemon that does."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Final

from gpushare_runtime.doctor import cdi, endpoints, identity, kubelet, ports, work
from gpushare_runtime.doctor.findings import Findings
from gpushare_runtime.doctor.host import DASHBOARD, EXTENDER, DaemonUnit, HostReader
from gpushare_runtime.doctor.units import judge_trigger, judge_unit

_ATTEMPTS: Final = 3


def look(found: Findings, host: HostReader, unit: DaemonUnit, environment: Path) -> None:
    """Check the daemon of this unit. environment: the folder of the runtime in use."""
    if unit.name == EXTENDER:
        runs = _common(found, host, unit, environment)
        identity.judge_certificates(found, host, unit, time.time())
        if runs:
            found.health = asdict(endpoints.judge_health(found, host, unit))
        return
    if unit.name == DASHBOARD:
        if _common(found, host, unit, environment) and identity.judge_served_certificate(found, host, unit, time.time()):
            endpoints.judge_dashboard(found, host, unit)
        return
    listening = kubelet.listeners(host, kubelet.listener)
    for _ in range(_ATTEMPTS):
        # Of one moment: a plugin that restarts meanwhile is not a second one.
        before, unit = unit, host.unit(unit.name)
        if unit.pid == before.pid:
            break
        listening = kubelet.listeners(host, kubelet.listener)
    runs = _common(found, host, unit, environment)
    found.strangers = [asdict(owner) for owner in listening if not kubelet.is_own(owner.name)]
    cdi.judge_cdi(found, host, unit)
    if runs:
        kubelet.judge_gpus(found, unit)
        kubelet.judge_pods_gpus(found, unit)
        work.judge_words(found, host, unit)
    kubelet.judge_dra_drivers(found, kubelet.dra_drivers(host, unit.option("kubelet-root"), kubelet.listener))
    serves = not kubelet.judge_second_plugin(found, unit, listening) and runs
    unit, found.registered = kubelet.registered_soon(host, unit, listening) if serves else (unit, kubelet.registered(host))
    if serves:
        kubelet.judge_registration(found, unit, listening, found.registered, kubelet.takes_plugins(host, kubelet.listener))


def _common(found: Findings, host: HostReader, unit: DaemonUnit, environment: Path) -> bool:
    """Whether it runs."""
    runs = judge_unit(found, unit, str(environment))
    judge_trigger(found, host, unit)
    identity.judge_tokens(found, host, unit, time.time(), identity.api_status)
    work.judge_state_folder(found, host, unit)
    ports.judge_ports(found, host, unit, runs)
    if runs:
        endpoints.judge_metrics(found, host, unit)
    if unit.text is not None:
        state = {key: getattr(unit, key) for key in ("active", "state", "says", "pid")}
        addresses = {"listens": unit.option("listen"), "metrics": unit.option("metrics-listen")}
        found.daemons[unit.name] = {"runs": runs, **state, **addresses}
    return runs
