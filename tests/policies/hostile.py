# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Random pods of somebody who wants to break the policies that make claims of limits. Each can be one that the API server has decoded."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.dra import CORE, GPUS, MEMORY

from policies.engine import Json

#: As a client may write them; the API server takes each of them as a quantity.
AMOUNTS = ("1", "2", "6", "24", "0", "-1", "1.5", "100m", "1e3", "1k", "2Ki", "9999999", "10000000", "9223372036854775807", "1E", "12E18")
_ANNOTATIONS = (
    *(f"gpushare.request/{name}" for name in ("models", "models-refused", "gpus", "gpus-refused", "same-gpu-as", "not-with", "placement")),
    *(f"gpushare.request/{name}" for name in ("isolation", "links", "unknown", "MODELS", "")),
    "scheduler.framework.gpushare.allocation",
    "ALIYUN_COM_GPU_MEM_IDX",
    "kubernetes.io/config.mirror",
    "resource.kubernetes.io/pod-claim-name",
)
_TEXTS = (
    *("A100", "A100,Tesla V100", "T4", ",", ",,,", " ", "", "-", "--", "a--b", "ä", "Ⅷ", "\u202e"),
    "GPU-8f6d2c1a-0000-4000-8000-000000000000",
    *("'", '"', "'+'", '")', "\\", "\\'", "x') || true || ('", '" + string(1) + "', "{{ }}", "%s", "${x}", "\n", "\t", "\x7f", "𝔄𝟙"),
    *("A" * 63, "a," * 40, "-" * 200, "x" * 201, "A" * 5000, "is-a--not-b", "m4-x2--is-a100", "gpushare-m4"),
)
_COUNTS = ("1", "2", "3", "7", "16", "17", "99", "100", "0", "01", "-1", "", "x", "2 ", "1e1")
_CLAIMS = (
    *("gpushare-m6", "gpushare-m4-x2", "gpushare-m1", "gpushare-m0", "gpushare-mx", "gpushare-m6--is-a100", "gpushare-m6--by-driver"),
    *("mine", "gpushare", "m" * 63),
)
_SCHEDULERS = ("", "default-scheduler", "gpushare-scheduler", "other")


def pods(seed: int, number: int) -> list[Json]:
    """The same for the same seed."""
    chance = random.Random(seed)
    return [_pod(chance, index) for index in range(number)]


def _pod(chance: random.Random, index: int) -> Json:
    few = chance.random() < 0.9
    containers = [_container(chance, f"c{place}") for place in range(chance.choice((1, 1, 1, 2, 3) if few else (63, 64, 65, 80)))]
    inits = [_container(chance, f"i{place}", init=True) for place in range(chance.choice((0, 0, 0, 1, 2, 4)))]
    spec: Json = {"containers": containers, **({"initContainers": inits} if inits else {})}
    if chance.random() < 0.3:
        spec["schedulerName"] = chance.choice(_SCHEDULERS)
    if chance.random() < 0.1:
        spec["nodeName"] = "gpu1"
    if chance.random() < 0.3:
        crowd = [f"c{place}" for place in range(chance.choice((20, 249, 251)))]
        names = chance.sample(_CLAIMS, chance.choice((1, 1, 2, 4))) if few else crowd
        spec["resourceClaims"] = [_reference(chance, name) for name in names]
    annotations = {chance.choice(_ANNOTATIONS): _text(chance) for _ in range(chance.choice((0, 0, 1, 1, 2, 5)))}
    if not few and chance.random() < 0.3:
        annotations |= {f"gpushare.request/{place}": "" for place in range(chance.choice((20, 249, 251, 1000)))}
    labels = {"aliyun.com/gpu-count": chance.choice(_COUNTS)} if chance.random() < 0.4 else {}
    metadata: Json = {"name": f"p{index}", "namespace": "default"}
    # None at all is another thing than an empty one.
    metadata |= {"annotations": annotations} if annotations or chance.random() < 0.3 else {}
    metadata |= {"labels": labels} if labels or chance.random() < 0.3 else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _text(chance: random.Random) -> str:
    if chance.random() < 0.7:
        return chance.choice(_TEXTS)
    return "".join(chance.choice("aA1-,. _'\"\\äß𝔄") for _ in range(chance.choice((1, 5, 30, 199, 200, 201))))


def _container(chance: random.Random, name: str, init: bool = False) -> Json:
    made: Json = {"name": name, "image": "example.org/x"}
    if init and chance.random() < 0.4:
        made["restartPolicy"] = "Always"
    limits: dict[str, str] = {}
    for resource, odds in ((MEMORY, 0.6), (GPUS, 0.1), (CORE, 0.05), ("cpu", 0.2)):
        if chance.random() < odds * (0.6 if init else 1):
            limits[resource] = chance.choice(AMOUNTS[:4] if chance.random() < 0.6 else AMOUNTS)
    resources: dict[str, Any] = {}
    if limits:
        # As the API server's defaults make of them. It rejects others of such a resource by itself.
        resources = {"limits": limits, "requests": dict(limits)}
    if chance.random() < 0.2:
        resources["claims"] = [{"name": one} for one in _some(chance, _CLAIMS)]
    if resources or chance.random() < 0.5:
        made["resources"] = resources
    if chance.random() < 0.3:
        most = 300 if chance.random() < 0.02 else 3
        names = ["ALIYUN_COM_GPU_MEM_CONTAINER", "A", *(f"E{place}" for place in range(most))]
        made["env"] = [{"name": one, "value": _text(chance).replace("\x7f", "")} for one in chance.sample(names, chance.randint(0, most))]
    return made


def _some(chance: random.Random, among: Sequence[str]) -> list[str]:
    return chance.sample(among, chance.choice((1, 1, 2, 3)))


def _reference(chance: random.Random, name: str) -> Json:
    made = {"name": name}
    kind = chance.choice(("resourceClaimTemplateName", "resourceClaimName"))
    return {**made, kind: chance.choice(("gpushare", "gpushare", "mine"))}
