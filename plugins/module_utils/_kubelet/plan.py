# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which file of a host gets kubelet's feature gates, and what it becomes. No Ansible, no writing here.

Gates go where the host keeps them already: a --feature-gates that is there gets them, because a flag wins over the configuration file.
Without one: kubelet's configuration file, then an environment file, and a drop-in of systemd only where there is neither, because that
needs a daemon-reload.
"""

from __future__ import annotations

import posixpath
from contextlib import suppress
from dataclasses import dataclass
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from .._change.undo import Rejected, Texts
from .._formats.failure import Failure
from . import config_file, gates
from .arguments import (
    EXTRA,
    FLAG,
    ArgumentsError,
    KubeletStart,
    StartFile,
    gates_in_text,
    start_of,
    variables_in,
    with_argument,
    with_gates,
    with_unit_argument,
)

#: The first release whose kubelet takes featureGates from its configuration file.
CONFIG_FILE_SINCE = (1, 10)
DROP_IN = "/etc/systemd/system/kubelet.service.d/90-gpushare.conf"
_HEADER = "# SPDX-License-Identifier: Apache-2.0\n# Made by gpushare.kubernetes: feature gates of kubelet.\n"
# Files of packages: the next update would bring them back.
_OF_PACKAGES = ("/usr/lib/", "/lib/", "/run/")
_OF_ADMINISTRATORS = ("/etc/default/kubelet", "/etc/sysconfig/kubelet")


@dataclass(frozen=True)
class KubeletState:
    """The host's kubelet as its next start has it. config: its configuration file's path and text, None without one.

    texts: every file that the start comes from, by path; units: those that systemd reads at a daemon-reload only. over: files of its
    --config-dir that have gates, which win over those of the configuration file.
    """

    release: gates.Release
    start: KubeletStart
    config: Optional[Tuple[str, str]]
    texts: Mapping[str, str]
    units: Sequence[str]
    over: Sequence[str] = ()

    def given(self) -> Dict[str, bool]:
        """The gates of the next start. It raises Rejected if they cannot be read."""
        path, text = self.config or ("", "")
        try:
            found = config_file.gates_of(text) if self.config is not None else {}
            return {**found, **gates.from_words(self.start.argv)}
        except config_file.ConfigError as error:
            raise Rejected(f"{path}: {error}; nothing was changed: correct it, and run again") from error
        except gates.GateError as error:
            raise Rejected(f"kubelet's arguments: {error}; nothing was changed: correct them, and run again") from error


def plan_present(found: KubeletState, wanted: Sequence[str]) -> Tuple[Texts, List[str]]:
    """The new texts by which these gates are on, and notes for people. It raises Rejected if that cannot be."""
    if found.over:
        raise Rejected(
            f"{', '.join(found.over)[:200]} of kubelet's --config-dir has {config_file.KEY}, which wins over its own file; nothing "
            f"was changed: add the gates there by hand ({', '.join(wanted)}), or move them to the configuration file"
        )
    given = found.given()
    missing = gates.needed(found.release, given, wanted)
    if not missing:
        return {}, []
    changes: Dict[str, Optional[bool]] = dict.fromkeys(missing, True)
    notes = [f"the feature gate {name} was switched off: it is switched on" for name in missing if given.get(name) is False]
    flags = found.start.gate_words()
    if flags:
        last = flags[-1]
        path = last.path
        _check_ours(path, f"{FLAG} stands in {path}")
        return _checked(found, {path: _edited(path, lambda: with_gates(found.texts[path], last.variable, changes))}, missing), notes
    if found.config is not None and found.release >= CONFIG_FILE_SINCE:
        path, text = found.config
        return {path: _edited(path, lambda: config_file.with_gates(text, changes))}, notes
    return _checked(found, _argument(found, f"{FLAG}={gates.merged('', changes)}"), missing), notes


def without(path: str, text: str, original: str) -> str:
    """A text that others have changed, without our gates. It raises Rejected where it cannot be edited."""
    return _edited(path, lambda: _without(text, original))


def _checked(found: KubeletState, texts: Texts, missing: Sequence[str]) -> Texts:
    """These texts, if kubelet's next start with them is the present one and the missing gates. It raises Rejected if it is another."""
    after = {**found.texts, **{path: text or "" for path, text in texts.items()}}
    units = [*found.units, *(path for path in texts if path == DROP_IN and path not in found.units)]
    files = [source.path for source in found.start.environment_files]
    start = start_of([StartFile(path, after[path]) for path in units], [StartFile(path, after[path]) for path in files])
    given = {**gates.from_words(found.start.argv), **dict.fromkeys(missing, True)}
    if gates.from_words(start.argv) != given or _others(start.argv) != _others(found.start.argv):
        raise Rejected(
            f"{', '.join(texts)}: {FLAG} cannot be added there without a change of kubelet's other arguments; nothing was changed: add "
            f"{', '.join(f'{name}=true' for name in missing)} by hand, and run again"
        )
    return texts


def _others(argv: Sequence[str]) -> List[str]:
    """The arguments besides those that set gates."""
    kept: List[str] = []
    is_value = False
    for word in argv:
        is_gate = word.partition("=")[0] in (FLAG, FLAG[1:])
        if not is_gate and not is_value:
            kept.append(word)
        is_value = is_gate and "=" not in word
    return kept


def _argument(found: KubeletState, argument: str) -> Texts:
    """A new --feature-gates, in the best place that the unit has for arguments of administrators."""
    start = found.start
    variable = next((name for name in EXTRA if name in start.used), None)
    if variable is None:
        raise Rejected(
            f"kubelet's ExecStart uses none of {', '.join(f'${name}' for name in EXTRA)}, and it has no configuration file; nothing was "
            f"changed: add {argument} to its arguments, call systemctl daemon-reload, restart kubelet, and run again"
        )
    by = start.defined.get(variable)
    if by is not None and by in found.units:
        if by.startswith(_OF_PACKAGES):
            value = " ".join(word.text for word in start.words if word.variable == variable)
            return {DROP_IN: _drop_in(variable, f"{value} {argument}".strip())}
        return {by: _edited(by, lambda: with_unit_argument(found.texts[by], variable, argument))}
    files = {source.path: source for source in start.environment_files}
    path = by or next((file for file in _OF_ADMINISTRATORS if file in files), None)
    if path is None:
        return {DROP_IN: _drop_in(variable, argument)}
    return {path: _edited(path, lambda: with_argument(found.texts.get(path, ""), variable, argument))}


def _drop_in(variable: str, value: str) -> str:
    if '"' in value or "\n" in value:
        raise Rejected(f"{variable} has quotes in its value; nothing was changed: add the gates there by hand, and run again")
    return f'{_HEADER}[Service]\nEnvironment="{variable}={value}"\n'


def _without(text: str, original: str) -> str:
    """The text without the gates that the original does not have, or with the original's value."""
    is_config = config_file.KIND in text
    read = config_file.gates_of if is_config else gates_in_text
    before = read(original) if original else {}
    changes: Dict[str, Optional[bool]] = {
        name: before.get(name) for name, value in read(text).items() if value and name in gates.TABLE and not before.get(name)
    }
    if not changes:
        return text
    if is_config:
        return config_file.with_gates(text, changes)
    # Each variable may have a flag of its own; only one that has a gate is edited.
    for variable in (*variables_in(text), ""):
        with suppress(ArgumentsError):
            edited = with_gates(text, variable, changes)
            text = edited if any(edited.count(f"{name}=true") < text.count(f"{name}=true") for name in changes) else text
    if any(gates_in_text(text).get(name) for name in changes):
        raise ArgumentsError(f"{FLAG} stands in a form that is not edited")
    return text


def _check_ours(path: str, found: str) -> None:
    if not path or path.startswith(_OF_PACKAGES):
        raise Rejected(
            f"{found}, which a package owns; nothing was changed: move the flag to a drop-in below {posixpath.dirname(DROP_IN)}, and "
            "run again"
        )


def _edited(path: str, edit: Callable[[], str]) -> str:
    try:
        return edit()
    except Failure as error:
        raise Rejected(f"{path}: {error}; nothing was changed: add the gates there by hand, and run again") from error
