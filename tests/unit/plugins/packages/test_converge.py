# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Packages, their repository and the journal, with a package manager that is a dictionary. The real ones are in tests/packages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.journal import Journal
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import TransactionError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host import command
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.files import digest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host
from ansible_collections.gpushare.kubernetes.plugins.module_utils._packages.converge import (
    PackagesResult,
    absent,
    manager_of,
    owners,
    present,
    together,
)
from ansible_collections.gpushare.kubernetes.plugins.module_utils._packages.dnf import table
from ansible_collections.gpushare.kubernetes.plugins.module_utils._packages.model import (
    Installed,
    Package,
    PackageChange,
    PackageManager,
    PackagePlan,
    PackagesError,
    PackageSet,
    Repository,
    check,
    choose,
    satisfies,
)
from ansible_collections.gpushare.kubernetes.plugins.module_utils._packages.openpgp import Key

from unit.fakes.plugins.fake_root import FakeRoot
from unit.golden import Golden

REPOSITORY = Repository("tk", "https://example.org/deb", (Key("A" * 40, b"key"),))
SOURCE = "/etc/sources/gpushare-tk.sources"


class Killed(BaseException):
    """As by a signal."""


def named(names: Iterable[str]) -> list[str]:
    """A program that is given no package may answer for all of them, or fail."""
    assert names
    return list(names)


class Fake(PackageManager):
    """Packages by name: (version, held). down: whether the repository does not answer; broken: whether packages fail on the way.

    asked: every call that takes long or changes something.
    """

    name = "fake"

    def __init__(self, **packages: tuple[str, bool]) -> None:
        self.packages = dict(packages)
        self.repository = {"tk": ["1.18.0-1", "1.17.8-1", "1.17.7-1"], "tk-base": ["1.18.0-1", "1.17.8-1", "1.17.7-1"]}
        self.needed_by: dict[str, str] = {}
        self.down = self.broken = False
        self.problem = ""
        self.asked: list[str] = []

    def installed(self, names: Sequence[str]) -> dict[str, Installed]:
        return {name: Installed(*self.packages.get(name, (None, False))) for name in named(names)}

    def interrupted(self) -> str:
        return self.problem

    def repair(self) -> None:
        self.problem = ""

    def files(self, repository: Repository) -> dict[str, bytes | None]:
        return {"/etc/sources/old.list": None, SOURCE: repository.url.encode()}

    def plan(self, wanted: PackageSet, files: Mapping[str, bytes | None]) -> PackagePlan:
        self.asked.append("plan")
        if self.down:
            raise Rejected("the repository does not answer")
        versions = {one.name: choose(one.name, one.version, self.repository.get(one.name, []), "here") for one in wanted.packages}
        now = self.installed(list(versions))
        steps = [PackageChange(name, now[name].version, version) for name, version in versions.items() if now[name].version != version]
        steps += [PackageChange(name, version, None) for name, (version, _held) in self.packages.items() if name == "nvidia-docker2"]
        return PackagePlan(versions, tuple(steps))

    def refresh(self, repository: Repository) -> None:
        self.asked.append("refresh")
        if self.broken:
            raise PackagesError("no lists")

    def install(self, wanted: PackageSet, plan: PackagePlan) -> None:
        self.asked.append("install")
        for step in plan.steps:
            if step.after is None:
                del self.packages[step.name]
            else:
                # As apt does: one that is asked for by its version is let go of.
                self.packages[step.name] = (step.after, False)
            if self.broken:
                raise PackagesError("postinst failed")

    def hold(self, names: Sequence[str], held: bool) -> None:
        self.asked.append("hold" if held else "let go")
        for name in named(names):
            self.packages[name] = (self.packages[name][0], held)

    def plan_removal(self, names: Sequence[str]) -> list[str]:
        return [*named(names), *(other for name, other in self.needed_by.items() if name in names)]

    def remove(self, names: Sequence[str]) -> None:
        for name in named(names):
            del self.packages[name]

    def available(self, name: str) -> list[str]:
        return self.repository[name]

    def downgrade(self, versions: Mapping[str, str]) -> None:
        self.packages.update({name: (versions[name], False) for name in named(versions)})


def wanted(version: str = "1.17.8", **others: object) -> PackageSet:
    return PackageSet("tk", (Package("tk", version), Package("tk-base", version)), REPOSITORY, **others)  # type: ignore[arg-type]


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / "etc/sources").mkdir(parents=True)
    (tmp_path / "etc/sources/old.list").write_text("deb old\n")
    return str(tmp_path)


def tree(root: str) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(Path(root).rglob("*")) if path.is_file()}


def test_from_nothing_to_held_and_back(root: str) -> None:
    before, host = tree(root), Fake()
    predicted = present(wanted(), host, True, root)
    assert tree(root) == before
    assert host.packages == {}
    done = present(wanted(), host, False, root)
    assert predicted == done
    assert done.changed
    assert (done.manager, done.versions) == ("fake", {"tk": "1.17.8-1", "tk-base": "1.17.8-1"})
    assert host.packages == {"tk": ("1.17.8-1", True), "tk-base": ("1.17.8-1", True)}
    assert (Path(root) / SOURCE[1:]).read_text() == REPOSITORY.url
    assert not (Path(root) / "etc/sources/old.list").exists()
    assert owners(root) == ["tk"]
    after = tree(root)
    host.asked.clear()
    host.down = True  # nobody asks it
    second = present(wanted(), host, False, root)
    assert not second.changed
    assert (second.versions, second.held) == (done.versions, [])
    assert host.asked == []
    assert tree(root) == after
    predicted = absent("tk", host, True, root=root)
    assert host.packages == {"tk": ("1.17.8-1", True), "tk-base": ("1.17.8-1", True)}
    assert predicted == absent("tk", host, False, root=root)
    assert predicted.changed
    assert predicted.manager == "fake"
    assert host.packages == {}
    assert tree(root) == before
    assert not absent("tk", host, False, root=root).changed


def test_what_was_there_before_gets_its_version_and_its_hold_back(root: str) -> None:
    host = Fake(tk=("1.17.7-1", True), **{"tk-base": ("1.17.7-1", False)})
    present(wanted(), host, False, root)
    present(wanted("1.18.0"), host, False, root)
    assert host.packages == {"tk": ("1.18.0-1", True), "tk-base": ("1.18.0-1", True)}
    absent("tk", host, False, root=root)
    assert host.packages == {"tk": ("1.17.7-1", True), "tk-base": ("1.17.7-1", False)}


def test_what_cannot_go_back_is_named(root: str) -> None:
    host = Fake(tk=("1.16.0-1", True), **{"tk-base": ("1.17.7-1", False)})
    present(wanted(), host, False, root)
    found = absent("tk", host, False, root=root)
    # A set of one version is not taken apart. One that was held before stays held.
    assert host.packages == {"tk": ("1.17.8-1", True), "tk-base": ("1.17.8-1", False)}
    assert found.held == ["tk-base"]
    assert [one["what"] for one in found.left] == ["package tk 1.17.8-1", "package tk-base 1.17.8-1"]
    assert "1.16.0-1 was there before" in found.left[0]["why"]


def test_packages_that_others_need_stay(root: str) -> None:
    host = Fake()
    present(wanted(), host, False, root)
    host.needed_by["tk-base"] = "operator"
    found = absent("tk", host, False, root=root)
    assert host.packages == {"tk": ("1.17.8-1", False), "tk-base": ("1.17.8-1", False)}
    assert {one["why"] for one in found.left} == {"operator needs it"}
    assert not (Path(root) / SOURCE[1:]).exists()


def test_packages_stay_where_they_are_to(root: str) -> None:
    host = Fake(tk=("1.17.7-1", False))
    present(wanted(), host, False, root)
    found = absent("tk", host, False, keep=True, root=root, exposed=lambda: pytest.fail("no script is run"))
    assert host.packages == {"tk": ("1.17.8-1", False), "tk-base": ("1.17.8-1", False)}
    assert [one["what"] for one in found.left] == ["package tk-base 1.17.8-1"]


EXPOSED = "That would take the GPUs from running containers: cri-containerd-1.scope (nvidia0)"


@pytest.mark.parametrize("dry", [True, False])
def test_no_package_changes_while_the_daemon_reload_of_its_scripts_would_hurt(root: str, dry: bool, golden: Golden) -> None:
    before, host, asked = tree(root), Fake(), []

    def exposed() -> str:
        asked.append("exposed")
        return EXPOSED

    with golden.raised(Rejected):
        present(wanted(), host, dry, root, exposed=exposed)
    assert (tree(root), host.packages, asked) == (before, {}, ["exposed"])
    present(wanted(), host, False, root)
    # Where no package changes, no script is run.
    present(wanted(), host, dry, root, exposed=exposed)
    assert asked == ["exposed"]


def test_packages_stay_while_the_daemon_reload_of_their_scripts_would_hurt(root: str) -> None:
    host = Fake(tk=("1.17.7-1", False))
    present(wanted(), host, False, root)
    found = absent("tk", host, False, root=root, exposed=lambda: EXPOSED)
    assert host.packages == {"tk": ("1.17.8-1", False), "tk-base": ("1.17.8-1", False)}
    assert found.steps == []
    assert [one["what"] for one in found.left] == ["package tk 1.17.8-1", "package tk-base 1.17.8-1"]
    assert all(EXPOSED in one["why"] for one in found.left)
    assert not (Path(root) / SOURCE[1:]).exists()


def test_a_package_that_would_go_must_be_named(root: str, golden: Golden) -> None:
    before, host = tree(root), Fake(**{"nvidia-docker2": ("2.13-1", False)})
    with golden.raised(Rejected):
        present(wanted(), host, False, root)
    assert tree(root) == before
    present(wanted(replaces=("nvidia-docker2",)), host, False, root)
    assert "nvidia-docker2" not in host.packages
    found = absent("tk", host, False, root=root)
    assert [one["what"] for one in found.left] == ["package nvidia-docker2, removed"]


def test_the_hold_of_a_package_that_made_room_goes_with_it(root: str) -> None:
    """dnf and zypper hold names, also of packages that are not installed; one that was removed by hand is let go of at the end."""

    class Locks(Fake):
        locked = frozenset({"nvidia-docker2"})

        def installed(self, names: Sequence[str]) -> dict[str, Installed]:
            return {name: Installed(self.packages.get(name, (None,))[0], name in self.locked) for name in named(names)}

        def hold(self, names: Sequence[str], held: bool) -> None:
            self.locked = self.locked | set(names) if held else self.locked - set(names)

    host = Locks(**{"nvidia-docker2": ("2.13-1", True)})
    present(wanted(replaces=("nvidia-docker2",)), host, False, root)
    assert host.locked == {"tk", "tk-base"}
    del host.packages["tk"]
    found = absent("tk", host, False, root=root)
    assert host.locked == set()
    # tk was not there before either.
    assert [one["what"] for one in found.left] == ["package nvidia-docker2, removed"]


def test_a_wish_that_cannot_be_meant_changes_nothing(root: str) -> None:
    before, host = tree(root), Fake()
    for wish in (replace(wanted(), packages=()), wanted("1.17.8", minimum="1.18")):
        for dry in (True, False):
            with pytest.raises(Rejected):
                present(wish, host, dry, root)
    assert (tree(root), host.packages) == (before, {})
    present(wanted(), host, False, root)
    # What is there already is too old as well.
    with pytest.raises(Rejected, match=r"expected 1\.18 or newer"):
        present(wanted("1.17.8", minimum="1.18"), host, False, root)


def test_packages_of_the_repositories_that_the_host_has_change_no_file(root: str) -> None:
    before, host = tree(root), Fake(tk=("1.17.7-1", False))
    wish = replace(wanted(hold=False), repository=None)
    found = present(wish, host, False, root)
    assert host.packages == {"tk": ("1.17.8-1", False), "tk-base": ("1.17.8-1", False)}
    assert (found.files, found.held, host.asked) == ([], [], ["plan", "install"])
    assert not present(wish, host, False, root).changed
    absent("tk", host, False, root=root)
    assert host.packages == {"tk": ("1.17.7-1", False)}
    assert tree(root) == before


def test_a_package_manager_that_reports_success_is_not_believed(root: str, golden: Golden) -> None:
    class Deaf(Fake):
        def install(self, wanted: PackageSet, plan: PackagePlan) -> None:
            self.packages["tk"] = ("1.17.8-1", False)

    host = Deaf(tk=("1.17.7-1", False), **{"tk-base": ("1.17.7-1", False)})
    with golden.raised(PackagesError):
        present(wanted(), host, False, root)
    assert host.packages["tk-base"] == ("1.17.7-1", False)


def test_a_package_that_two_want_belongs_to_the_first(root: str) -> None:
    host = Fake(tk=("1.17.7-1", False), **{"tk-base": ("1.17.7-1", False)})
    present(wanted(), host, False, root)
    # By hand.
    host.packages = {"tk": ("1.17.7-1", False), "tk-base": ("1.17.7-1", False)}
    present(replace(wanted(), owner="other"), host, False, root)
    absent("other", host, False, root=root)
    assert host.packages == {"tk": ("1.17.8-1", True), "tk-base": ("1.17.8-1", True)}
    absent("tk", host, False, root=root)
    assert host.packages == {"tk": ("1.17.7-1", False), "tk-base": ("1.17.7-1", False)}


def test_where_no_package_would_change_back_nobody_asks_whether_that_hurts(root: str) -> None:
    host = Fake(tk=("1.17.8-1", False), **{"tk-base": ("1.17.7-1", False)})
    present(wanted(), host, False, root)
    del host.packages["tk-base"]
    found = absent("tk", host, False, root=root, exposed=lambda: pytest.fail("no script is run"))
    assert host.packages == {"tk": ("1.17.8-1", False)}
    assert [one["what"] for one in found.left] == ["package tk-base, removed"]


def test_the_journal_says_of_a_package_how_it_was_and_how_it_was_left(root: str) -> None:
    present(wanted(), Fake(tk=("1.17.7-1", True), **{"tk-base": ("1.17.8-1", False)}), False, root)
    for name, version in (("tk", "1.17.7-1"), ("tk-base", "1.17.8-1")):
        entry = Journal(root).entry(f"package:{name}")
        assert entry is not None
        assert entry.original is not None
        assert json.loads(entry.original.content) == {"version": version, "held": name == "tk"}
        assert entry.left == (digest(entry.original.content), digest(b'{"version": "1.17.8-1", "held": true}'))


def test_owners_are_those_of_packages(root: str) -> None:
    Journal(root).record("/etc/x", "scheduler", None, b"x")
    assert owners(root) == []
    present(wanted(), Fake(), False, root)
    assert owners(root) == ["tk"]


class Rpm(Fake):
    """With a database of keys, as rpm has one."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: dict[str, str] = {}
        self.stuck = False

    def files(self, repository: Repository) -> dict[str, bytes | None]:
        return {f"/etc/sources/gpushare-{repository.name}.sources": repository.url.encode()}

    def imports(self, repository: Repository) -> list[str]:
        return [key.fingerprint for key in repository.keys]

    def trusted(self, fingerprints: Sequence[str]) -> dict[str, str]:
        return {one: self.keys[one] for one in fingerprints if one in self.keys}

    def refresh(self, repository: Repository) -> None:
        self.keys.update({key.fingerprint: key.fingerprint[-8:].lower() + "-1" for key in repository.keys})
        super().refresh(repository)

    def distrust(self, keys: Mapping[str, str]) -> list[dict[str, str]]:
        if self.stuck:
            return [{"what": version, "why": "stuck"} for version in keys.values()]
        self.keys = {one: version for one, version in self.keys.items() if one not in keys}
        return []


def test_a_key_is_trusted_as_long_as_one_of_ours_needs_it(root: str) -> None:
    host = Rpm()
    present(wanted(), host, False, root)
    assert list(host.keys) == ["A" * 40]
    present(replace(wanted(), owner="other", repository=replace(REPOSITORY, name="other")), host, False, root)
    assert absent("tk", host, True, root=root).steps == absent("tk", host, False, root=root).steps
    assert list(host.keys) == ["A" * 40]
    predicted = absent("other", host, True, root=root)
    assert predicted.steps == [PackageChange("gpg-pubkey", "aaaaaaaa-1", None)]
    assert absent("other", host, False, root=root).steps == predicted.steps
    assert host.keys == {}
    assert Journal(root).entries() == []


def test_a_key_that_the_host_trusted_before_stays_trusted(root: str) -> None:
    host = Rpm()
    host.keys["A" * 40] = "aaaaaaaa-1"
    present(wanted(), host, False, root)
    absent("tk", host, False, root=root)
    assert list(host.keys) == ["A" * 40]


def test_a_key_of_a_repository_that_fails_is_not_trusted_any_more(root: str) -> None:
    host = Rpm()
    host.broken = True
    with pytest.raises(TransactionError):
        present(wanted(), host, False, root)
    assert host.keys == {}
    assert Journal(root).entries() == []


def test_a_key_stays_trusted_where_another_address_of_its_repository_fails(root: str) -> None:
    host = Rpm()
    present(wanted(), host, False, root)
    before, host.broken = tree(root), True
    with pytest.raises(TransactionError):
        present(replace(wanted(), repository=replace(REPOSITORY, url="https://example.org/deb2")), host, False, root)
    assert list(host.keys) == ["A" * 40]
    assert tree(root) == before


def test_a_rotated_key_goes_with_the_first_and_one_that_stays_is_named(root: str) -> None:
    host = Rpm()
    present(wanted(), host, False, root)
    present(replace(wanted(), repository=Repository("tk", "https://example.org/deb2", (Key("B" * 40, b"key"),))), host, False, root)
    assert sorted(host.keys) == ["A" * 40, "B" * 40]
    host.stuck = True
    assert [one["what"] for one in absent("tk", host, False, root=root).left] == ["aaaaaaaa-1", "bbbbbbbb-1"]
    assert Journal(root).entries() == []


def test_a_repository_that_fails_leaves_everything(root: str, golden: Golden) -> None:
    before, host = tree(root), Fake()
    host.down = True
    with pytest.raises(Rejected):
        present(wanted(), host, False, root)
    assert tree(root) == before
    host.down, host.broken = False, True
    with golden.raised(TransactionError):
        present(wanted(), host, False, root)
    assert tree(root) == before
    assert host.packages == {}


def test_a_package_that_fails_is_told_with_the_others(root: str, golden: Golden) -> None:
    host = Fake(tk=("1.17.7-1", False), **{"tk-base": ("1.17.7-1", False)})
    present(wanted("1.17.7"), host, False, root)
    host.broken = True
    with golden.raised(PackagesError):
        present(wanted(), host, False, root)
    host.broken = False
    present(wanted(), host, False, root)
    assert host.packages == {"tk": ("1.17.8-1", True), "tk-base": ("1.17.8-1", True)}
    absent("tk", host, False, root=root)
    assert host.packages == {"tk": ("1.17.7-1", False), "tk-base": ("1.17.7-1", False)}


POINTS = ("before " + SOURCE, "noted " + SOURCE, "written " + SOURCE, "restarted", "done", "noted packages", "installed", "held")


@pytest.mark.parametrize("killed_at", POINTS)
def test_killed_anywhere_the_next_run_finishes_and_knows_how_it_was(root: str, killed_at: str) -> None:
    before, host = tree(root), Fake(tk=("1.17.7-1", False))

    def point(name: str) -> None:
        if name == killed_at:
            raise Killed

    with pytest.raises(Killed):
        present(wanted(), host, False, root, point)
    present(wanted(), host, False, root)
    assert host.packages == {"tk": ("1.17.8-1", True), "tk-base": ("1.17.8-1", True)}
    assert not present(wanted(), host, False, root).changed
    absent("tk", host, False, root=root)
    assert host.packages == {"tk": ("1.17.7-1", False)}
    assert tree(root) == before
    assert Journal(root).entries() == []


@pytest.mark.parametrize("again", [wanted(), replace(wanted(), repository=None)])
def test_a_killed_change_of_the_repository_alone_is_finished(root: str, again: PackageSet) -> None:
    before, host = tree(root), Rpm()
    host.packages = {"tk": ("1.17.8-1", True), "tk-base": ("1.17.8-1", True)}

    def point(name: str) -> None:
        if name == "restarted":
            raise Killed

    with pytest.raises(Killed):
        present(wanted(), host, False, root, point)
    host.down = True
    with pytest.raises(Rejected):
        present(again, host, True, root)
    host.down = False
    assert present(again, host, True, root).changed
    assert present(again, host, False, root).changed
    host.asked.clear()
    assert not present(again, host, False, root).changed
    assert host.asked == []
    absent("tk", host, False, root=root)
    assert tree(root) == before


def test_an_interrupted_package_manager_is_repaired_only_if_we_did_it(root: str) -> None:
    host = Fake()
    host.problem = "tk is half configured"
    with pytest.raises(Rejected, match="half configured"):
        present(wanted(), host, False, root)
    host.problem = ""
    present(wanted(), host, False, root)
    host.problem = "tk is half configured"
    assert present(wanted(), host, True, root).changed
    assert host.problem
    assert present(wanted(), host, False, root).notes
    assert not host.problem
    host.problem = "tk is half configured"
    assert absent("tk", host, True, root=root).notes
    assert host.problem
    assert absent("tk", host, False, root=root).notes
    assert not host.problem


def test_only_the_repository_changes(root: str) -> None:
    """A newer revision that satisfies as well is no reason to touch a package."""
    host = Fake(tk=("1.17.8-1", True), **{"tk-base": ("1.17.8-1", True)})
    host.repository["tk"].insert(0, "1.17.8-2")
    found = present(wanted(), host, False, root)
    assert found.files
    assert not found.steps
    assert host.packages["tk"] == ("1.17.8-1", True)
    assert "install" not in host.asked
    before, host.down = tree(root), True
    for dry in (True, False):
        with pytest.raises(Rejected, match="does not answer"):
            present(replace(wanted(), repository=replace(REPOSITORY, url="https://example.org/deb2")), host, dry, root)
    assert tree(root) == before


LIST = "/etc/sources/old.list"


@pytest.mark.parametrize(
    ("path", "now", "then", "left", "notes"),
    [
        # path: of a file that we made, or of one that we removed; now: what others make of it; then: what is there in the end.
        (SOURCE, REPOSITORY.url, None, [], 0),
        (SOURCE, "theirs", None, [], 1),
        (SOURCE, None, None, [], 0),
        (LIST, None, "deb old\n", [], 0),
        (LIST, "deb old\n", "deb old\n", [], 0),
        (LIST, "theirs", "theirs", [LIST], 1),
    ],
)
def test_files_become_as_they_were_unless_others_changed_one_that_was_there(
    root: str, path: str, now: str | None, then: str | None, left: list[str], notes: int
) -> None:
    def put(text: str | None) -> None:
        file.unlink(missing_ok=True)
        if text is not None:
            file.write_text(text)

    host, file = Fake(), Path(root) / path[1:]
    (Path(root) / LIST[1:]).chmod(0o600)
    present(wanted(), host, False, root)
    put(now)
    predicted = absent("tk", host, True, root=root)
    found = absent("tk", host, False, root=root)
    assert (file.read_text() if file.exists() else None) == then
    assert found.left == []
    assert len(found.notes) == notes
    assert (predicted.left, predicted.notes, predicted.files) == (found.left, found.notes, found.files)
    if path == LIST and now is None:
        assert file.stat().st_mode & 0o777 == 0o600
    # What was there before the first change is not forgotten as long as it is not there again.
    assert [entry.path for entry in Journal(root).entries()] == left


def test_a_file_that_others_brought_back_after_all_is_as_it_was(root: str) -> None:
    host, file = Fake(), Path(root) / LIST[1:]
    present(wanted(), host, False, root)
    file.write_text("theirs")
    present(wanted(), host, False, root)
    file.write_text("deb old\n")
    assert absent("tk", host, False, root=root).left == []
    assert file.read_text() == "deb old\n"
    assert Journal(root).entries() == []


def test_a_file_of_ours_that_others_changed_once_and_then_removed_is_no_news(root: str) -> None:
    host, file = Fake(), Path(root) / SOURCE[1:]
    present(wanted(), host, False, root)
    file.write_text("theirs")
    present(wanted(), host, False, root)
    file.unlink()
    found = absent("tk", host, False, root=root)
    assert (found.notes, found.left, SOURCE in found.files) == ([], [], False)


def test_what_several_owners_get_back_is_one_result() -> None:
    one = PackagesResult(
        True, "apt", {"a": None}, [PackageChange("a", "1", None)], ["a"], ["/a"], [{"what": "a"}], ["note a"], [{"before": "a"}]
    )
    other = PackagesResult(
        False, "apt", {"b": "2"}, [PackageChange("b", "1", "2")], ["b"], ["/b"], [{"what": "b"}], ["note b"], [{"before": "b"}]
    )
    assert together([one, other]) == PackagesResult(
        changed=True,
        manager="apt",
        versions={"a": None, "b": "2"},
        steps=[PackageChange("a", "1", None), PackageChange("b", "1", "2")],
        held=["a", "b"],
        files=["/a", "/b"],
        left=[{"what": "a"}, {"what": "b"}],
        notes=["note a", "note b"],
        diff=[{"before": "a"}, {"before": "b"}],
    )
    assert together([other, one]).changed
    assert not together([other]).changed
    assert together([]) == PackagesResult()


DPKG = "/var/lib/dpkg/status"


@pytest.mark.parametrize(
    ("release", "programs", "expected"),
    [
        ("ID=debian", (DPKG, "apt-get", "dpkg"), "apt"),
        ("ID=debian", (DPKG, "apt-get", "dpkg", "dnf", "rpm"), "apt"),
        (None, (DPKG, "apt-get", "dpkg"), "apt"),
        # A host without dpkg's database has no package of it.
        ("ID=debian", ("apt-get", "dpkg", "dnf", "rpm"), "dnf"),
        ("ID=debian", (DPKG, "dpkg", "dnf", "rpm"), "dnf"),
        ("ID=debian", ("apt-get", "dpkg"), "apt"),
        ('ID=rocky\nID_LIKE="rhel centos fedora"', ("dnf", "rpm"), "dnf"),
        ('ID=rocky\nID_LIKE="rhel centos fedora"', (DPKG, "apt-get", "dpkg", "dnf", "rpm"), "dnf"),
        ("ID=fedora", (DPKG, "apt-get", "dpkg", "dnf", "rpm"), "dnf"),
        ("ID=sles\nID_LIKE=suse", ("zypper", "rpm", "dnf"), "zypper"),
        ("ID=sles\nID_LIKE=suse", (DPKG, "apt-get", "dpkg", "zypper", "rpm"), "zypper"),
        ("ID=sles\nID_LIKE=suse", ("dnf", "rpm"), "dnf"),
        ("ID=arch", ("zypper", "rpm"), None),
        ("ID=arch", ("dnf",), None),
        ("ID=arch", ("rpm",), None),
        ("ID=arch", ("pacman",), None),
    ],
)
def test_the_package_manager_is_the_one_that_the_distribution_is_made_of(
    tmp_path: Path, release: str | None, programs: tuple[str, ...], expected: str | None, golden: Golden
) -> None:
    host = FakeRoot(tmp_path)
    if release is not None:
        host.file("/etc/os-release", release + "\n")
    for name in programs:
        if name == DPKG:
            host.file(DPKG)
        else:
            host.program(f"/usr/bin/{name}")
    if expected is None:
        with golden.raised(Rejected):
            manager_of(command.run, 1, Host(str(host)))
    else:
        assert manager_of(command.run, 1, Host(str(host))).name == expected


def test_versions() -> None:
    for version, asked in (
        ("1.17.8-1", "1.17.8"),
        ("1.17.8-1", "1.17.8-1"),
        ("3:570.86.15-1", "570.86.15"),
        ("3:570.86.15-1", "3:570.86.15-1"),
        ("570.86-1.el9", "570.86"),
        ("2:1.0", "1.0"),
        ("1.0", ""),
        ("580.82.07_k6.4.0_150600.23.65-150600.3.63.1", "580.82.07"),
        ("3:580.82.07_k6.4.0_150600.21-1", "580.82.07"),
    ):
        assert satisfies(version, asked), (version, asked)
    for other, asked in (
        ("1.17.80-1", "1.17.8"),
        ("1.17.8~rc.1-1", "1.17.8"),
        ("1.17.8-11", "1.17.8-1"),
        (None, ""),
        ("1.17.8-1", "1.17"),
        ("580.82.07_k6-1", "580.82"),
        ("1.0_kx-1", "1.0"),
    ):
        assert not satisfies(other, asked), (other, asked)


def test_names_that_are_options_or_paths_are_rejected(golden: Golden) -> None:
    for package in (Package("--purge"), Package("a b"), Package("../x"), Package("tk", "-o"), Package("tk", "1 2"), Package("x" * 200)):
        with pytest.raises(Rejected):
            check(PackageSet("x", (package,)))
    for url in ("https://example.org/a b", "ftp://example.org", "https://example.org/\nDeb: x"):
        with pytest.raises(Rejected):
            check(PackageSet("x", (Package("tk"),), Repository("tk", url, REPOSITORY.keys)))
    with golden.raised(Rejected):
        check(PackageSet("x", (Package("tk"),), replace(REPOSITORY, modules=("../x",))))
    with pytest.raises(Rejected, match="no key"):
        check(PackageSet("x", (Package("tk"),), Repository("tk", "https://example.org", ())))


TABLE = """\
Dependencies resolved.
================================================================================
 Package          Architecture    Version            Repository            Size
================================================================================
Installing:
 nvidia-container-toolkit-with-a-name-that-is-too-long
                  x86_64          1.17.8-1           nvidia               1.2 M
     replacing  nvidia-container-runtime.x86_64 3.5.0-1
Upgrading:
 libnvidia        x86_64          2:1.17.8-1         nvidia               5.4 k
Removing dependent packages:
 old              noarch          1.0-1              @System                0

Transaction Summary
================================================================================
"""


def test_the_table_of_dnf(golden: Golden) -> None:
    assert table(TABLE) == [
        ("nvidia-container-toolkit-with-a-name-that-is-too-long", "1.17.8-1", False),
        ("nvidia-container-runtime", "", True),
        ("libnvidia", "2:1.17.8-1", False),
        ("old", "1.0-1", True),
    ]
    with golden.raised(Rejected):
        table(TABLE.replace("Upgrading:", "Swapping:"))


def test_a_stream_of_a_module_is_enabled_by_nobody(golden: Golden) -> None:
    streams = TABLE.replace("\nTransaction", "Enabling module streams:\n nvidia-driver                 latest-dkms\n\nTransaction")
    assert table(streams, ["nvidia-driver"]) == table(TABLE)
    with golden.raised(Rejected):
        table(streams)
