# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Each alert of docs/operate/monitoring/rules.yml fires, clears, and is silent in the near case; each has its runbook; real metrics."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gpushare_runtime.kubectl_gpushare.used import peaks_query, seconds_query
from monitoring.prometheus import EXTENDER, PLUGIN, RULES, program
from tree import REPOSITORY

README: Final = (REPOSITORY / "docs/operate/monitoring/README.md").read_text()
GROUPS: Final = yaml.safe_load(RULES.read_text())["groups"]
ALERTS: Final = {rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule}
RECORDS: Final = {rule["record"]: rule for group in GROUPS for rule in group["rules"] if "record" in rule}
MINUTES: Final = {"s": 1 / 60, "m": 1, "h": 60}

E: Final = f'job="{EXTENDER}",instance="cp1:9441"'
P: Final = f'job="{PLUGIN}",instance="gpu1:9440"'
GPU: Final = f'{P},gpu="0",uuid="GPU-0"'
POD: Final = f'{P},namespace="team",pod="p",uid="u",uuid="GPU-0"'
GIB: Final = 1024**3
DAY: Final = 86400


@dataclass(frozen=True)
class Case:
    """Values of series: `bad` while the alert should be due, `good` before and after, `near` where it must never be.

    A value is text in promtool's notation where it changes by itself. labels: of the alert that fires.
    minutes: how long `bad` lasts.
    """

    alert: str
    series: tuple[str, ...]
    good: tuple[str, ...]
    bad: tuple[str, ...]
    near: tuple[str, ...]
    labels: tuple[str, ...] = ("instance",)
    minutes: int = 60
    # The near case lasts as long as the bad one and is not as bad; short: it is as bad, and ends before it is due.
    short: bool = False


def values(*pieces: tuple[object, int]) -> str:
    """(value, minutes) one after the other, a value a minute."""
    return " ".join(f"{value}x{minutes - 1}" if "+" in str(value) else f"{value}+0x{minutes - 1}" for value, minutes in pieces)


def one(alert: str, series: str, good: object, bad: object, near: object, labels: tuple[str, ...] = ("instance",), **more: Any) -> Case:
    return Case(alert, (series,), (str(good),), (str(bad),), (str(near),), labels, **more)


UNIT: Final = f"gpushare_device_plugin_unit_bytes{{{P}}}"
UNITS: Final = f"gpushare_device_plugin_pod_units{{{POD}}}"
USED: Final = f"gpushare_device_plugin_pod_memory_used_bytes{{{POD}}}"
IDLE: Final = f"gpushare_device_plugin_pod_idle_since_timestamp_seconds{{{POD}}}"
GPU_UNITS: Final = f"gpushare_device_plugin_gpu_units{{{GPU}}}"
BUCKETS: Final = tuple(
    f'gpushare_extender_verb_duration_seconds_bucket{{{E},verb="filter",le="{le}"}}' for le in ("0.2", "0.5", "1.0", "+Inf")
)
ACTIVE: Final = tuple(f'gpushare_extender_{what}{{job="{EXTENDER}",instance="cp{n}:9441"}}' for n in (1, 2) for what in ("active", "ready"))

CASES: Final = (
    one("GPUShareExtenderDown", f"up{{{E}}}", 1, 0, 0, short=True),
    Case("GPUShareNoActiveExtender", ACTIVE, ("1", "1", "0", "1"), ("1", "0", "0", "1"), ("0", "1", "1", "1"), ()),
    one("GPUShareWatchStale", f'gpushare_extender_watch_age_seconds{{{E},resource="pods"}}', 1, 181, 180, ("instance", "resource")),
    one(
        "GPUShareVerbErrors",
        f'gpushare_extender_verb_results_total{{{E},verb="bind",result="error"}}',
        "0+0", "0+1", "7+0", ("instance", "verb"),
    ),
    # 2 % of the calls take up to a second; nearly 1 % do.
    Case(
        "GPUShareVerbSlow", BUCKETS,
        ("0+1000", "0+1000", "0+1000", "0+1000"), ("0+980", "0+980", "0+1000", "0+1000"), ("0+980", "0+991", "0+1000", "0+1000"),
        ("instance", "verb"),
    ),
    one("GPUShareSecondScheduler", f"gpushare_extender_foreign_bindings_total{{{E}}}", "3+0", "3+1", "3+0"),
    one("GPUShareDevicePluginDown", f"up{{{P}}}", 1, 0, 0, short=True),
    one("GPUShareDevicePluginDegraded", f"gpushare_device_plugin_healthy{{{P}}}", 1, 0, 0, short=True),
    # promtool's time begins at 0.
    Case(
        "GPUShareCertificateExpires",
        tuple(f"gpushare_extender_{what}_expiry_timestamp_seconds{{{E}}}" for what in ("certificate", "client_ca")),
        (str(90 * DAY), str(900 * DAY)), (str(14 * DAY), str(900 * DAY)), (str(15 * DAY), str(900 * DAY)), minutes=180,
    ),
    one("GPUShareTokenExpires", f"gpushare_device_plugin_token_expiry_timestamp_seconds{{{P}}}", 7 * DAY, 2 * DAY, 3 * DAY),
    Case(
        "GPUShareGPUOverbooked",
        (f"gpushare_device_plugin_gpu_units{{{GPU}}}", f"gpushare_device_plugin_gpu_units_allocated{{{GPU}}}"),
        ("16", "6"), ("16", "17"), ("16", "16"), ("instance", "gpu"),
    ),
    one("GPUShareLedgerOverbooked", f'gpushare_extender_node_gpus_overbooked{{{E},node="n"}}', 0, 1, 1, ("node",), short=True),
    one("GPUShareLedgerInconsistent", f'gpushare_extender_node_ledger_inconsistencies{{{E},node="n"}}', 0, 1, 1, ("node",), short=True),
    one("GPUShareDrift", f'gpushare_extender_drift_units{{{E},reason="orphaned"}}', 0, 1, 4, ("reason",), short=True),
    Case(
        "GPUShareGPUUnhealthy",
        tuple(f"gpushare_device_plugin_gpu_{what}{{{GPU}}}" for what in ("healthy", "cdi_usable")),
        ("1", "1"), ("0", "1"), ("0", "0"), ("instance", "gpu"),
    ),
    one("GPUShareCDISpecUnusable", f"gpushare_device_plugin_gpu_cdi_usable{{{GPU}}}", 1, 0, 0, ("instance", "gpu"), short=True),
    Case(
        "GPUShareMemoryExceeded", (UNIT, UNITS, USED),
        (str(GIB), "4", str(3 * GIB)), (str(GIB), "4", str(4 * GIB + 1)), (str(GIB), "4", str(4 * GIB)), ("namespace", "pod"),
    ),
    Case(
        "GPUShareGPUHeldIdle", (IDLE, UNITS, GPU_UNITS),
        # promtool's time begins at 0.
        (str(DAY), "4", "16"), ("-7200", "4", "16"), ("-7200", "3", "16"), ("namespace", "pod"),
    ),
    one("GPUSharePodsWaitWithRoom", f'gpushare_extender_pods_waiting_room{{{E},room="enough"}}', 0, 1, 9, (), short=True),
    one("GPUShareMemoryFragmented", f'gpushare_extender_pods_waiting_room{{{E},room="fragmented"}}', 0, 1, 9, (), short=True),
    one("GPUSharePodsInvalid", f'gpushare_extender_pods_waiting{{{E},reason="invalid"}}', 0, 1, 9, (), short=True),
    one("GPUShareAdmissionRejections", f"gpushare_device_plugin_rejections_total{{{P}}}", "0+0", "0+1", "3+0"),
)  # fmt: skip
BEFORE: Final = 30
AFTER: Final = 60


def wait(alert: str) -> float:
    """Minutes."""
    found = re.fullmatch(r"(\d+)([smh])", ALERTS[alert].get("for", "0s"))
    assert found
    return int(found[1]) * MINUTES[found[2]]


def inputs(case: Case, during: tuple[str, ...], minutes: int) -> list[dict[str, str]]:
    found = []
    for series, good, bad in zip(case.series, case.good, during, strict=True):
        text = values((good, BEFORE), (bad, minutes), (good, AFTER))
        found.append({"series": series, "values": text})
    return found


def scenario(case: Case, during: tuple[str, ...], minutes: int, fires_at: dict[int, bool]) -> dict[str, Any]:
    expression = f'count by ({", ".join(case.labels)}) (ALERTS{{alertname="{case.alert}",alertstate="firing"}})'
    known = {"instance": "gpu1:9440" if PLUGIN in case.series[0] else "cp1:9441", "node": "n", "gpu": "0", "namespace": "team", "pod": "p"}
    told = dict(re.findall(r'(\w+)="([^"]*)"', case.series[0])) | {k: v for k, v in known.items() if k in case.labels}
    labels = "{" + ", ".join(f'{name}="{told[name]}"' for name in case.labels) + "}"
    return {
        "interval": "1m",
        "input_series": inputs(case, during, minutes),
        "promql_expr_test": [
            {"expr": expression, "eval_time": f"{at}m", "exp_samples": [{"labels": labels, "value": 1}] if fires else []}
            for at, fires in fires_at.items()
        ],
    }


def judged(folder: Path, tests: list[dict[str, Any]], rules: Path = RULES) -> subprocess.CompletedProcess[str]:
    file = folder / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}))
    return subprocess.run([program("promtool"), "test", "rules", file], capture_output=True, text=True, check=False, timeout=120)


def test_promtool_takes_the_rules() -> None:
    done = subprocess.run(
        [program("promtool"), "check", "rules", "--lint=all", "--lint-fatal", RULES], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_an_alert_fires_clears_and_is_silent_in_the_near_case(case: Case, tmp_path: Path) -> None:
    late = wait(case.alert)
    # What is a rate over some minutes is late by as much, and stays as long.
    slack = 17 if any("+" in text for text in case.bad) else 1
    due, over = BEFORE + int(late) + slack + 1, BEFORE + case.minutes + slack + 2
    assert due < BEFORE + case.minutes
    fires = {BEFORE - 1: False, due: True, BEFORE + case.minutes - 1: True, over: False}
    if late > 1:
        fires[BEFORE + int(late) - 1] = False
    near_minutes = max(1, int(late) - 1) if case.short else case.minutes
    silent = dict.fromkeys(range(BEFORE, BEFORE + near_minutes + AFTER), False)
    done = judged(tmp_path, [scenario(case, case.bad, case.minutes, fires), scenario(case, case.near, near_minutes, silent)])
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_rule_that_never_fires_would_be_noticed(tmp_path: Path) -> None:
    broken = tmp_path / "rules.yml"
    broken.write_text(RULES.read_text().replace("gpushare_device_plugin_gpu_healthy == 0", "gpushare_device_plugin_gpu_healthy == 2"))
    case = next(case for case in CASES if case.alert == "GPUShareGPUUnhealthy")
    assert judged(tmp_path, [scenario(case, case.bad, 60, {BEFORE + 30: True})], broken).returncode == 1
    assert judged(tmp_path, [scenario(case, case.bad, 60, {BEFORE + 30: True})]).returncode == 0


def test_no_extender_at_all_is_no_active_one(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.alert == "GPUShareNoActiveExtender")
    empty = {**scenario(case, case.bad, 60, {30: True}), "input_series": [{"series": f"up{{{P}}}", "values": "1+0x60"}]}
    # The back end dra has none.
    claims = [{"series": f"gpushare_device_plugin_claims_prepared{{{P}}}", "values": "0+0x60"}]
    by_claims = {**scenario(case, case.good, 60, {30: False}), "input_series": claims}
    done = judged(tmp_path, [empty, by_claims])
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_recording_rules_compute(tmp_path: Path) -> None:
    """A pod that uses a quarter, one without a process, and one on a GPU whose use is unknown."""

    def pod(name: str, gpu: str) -> str:
        return f'{P},namespace="{name[:1]}",pod="{name}",uid="{name}",uuid="GPU-{gpu}"'

    series = {
        UNIT: GIB,
        f"gpushare_device_plugin_pod_units{{{pod('a1', '0')}}}": 8,
        f"gpushare_device_plugin_pod_units{{{pod('a2', '0')}}}": 4,
        f"gpushare_device_plugin_pod_units{{{pod('b1', '1')}}}": 2,
        f"gpushare_device_plugin_pod_memory_used_bytes{{{pod('a1', '0')}}}": 2 * GIB,
        f"gpushare_device_plugin_pod_memory_used_bytes{{{pod('a2', '0')}}}": 0,
        f'gpushare_device_plugin_gpu_memory_used_bytes{{{P},gpu="0",uuid="GPU-0"}}': 3 * GIB,
        # It uses half of the SMs; of the others nothing is known.
        f"gpushare_device_plugin_pod_sm_utilization_ratio{{{pod('a1', '0')}}}": 0.5,
        **{f'gpushare_device_plugin_gpu_units{{{P},gpu="{n}",uuid="GPU-{n}"}}': 16 for n in (0, 1)},
        # Each extender says it.
        **{f'gpushare_extender_namespace_gpus_waiting{{job="{EXTENDER}",instance="cp{n}:9441",namespace="a"}}': 1 for n in (1, 2)},
        f'gpushare_extender_namespace_gpus_waiting{{{E},namespace="c"}}': 2,
        **{f'gpushare_device_plugin_gpu_units_allocated{{{P},gpu="{n}",uuid="GPU-{n}"}}': (12, 2)[n] for n in (0, 1)},
    }
    expected: dict[str, dict[str, float]] = {
        "pod_gpu:gpushare_memory_idle:ratio * 100": {'{pod="a1"}': 75, '{pod="a2"}': 100},
        "pod_gpu:gpushare_memory_allocated_bytes": {'{pod="a1"}': 8 * GIB, '{pod="a2"}': 4 * GIB, '{pod="b1"}': 2 * GIB},
        "namespace:gpushare_memory_allocated_bytes:sum": {'{namespace="a"}': 12 * GIB, '{namespace="b"}': 2 * GIB},
        "namespace:gpushare_memory_used_bytes:sum": {'{namespace="a"}': 2 * GIB},
        "gpu:gpushare_memory_bytes": {'{uuid="GPU-0"}': 16 * GIB, '{uuid="GPU-1"}': 16 * GIB},
        "gpu:gpushare_memory_allocated_bytes": {'{uuid="GPU-0"}': 12 * GIB, '{uuid="GPU-1"}': 2 * GIB},
        "gpu:gpushare_memory_idle_bytes": {'{uuid="GPU-0"}': 10 * GIB},
        "cluster:gpushare_memory_bytes:sum": {"{}": 32 * GIB},
        "cluster:gpushare_memory_allocated_bytes:sum": {"{}": 14 * GIB},
        "cluster:gpushare_memory_used_bytes:sum": {"{}": 3 * GIB},
        # Of what is known.
        "cluster:gpushare_memory_idle:ratio * 14": {"{}": 10},
        "pod_gpu:gpushare_held:ratio": {'{pod="a1"}': 0.5, '{pod="a2"}': 0.25, '{pod="b1"}': 0.125},
        "namespace:gpushare_gpus_held:sum": {'{namespace="a"}': 0.75, '{namespace="b"}': 0.125},
        "namespace:gpushare_gpus_used:sum": {'{namespace="a"}': 0.5},
        "namespace:gpushare_gpus_asked:sum": {'{namespace="a"}': 1.75, '{namespace="b"}': 0.125, '{namespace="c"}': 2},
        # Of the sixty minutes it has been there for six.
        "namespace:gpushare_gpu_hours_asked:sum1h * 80": {'{namespace="a"}': 14, '{namespace="b"}': 1, '{namespace="c"}': 16},
        "namespace:gpushare_gpu_hours_held:sum1h * 80": {'{namespace="a"}': 6, '{namespace="b"}': 1},
        "namespace:gpushare_gpu_hours_used:sum1h * 120": {'{namespace="a"}': 6},
    }
    assert {name.partition(" ")[0] for name in expected} | {"pod_gpu:gpushare_memory_used_bytes"} == set(RECORDS)
    checks = []
    for name, found in expected.items():
        by = re.findall(r"(\w+)=", next(iter(found)))
        samples = [{"labels": labels, "value": value} for labels, value in found.items()]
        checks.append({"expr": f"sum by ({', '.join(by)}) ({name})", "eval_time": "5m", "exp_samples": samples})
    inputs = [{"series": name, "values": f"{value}+0x10"} for name, value in series.items()]
    done = judged(tmp_path, [{"interval": "1m", "input_series": inputs, "promql_expr_test": checks}])
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_queries_of_simulate_as_used(tmp_path: Path) -> None:
    """The most of a week, by pod, over its GPUs and over two jobs that scrape it; and for how long. A pod of which a GPU is unknown stays
    unknown, and one that the driver does not report any longer; of a GPU that is away the peak stays."""

    def pod(name: str, gpu: str, job: str = P) -> str:
        return f'{job},namespace="team",pod="{name}",uid="{name}",uuid="{gpu}"'

    used, units, other = "gpushare_device_plugin_pod_memory_used_bytes", "gpushare_device_plugin_pod_units", 'job="other",instance="x"'
    inputs = [
        {"series": f"{used}{{{pod('a', '0')}}}", "values": "1 9 2+0x30"},
        {"series": f"{used}{{{pod('a', '1')}}}", "values": "3+0x30"},
        {"series": f"{used}{{{pod('a', '1', other)}}}", "values": "3+0x30"},
        *({"series": f"{units}{{{pod('a', gpu)}}}", "values": "4+0x30"} for gpu in "01"),
        {"series": f"{units}{{{pod('b', '0')}}}", "values": "4+0x30"},
        {"series": f"{used}{{{pod('b', '0')}}}", "values": "_x10 0+0x20"},
        # Never known of one of its GPUs.
        *({"series": f"{units}{{{pod('d', gpu)}}}", "values": "4+0x30"} for gpu in "02"),
        {"series": f"{used}{{{pod('d', '0')}}}", "values": "5+0x30"},
        # It had no process at first, and the driver does not report those that it has.
        {"series": f"{units}{{{pod('e', '0')}}}", "values": "4+0x30"},
        {"series": f"{used}{{{pod('e', '0')}}}", "values": "0+0x10 stale"},
        {"series": f"{units}{{{pod('f', '3')}}}", "values": "4+0x30"},
        {"series": f"{used}{{{pod('f', '3')}}}", "values": "6+0x10 stale"},
        {"series": f'gpushare_device_plugin_gpu_memory_used_bytes{{{P},gpu="0",uuid="0"}}', "values": "9+0x30"},
        {"series": f'gpushare_device_plugin_gpu_memory_used_bytes{{{P},gpu="3",uuid="3"}}', "values": "9+0x10 stale"},
        {"series": f'{used}{{{P},namespace="else",pod="c",uid="c",uuid="0"}}', "values": "7+0x30"},
    ]
    expected: dict[str, dict[str, float]] = {
        peaks_query("team"): {'{uid="a"}': 9, '{uid="b"}': 0, '{uid="f"}': 6},
        f"count({peaks_query('')})": {"{}": 4},
        seconds_query("team"): {'{uid="a"}': 1800, '{uid="b"}': 1200, '{uid="d"}': 1800, '{uid="e"}': 600, '{uid="f"}': 600},
    }
    checks = [
        {"expr": query, "eval_time": "30m", "exp_samples": [{"labels": labels, "value": value} for labels, value in found.items()]}
        for query, found in expected.items()
    ]
    done = judged(tmp_path, [{"interval": "1m", "input_series": inputs, "promql_expr_test": checks}])
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_request_that_a_workload_needs(tmp_path: Path) -> None:
    """The queries of docs/operate/capacity.md: a Deployment, a StatefulSet and a pod of its own, of which the largest pod counts."""
    text = (REPOSITORY / "docs/operate/capacity.md").read_text()
    needed, requested = text.partition("```promql\n")[2].partition("```")[0].strip().splitlines()
    used = {"web-5d4f6b7c8d-abcde": 1, "web-5d4f6b7c8d-fghij": 2, "db-0": 4, "db-11": 3, "alone": 5}

    def pod(name: str) -> str:
        return f'{P},namespace="team",pod="{name}",uid="{name}",uuid="GPU-0"'

    series = {UNIT: str(GIB)}
    series |= {f"gpushare_device_plugin_pod_units{{{pod(name)}}}": "8" for name in used}
    series |= {f"gpushare_device_plugin_pod_memory_used_bytes{{{pod(name)}}}": str(size * GIB) for name, size in used.items()}
    sizes = {"web": 2, "db": 4, "alone": 5}

    def check(query: str, values: dict[str, float]) -> dict[str, Any]:
        # A pod of its own has no workload but itself.
        workloads = {name: "" if name == "alone" else f', workload="{name}"' for name in values}
        samples = [{"labels": f'{{namespace="team"{workloads[name]}}}', "value": value} for name, value in values.items()]
        return {"expr": f"round(10 * ({query}))", "eval_time": "5m", "exp_samples": samples}

    inputs = [{"series": name, "values": f"{value}+0x10"} for name, value in series.items()]
    checks = [check(needed, {name: size * 11 for name, size in sizes.items()}), check(requested, dict.fromkeys(sizes, 80))]
    done = judged(tmp_path, [{"interval": "1m", "input_series": inputs, "promql_expr_test": checks}])
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_pods_that_wait_with_the_back_end_dra(tmp_path: Path) -> None:
    """By the series that kube-state-metrics has."""
    query = README.partition("## Pods that wait")[2].partition("```promql\n")[2].partition("```")[0].strip()
    waiting = {"a": ("team", 1), "b": ("team", 1), "c": ("other", 0)}
    inputs = [
        {"series": f'kube_pod_status_unschedulable{{namespace="{space}",pod="{name}",uid="{name}"}}', "values": f"{value}+0x10"}
        for name, (space, value) in waiting.items()
    ]
    samples = [{"labels": '{namespace="team"}', "value": 2}, {"labels": '{namespace="other"}', "value": 0}]
    check = {"expr": query, "eval_time": "5m", "exp_samples": samples}
    done = judged(tmp_path, [{"interval": "1m", "input_series": inputs, "promql_expr_test": [check]}])
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_case_and_a_runbook() -> None:
    assert [case.alert for case in CASES] == list(ALERTS)
    sections = re.findall(r"^### (\w+)$", README, re.M)
    assert sections == list(ALERTS)
    for name, rule in ALERTS.items():
        assert rule["annotations"]["runbook_url"].endswith(f"/docs/operate/monitoring/README.md#{name.lower()}")
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_each_alert_has_a_test_with_its_real_cause() -> None:
    files = (*(REPOSITORY / "tests/monitoring").glob("test_[cd]*.py"), REPOSITORY / "tests/e2e/test_monitoring.py")
    named = {name for file in files for name in re.findall(r'"(GPUShare\w+)"', file.read_text())}
    assert set(ALERTS) - named == set()


def test_each_record_is_documented() -> None:
    rows = re.findall(r"^\| `([\w:]+)` \| ([\w, ]*)\|", README, re.M)
    assert [name for name, _ in rows] == list(RECORDS)


def test_the_rules_use_documented_metrics_only() -> None:
    documented = set(re.findall(r"^\| `(\w+)` \|", (REPOSITORY / "docs/reference/metrics.md").read_text(), re.M))
    text = "\n".join(rule["expr"] for rule in (*ALERTS.values(), *RECORDS.values()))
    named = {re.sub(r"_bucket$", "", name) for name in re.findall(r"(?<![\w:])gpushare_(?:extender|device_plugin)_\w+", text)}
    assert len(named) > 20
    assert named - documented == set()
