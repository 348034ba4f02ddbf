# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""docs/use/dra.md: each sample runs, waits or is rejected as its table says. The table is read here, so that page and cluster agree."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from docs.pages import codes, rows, section
from dra.shares import allocated, check_not_over_booked, check_shares
from e2e.api import Json
from e2e.cluster import GPUS, MEMORY, SAMPLES, Cluster, CommandError, asked, is_running, unschedulable
from e2e.manifests import IMAGE

pytestmark = pytest.mark.suite("dra")

TABLE = {sample: (what, why) for sample, what, why in rows(section("docs/use/dra.md", "The samples"))}
RUNS, WAITS, REJECTED, NOT_TRIED = "runs", "waits", "rejected", "not tried"
#: Those that a lab has.
IMAGES = (IMAGE, "bvlc/caffe:gpu")


def documents(sample: str) -> list[Json]:
    """Of a sample; a container whose image no lab has sleeps in another one."""
    made: list[Json] = list(yaml.safe_load_all((SAMPLES / f"{sample}.yaml").read_text()))
    for one in made:
        for container in spec_of(one).get("containers", ()):
            if container["image"] not in IMAGES:
                container |= {"image": IMAGE, "imagePullPolicy": "IfNotPresent", "command": ["/bin/sh", "-c", "sleep 86400"]}
                for key in ("args", "readinessProbe"):
                    container.pop(key, None)
                spec_of(one)["terminationGracePeriodSeconds"] = 1
                if spec_of(one).get("securityContext", {}).get("runAsNonRoot"):
                    # The stand-in names no user.
                    spec_of(one)["securityContext"]["runAsUser"] = 1000
    return made


def spec_of(made: Json) -> dict[str, Any]:
    """The spec of the pods that an object is or makes; {} without one."""
    found: dict[str, Any] = made.get("spec", {}) if made["kind"] == "Pod" else made.get("spec", {}).get("template", {}).get("spec", {})
    return found


def of(sample: str) -> dict[str, list[Json]]:
    """Name of an object → the containers of its pods."""
    return {one["metadata"]["name"]: spec_of(one)["containers"] for one in documents(sample) if spec_of(one)}


def apply(cluster: Cluster, sample: str) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents(sample)))


def test_the_page_has_a_row_for_each_sample() -> None:
    assert sorted(TABLE) == sorted(path.stem for path in SAMPLES.glob("*.yaml"))
    assert {what for what, _ in TABLE.values()} <= {RUNS, WAITS, REJECTED, NOT_TRIED}


def those(what: str) -> list[str]:
    return sorted(sample for sample, (found, _) in TABLE.items() if found == what)


@pytest.mark.parametrize("sample", those(RUNS))
def test_a_sample_runs(empty: Cluster, sample: str) -> None:
    apply(empty, sample)
    wanted = of(sample)
    assert wanted, f"{sample} makes no pods"

    def run() -> list[Json] | None:
        """The pods, once each object has one that runs or has ended well, and none is on its way."""
        found = [one for one in empty.pods() if "deletionTimestamp" not in one["metadata"]]
        owners = [owner for owner in wanted if any(one["metadata"]["name"].startswith(owner) for one in found)]
        ready = all(is_running(one) or one["status"].get("phase") == "Succeeded" for one in found)
        return found if ready and len(owners) == len(wanted) else None

    empty.until(f"the pods of {sample} run", run, 120)

    def looked() -> list[list[str]]:
        """The problems. Again where one has ended meanwhile."""
        running, units = [one for one in empty.pods() if is_running(one)], {}
        for one in running:
            (container,) = next(made for name, made in wanted.items() if one["metadata"]["name"].startswith(name))
            whole = sum(share.gib for share in allocated(empty)[one["metadata"]["uid"]]) if asked(container, GPUS) else 0
            units[one["metadata"]["name"]] = asked(container, MEMORY) or whole
        return [check_shares(empty, running, units) if running else []]

    assert empty.until("no container ends while it is looked at", looked, 60) == [[]]
    assert check_not_over_booked(empty) == []


@pytest.mark.parametrize("sample", those(WAITS))
def test_a_sample_waits(empty: Cluster, sample: str) -> None:
    apply(empty, sample)
    (words,) = codes(TABLE[sample][1])
    for name in of(sample):
        assert words in empty.until_unschedulable(name)
        assert unschedulable(empty.pod(name))


@pytest.mark.parametrize("sample", those(REJECTED))
def test_a_sample_is_rejected(empty: Cluster, sample: str) -> None:
    words = codes(TABLE[sample][1])
    assert words
    with pytest.raises(CommandError) as error:
        apply(empty, sample)
    said = str(error.value)
    assert [word for word in words if word not in said] == [], said
    assert empty.pods() == []


def test_a_job_has_run_all_of_its_tasks(empty: Cluster) -> None:
    apply(empty, "12-job")
    empty.kubectl("wait", "--for=condition=Complete", "job/batch", "--timeout=120s", seconds=150)
    assert [one["status"]["phase"] for one in empty.pods()].count("Succeeded") == 4
