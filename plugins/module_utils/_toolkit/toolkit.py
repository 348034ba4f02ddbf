# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's container toolkit on a host: its version, what its config.toml lets containers ask for, and its CDI spec.

The runtime reads config.toml at each start of a container, so that nothing is restarted. A candidate is read by the host's own
nvidia-ctk before it takes its place. A new unit needs no daemon-reload, which would take GPUs from running containers.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

from .._change import engine
from .._change.engine import ChangePlan, Converged, Recorded, Subject
from .._change.journal import Entry, Journal
from .._change.transaction import Service, nothing
from .._change.undo import Rejected, Texts, decoded, undo, undone
from .._facts.advisories import TOOLKIT_MINIMUM, open_in_toolkit
from .._facts.cdi_specs import TOOLKIT_SAYS, FoundSpec, specs
from .._formats.nvidia_config import CONFIG, ENVIRONMENT_KEY, STRICT
from .._formats.toml import TomlError, loads
from .._formats.toml_edit import remove, set_value
from .._formats.versions import newer
from .._host.command import RunWithin
from .._host.files import read_state
from .._host.host import Host
from .._host.others import toolkit_manager
from .._host.systemd import UNITS, parsed, show_command

#: Where the toolkit's own unit writes the spec, and the container runtimes read it; gone after a boot, as are the device nodes.
SPEC = "/var/run/cdi/nvidia.yaml"
#: Of the journal: what this takes out again by itself, and units, which uninstall takes out as others.
OWNER, OWNER_CDI = "nvidia_container_toolkit", "nvidia_container_toolkit.cdi"
HEADER = "# Made by gpushare.kubernetes; the toolkit's own defaults hold for all other settings.\n"
REFRESH, OWN_REFRESH = "nvidia-cdi-refresh", "gpushare-cdi-refresh"
_UNIT_FOLDERS = (UNITS, "/usr/lib/systemd/system", "/lib/systemd/system")
_UUID = re.compile(r"\bGPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_QUESTION, _GENERATE = 60.0, 180.0
UNITS_OF_OURS = {
    f"{OWN_REFRESH}.service": f"""\
# Copyright: gpushare.kubernetes contributors
[Unit]
Description=Write the CDI specification of NVIDIA's GPUs
ConditionPathExists=/usr/bin/nvidia-ctk
After=systemd-modules-load.service nvidia-persistenced.service
Before=kubelet.service

[Service]
Type=oneshot
ExecStart=/usr/bin/nvidia-ctk cdi generate --device-name-strategy=uuid --device-name-strategy=index --output={SPEC}

[Install]
WantedBy=multi-user.target
""",
    f"{OWN_REFRESH}.path": """\
# Copyright: gpushare.kubernetes contributors
[Unit]
Description=Write the CDI specification anew after a change of driver or toolkit

[Path]
PathChanged=/lib/modules/%v/modules.dep
PathChanged=/usr/bin/nvidia-ctk

[Install]
WantedBy=multi-user.target
""",
}


@dataclass(frozen=True)
class WantedToolkit:
    """strict: see STRICT. minimum: the oldest version. cdi: whether the spec is written now, at boot and after changes of the driver.

    comes: whether packages that only have been predicted bring the toolkit.
    """

    strict: bool
    minimum: str = TOOLKIT_MINIMUM
    cdi: bool = False
    comes: bool = False


class ConfigOnHost(NamedTuple):
    """The toolkit's config.toml as it is. content: None for no file. entry: the journal's, None without one."""

    content: Optional[bytes]
    entry: Optional[Entry]


class ToolkitConfig(Subject[ConfigOnHost]):
    """The toolkit's config.toml. strict: see WantedToolkit."""

    owner = OWNER

    def __init__(self, strict: bool, host: Host, run: RunWithin) -> None:
        self.root = host.root
        self._strict, self._host, self._run = strict, host, run

    def look(self, recorded: Recorded) -> ConfigOnHost:
        entry = next((entry for entry in recorded.entries if entry.path == CONFIG), None)
        state = read_state(self._host.outside(CONFIG))
        return ConfigOnHost(None if state is None else state.content, entry)

    def present(self, found: ConfigOnHost) -> ChangePlan:
        entry = found.entry
        before = "" if found.content is None else decoded(CONFIG, found.content)
        after = _strict(before) if self._strict else _loose(before if entry is None else _reverted(found.content, entry))
        if after != before:
            _check(after, self._strict, self._host, self._run)
        if not after and not self._strict and entry is not None and entry.original is None:
            return ChangePlan({CONFIG: None})
        return ChangePlan({} if found.content is None and not after else {CONFIG: after})

    def absent(self, found: ConfigOnHost, entries: Sequence[Entry]) -> ChangePlan:
        return ChangePlan(back=undone(entries, _without_ours, self.root))


class CdiSpec(Subject[bool]):
    """The units that write the CDI spec. is_new: whether the toolkit comes with packages that are only planned."""

    owner, mode = OWNER_CDI, 0o644

    def __init__(self, host: Host, run: RunWithin, is_new: bool) -> None:
        self.root = host.root
        self._refresh = None if is_new else _Refresh(host, run)
        self._host = host

    def look(self, recorded: Recorded) -> bool:
        """Whether the toolkit has a unit of its own."""
        return _has_own_unit(self._host)

    def present(self, found: bool) -> ChangePlan:
        """The toolkit's own unit where it has one, else ours."""
        texts: Texts = {f"{UNITS}/{name}": None if found else text for name, text in UNITS_OF_OURS.items()}
        names = self._refresh.not_enabled() if self._refresh else []
        return ChangePlan(texts, service=self._refresh, elsewhere={f"service:{name}": (b"disabled", b"enabled") for name in names})


def converge(wanted: WantedToolkit, host: Host, run: RunWithin, dry: bool, point: Callable[[str], None] = nothing) -> Converged:
    """Do it, or with `dry` say what would be done. It raises Rejected if nothing was changed, TransactionError if it was restored."""
    others = toolkit_manager(host)
    if others:
        return Converged(notes=[f"{others} manages the container toolkit of this host: nothing was changed"])
    result = Converged()
    if not wanted.comes and not _version(wanted, host, run):
        result.notes.append("the container toolkit does not print its version, so that its age is not known")
    result.add(engine.converge(ToolkitConfig(wanted.strict, host, run), False, dry, point))
    if not dry and not wanted.strict:
        _forget_as_before(host)
    if wanted.cdi and not host.is_folder("/run/systemd/system"):
        result.notes.append("systemd does not run on this host: nothing writes the CDI spec at boot")
    elif wanted.cdi:
        result.add(engine.converge(CdiSpec(host, run, wanted.comes), False, dry, point))
    return result


def restore(host: Host, run: RunWithin, dry: bool) -> Converged:
    """Take our part out of config.toml."""
    return engine.converge(ToolkitConfig(False, host, run), True, dry)


def _forget_as_before(host: Host) -> None:
    """Forget config.toml where its settings are those from before us: nothing is left to take back."""
    journal = Journal(host.root)
    entry = journal.entry(CONFIG)
    if entry is not None:
        before = b"" if entry.original is None else entry.original.content
        if _settings(host.data(CONFIG) or b"") == _settings(before):
            journal.forget(CONFIG)


def _reverted(content: Optional[bytes], entry: Entry) -> str:
    return decoded(CONFIG, undo(entry, content, _without_ours).content or b"")


def _has_own_unit(host: Host) -> bool:
    return any(host.exists(f"{folder}/{REFRESH}.path") for folder in _UNIT_FOLDERS)


def _without_ours(path: str, now: str, original: str) -> str:
    old = loads(original)
    for name in STRICT:
        if loads(now).get(name) is not old.get(name):
            now = set_value(now, (name,), old[name]) if name in old else remove(now, (name,))
    return now


def _strict(text: str) -> str:
    header = "" if text else HEADER
    for name, value in STRICT.items():
        text = set_value(text, (name,), value)
    return header + text


def _loose(text: str) -> str:
    """Where an administrator forbids what the strategy envvar needs, it is permitted: an administrator has set that strategy."""
    return set_value(text, (ENVIRONMENT_KEY,), True) if loads(text).get(ENVIRONMENT_KEY) is False else text


def _settings(content: bytes) -> List[object]:
    return [loads(decoded(CONFIG, content)).get(name) for name in STRICT]


def _check(text: str, strict: bool, host: Host, run: RunWithin) -> None:
    """It raises Rejected if the host's own nvidia-ctk does not read the candidate, or reads something else."""
    program = host.program("nvidia-ctk")
    if program is None:
        return
    descriptor, path = tempfile.mkstemp(prefix="gpushare-toolkit-", suffix=".toml")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        outcome = run([program, "--quiet", "config", f"--config-file={path}"], _QUESTION)
    finally:
        os.unlink(path)
    if not outcome.ok:
        raise Rejected(f"nvidia-ctk rejects the candidate of {CONFIG} ({outcome.words[-300:]}); nothing was changed: correct that file")
    try:
        read = loads(outcome.out)
    except TomlError as error:
        raise Rejected(f"nvidia-ctk prints a configuration that is not TOML ({error}); nothing was changed: check {CONFIG}") from error
    wrong = [name for name, value in STRICT.items() if strict and read.get(name, not value) is not value]
    if wrong:
        raise Rejected(f"nvidia-ctk reads {', '.join(wrong)} in another way than written; nothing was changed: check {CONFIG}")


def _version(wanted: WantedToolkit, host: Host, run: RunWithin) -> str:
    """The toolkit's version, "" if it does not say. It raises Rejected without a toolkit, or with one that is too old."""
    program = host.program("nvidia-ctk") or host.program("nvidia-container-runtime")
    if program is None:
        raise Rejected(
            "the host has no nvidia-ctk and no nvidia-container-runtime, expected NVIDIA's container toolkit; nothing was changed: install "
            "it, or set gpushare_toolkit_state: managed"
        )
    outcome = run([program, "--version"], _QUESTION)
    found = TOOLKIT_SAYS.search(outcome.out)
    if found is None:
        return ""
    if newer(wanted.minimum, found.group(1)):
        known = open_in_toolkit(found.group(1))
        why = f" (older ones let a container reach its host: {known})" if known else ""
        raise Rejected(
            f"the host has NVIDIA's container toolkit {found.group(1)}, expected {wanted.minimum} or newer{why}; nothing was "
            "changed: upgrade it, set gpushare_toolkit_state: managed, or lower gpushare_toolkit_minimum"
        )
    return found.group(1)


class _Refresh(Service):
    """The units that write the CDI spec. systemd reads a unit that it has not had when it is started, without daemon-reload."""

    def __init__(self, host: Host, run: RunWithin) -> None:
        self._host, self._run = host, run

    def not_enabled(self) -> List[str]:
        return [name for name in self._names() if self._show(name, "UnitFileState") not in ("enabled", "static")]

    def _names(self) -> Tuple[str, str]:
        base = REFRESH if _has_own_unit(self._host) else OWN_REFRESH
        return f"{base}.path", f"{base}.service"

    def _show(self, unit: str, name: str) -> str:
        return parsed(self._run(show_command(unit, name), _QUESTION).out).get(name, "")

    def due(self) -> bool:
        path, _service = self._names()
        return bool(self.not_enabled()) or self._show(path, "ActiveState") != "active" or self.problem() is not None

    def restart(self) -> None:
        path, service = self._names()
        for argv in (["--no-reload", "enable", path, service], ["start", path], ["restart", service]):
            outcome = self._run(["systemctl", *argv], _GENERATE)
            if not outcome.ok:
                said = self._run(["journalctl", "-u", service, "-n", "20", "--no-pager", "-o", "cat"], _QUESTION).words
                raise Rejected(f"systemctl {' '.join(argv)} failed: {outcome.words}; the log of {service} says: {said}")

    def problem(self) -> Optional[str]:
        """Why the spec is not of these GPUs and of this driver. Without a driver there is nothing to name."""
        listed = self._host.ask(self._host.program("nvidia-smi"), ["-L"], _QUESTION)
        if listed is None or not listed.ok:
            return None
        spec = next((described for described in specs(self._host) if described.path == SPEC), FoundSpec(SPEC, [], [], [], False))
        gpus = sorted(set(_UUID.findall(listed.out)) - set(spec.gpus))
        if gpus:
            return f"the CDI spec {SPEC} does not name {', '.join(gpus)}"
        # After another driver has come, the libraries of the former one.
        return f"the CDI spec {SPEC} names {spec.missing[0]}, which the host does not have" if spec.missing else None
