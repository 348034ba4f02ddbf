# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a module answers when it cannot do what it was asked for: one place for all modules."""

from __future__ import annotations

import contextlib
import os
from types import MappingProxyType
from typing import Any, Iterator, Mapping

from .._formats.failure import Failure
from . import lock


@contextlib.contextmanager
def answering(module: Any, always: Mapping[str, Any] = MappingProxyType({})) -> Iterator[None]:
    """A Failure, a file that cannot be read or written, or bytes that are not UTF-8 become the answer of the AnsibleModule.

    always: more keys of that answer, as they are by then. Other exceptions are faults of this collection, and end with a traceback.
    """
    try:
        yield
    except Failure as error:
        module.fail_json(msg=str(error), reason=error.reason, **always)
    except (OSError, UnicodeDecodeError) as error:
        module.fail_json(msg=str(error), reason="file", **always)


@contextlib.contextmanager
def changing(module: Any, root: str = "/", always: Mapping[str, Any] = MappingProxyType({})) -> Iterator[None]:
    """The same for a module that changes its host: with the host's lock, and files that only their owner writes.

    root: the folder that stands for the host; see `lock.for_module`.
    """
    with answering(module, always), lock.for_module(module, root):
        os.umask(0o022)
        yield
