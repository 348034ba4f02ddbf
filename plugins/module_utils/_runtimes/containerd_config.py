# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings that containerd's configuration must have so that pods get the nvidia runtime, and how to tell. No Ansible, no I/O here.

A dump is what `containerd config` prints, read as TOML: the effective configuration with every default filled in.
Its path to the CRI plugin's runtimes differs from the one in the files: files follow their own version (2, 3 or 4), a dump
that of the containerd that printed it.
"""

from __future__ import annotations

import copy
import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .._change.undo import Rejected
from .._formats.toml import Path, parse
from .._formats.toml_edit import drop, remove, remove_empty_header, set_value
from .containerd_options import BINARY_NAME, RUNC_TYPE, SYSTEMD_CGROUP, Decoder, is_runc, spellings
from .plan import RUNTIME, Runtimes, leaves, stripped

OLD_CRI, NEW_CRI = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
#: Of a file that we edit.
NEWEST_VERSION = 4
# Below the section of the CRI plugin.
CONTAINERD: Path = ("containerd",)
DEFAULT_NAME, RUNTIMES = CONTAINERD + ("default_runtime_name",), CONTAINERD + ("runtimes",)
TABLE_KEY, TABLE = "default_runtime", "default"
CDI: Path = ("enable_cdi",)
IMPORTS: Path = ("imports",)
VERSION: Path = ("version",)
# The settings whose meaning depends on the version of the file.
_VERSIONED = ("plugins", "disabled_plugins", "required_plugins", "proxy_plugins", "stream_processors")

_SECRETS = ("password", "auth", "identitytoken", "identity_token", "authorization")
_SECRET_VALUE = re.compile(
    r"(\b(?:" + "|".join(_SECRETS) + r""")['"]?[ \t]*=[ \t]*)("(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\{[^}\n]*\}|\[[^]\n]*\])""", re.IGNORECASE
)

# A value that shall be at a path below the CRI plugin's section.
Change = Tuple[Path, Any]


def release(version_output: str) -> Tuple[int, int]:
    """(2, 1) from what `containerd --version` prints."""
    match = re.match(r"containerd\s+\S+\s+v?(\d+)\.(\d+)\.\d+", version_output)
    if not match:
        raise Rejected(f"expected a containerd with a version such as 1.7.24, found one that calls itself {version_output.strip()[:200]!r}")
    return int(match.group(1)), int(match.group(2))


def plugin_path(version: int) -> Path:
    """The CRI plugin's section in a file of this version."""
    return ("plugins", OLD_CRI if version == 2 else NEW_CRI)


def file_version(path: str, data: Mapping[str, Any], newest: int) -> int:
    """The version that the file declares; Rejected for those that we do not edit.

    A file that declares none has version 1. One that has nothing of that version, such as that of docker's package without its line
    `disabled_plugins`, may get any.
    """
    last = min(newest, NEWEST_VERSION)
    if "version" not in data and not any(data.get(key) for key in _VERSIONED):
        return last
    version = data.get("version", 1)
    if version in range(2, last + 1):
        return int(version)
    raise Rejected(
        f"{path} has configuration version {'1 (it declares none)' if 'version' not in data else version}, expected "
        f"{2 if last == 2 else f'one from 2 to {last}'}, which this containerd reads: convert it with `containerd config "
        f"{'migrate' if newest > 2 else 'dump'}`, restart containerd, see that pods run, and run again"
    )


def dump_section(dump: Mapping[str, Any]) -> Dict[str, Any]:
    """The section `containerd` of the CRI plugin in a dump."""
    section: Dict[str, Any] = _dump_plugin(dump)["containerd"]
    return section


def cdi_is_on(dump: Mapping[str, Any]) -> bool:
    """Whether containers get the CDI devices that kubelet names."""
    return _dump_plugin(dump).get(CDI[0]) is True


def _dump_plugin(dump: Mapping[str, Any]) -> Dict[str, Any]:
    plugins = dump.get("plugins", {})
    for name in (NEW_CRI, OLD_CRI):
        if isinstance(plugins.get(name, {}).get("containerd"), dict):
            plugin: Dict[str, Any] = plugins[name]
            return plugin
    raise Rejected(
        "this containerd has no CRI plugin, so kubelet cannot use it: take it out of disabled_plugins (it is "
        f"{dump.get('disabled_plugins')})"
    )


def check_enabled(dump: Mapping[str, Any]) -> None:
    """Raise Rejected if the CRI plugin is switched off."""
    disabled = [name for name in dump.get("disabled_plugins") or [] if name in ("cri", OLD_CRI, NEW_CRI)]
    if disabled:
        raise Rejected(f"disabled_plugins of containerd's configuration has {', '.join(disabled)}, so kubelet cannot use it: take it out")


def socket_address(dump: Mapping[str, Any]) -> str:
    """Where containerd listens, by its configuration."""
    server = dump.get("plugins", {}).get("io.containerd.server.v1.grpc", {})
    return server.get("address") or dump.get("grpc", {}).get("address") or "/run/containerd/containerd.sock"


def runtimes(section: Mapping[str, Any], decoder: Decoder) -> Runtimes:
    """The runtimes that pods get by a dump's section, their options under the names of their fields."""
    entries, table = _entries(section, decoder), default_table(section)
    if table:
        return Runtimes(TABLE, dict(entries, **{TABLE: stripped(decoder.decoded(table))}))
    return Runtimes(section.get("default_runtime_name") or "", entries)


def default_table(section: Mapping[str, Any]) -> Dict[str, Any]:
    """The deprecated table `default_runtime`, {} without one. containerd 1.x makes a runtime `default` of it, which is the default
    whatever default_runtime_name says, and no dump shows that (ValidatePluginConfig in pkg/cri/config/config.go of 1.6.20 and 1.7.29)."""
    table = section.get(TABLE_KEY)
    return table if isinstance(table, dict) and table.get("runtime_type") else {}


def check_default_table(section: Mapping[str, Any], files: Mapping[str, str]) -> None:
    """Raise Rejected where that table decides. files: path to text of each that containerd reads."""
    if not default_table(section):
        return
    plugin = ("plugins", OLD_CRI)
    paths = [path for path, text in files.items() if default_table(_inside(parse(text).data, plugin + CONTAINERD))]
    raise Rejected(
        f"found the table {TABLE_KEY} in {' and '.join(paths) or 'the configuration of containerd'}, which wins over default_runtime_name "
        "and is deprecated; expected default_runtime_name alone. Nothing was changed: make it the entry runtimes.runc, with its options, "
        'set default_runtime_name = "runc" beside it, restart containerd, see that pods run, and run again'
    )


def needed(section: Mapping[str, Any], binary: str, default: bool, decoder: Decoder) -> List[Change]:
    """The settings that are missing for the nvidia runtime to be there and, with `default`, the default; [] if nothing is. binary: its
    program.

    A new entry has all that the entry of the present default runtime says (SystemdCgroup above all), with another program. An entry
    that is there keeps what it says, except for the program; and where it is not the default yet, except for the type and the cgroup
    driver. An option keeps the spelling that it has.
    """
    base = _low_level(runtimes(section, decoder), section, default)
    present = (section.get("runtimes") or {}).get(RUNTIME)
    if present is None:
        changes = leaves(RUNTIMES + (RUNTIME,), _like(base, binary, decoder))
    else:
        changes = (
            [] if present.get("runtime_type") == base["runtime_type"] else [(RUNTIMES + (RUNTIME, "runtime_type"), base["runtime_type"])]
        )
        changes += _corrected(present, BINARY_NAME, binary)
        changes += _corrected(present, SYSTEMD_CGROUP, _has_systemd(section, base, decoder))
    if default and section.get("default_runtime_name") != RUNTIME:
        changes.insert(0, (DEFAULT_NAME, RUNTIME))
    return changes


def lost(before: Mapping[str, Any], after: Mapping[str, Any], decoder: Decoder) -> List[Change]:
    """The runtimes that the dump `after` lacks. containerd 1.x forgets its built-in `runc` when a file names any runtime."""
    old, new = before.get("runtimes") or {}, after.get("runtimes") or {}
    return [change for name in sorted(old) if name not in new for change in leaves(RUNTIMES + (name,), spelled_out(old[name], decoder))]


def spelled_out(entry: Mapping[str, Any], decoder: Decoder) -> Dict[str, Any]:
    """An entry as it has its effect, that says its cgroup driver even if it is the default."""
    found: Dict[str, Any] = stripped(decoder.effective(entry))
    if is_runc(entry):
        options = entry.get("options") or {}
        found.setdefault("options", {}).setdefault(decoder.key(options, SYSTEMD_CGROUP), False)
    return found


def applied(dump: Mapping[str, Any], changes: Sequence[Change]) -> Dict[str, Any]:
    """The dump as it must be after the changes, and nothing else."""
    wanted = copy.deepcopy(dict(dump))
    plugin = _dump_plugin(wanted)
    for path, value in changes:
        table = plugin
        for part in path[:-1]:
            table = table.setdefault(part, {})
        table[path[-1]] = value
    return wanted


def undone(before: Mapping[str, Any], after: Mapping[str, Any]) -> Dict[str, Any]:
    """The dump `before` with what `after` has of ours: the default runtime, the nvidia runtime, and whether CDI is on."""
    wanted = copy.deepcopy(dict(before))
    if CDI[0] in _dump_plugin(wanted):
        _dump_plugin(wanted)[CDI[0]] = cdi_is_on(after)
    section, found = dump_section(wanted), dump_section(after)
    section["default_runtime_name"] = found.get("default_runtime_name")
    section["runtimes"] = {name: entry for name, entry in (section.get("runtimes") or {}).items() if name != RUNTIME}
    if RUNTIME in (found.get("runtimes") or {}):
        section["runtimes"][RUNTIME] = found["runtimes"][RUNTIME]
    return wanted


def differences(wanted: Mapping[str, Any], found: Mapping[str, Any], decoder: Decoder) -> List[str]:
    """Where two dumps differ in meaning, as "path: wanted …, found …"; [] if nowhere.

    Lists of imports are left out, because only their effect counts; a runtime's zero value is the same as none, and one spelling of an
    option the same as another.
    """
    return _differences((), _comparable(wanted, decoder), _comparable(found, decoder))


def describe(found: Sequence[str]) -> str:
    """At most five differences."""
    more = "" if len(found) <= 5 else f"; and {len(found) - 5} more"
    return "; ".join(found[:5]) + more


def edited(text: str, version: int, changes: Sequence[Change]) -> str:
    if "version" not in parse(text).data:
        text = set_value(text, VERSION, version)
    for path, value in changes:
        text = set_value(text, plugin_path(version) + path, value)
    return text


def reverted(text: str, original: str, builtin: Mapping[str, Any], imports: Sequence[str]) -> Optional[str]:
    """The file without our part, None if then nothing is left in it.

    original: as it was before us, "" if it was not there. builtin: runtimes of an empty configuration, which we may have had to
    spell out. imports: patterns that we may have added.
    """
    new, old = parse(text).data, parse(original).data
    version = int(new.get("version", 2))
    plugin, plugin_before = plugin_path(version), plugin_path(int(old.get("version", version)))
    section = plugin + CONTAINERD
    ours, theirs = _inside(new, section), _inside(old, plugin_before + CONTAINERD)
    if ours.get("default_runtime_name") == RUNTIME:
        text = _restored(text, plugin + DEFAULT_NAME, theirs.get("default_runtime_name"))
    if _value(new, plugin + CDI) is True:
        text = _restored(text, plugin + CDI, _value(old, plugin_before + CDI))
    runtimes, before = ours.get("runtimes", {}), theirs.get("runtimes", {})
    if RUNTIME not in before:
        text = remove(text, section + ("runtimes", RUNTIME))
    elif RUNTIME in runtimes:
        options = {**_inside(before[RUNTIME], ("options",)), **_inside(runtimes[RUNTIME], ("options",))}
        keys = [key for field in (BINARY_NAME, SYSTEMD_CGROUP) for key in spellings(options, field)]
        for path in [("runtime_type",), *(("options", key) for key in keys)]:
            text = _restored(text, section + ("runtimes", RUNTIME) + path, _value(before[RUNTIME], path))
    for name in sorted(set(runtimes) - set(before) - {RUNTIME}):
        if stripped(runtimes[name]) == stripped(builtin.get(name)):
            text = remove(text, section + ("runtimes", name))
    for pattern in imports:
        if pattern not in old.get("imports", []):
            text = drop(text, IMPORTS, pattern)
    if "imports" not in old and parse(text).data.get("imports") == []:
        text = remove(text, IMPORTS)
    had = {header.path for header in parse(original).headers}
    for header in reversed(parse(text).headers):
        if header.path not in had and header.path[: len(section)] == section[: len(header.path)]:
            text = remove_empty_header(text, header.path)
    if original and "version" not in old and not any(parse(text).data.get(key) for key in _VERSIONED):
        text = remove(text, VERSION)
    return None if not original and set(parse(text).data) <= set(VERSION) else text


def running_runtimes(config: Mapping[str, Any], decoder: Decoder) -> Runtimes:
    """The runtimes of a process, from the configuration in its CRI status (JSON, other names for the same things)."""
    section = config.get("containerd") or {}
    entries = {
        name: {"runtime_type": entry.get("runtimeType"), "options": entry.get("options")}
        for name, entry in (section.get("runtimes") or {}).items()
    }
    return Runtimes(section.get("defaultRuntimeName") or "", _entries({"runtimes": entries}, decoder), config.get("enableCDI") is True)


def not_running(wanted: Runtimes, running: Runtimes) -> Optional[str]:
    """The settings that the process lacks of the configuration on the disk, as far as it concerns us; None if nothing."""
    if running.default != wanted.default:
        return f"its default runtime is {running.default!r}, expected {wanted.default!r}"
    if wanted.cdi not in (None, running.cdi):
        return f"it runs with enable_cdi = {str(running.cdi).lower()}, expected {str(wanted.cdi).lower()}"
    for name in sorted({RUNTIME, wanted.default}):
        has, should = (_essence(runtimes.entries.get(name)) for runtimes in (running, wanted))
        if has != should:
            return f"its runtime {name} is {has}, expected {should}"
    return None


def masked(text: str) -> str:
    """A configuration to be shown: passwords and tokens of registries are hidden."""
    return _SECRET_VALUE.sub(r'\1"(hidden)"', text)


def _entries(section: Mapping[str, Any], decoder: Decoder) -> Dict[str, Any]:
    return {name: stripped(decoder.decoded(entry)) for name, entry in (section.get("runtimes") or {}).items()}


def _like(base: Mapping[str, Any], binary: str, decoder: Decoder) -> Dict[str, Any]:
    """A new entry with another program. Its cgroup driver is spelled out: kubelet's has to agree with it."""
    entry = spelled_out(base, decoder)
    entry["options"][decoder.key(base.get("options") or {}, BINARY_NAME)] = binary
    return entry


def _corrected(entry: Mapping[str, Any], field: str, value: Any) -> List[Change]:
    """The changes that give a field this value in every spelling that it has: one that is inert in this release may count in the next."""
    options = entry.get("options") or {}
    keys = spellings(options, field) or ([field] if value else [])
    return [(RUNTIMES + (RUNTIME, "options", key), value) for key in keys if (options.get(key) or None) != (value or None)]


def _has_systemd(section: Mapping[str, Any], base: Mapping[str, Any], decoder: Decoder) -> bool:
    """Whether nvidia shall have the systemd cgroup driver: as the runtime that pods have now.

    Releases of ours before this one wrote a second spelling beside kubespray's, which then disagrees with it: there runc still tells
    what was meant.
    """
    options = ((section.get("runtimes") or {}).get(RUNTIME) or {}).get("options") or {}
    values = {bool(options[key]) for key in spellings(options, SYSTEMD_CGROUP)}
    runc = (section.get("runtimes") or {}).get("runc") or {}
    return bool(decoder.value(runc if len(values) > 1 and is_runc(runc) else base, SYSTEMD_CGROUP))


def _low_level(found: Runtimes, section: Mapping[str, Any], replaced: bool) -> Dict[str, Any]:
    """The entry of the runtime that pods get now, as the section has it. replaced: whether nvidia shall be the default in its place."""
    default = found.entries.get(found.default)
    if replaced and found.default != RUNTIME and default is not None and not is_runc(default):
        raise Rejected(
            f"the default runtime is {found.default} of type {default.get('runtime_type')}, which is not run by runc: making "
            "nvidia the default would take its isolation from every pod that names no RuntimeClass; nothing was changed: make a runtime of "
            f"type {RUNC_TYPE}v2 the default first, or set gpushare_default_runtime: unchanged"
        )
    for name in (found.default, "runc"):
        if is_runc(found.entries.get(name, {})):
            entry: Dict[str, Any] = section["runtimes"][name]
            return entry
    raise Rejected(
        f"found the runtimes {', '.join(sorted(found.entries)) or 'none'} and the default {found.default!r}, expected one of "
        f"type {RUNC_TYPE}v2 (usually runc) to copy the options from; nothing was changed: add its table as `containerd config default` "
        "prints it, restart containerd, see that pods run, and run again"
    )


def _comparable(dump: Mapping[str, Any], decoder: Decoder) -> Dict[str, Any]:
    found = copy.deepcopy(dict(dump))
    found.pop("imports", None)
    section = dump_section(found)
    section["runtimes"] = _entries(section, decoder)
    return found


def _differences(path: Path, wanted: Any, found: Any) -> List[str]:
    if isinstance(wanted, dict) or isinstance(found, dict):
        left, right = (value if isinstance(value, dict) else {} if value is None else {"": value} for value in (wanted, found))
        return [line for key in sorted(set(left) | set(right)) for line in _differences(path + (key,), left.get(key), right.get(key))]
    if wanted == found and isinstance(wanted, bool) == isinstance(found, bool):
        return []
    if any(part.lower() in _SECRETS for part in path):
        return [f"{'.'.join(path)}: expected another value than was found"]
    return [f"{'.'.join(path)}: expected {wanted!r}, found {found!r}"]


def _essence(entry: Optional[Mapping[str, Any]]) -> Optional[Dict[str, Any]]:
    if entry is None:
        return None
    options = entry.get("options", {})
    return {
        "runtime_type": entry.get("runtime_type"),
        "BinaryName": options.get("BinaryName", ""),
        "SystemdCgroup": bool(options.get("SystemdCgroup", False)),
    }


def _inside(data: Mapping[str, Any], path: Path) -> Dict[str, Any]:
    found = _value(data, path)
    return found if isinstance(found, dict) else {}


def _value(data: Any, path: Path) -> Any:
    for part in path:
        data = data.get(part) if isinstance(data, dict) else None
    return data


def _restored(text: str, path: Path, value: Any) -> str:
    return remove(text, path) if value is None else set_value(text, path, value)
