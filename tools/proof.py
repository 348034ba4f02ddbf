# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What has run on a real GPU, by the saved reports. README, the isolation table and the comparison take their words from here.

A claim is proven by a GPU where its checks ran and found what they expected. Where no GPU proves it, it is simulated.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).resolve().parent.parent / "docs/project/benchmarks"
#: Claim to (step, checks that prove it).
CLAIMS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "limit by MPS": (
        "limits",
        (
            "MPS: a program with its container's environment asks for 1 GiB more than its 4096 MiB",
            "MPS: a program without a limit of its own, by the daemon's default asks for 1 GiB more than its 4096 MiB",
        ),
    ),
    "limit by the driver": ("limits", ("the driver stops a program at its limit",)),
    "memory by pod": ("memory", ("cgroupfs: MiB of the pod that holds 4096", "systemd: MiB of the pod that holds 4096")),
    "eviction of a pod that uses more": ("memory", ("cgroupfs: eviction is requested of the second pod alone",)),
    "right GPU": ("plugin", ("Allocate: index of the GPU", "Allocate: what nvidia's runtime gets")),
    "device strategy cdi": ("cdi", ("problems that our reader sees in the spec",)),
    "health": ("health", ("the plugin has heard an XID error within 10 s", "health of the GPU")),
}


@dataclass(frozen=True)
class Report:
    """A report of `make gpu-proof`. gpu: its model in one word, such as H100; day: when it ran, as 2026-11-26; file: its name."""

    gpu: str
    day: str
    file: str
    steps: Mapping[str, Mapping[str, Any]]

    @property
    def driver(self) -> str:
        """Its major version."""
        return str(self.steps["discovery"]["values"]["driver"]).partition(".")[0]

    def proves(self, claim: str) -> bool:
        """Whether each check of the claim ran, which it says only where it found what it expected."""
        step, names = CLAIMS[claim]
        ran = {one["name"] for one in self.steps.get(step, {}).get("checks", ()) if one["outcome"] == "ran"}
        return ran.issuperset(names)

    def found(self, step: str, check: str) -> str:
        """What a check found."""
        (found,) = (one["found"] for one in self.steps[step]["checks"] if one["name"] == check)
        return str(found)

    def together(self, kind: str) -> tuple[float, float]:
        """Rate of four programs of a kind at a time, of that of one alone: without MPS, with it."""
        rates = {
            one["isolation"]: one["of_one"]
            for one in self.steps["sharing"]["values"]["throughput"]
            if (one["kind"], one["programs"]) == (kind, 4)
        }
        return rates["none"], rates["mps"]


def reports(folder: Path = RESULTS) -> list[Report]:
    """Every saved report of a real GPU, by the name of its file."""
    found = []
    for file in sorted(folder.glob("gpu-*.json")):
        report = json.loads(file.read_text())
        steps = {step["name"]: step for step in report["steps"]}
        model = str(steps["discovery"]["values"]["model"])
        found.append(Report(short(model), str(report["date"]), file.name, steps))
    return found


def short(model: str) -> str:
    """A model in one word: NVIDIA H100 80GB HBM3 is an H100."""
    return next((word for word in model.split() if re.fullmatch(r"[A-Z]{1,3}\d+\S*", word)), model)


def proven_on(claim: str, folder: Path = RESULTS) -> list[str]:
    """GPUs on which the claim is proven, such as H100; empty if it is simulated."""
    return [one.gpu for one in reports(folder) if one.proves(claim)]


def words(
    claim: str, measured: str = "measured on", simulated: str = "simulated so far", between: str = " and ", folder: Path = RESULTS
) -> str:
    """How the claim is known, as a page says it."""
    gpus = proven_on(claim, folder)
    return f"{measured} {between.join(gpus)}" if gpus else simulated


def saved(name: str) -> Any:
    """A saved result of docs/project/benchmarks."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def rate(scheduling: Mapping[str, Any], *, extender: bool) -> float:
    """Pods bound per second with or without the extender, of a saved scheduling-*.json: the mean of its rounds."""
    return mean(scheduling, "ours" if extender else "no extender", "rate")


def mean(scheduling: Mapping[str, Any], kind: str, key: str) -> float:
    """Of a number in all rounds of a kind."""
    return float(statistics.mean(one[key] for one in scheduling["rounds"] if one["kind"] == kind))


def cpu(scheduling: Mapping[str, Any]) -> tuple[float, float]:
    """Milliseconds of CPU of all processes per bound pod, without and with the extender, of a saved scheduling-*.json."""
    kinds, rounds = ("no extender", "ours"), scheduling["rounds"]
    bare, ours = (statistics.mean(sum(one["cpu_ms_per_pod"].values()) for one in rounds if one["kind"] == kind) for kind in kinds)
    return bare, ours


def most_memory_of_plugin() -> float:
    """The most MiB that the device plugin had resident on a real GPU."""
    return max(float(report.found("plugin", "resident MiB")) for report in reports())


def one_node() -> Mapping[str, Any]:
    """The report of the cluster of one node with a real GPU."""
    return dict(saved("one-node-h100"))


def gpu_of_one_node() -> str:
    """The GPU of that cluster, in one word."""
    return short(str(one_node()["values"]["GPU"]["model"]))
