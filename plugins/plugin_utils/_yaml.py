# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""YAML that a host or the cluster has sent, in bounds: a few lines with aliases may mean gigabytes.

Private to this collection, used on the controller only (it needs PyYAML, which hosts may not have).
"""

from __future__ import annotations

import json
from typing import Any

import yaml

#: More than a configuration, a policy or a manifest has: such a text is read within a few seconds.
MOST_CHARACTERS = 256 * 1024
#: Of the document with every alias written out.
MOST_NODES = 50_000


class TooLargeError(yaml.YAMLError):
    """A document that is not read, although it may be YAML."""


def load(text: str | bytes) -> Any:
    """What the text means, as `yaml.safe_load` has it, or JSON. yaml.YAMLError where it is neither, or beyond the bounds."""
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
