# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes what is ours off a host: first the daemons and what they read and keep, at last the runtime's environments and the journal.

A unit is stopped before its file goes, and a file of the journal is forgotten after it is put right: killed anywhere, the next run sees
what is left.
"""

from __future__ import annotations

import dataclasses
import errno
import glob
import os
import re
import socket
from typing import Collection, Dict, List, Optional

from .._change import subjects
from .._change.journal import FOLDER, Entry, Journal
from .._change.subjects import KUBECTL_PLUGINS, OWNERS, HostDaemon, owner_of
from .._change.undo import fate, read_or_none
from .._cluster.names import ANNOTATION_SCHEDULER_CONFIG, DEVICE_PLUGINS, PLUGIN
from .._daemon.daemon_reload import exposed
from .._daemon.service import VARIABLE
from .._daemon.virtual_environment import LINK, is_environment
from .._host.command import Run
from .._host.files import remove, replace
from .._host.mounts import unmount
from .._host.systemd import show
from .._scheduler import manifest
from .plan import Layout, RemovalPlan, RemoveError, names, shown, shown_content

# Without a journal, a unit of ours is known by the variable that we give its process, or by its first lines.
MARKS = (f"Environment={VARIABLE}=", "# Copyright: gpushare.kubernetes contributors\n")
#: How the journal's entries of units begin that belong to others and that we have enabled.
SERVICE = "service:"


def plan_services(layout: Layout, run: Run, only: Collection[str] = (), keep_state: bool = False) -> RemovalPlan:
    """The daemons, and all that goes with them; ask `check_callers` before it is applied.

    only: daemons that go while the others run on, none for all and what they share. keep_state: a pod needs the device plugin's.
    """
    daemons = tuple(
        dataclasses.replace(daemon, state=()) if keep_state and daemon.name == PLUGIN else daemon for daemon in subjects.daemons(only)
    )
    plan, journal = RemovalPlan(layout), Journal(layout.root)
    fixed = subjects.units(daemons)
    more = [os.path.basename(path) for path in _units_of_ours(layout, journal) if not only or _belongs(layout, daemons, path)]
    units = {name: _Unit(name, layout, run, journal, fixed.get(name)) for name in dict.fromkeys([*fixed, *more])}
    for unit in units.values():
        unit.plan_stop(plan)
    for entry in journal.entries():
        if not owner_of(entry.owner).cure and (not only or _belongs(layout, daemons, entry.path)):
            _plan_entry(plan, journal, entry, units, run)
    for unit in units.values():
        unit.plan_file(plan)
    _plan_reload(plan, units, run)
    for daemon in daemons:
        _plan_credentials(plan, daemon)
    for daemon in daemons:
        _plan_state(plan, daemon, units.get(daemon.name + ".service"), run)
    if not only:
        _plan_shared(plan, journal)
    return plan


def _belongs(layout: Layout, daemons: Collection[HostDaemon], path: str) -> bool:
    """Whether a file of the journal, or a unit, is one of these daemons'."""
    folder, name = os.path.split(path)
    return (folder in (layout.units, layout.config_dir) and any(re.fullmatch(daemon.files, name) for daemon in daemons)) or (
        folder == layout.config_dir and any(name in daemon.credentials for daemon in daemons)
    )


def _plan_shared(plan: RemovalPlan, journal: Journal) -> None:
    """The folders of all daemons, and what a run that was killed has left in them and near any file of ours."""
    layout = plan.layout
    near = [folder for owner in OWNERS.values() for folder in owner.folders]
    near += [os.path.dirname(entry.path) for entry in journal.entries() if entry.is_file]
    folders = [os.path.join(layout.pki_dir, "scheduler"), layout.pki_dir, layout.config_dir]
    plan.remove_staged([*folders, *near, *(os.path.dirname(folder) for folder in [*folders, *near])])
    for folder in folders:
        plan.remove_folder_if_empty(folder)


def _units_of_ours(layout: Layout, journal: Journal) -> List[str]:
    """The paths of the units that the journal has, and of those that are ours by their first lines: the journal may be lost."""
    there = [os.path.join(layout.units, name) for name in names(layout.real(layout.units))]
    marked = [path for path in there if subjects.is_ours(path, _content(layout.real(path)))]
    noted = [entry.path for entry in journal.entries() if os.path.dirname(entry.path) == layout.units]
    return [path for path in [*noted, *marked] if path.endswith((".service", ".socket", ".timer", ".path"))]


def _content(path: str) -> Optional[bytes]:
    state = read_or_none(path)[0]
    return None if state is None else state.content


def check_callers(layout: Layout, only: Collection[str] = ()) -> None:
    """RemoveError while the manifest on this host makes kube-scheduler call one of these daemons (none: all)."""
    called = [daemon for daemon in subjects.daemons(only) if daemon.called_by]
    state, _why = read_or_none(layout.real(layout.scheduler_manifest))
    if called and state is not None and manifest.annotation_in(state.content.decode("utf-8", "replace")):
        raise RemoveError(
            f"{layout.scheduler_manifest} still points kube-scheduler at the extender (annotation {ANNOTATION_SCHEDULER_CONFIG}), so the "
            "extender was not stopped and nothing was changed: GPU pods could not be scheduled any more. Take the extender out of the "
            f"scheduler first ({OWNERS[called[0].called_by].cure}; uninstall.yml does it)"
        )


class _Unit:
    """One systemd unit by our name, and whether it is ours. daemon: whose unit it is, None for one that only the journal has."""

    def __init__(self, name: str, layout: Layout, run: Run, journal: Journal, daemon: Optional[HostDaemon]) -> None:
        self.name = name
        self._sockets = daemon.sockets if daemon and name == daemon.name + ".service" else ""
        self.path = os.path.join(layout.units, name)
        self._layout = layout
        self._run = run
        self.entry = journal.entry(self.path)
        state, self.odd = read_or_none(layout.real(self.path))
        self.exists = state is not None
        text = "" if state is None else state.content.decode("utf-8", "replace")
        self.marked = any(mark in text for mark in MARKS)
        self._see()
        # Without a file: what systemd still has in memory of the one that was there.
        self.stale = not self.exists and not self.odd and self.fragment == self.path
        self.ours = self.entry is not None or self.marked or self.stale
        self.foreign = not self.ours and bool(self.odd or self.exists or self.fragment)

    def _see(self) -> None:
        found = properties(self._run, self.name)
        self.fragment = found.get("FragmentPath", "")
        self.state = found.get("ActiveState", "inactive")
        self.active = self.state not in ("inactive", "failed")
        # The answer of `show` about a unit in memory is as old as the last reload; is-enabled reads the links.
        self.enabled = (
            found.get("UnitFileState") in ("enabled", "enabled-runtime")
            and self._run(["systemctl", "is-enabled", "--quiet", self.name])[0] == 0
        )
        self.drop_ins = [path for path in found.get("DropInPaths", "").split() if path.startswith("/etc/")]

    def plan_stop(self, plan: RemovalPlan) -> None:
        if self.foreign:
            plan.leave(self.fragment or self.path, self.odd or "a unit of this name that this collection did not write")
        if not self.ours:
            return
        if self.drop_ins:
            plan.leave(", ".join(self.drop_ins), "settings of others for a unit of ours; they have no effect any more")
        if self.active or self.enabled:
            plan.add("stopped", self.name, self._stop, f"{self.state}, {'enabled' if self.enabled else 'disabled'}\n")

    def plan_file(self, plan: RemovalPlan) -> None:
        """Without a journal entry, what the file itself says tells that it is ours; links to it go as well."""
        if self.entry is None and self.marked:
            plan.remove_file(self.path)
        if self.path in plan.gone or self.stale or not (self.exists or self.odd):
            for wants in names(self._layout.real(self._layout.units)):
                link = os.path.join(self._layout.units, wants, self.name)
                # With the unit's file there, systemctl takes the link itself.
                if wants.endswith(".wants") and os.path.islink(self._layout.real(link)) and not self.enabled:
                    plan.remove_file(link)

    def _stop(self) -> None:
        # Two calls: a unit without its file can be stopped and not disabled.
        status, out, err = self._run(["systemctl", "stop", self.name])
        self._run(["systemctl", "disable", "--no-reload", "--quiet", self.name])
        self._see()
        if self.active or self.enabled:
            why = (err or out).strip() or f"systemctl stop ended with {status}"
            raise RemoveError(
                f"{self.name} does not stop (it is {self.state}): {why}; see `journalctl -u {self.name}`, stop and disable it, "
                "and run again"
            )
        for path in _sockets(self._layout, self._sockets):
            if not _listens(self._layout.real(path)):
                remove(self._layout.real(path))


def properties(run: Run, unit: str) -> Dict[str, str]:
    """The facts that systemd knows of a unit; {} where there is no systemd."""
    return show(run, unit, "LoadState", "ActiveState", "UnitFileState", "FragmentPath", "DropInPaths", "NeedDaemonReload")


def _plan_entry(plan: RemovalPlan, journal: Journal, entry: Entry, units: Dict[str, _Unit], run: Run) -> None:
    """The file or the unit of this entry of the journal is as it was before."""
    if entry.is_file:
        _plan_file(plan, journal, entry)
    elif entry.path.startswith(SERVICE):
        _plan_service(plan, journal, entry, units, run)


def _plan_file(plan: RemovalPlan, journal: Journal, entry: Entry) -> None:
    """One file of the journal: it gets its old bytes, or goes, or is left alone if others have changed it."""
    path, real, before = entry.path, plan.layout.real(entry.path), entry.original
    state, found = fate(entry, root=plan.layout.root)
    now = None if state is None else state.content

    def do() -> None:
        if found.content is None:
            remove(real)
        elif before is not None and found.content != now:
            replace(real, before.content, before.mode, before.uid, before.gid, before.label)
        journal.forget(path)

    if found.stays:
        plan.leave(path, found.stays)
        return
    if found.note:
        plan.notes.append(found.note)
    if found.content == now:
        plan.add("removed", f"journal entry of {path}", do)
    elif found.content is None:
        plan.gone.add(path)
        plan.add("removed", path, do, shown(path, real))
    elif before is not None:
        if path.endswith((".service", ".socket", ".timer")):
            plan.notes.append(f"{path} is again as it was before this collection; it is neither enabled nor started")
        plan.add("restored", path, do, shown(path, real), shown_content(path, before))


def _plan_service(plan: RemovalPlan, journal: Journal, entry: Entry, units: Dict[str, _Unit], run: Run) -> None:
    """A unit of another owner that we have enabled is as it was before."""
    name = entry.path[len(SERVICE) :]
    # Ours go with their files.
    theirs = name not in units and entry.original is not None and entry.original.content == b"disabled"

    def do() -> None:
        if theirs:
            for argv in (["systemctl", "stop", name], ["systemctl", "--no-reload", "disable", "--quiet", name]):
                run(argv)
        journal.forget(entry.path)

    if theirs:
        plan.add("stopped", name, do)
    else:
        plan.add("removed", f"journal entry of {entry.path}", do)


def _plan_reload(plan: RemovalPlan, units: Dict[str, _Unit], run: Run) -> None:
    touched = {step.what for step in plan.steps}
    stale = [unit.name for unit in units.values() if unit.stale or unit.path in touched]
    if not stale:
        return
    why = exposed(run, plan.layout.root)
    if why:
        plan.notes.append(f"systemctl daemon-reload was left out, so systemd still lists {', '.join(stale)}: {why}")
        return

    def reload() -> None:
        for argv in (["systemctl", "daemon-reload"], ["systemctl", "reset-failed", *stale]):
            status, out, err = run(argv)
            # A unit that has not failed is not known any more, and that is an error to systemctl.
            if status != 0 and argv[1] == "daemon-reload":
                raise RemoveError(f"systemctl daemon-reload failed: {(err or out).strip()}; run it, then run again")

    plan.add("removed", f"what systemd knew of {', '.join(stale)}", reload)


def _plan_credentials(plan: RemovalPlan, daemon: HostDaemon) -> None:
    """The settings, credentials and certificates of a daemon; a folder of certificates that is its own goes with them."""
    layout = plan.layout
    for name in (*daemon.settings, *daemon.credentials):
        plan.remove_file(os.path.join(layout.config_dir, name))
    pki = os.path.join(layout.config_dir, daemon.pki) if daemon.pki else layout.pki_dir
    for name in (*daemon.certificates, ".reload") if daemon.certificates else ():
        folder, name = os.path.split(os.path.join(pki, name))
        for file in (name, f".{name}.new"):  # the second: gpushare-pki was killed while it wrote
            plan.remove_file(os.path.join(folder, file))
    if daemon.pki:
        plan.remove_folder_if_empty(pki)


def _plan_state(plan: RemovalPlan, daemon: HostDaemon, main: Optional[_Unit], run: Run) -> None:
    """The mounts, folders and sockets of a daemon. main: its unit; what belongs to another's stays, and what a running one serves."""
    layout = plan.layout
    if main is None or not main.foreign:
        for pattern in daemon.mounts:
            for real in sorted(filter(os.path.ismount, glob.glob(os.path.join(glob.escape(layout.root), pattern.lstrip("/"))))):
                _plan_unmount(plan, real, run)
        for name in daemon.state:
            plan.remove_tree(os.path.join(layout.state, name))
    for path in [] if main is None or main.active else _sockets(layout, daemon.sockets):
        if not _listens(layout.real(path)):
            plan.remove_file(path)
        else:
            plan.leave(path, "another process listens on it")


def _plan_unmount(plan: RemovalPlan, real: str, run: Run) -> None:
    def do() -> None:
        why = unmount(run, real)
        if why:
            raise RemoveError(why)

    plan.add("removed", f"the mount of /{os.path.relpath(real, plan.layout.root)}", do)


def _sockets(layout: Layout, pattern: str) -> List[str]:
    return [os.path.join(DEVICE_PLUGINS, name) for name in names(layout.real(DEVICE_PLUGINS)) if re.fullmatch(pattern, name)]


def _listens(path: str) -> bool:
    """Whether a process answers on a socket; its folder is opened first because a socket's whole path may have few characters only."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(2.0)
            return probe.connect_ex(f"/proc/self/fd/{folder}/{os.path.basename(path)}") not in (
                errno.ECONNREFUSED,
                errno.ENOENT,
                errno.EPROTOTYPE,
            )
    finally:
        os.close(folder)


def plan_leftovers(layout: Layout, check: bool) -> RemovalPlan:
    """The steps that come last. check: the steps before this one have only been predicted, so what they would take counts as gone."""
    plan = RemovalPlan(layout)
    for program in KUBECTL_PLUGINS:
        _plan_link(plan, program)
    for name in names(layout.real(layout.install_dir)):
        if is_environment(name) or name in (LINK, LINK + ".new"):
            plan.remove_tree(os.path.join(layout.install_dir, name))
    plan.remove_folder_if_empty(layout.install_dir)
    _plan_journal(plan, check)
    return plan


def _plan_link(plan: RemovalPlan, program: str) -> None:
    layout = plan.layout
    path = os.path.join(layout.kubectl_plugin_dir, program)
    real, target = layout.real(path), os.path.join(layout.install_dir, "current/bin", program)
    if os.path.islink(real) and os.readlink(real) == target:
        plan.remove_file(path)
    elif os.path.lexists(real):
        plan.leave(path, f"it is not the link to {target} that this collection makes")


def _plan_journal(plan: RemovalPlan, check: bool) -> None:
    layout = plan.layout
    folder, kept = "/" + FOLDER, []
    for entry in Journal(layout.root).entries():
        cure = owner_of(entry.owner).cure
        if cure and not check:
            plan.leave(entry.path, f"{entry.owner} has not taken its part out: read the notes of this run, or run {cure}")
            kept.append(entry)
        elif not cure and entry.is_file and fate(entry, root=layout.root)[1].stays:
            kept.append(entry)  # the first half has said why
    if not kept:
        plan.remove_tree(folder)
    parent = os.path.dirname(folder)
    plan.remove_staged([parent, os.path.dirname(parent)])
    if not kept:
        plan.remove_folder_if_empty(parent)
