# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The common part of all container runtimes: what pods get, and what is to be written so that they do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .._change.undo import Texts, Undone, decoded, nothing_undone
from .._formats.failure import Failure
from .._formats.toml import Path
from .._host.files import read_state

#: The name of our runtime in every configuration.
RUNTIME = "nvidia"


class SilentError(Failure):
    """The running container runtime did not answer; says where it was asked, and what came instead."""


@dataclass(frozen=True)
class Asked:
    """The runtime that pods shall get. program: NVIDIA's container runtime, None if none is needed; default: whether it is the default one.

    cdi: whether the container runtime is to pass CDI devices on, where that is off by default.
    """

    program: Optional[str]
    default: bool = True
    cdi: bool = False


@dataclass(frozen=True)
class Runtimes:
    """The runtimes that pods get: the default runtime's name, and every runtime's entry without the values that mean nothing.

    cdi: whether CDI devices are passed on; None where that is of no interest.
    """

    default: str
    entries: Dict[str, Any]
    cdi: Optional[bool] = None

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> "Runtimes":
        """Of the section that containerd and CRI-O have in common."""
        entries = {name: stripped(entry) for name, entry in (section.get("runtimes") or {}).items()}
        return cls(section.get("default_runtime_name") or section.get("default_runtime") or "", entries)


@dataclass(frozen=True)
class RuntimePlan:
    """after: what pods then get. files: path to new text, None to remove it, in the order in which to write. back: the fate of files that
    are taken back. notes: what a person should know."""

    after: Runtimes
    files: Texts = field(default_factory=dict)
    notes: List[str] = field(default_factory=list)
    back: Undone = field(default_factory=nothing_undone)

    def text(self, path: str) -> Optional[str]:
        """The text that a file then has, None for no file."""
        texts = {**self.files, **self.back.texts}
        return texts[path] if path in texts else read_text(path)


def stripped(value: Any) -> Any:
    """Without the keys whose value is zero, false or empty: in a runtime's entry these are the same as none."""
    if not isinstance(value, dict):
        return value
    inner = {key: stripped(entry) for key, entry in value.items()}
    return {key: entry for key, entry in inner.items() if entry}


def leaves(path: Path, value: Any) -> List[Tuple[Path, Any]]:
    """Every value below, tables last."""
    if not isinstance(value, dict) or not value:
        return [(path, value)]
    inner = sorted(value.items(), key=lambda item: (isinstance(item[1], dict), item[0]))
    return [leaf for key, entry in inner for leaf in leaves(path + (key,), entry)]


def read_text(path: str) -> Optional[str]:
    """The file's text, None if there is none."""
    state = read_state(path)
    return None if state is None else decoded(path, state.content)
