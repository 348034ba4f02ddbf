# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The images that a node's container runtime has, and the import of archives of images.

Which images there are is asked of the runtime by kubelet's own interface; to import one, that interface has no call, so the runtime's own
program does it.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence, Set

from .._formats.answers import ABSENT, ModuleAnswer, like
from .._formats.failure import Failure
from .._host.container_runtimes import KINDS, socket_path
from . import cri
from .plan import SilentError

_LIST = "/runtime.v1.ImageService/ListImages"
_SECONDS = 30.0
#: containerd's CRI learns of what another program imported by an event, some time after that program has ended.
_LISTED_SECONDS, _AGAIN_SECONDS = 30.0, 0.5
_FILE = re.compile(r"images/[^/]{1,200}")
#: The name of one, as the API server takes it: kubectl makes all probe pods in one call, and one bad image would reject all.
IMAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:/@-]{0,500}[A-Za-z0-9])?")
Call = Callable[[str, str, bytes, float], bytes]


@dataclass(frozen=True)
class ImagesImported(ModuleAnswer):
    """The answer of gpushare_host_runtime about images. missing: files that its action plugin then sends."""

    imported: List[str] = field(metadata=like(IMAGE))
    missing: Optional[List[str]] = field(default=None, metadata={**like(_FILE), **ABSENT})


class ImagesError(Failure):
    """The images cannot be listed or imported; says what to do."""


def listed(endpoint: str, call: Call = cri.call) -> Dict[str, Set[str]]:
    """Reference to the ids of the image that has it, "sha256:…" of its configuration. ImagesError."""
    try:
        message = call(socket_path(endpoint), _LIST, b"", _SECONDS)
        found: Dict[str, Set[str]] = {}
        for number, value in cri.fields(message):
            if number != 1 or isinstance(value, int):
                continue
            identity, references = "", []
            for part, content in cri.fields(value):
                if part in (1, 2) and not isinstance(content, int):
                    text = content.decode("utf-8", "replace")
                    if part == 1:
                        identity = text if ":" in text else f"sha256:{text}"
                    else:
                        references.append(text)
            for reference in references:
                found.setdefault(reference, set()).add(identity)
        return found
    except (SilentError, OSError, EOFError, ValueError, LookupError) as error:
        raise ImagesError(f"the container runtime at {endpoint[:80]} does not list its images ({str(error)[:200]}): see its log") from error


def importer(runtime: Optional[str], endpoint: str, program: Callable[[str], Optional[str]]) -> List[str]:
    """The command that imports an archive, whose path follows. ImagesError if the host has no program for it."""
    kind = KINDS.get(runtime or "")
    commands = () if kind is None else kind.imports
    for name, *arguments in commands:
        path = program(name)
        if path:
            return [path, *(word.format(address=socket_path(endpoint)) for word in arguments)]
    needed = commands[0][0] if commands else "program that imports images"
    raise ImagesError(
        f"kubelet's container runtime is {runtime or 'not known'}, and this host has no {needed}; nothing "
        "was imported: import the images of the bundle by hand, or push them to a registry"
    )


def lacking(wanted: Sequence[Dict[str, Any]], has: Dict[str, Set[str]]) -> List[Dict[str, Any]]:
    """Of these images (references, id) those that the runtime does not have under each of their names."""
    return [image for image in wanted if any(image["id"] not in has.get(name, ()) for name in _names(image))]


def unlisted(
    wanted: Sequence[Dict[str, Any]],
    has: Callable[[], Dict[str, Set[str]]],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> List[Dict[str, Any]]:
    """Of these images, whose import has ended, those that the runtime (has) does not list within 30 s. ImagesError."""
    until = clock() + _LISTED_SECONDS
    left = lacking(wanted, has())
    while left and clock() < until:
        sleep(_AGAIN_SECONDS)
        left = lacking(left, has())
    return left


def _names(image: Dict[str, object]) -> List[str]:
    names = image["references"]
    return [str(name) for name in names] if isinstance(names, (list, tuple)) else []
