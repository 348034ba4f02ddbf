# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""YAML that a host or the cluster has sent, in bounds and in the shape of its kind: a few lines with aliases may mean gigabytes.

It needs PyYAML, which hosts may not have.
"""

from __future__ import annotations

import json
from typing import Any

import yaml

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


class TooLargeError(yaml.YAMLError):
    """A document that is not read, although it may be YAML."""


class OtherShapeError(yaml.YAMLError):
    """A document that has another shape than its kind."""


def load(text: str | bytes) -> Any:
    """The value of the text, as `yaml.safe_load` has it, or JSON.

    yaml.YAMLError where it is neither, beyond the bounds, or not as documents of its kind are.
    """
    document = _load(text)
    kind = document.get("kind") if isinstance(document, dict) else None
    wrong = other_shape(_KINDS[kind], document) if isinstance(kind, str) and kind in _KINDS else None
    if wrong is not None:
        raise OtherShapeError(f"no {kind}: {wrong}")
    return document


def _load(text: str | bytes) -> Any:
    if len(text) > MOST_CHARACTERS:
        raise TooLargeError(f"a YAML text of {len(text)} characters; expected at most {MOST_CHARACTERS}")
    loader = yaml.SafeLoader(text)
    try:
        if text.lstrip()[:1] in ("{", b"{"):
            # Which may be indented by tabs, and YAML may not.
            try:
                return json.loads(text)
            except ValueError:
                pass
        root = loader.get_single_node()
        if root is None:
            return None
        if _size(root, {}) > MOST_NODES:
            raise TooLargeError(f"a YAML document with more than {MOST_NODES} values, its aliases written out; expected fewer")
        return loader.construct_document(root)
    except RecursionError as error:
        raise TooLargeError("a YAML document with too many levels, or within itself; expected fewer than 300 levels") from error
    except ValueError as error:  # of a date that there is not
        raise TooLargeError(f"a YAML document with a value that cannot be read: {str(error)[:80]}") from error
    finally:
        loader.dispose()


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
