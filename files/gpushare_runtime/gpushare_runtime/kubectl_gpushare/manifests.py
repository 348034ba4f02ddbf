# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The objects of gpushare in a cluster, for `kubectl apply`: what the playbook `cluster` applies and the chart renders.

manifests.json beside this file has them with places for values. tools/manifests.py makes it from the builders of the playbook, and from
the values and the schema of the chart. A part is an object, a list, a text with places `${path}`, or one of these:
{"$value": path} is a value of another type, {"$if": {"value": path, …}, "$then": part} a part that may be missing, {"$merge": [part, …]}
an object of several, the last of which counts.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, Final

import yaml

from gpushare_runtime.core.bounds import quote
from gpushare_runtime.kubectl_gpushare.api import InputError

Json = dict[str, Any]

OLDEST: Final = (1, 30)
"""From here on the API server has ValidatingAdmissionPolicy as v1."""
OLDEST_MUTATING: Final = (1, 36)
"""From here on it has MutatingAdmissionPolicy as v1."""
MOST_VALUES_BYTES: Final = 64 * 1024
_PLACE: Final = re.compile(r"\$\{([A-Za-z.]+)\}")
_VERSION: Final = re.compile(r"v?(1)\.([0-9]{1,3})\.([0-9]{1,3})(?:[-+].{0,80})?")
_ABSENT: Final = object()


@cache
def template() -> Json:
    """The data that tools/manifests.py has made."""
    found: Json = json.loads(resources.files(__package__).joinpath("manifests.json").read_text(encoding="utf-8"))
    return found


def objects(values: Mapping[str, Any], namespace: str, kubernetes: str) -> list[Json]:
    """In the order in which they are applied. values: instead of the chart's; kubernetes: the API server's version, such as v1.36.3.

    InputError for what cannot be.
    """
    made = template()
    if not re.fullmatch(made["namespace"], namespace):
        raise InputError(f"found the namespace {quote(namespace)}; expected kube-system, or a name that begins with gpushare-")
    version = _VERSION.fullmatch(kubernetes)
    if version is None:
        raise InputError(f"found the version {quote(kubernetes)} of Kubernetes; expected one such as v1.36.3")
    release = int(version[1]), int(version[2])
    if release < OLDEST:
        raise InputError(f"found Kubernetes {quote(kubernetes)}; expected {OLDEST[0]}.{OLDEST[1]} or newer, whose API server has policies")
    known = merged(made["values"], values)
    if problem := next(problems(known, made["schema"]), None):
        raise InputError(problem)
    known["namespace"] = namespace
    known["ownNamespace"] = namespace != "kube-system"
    known["mutating"] = release >= OLDEST_MUTATING
    known["schedulerImage"] = known["schedulerImage"] or f"{made['schedulerRepository']}:v{'.'.join(version.groups())}"
    known["isolation"] = "watch" if known["isolation"] == "auto" else known["isolation"]
    known["config"] = json.dumps(filled(made["config"], known), indent=2) + "\n"
    known["digest"] = hashlib.sha256(known["config"].encode()).hexdigest()
    found: list[Json] = filled(made["objects"], known)
    return found


def filled(part: Any, values: Mapping[str, Any]) -> Any:
    """The part with its values."""
    if isinstance(part, str):
        return _PLACE.sub(lambda place: _text(_at(values, place[1])), part)
    if isinstance(part, list):
        return [entry for entry in (filled(each, values) for each in part) if entry is not _ABSENT]
    if not isinstance(part, dict):
        return part
    if "$value" in part:
        return _at(values, part["$value"])
    if "$merge" in part:
        return {key: value for mapping in part["$merge"] for key, value in filled(mapping, values).items()}
    if "$if" in part:
        return filled(part["$then"], values) if _holds(part["$if"], values) else _ABSENT
    pairs = ((key, filled(value, values)) for key, value in part.items())
    return {key: value for key, value in pairs if value is not _ABSENT}


def _holds(condition: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    found = _at(values, condition["value"])
    holds = bool(found == condition["is"] if "is" in condition else found in condition["in"] if "in" in condition else found)
    return holds is not ("not" in condition)


def _at(values: Mapping[str, Any], path: str) -> Any:
    found: Any = values
    for key in path.split("."):
        found = found[key]
    return found


def _text(value: Any) -> str:
    """Inside a text; a list as CEL has it, whose escapes are those of JSON."""
    return json.dumps(value) if isinstance(value, list) else str(value)


def merged(values: Mapping[str, Any], others: Mapping[str, Any]) -> Json:
    """As Helm does: objects key by key, all else as a whole."""
    found = copy.deepcopy(dict(values))
    for key, value in others.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = merged(found[key], value) if both else copy.deepcopy(value)
    return found


def problems(value: Any, schema: Mapping[str, Any], name: str = "") -> Iterator[str]:
    """The parts of a value that are not as its schema says, by those words of JSON Schema that the chart's has."""
    where = name or "the values"
    if "enum" in schema and value not in schema["enum"]:
        yield f"found {quote(value)} in {where}; expected one of {', '.join(repr(choice) for choice in schema['enum'])}"
    kinds: Mapping[str, Any] = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    kind = schema.get("type")
    if kind and (not isinstance(value, kinds[kind]) or (kind == "integer" and isinstance(value, bool))):
        yield f"found {quote(value)} in {where}; expected {'an' if kind[0] in 'aoi' else 'a'} {kind}"
        return
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"found {quote(value)} in {where}; expected what matches {schema['pattern']}"
    if "minimum" in schema and not schema["minimum"] <= value <= schema.get("maximum", value):
        yield f"found {quote(value)} in {where}; expected {schema['minimum']} to {schema.get('maximum')}"
    if isinstance(value, list):
        if len(value) > schema.get("maxItems", len(value)):
            yield f"found {len(value)} in {where}; expected at most {schema['maxItems']}"
        for number, entry in enumerate(value):
            yield from problems(entry, schema.get("items", {}), f"{name}[{number}]")
    if isinstance(value, dict):
        known = schema.get("properties", {})
        for key, entry in value.items():
            if key in known:
                yield from problems(entry, known[key], f"{name}.{key}".lstrip("."))
            elif schema.get("additionalProperties") is False:
                yield f"found {quote(key)} in {where}; expected {', '.join(known)}"
            else:
                yield from problems(entry, schema.get("additionalProperties", {}), f"{name}.{key}".lstrip("."))


def read_values(text: bytes, words: Sequence[str]) -> Json:
    """The values of a file as Helm reads it, and those of --set; InputError for what neither can be."""
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"found values that are not YAML ({quote(str(error))}); expected those of the chart gpushare") from None
    if found is not None and not isinstance(found, dict):
        raise InputError(f"found {quote(found)} as values; expected an object, as in the chart's values.yaml")
    values: Json = found or {}
    for word in words:
        path, equals, value = word.partition("=")
        known = _known(template()["schema"], path)
        if not equals or known is None:
            raise InputError(f"found --set {quote(word)}; expected NAME=VALUE with one of {', '.join(_names(template()['schema']))}")
        inner: Any = {path.rpartition(".")[2]: _typed(value, known)}
        for key in reversed(path.split(".")[:-1]):
            inner = {key: inner}
        values = merged(values, inner)
    return values


def _known(schema: Mapping[str, Any], path: str) -> Mapping[str, Any] | None:
    found: Any = schema
    for key in path.split("."):
        found = found.get("properties", {}).get(key)
        if found is None:
            return None
    return found if isinstance(found, dict) else None


def _names(schema: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for key, subschema in schema["properties"].items():
        yield from _names(subschema, f"{before}{key}.") if "properties" in subschema else (before + key,)


def _typed(text: str, schema: Mapping[str, Any]) -> Any:
    """A word of a command line as the schema wants it; what it cannot be stays a text, which the schema rejects."""
    kind = schema.get("type")
    if kind == "integer" and re.fullmatch("[0-9]{1,9}", text):
        return int(text)
    if kind == "boolean" and text in ("true", "false"):
        return text == "true"
    if kind == "array":
        return [word for word in text.split(",") if word]
    return text


class _Dumper(yaml.SafeDumper):
    """No aliases, lists below their key, and texts of several lines as such."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


_Dumper.add_representer(
    str, lambda dumper, value: dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)
)


def written(made: Iterable[Any]) -> str:
    """As YAML, a document for each object."""
    return "".join(f"---\n{yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=136, allow_unicode=True)}" for document in made)
