# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of a runtime as containerd decodes them. No Ansible, no I/O here.

containerd keeps the table `options` as it is written, and decodes it into the fields of runc's options when it starts a pod. Its
decoders take a key for a field in more spellings than the field's own: kubespray 2.16 to 2.27 writes `systemdCgroup`.

- 1.x has go-toml 1.9.5: the field's name, then in small letters, in capitals, and with a small first letter; the first that is there
  counts (`keysToTry` in marshal.go).
- 2.x has go-toml 2: any case. The table is sorted before it is decoded, so the last one counts (`GenerateRuntimeOptions` in
  internal/cri/config/config.go, `structField` in unmarshaler.go).

Read in containerd 1.6.20, 1.7.29, 2.0.0, 2.1.4 and 2.4.2 on 2026-11-29.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

RUNC_TYPE = "io.containerd.runc."
BINARY_NAME, SYSTEMD_CGROUP = "BinaryName", "SystemdCgroup"
#: api/types/runcoptions/v1, without what no release decodes from a file.
FIELDS = (
    "NoPivotRoot",
    "NoNewKeyring",
    "ShimCgroup",
    "IoUid",
    "IoGid",
    BINARY_NAME,
    "Root",
    "CriuPath",
    SYSTEMD_CGROUP,
    "CriuImagePath",
    "CriuWorkPath",
    "TaskApiAddress",
    "TaskApiVersion",
)


def is_runc(entry: Mapping[str, Any]) -> bool:
    """Whether a runtime's options are runc's."""
    return str(entry.get("runtime_type", "")).startswith(RUNC_TYPE)


def spellings(options: Mapping[str, Any], field: str) -> List[str]:
    """Every key that some release of containerd takes for this field."""
    return sorted(key for key in options if key.lower() == field.lower())


class Decoder:
    """The decoder of one generation of containerd."""

    def __init__(self, release: Tuple[int, int]) -> None:
        self._folds = release >= (2, 0)

    def key(self, options: Mapping[str, Any], field: str) -> str:
        """The key whose value the field gets: the field's own name if no other is there."""
        if self._folds:
            return (spellings(options, field) or [field])[-1]
        tried = (field, field.lower(), field.upper(), field[0].lower() + field[1:])
        return next((key for key in tried if key in options), field)

    def value(self, entry: Mapping[str, Any], field: str) -> Any:
        """The field's value in an entry of a runtime, None if it has none."""
        options = entry.get("options") or {}
        return options.get(self.key(options, field))

    def effective(self, entry: Mapping[str, Any]) -> Dict[str, Any]:
        """The entry with one key for each field that its options give a value, in its own spelling."""
        options = entry.get("options") or {}
        if not is_runc(entry) or not options:
            return dict(entry)
        known = {key for field in FIELDS for key in spellings(options, field)}
        keys = {self.key(options, field) for field in FIELDS}
        return dict(entry, options={key: value for key, value in options.items() if key in keys or key not in known})

    def decoded(self, entry: Mapping[str, Any]) -> Dict[str, Any]:
        """The entry with its options under the names of their fields, so that two entries with the same effect are equal."""
        found = self.effective(entry)
        if not is_runc(entry) or not found.get("options"):
            return found
        names = {field.lower(): field for field in FIELDS}
        return dict(found, options={names.get(key.lower(), key): value for key, value in found["options"].items()})
