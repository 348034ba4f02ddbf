# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which cards a pod accepts, and with whom it shares one."""

from __future__ import annotations

import pytest

from gpushare_runtime.allocation import allocate
from gpushare_runtime.ledger import Holder, Ledger
from gpushare_runtime.request import Request, parse_request
from gpushare_runtime.rules import NO_RULES, Rules, parse_rules
from unit.runtime.pods import container, inventory, pod


def test_the_annotations_of_other_things_are_no_rules() -> None:
    assert parse_rules({"a": "b", "ALIYUN_COM_GPU_MEM_IDX": "1"}) is NO_RULES


def test_all_of_them() -> None:
    rules = parse_rules(
        {
            "gpushare.request/models": "A100, Tesla-V100",
            "gpushare.request/models-refused": "T4",
            "gpushare.request/cards": "GPU-1",
            "gpushare.request/cards-refused": "GPU-2,GPU-3",
            "gpushare.request/same-card-as": "app=encoder, tier = web",
            "gpushare.request/not-with": "example.com/noisy==true",
            "gpushare.request/placement": "spread",
        }
    )
    assert rules == Rules(
        models=("A100", "Tesla-V100"),
        models_refused=("T4",),
        cards=("GPU-1",),
        cards_refused=("GPU-2", "GPU-3"),
        same_card_as=(("app", "encoder"), ("tier", "web")),
        not_with=(("example.com/noisy", "true"),),
        placement="spread",
    )


@pytest.mark.parametrize(
    ("model", "wanted", "accepted"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100", True),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4", True),
        ("NVIDIA A100-SXM4-80GB", "A10", False),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB", False),
        ("Tesla V100-SXM2-16GB", "Tesla-V100-SXM2-16GB", True),
        ("Tesla T4", "Tesla T4", True),
    ],
)
def test_a_model_is_named_by_words_of_it_in_a_row(model: str, wanted: str, accepted: bool) -> None:
    assert Rules(models=(wanted,)).accept("GPU-1", [model]) is accepted
    assert Rules(models_refused=(wanted,)).accept("GPU-1", [model]) is not accepted


class Cards:
    """One node of three cards, and pods on it by label app."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.ledger.set_inventory("n", inventory(16, 16, 16))

    def ask(self, app: str, **annotations: str) -> Request:
        request = parse_request(
            pod(container(mem=4), annotations={f"gpushare.request/{k.replace('_', '-')}": v for k, v in annotations.items()})
        )
        assert request is not None
        return self.ledger.asked_by(request, "default", (("app", app),))

    def cards(self, app: str, **annotations: str) -> list[int]:
        node = self.ledger.node("n")
        assert node is not None
        return [state.card.index for state in node.candidates(self.ask(app, **annotations))]

    def put(self, app: str, card: int, namespace: str = "default", **annotations: str) -> None:
        request = self.ask(app, **annotations).asked_by(None)
        uid = f"{app}-{card}"
        self.ledger.apply(Holder(uid, namespace, uid, "n", request, allocate(request, [(card, 16)]), (("app", app),)))


def test_the_same_card_as_others() -> None:
    world = Cards()
    assert world.cards("client", same_card_as="app=server") == [], "there is none yet"
    world.put("server", 1)
    world.put("server", 2, namespace="elsewhere")
    assert world.cards("client", same_card_as="app=server") == [1]


def test_the_first_of_a_group_may_go_anywhere() -> None:
    world = Cards()
    assert world.cards("server", same_card_as="app=server") == [0, 1, 2]
    world.put("server", 2)
    assert world.cards("server", same_card_as="app=server") == [2]


def test_not_with_others_whoever_comes_first() -> None:
    world = Cards()
    world.put("noisy", 0)
    assert world.cards("quiet", not_with="app=noisy") == [1, 2]
    world.put("quiet", 1, not_with="app=noisy")
    assert world.cards("noisy") == [0, 2]
    assert world.cards("other") == [0, 1, 2]
    world.ledger.remove("quiet-1")
    assert world.cards("noisy") == [0, 1, 2]


def test_a_pod_whose_card_nobody_knows_may_be_on_any() -> None:
    world = Cards()
    request = world.ask("noisy").asked_by(None)
    world.ledger.apply(Holder("u", "default", "u", "n", request, None, (("app", "noisy"),)))
    assert world.cards("quiet", not_with="app=noisy") == []
    assert world.cards("quiet", same_card_as="app=noisy") == []
