# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""YAML and JSON that a host or the cluster has sent, read and written as Kubernetes reads them, in bounds and in the shape of their kind.

A few lines with aliases may mean gigabytes. It needs PyYAML, which hosts may not have.

Kubernetes reads a text that begins with { as JSON, and any other as the first YAML document in it (k8s.io/apimachinery 0.36.3, runtime/
serializer; read on 2026-11-29). Its YAML is that of go.yaml.in/yaml/v2 2.4.2, not PyYAML's: y and n are booleans, 1e3 is a number, 1:30
and dates are strings, and a merge (<<) wins over keys above it. kubelet reads a static pod as YAML
alone, in which braces are permitted, too.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import yaml

from ..module_utils._formats.failure import Failure
from ..module_utils._formats.yaml_scalars import BOOLEANS, first_document
from ._shape import Either, Map, Maybe, Open, other_shape

#: More than a configuration, a policy or a manifest has: such a text is read within a few seconds.
MOST_CHARACTERS = 256 * 1024
#: Of the document with every alias written out.
MOST_NODES = 50_000

_MOUNT = Open({"name?": Maybe(str), "mountPath": str, "subPath?": Maybe(str), "readOnly?": Maybe(bool)})
_CONTAINER = Open(
    {"name?": Maybe(str), "image?": Maybe(str), "command?": Maybe([Any]), "args?": Maybe([Any]), "volumeMounts?": Maybe([_MOUNT])}
)
_HOST_PATH = Open({"path": str, "type?": Maybe(str)})
_EXTENDERS = Maybe([Open({"urlPrefix?": Maybe(str), "managedResources?": Maybe([Open({"name?": Maybe(str)})])})])
_PART = Maybe(Open({}))
# kubeadm's: a map, and a list from v1beta4 on.
_ARGS = Maybe(Either([Open({})], Open({})))
#: By their kind, what the plans of the scheduler and verify read of a document. Kubernetes would not take another shape either.
_KINDS = {
    "Pod": Open(
        {
            "metadata?": Maybe(Open({"name?": Maybe(str), "annotations?": Maybe(Map(str))})),
            "spec?": Open(
                {"containers?": Maybe([_CONTAINER]), "volumes?": Maybe([Open({"name?": Maybe(str), "hostPath?": Maybe(_HOST_PATH)})])}
            ),
        }
    ),
    "KubeSchedulerConfiguration": Open(
        {
            "apiVersion?": Maybe(str),
            "profiles?": Maybe([Open({"schedulerName?": Maybe(str)})]),
            "extenders?": _EXTENDERS,
            "algorithmSource?": Maybe(Open({"policy?": Maybe(Open({"file?": Maybe(Open({"path?": Maybe(str)}))}))})),
            "leaderElection?": _PART,
            "clientConnection?": _PART,
            "percentageOfNodesToScore?": Maybe(int),
        }
    ),
    "Policy": Open({"extenders?": _EXTENDERS}),
    "ClusterConfiguration": Open(
        {
            "apiVersion?": Maybe(str),
            "scheduler?": Maybe(
                Open({"extraVolumes?": Maybe([Open({"name?": Maybe(str), "mountPath?": Maybe(str)})]), "extraArgs?": _ARGS})
            ),
        }
    ),
}


_TAG = "tag:yaml.org,2002:"
_MERGE = f"{_TAG}merge"
_WORDS: dict[str, Any] = {
    **BOOLEANS,
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys((f"{sign}.{word}" for sign in ("", "+", "-") for word in ("inf", "Inf", "INF")), math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_INTEGER = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[oO]?([0-7]+)|0[bB]([01]+)|(0|[1-9][0-9]*))")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
# Of one that begins with a dot, underscores stand between digits only.
_FRACTION = re.compile(r"\.[0-9](?:_?[0-9])*(?:[eE][-+]?[0-9](?:_?[0-9])*)?")
_LARGEST, _SMALLEST = 2**64 - 1, -(2**63)


class DocumentError(Failure, yaml.YAMLError):
    """A YAML document that is beyond the bounds, has another shape than its kind, or that Kubernetes takes for JSON."""


def load(text: str | bytes) -> Any:
    """The value that Kubernetes reads in the text; None for one without a document.

    yaml.YAMLError where it reads none, beyond the bounds, or not as documents of its kind are.
    """
    document = _load(text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else text)
    kind = document.get("kind") if isinstance(document, dict) else None
    wrong = other_shape(_KINDS[kind], document) if isinstance(kind, str) and kind in _KINDS else None
    if wrong is not None:
        raise DocumentError(f"no {kind}: {wrong}")
    return document


def dump(value: Any, flow: bool = False) -> str:
    """The value as YAML, in block style or on one line, keys in the order they have. Strings stay strings for Kubernetes."""
    return yaml.dump(value, Dumper=_Writer, sort_keys=False, default_flow_style=flow, width=10**6, allow_unicode=True)


def in_braces(text: str) -> bool:
    """Whether Kubernetes expects JSON, by the text's first character."""
    return text.lstrip().startswith("{")


def is_json(text: str) -> bool:
    """Whether it is JSON, an object."""
    return in_braces(text) and not isinstance(_json(text), ValueError)


def _json(text: str) -> Any:
    """The value, or the ValueError of a text that is not JSON."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except ValueError as error:
        return error


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is not a number")


def _load(text: str) -> Any:
    if len(text) > MOST_CHARACTERS:
        raise DocumentError(f"a YAML text of {len(text)} characters; expected at most {MOST_CHARACTERS}")
    try:
        value = _json(text) if in_braces(text) else None
        if not in_braces(text):
            return _document(text)
        if not isinstance(value, ValueError):
            return value
        document = _document(text)
    except RecursionError as error:
        raise DocumentError("a YAML document with too many levels, or within itself; expected fewer than 300 levels") from error
    if isinstance(document, dict) and document.get("kind") == "Pod":
        return document
    raise DocumentError(
        f"a text that begins with {{ is JSON to Kubernetes, and this one is not ({str(value)[:80]}): write it as JSON, or as YAML without "
        "the outer braces"
    )


def _document(text: str) -> Any:
    """The first YAML document of the text."""
    loader = Loader(first_document(text)[0])
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        if _size(root, {}) > MOST_NODES:
            raise DocumentError(f"a YAML document with more than {MOST_NODES} values, its aliases written out; expected fewer")
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _plain(text: str) -> Any:
    """The value of a scalar without quotes."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789":
        return text
    bare = text.replace("_", "")
    integer = _INTEGER.fullmatch(bare)
    if integer and len(bare) < 80:
        digits, base = next((digits, base) for digits, base in zip(integer.groups()[1:], (16, 8, 2, 10), strict=True) if digits)
        number = int(integer.group(1) + digits, base)
        if _SMALLEST <= number <= _LARGEST:
            return number
    is_float = _FRACTION.fullmatch(text) if text[0] == "." else _FLOAT.fullmatch(bare)
    value = float(bare) if is_float else math.inf
    return text if math.isinf(value) else value


class Loader(yaml.SafeLoader):
    """The loader constructs what JSON has, as Kubernetes does. Other tags are errors."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        if kind is not yaml.ScalarNode or not implicit[0]:
            return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        return _MERGE if value == "<<" else _tag(_plain(value))

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Its keys take the place of their <<: later keys win over them, and they over those before. Of several, the first wins."""
        pairs = []
        for key, value in node.value:
            if key.tag != _MERGE:
                pairs.append((key, value))
                continue
            for source in reversed(value.value if isinstance(value, yaml.SequenceNode) else [value]):
                if not isinstance(source, yaml.MappingNode):
                    raise yaml.constructor.ConstructorError(None, None, "expected a mapping to merge in", source.start_mark)
                self.flatten_mapping(source)
                pairs += source.value
        node.value = pairs

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[Any, Any]:
        if not isinstance(node, yaml.MappingNode):
            raise yaml.constructor.ConstructorError(None, None, "expected a mapping", node.start_mark)
        self.flatten_mapping(node)
        found = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, (str, int, float)):
                raise yaml.constructor.ConstructorError(None, None, "expected a key that is a text or a number", key_node.start_mark)
            name = key if isinstance(key, str) else json.dumps(key)
            found[name] = self.construct_object(value_node, deep=deep)
        return found

    def construct_plain(self, node: yaml.ScalarNode) -> Any:
        value = _plain(str(node.value))
        is_float = node.tag == f"{_TAG}float" and isinstance(value, (int, float)) and not isinstance(value, bool)
        if (_tag(value) != node.tag and not is_float) or (isinstance(value, float) and not math.isfinite(value)):
            raise yaml.constructor.ConstructorError(None, None, f"a value that JSON does not have: {node.value[:80]!r}", node.start_mark)
        return value


class _Writer(yaml.SafeDumper):
    """A dumper that quotes a string that Kubernetes, or PyYAML, would read as something else."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        tag: str = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        if kind is yaml.ScalarNode and implicit[0] and tag == f"{_TAG}str":
            return _tag(_plain(value))
        return tag


def _tag(value: Any) -> str:
    names: dict[type, str] = {str: "str", bool: "bool", int: "int", float: "float"}
    return _TAG + names.get(type(value), "null")


Loader.yaml_constructors = {
    f"{_TAG}map": yaml.SafeLoader.construct_yaml_map,
    f"{_TAG}seq": yaml.SafeLoader.construct_yaml_seq,
    f"{_TAG}str": yaml.SafeLoader.construct_yaml_str,
    f"{_TAG}merge": yaml.SafeLoader.construct_yaml_str,
    **{f"{_TAG}{name}": Loader.construct_plain for name in ("bool", "int", "float", "null")},
    None: yaml.SafeLoader.construct_undefined,
}


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values it has, each as often as an alias means it."""
    found = known.get(id(node))
    if found is None:
        parts: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            parts = node.value
        found = known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    return found
