# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A kubectl that writes down what it is asked, and answers as a cluster that has everything already."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PROGRAM = """#!{python}
import json, sys
words, kinds = sys.argv[1:], {kinds!r}
data = sys.stdin.read() if "-" in words else ""
items = [item["metadata"]["name"] for item in json.loads(data or "{{}}").get("items", [])]
with open({log!r}, "a") as log:
    log.write(json.dumps({{"words": words, "items": items}}) + "\\n")
answers = {answers!r}
for known, answer in answers.items():
    if known in " ".join(words):
        sys.exit(answer) if isinstance(answer, str) else print(json.dumps(answer))
        break
else:
    if "get" in words and data:
        listed = json.loads(data)
        data = json.dumps(dict(listed, items=[item for item in listed["items"] if item["metadata"]["name"] not in {missing!r}]))
    print(json.dumps({{"resources": [{{"kind": kind}} for kind in kinds]}}) if "--raw" in words else data)
"""
_KINDS = ("ServiceAccount", "Secret", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


def make_kubectl(path: Path, answers: dict[str, Any] | None = None, missing: Sequence[str] = ()) -> Path:
    """Put it at this path. answers: words that are asked to what it answers (a str: an error). missing: names of objects that it lacks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_PROGRAM.format(python=sys.executable, kinds=_KINDS, log=f"{path}.log", answers=answers or {}, missing=list(missing)))
    path.chmod(0o755)
    return path


def asked(path: Path) -> list[dict[str, Any]]:
    """Each call: words, and the names of the objects that it was given."""
    log = Path(f"{path}.log")
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
