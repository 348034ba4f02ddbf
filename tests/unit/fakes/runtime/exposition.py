# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Prometheus' text format, read as strictly as its own parser reads it, and more: what it tolerates is an error here."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\n"])*)"')
SAMPLE = re.compile(rf"({NAME.pattern})(?:\{{(.*)\}})? (\S+)")
SUFFIXES = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}

Labels = tuple[tuple[str, str], ...]


@dataclass
class Read:
    """A family. samples: by suffix and sorted labels."""

    name: str
    help: str
    kind: str = ""
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    @property
    def labels(self) -> set[str]:
        """Names of its labels, a histogram's own `le` left out."""
        return {name for _, labels in self.samples for name, _ in labels} - {"le"}


def read(text: str) -> dict[str, Read]:
    """The families by name; AssertionError says which line is wrong."""
    assert text.endswith("\n"), "the last line does not end"
    families: dict[str, Read] = {}
    now = None
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _, _, name, words = line.split(" ", 3)
            assert NAME.fullmatch(name), line
            assert words, line
            assert name not in families, f"{name} comes twice"
            now = families[name] = Read(name, words)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert now is not None, line
            assert (name, now.kind, now.samples) == (now.name, "", {}), line
            assert kind in SUFFIXES, line
            now.kind = kind
        else:
            assert now is not None, line
            assert now.kind, line
            _sample(now, line)
    for family in families.values():
        _whole(family)
    return families


def _sample(family: Read, line: str) -> None:
    found = SAMPLE.fullmatch(line)
    assert found, line
    assert found[1].startswith(family.name), line
    suffix, inside = found[1].removeprefix(family.name), found[2]
    assert suffix in SUFFIXES[family.kind], line
    pairs = LABEL.findall(inside or "")
    assert inside is None or (pairs and ",".join(f'{key}="{value}"' for key, value in pairs) == inside), line
    names = [key for key, _ in pairs]
    assert len(names) == len(set(names)), line
    assert ("le" in names) == (suffix == "_bucket"), line
    key = suffix, tuple(sorted(pairs))
    assert key not in family.samples, f"twice: {line}"
    value = float(found[3])
    assert not math.isnan(value), line
    family.samples[key] = value


def _whole(family: Read) -> None:
    """By the conventions of the field: units, `_total`, and of a histogram every part."""
    name, kind = family.name, family.kind
    assert kind, f"{name} has no type"
    assert name.endswith("_total") == (kind == "counter"), f"{name} is a {kind}"
    assert kind == "gauge" or all(value >= 0 for value in family.samples.values()), name
    if kind != "histogram":
        return
    series: dict[Labels, list[tuple[float, float]]] = {}
    for (suffix, labels), value in family.samples.items():
        if suffix == "_bucket":
            of = tuple(pair for pair in labels if pair[0] != "le")
            series.setdefault(of, []).append((float(dict(labels)["le"]), value))
    for of, buckets in series.items():
        assert buckets == sorted(buckets), f"{name}{of}: its bounds do not grow"
        assert [count for _, count in buckets] == sorted(count for _, count in buckets), f"{name}{of}: its counts do not grow"
        assert buckets[-1] == (math.inf, family.samples["_count", of]), f"{name}{of} does not end with all"
        assert ("_sum", of) in family.samples, f"{name}{of} has no sum"
