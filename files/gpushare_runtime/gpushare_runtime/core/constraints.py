# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which GPUs a pod accepts, by model, UUID and neighbours: the annotations gpushare.request/* that users write on pods."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import MOST_ASKED, MOST_ASKED_BYTES, QUOTED, quote

Labels = tuple[tuple[str, str], ...]
"""A pod's labels, or what a selector wants of them, sorted: hashable, and one object for many pods."""

PLACEMENTS: Final = ("binpack", "spread")
RULES_PREFIX: Final = protocol.ASK_MODELS.partition("/")[0] + "/"
"""Of the annotations that state rules."""
_MODELS_SEEN: Final = 64
_PAIR: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9./_-]*)\s*==?\s*([A-Za-z0-9._-]*)")
_SAMPLES: Final = {
    protocol.ASK_MODELS: "A100,Tesla-V100",
    protocol.ASK_MODELS_REFUSED: "T4,P4",
    protocol.ASK_GPUS: "GPU-8f6f2c31-…",
    protocol.ASK_GPUS_REFUSED: "GPU-8f6f2c31-…",
}


@dataclass(frozen=True)
class Rules:
    """models, models_refused: names of GPU models. gpu_uuids, gpus_refused: UUIDs; the two selectors: labels of pods in the
    same namespace. placement: a policy's name. isolation: what must keep the pod to its units. links: the links between its GPUs that
    it requires. Empty means no such rule."""

    models: tuple[str, ...] = ()
    models_refused: tuple[str, ...] = ()
    gpu_uuids: tuple[str, ...] = ()
    gpus_refused: tuple[str, ...] = ()
    same_gpu_as: Labels = ()
    not_with: Labels = ()
    placement: str = ""
    isolation: str = ""
    links: str = ""

    @cached_property
    def about_gpus(self) -> bool:
        """Whether a GPU's own model or UUID matters."""
        return bool(self.models or self.models_refused or self.gpu_uuids or self.gpus_refused)

    @cached_property
    def about_pods(self) -> bool:
        """Whether it matters who else is on the GPU."""
        return bool(self.same_gpu_as or self.not_with)

    def accept(self, uuid: str, models: Iterable[str]) -> bool:
        """Whether a GPU with this UUID will do. models: every name that it goes by."""
        wanted, refused = self._uuids
        if (wanted and uuid not in wanted) or uuid in refused:
            return False
        return not (self.models or self.models_refused) or self._accept_model(tuple(models))

    def _accept_model(self, models: tuple[str, ...]) -> bool:
        """It is asked for every GPU of every node at an attempt, and most are of a few models."""
        accepted = self._models_seen.get(models)
        if accepted is None:
            if len(self._models_seen) >= _MODELS_SEEN:
                self._models_seen.clear()
            names = [model_words(model) for model in models]
            wanted = not self.models or any(_named(words, names) for words in map(model_words, self.models))
            accepted = wanted and not any(_named(words, names) for words in map(model_words, self.models_refused))
            self._models_seen[models] = accepted
        return accepted

    @cached_property
    def _uuids(self) -> tuple[frozenset[str], frozenset[str]]:
        return frozenset(self.gpu_uuids), frozenset(self.gpus_refused)

    @cached_property
    def _models_seen(self) -> dict[tuple[str, ...], bool]:
        return {}


NO_RULES: Final = Rules()


@dataclass(frozen=True)
class Context:
    """The requesting pod as other pods' rules see it.

    labels: those that any other pod's rules select.
    starts_group: no pod that matches its `same_gpu_as` has GPUs yet, and it matches itself, so it may start the group.
    """

    namespace: str
    labels: Labels
    starts_group: bool = False


NO_CONTEXT: Final = Context("", ())


def parse_rules(annotations: Mapping[str, str]) -> Rules:
    """The rules that a pod's annotations state. ValueError names the annotation and says what to write."""
    if not any(key.startswith(RULES_PREFIX) for key in annotations):
        return NO_RULES
    placement = annotations.get(protocol.ASK_PLACEMENT, "")
    if placement and placement not in PLACEMENTS:
        raise ValueError(f"annotation {protocol.ASK_PLACEMENT}: {quote(placement)} is not a policy; write one of {', '.join(PLACEMENTS)}")
    isolation = annotations.get(protocol.ASK_ISOLATION, "")
    if isolation and isolation not in protocol.ISOLATIONS_REQUIRED:
        known = " or ".join(protocol.ISOLATIONS_REQUIRED)
        raise ValueError(f"annotation {protocol.ASK_ISOLATION}: {quote(isolation)} is not known; write {known}")
    links = annotations.get(protocol.ASK_LINKS, "")
    if links and links not in protocol.LINKS_REQUIRED:
        raise ValueError(f"annotation {protocol.ASK_LINKS}: {quote(links)} is not known; write {' or '.join(protocol.LINKS_REQUIRED)}")
    unknown = min((key for key in annotations if key.startswith(RULES_PREFIX) and key not in protocol.ASKS), default=None)
    if unknown is not None:
        raise ValueError(f"annotation {_name(unknown)} is not known; those that are: {', '.join(sorted(protocol.ASKS))}")
    return Rules(
        models=_list(annotations, protocol.ASK_MODELS),
        models_refused=_list(annotations, protocol.ASK_MODELS_REFUSED),
        gpu_uuids=_list(annotations, protocol.ASK_GPUS),
        gpus_refused=_list(annotations, protocol.ASK_GPUS_REFUSED),
        same_gpu_as=_selector(annotations, protocol.ASK_SAME_GPU_AS),
        not_with=_selector(annotations, protocol.ASK_NOT_WITH),
        placement=placement,
        isolation=isolation,
        links=links,
    )


def labels_of(metadata: Mapping[str, object]) -> Labels:
    """The labels in an object's metadata."""
    labels = metadata.get("labels")
    return tuple(sorted(labels.items())) if isinstance(labels, Mapping) else ()


def selects(selector: Labels, labels: Labels) -> bool:
    """Whether a selector is there and all it wants is among the labels."""
    # A pod may have thousands of labels: they are sorted.
    return bool(selector) and all(labels[at : at + 1] == (pair,) for pair in selector for at in (bisect_left(labels, pair),))


def _list(annotations: Mapping[str, str], name: str) -> tuple[str, ...]:
    if name not in annotations:
        return ()
    parts = tuple(part.strip() for part in _entries(annotations, name))
    if not all(model_words(part) for part in parts):
        raise ValueError(f"annotation {name} must be a list such as {_SAMPLES[name]!r}, found {quote(annotations[name])}")
    return parts


def _selector(annotations: Mapping[str, str], name: str) -> Labels:
    if name not in annotations:
        return ()
    matches = [_PAIR.fullmatch(part.strip()) for part in _entries(annotations, name)]
    pairs = sorted((match[1], match[2]) for match in matches if match)
    if len(pairs) < len(matches):
        raise ValueError(f"annotation {name} must be pod labels such as 'app=encoder,tier=web', found {quote(annotations[name])}")
    return tuple(pairs)


def _entries(annotations: Mapping[str, str], name: str) -> list[str]:
    text = annotations[name]
    if len(text) > MOST_ASKED_BYTES or text.count(",") >= MOST_ASKED:
        raise ValueError(
            f"annotation {name} has {text.count(',') + 1} entries and {len(text)} characters; "
            f"write at most {MOST_ASKED} entries and {MOST_ASKED_BYTES} characters"
        )
    return text.split(",")


def _name(key: str) -> str:
    """An annotation's own name, as the API server lets it be: long, but printable."""
    return key if len(key) <= QUOTED else f"{key[: QUOTED - 3]}..."


def model_words(model: str) -> list[str]:
    """The words by which the names of models are compared."""
    return re.findall(r"[a-z0-9]+", model.lower())


def _named(words: list[str], names: Iterable[list[str]]) -> bool:
    """Whether one of the names has these words in a row: A100 is in NVIDIA A100-SXM4-80GB, A10 is not."""
    return any(words == name[at : at + len(words)] for name in names for at in range(len(name) - len(words) + 1))
