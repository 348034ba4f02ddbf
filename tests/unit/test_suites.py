# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The runner of the suites: each source file has a suite that looks at it, no failure is lost, and every suite runs whatever others say."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pytest

from cores import Core
from suites import choose
from suites import run as runner_module
from suites.choose import Choice, asked_for, within
from suites.imported import COMMON, helpers, marked
from suites.report import by_suite, covered, table
from suites.run import Job, Runner, counts, failures, last_line, left_out, totals
from suites.table import BY_NAME, SUITES, Suite
from tree import REPOSITORY, files

SOURCES = ("plugins/", "roles/", "playbooks/", "files/", "molecule/")


def test_each_source_file_asks_for_a_suite_besides_those_that_always_run() -> None:
    sources = [path for path in files() if path.startswith(SOURCES) and not path.endswith((".md", "py.typed"))]
    assert len(sources) > 200
    assert [path for path in sources if not any(suite.asks(path) for suite in SUITES if not suite.always and not suite.only_full)] == []


def test_each_test_of_a_cluster_belongs_to_a_suite() -> None:
    named = {test.partition("::")[0].removeprefix("--deselect=") for suite in SUITES for test in suite.tests}
    on_labs = [path for path in files() if path.startswith("tests/") and Path(path).name.startswith("test_")]
    on_labs = [path for path in on_labs if not path.startswith("tests/unit/")]
    assert [path for path in on_labs if path not in named and str(Path(path).parent) not in named] == []
    assert [path for path in named if path.startswith("tests/") and not (REPOSITORY / path).exists()] == []


def test_a_changed_test_of_a_cluster_asks_for_its_own_suite() -> None:
    for suite in SUITES:
        for test in suite.tests:
            path = test.partition("::")[0]
            if path.startswith("tests/") and path.endswith(".py"):
                assert suite.asks(path), f"{path} is run by {suite.name}, whose paths do not name it"


def test_what_the_tests_of_a_suite_import_asks_for_it_but_not_what_all_tests_stand_on() -> None:
    found = helpers(("tests/cluster_mode/test_modes.py", "tests/e2e/test_requests.py::test_filter"))
    assert {"tests/cluster_mode/in_cluster.py", "tests/installer/site.py", "tests/cluster_mode/conftest.py"} <= found
    assert "tests/install/conftest.py" not in found
    assert [path for path in found if path.startswith(COMMON)] == []
    assert [path for path in COMMON if not (REPOSITORY / path).exists()] == []
    assert BY_NAME["modes"].asks("tests/cluster_mode/in_cluster.py")
    assert not BY_NAME["modes"].asks("tests/cluster_mode/test_install.py")


def test_a_mark_names_a_suite_of_the_table_and_the_table_not_its_file() -> None:
    found = marked()
    assert "tests/e2e/test_limits.py" in found["gpus"]
    assert "tests/e2e/test_limits.py" in BY_NAME["gpus"].tests
    assert set(found) <= set(BY_NAME)
    assert [(suite.name, test) for suite in SUITES for test in set(suite.tests) if suite.tests.count(test) > 1] == []


def test_each_path_of_a_suite_names_a_file() -> None:
    tracked = files()
    paths = {path for suite in SUITES for path in suite.paths}
    assert sorted(path for path in paths if not any(fnmatch(file, path) for file in tracked)) == []


A = Suite("a", "always", paths=("*",), always=True, seconds=60)
B = Suite("b", "of plugins", paths=("plugins/*",), seconds=600)
C = Suite("c", "of roles", paths=("roles/x/*",), seconds=1200)
D = Suite("d", "large", paths=("*",), only_full=True)


def why(changed: dict[str, str]) -> dict[str, str]:
    return {choice.suite.name: choice.why for choice in asked_for(changed, (A, B, C, D))}


def test_suites_are_asked_for_by_what_changed_since_their_own_record() -> None:
    assert why({"b": "", "c": ""}) == {"a": "always"}
    assert why({"b": "x changed", "c": ""}) == {"a": "always", "b": "x changed"}
    # Without a record nothing is taken for granted.
    assert why({"b": ""}) == {"a": "always", "c": choose.NO_RECORD}
    assert set(why({})) == {"a", "b", "c"}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of its own, one file for each suite and one of results."""
    monkeypatch.setattr(choose, "REPOSITORY", tmp_path)
    monkeypatch.setattr(choose, "changed_since", lambda commit: KNOWN.get(commit, []))
    for path in PATHS:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    return tmp_path


PATHS = ("plugins/a.py", "roles/x/b.yml", "docs/project/benchmarks/r.json")
KNOWN = {"known": ["docs/project/benchmarks/r.json", "plugins/a.py", "plugins/b.py", "roles/x/b.yml"]}


def recorded(commit: str = "lost", size: str = "full") -> dict[str, dict[str, str]]:
    tree = choose.fingerprint(None, choose.contents(PATHS))
    entry = {"commit": commit, "date": "2026-01-02", "size": size, "tree": tree}
    return {suite.name: {**entry, "files": choose.fingerprint(suite, choose.contents(PATHS))} for suite in (B, C)}


def test_a_changed_file_asks_for_the_suites_that_name_it_whatever_became_of_the_commit(tree: Path) -> None:
    lost, known = recorded(), recorded("known")
    (tree / "docs/project/benchmarks/r.json").write_text("of another run")
    assert choose.changes(lost, (B, C), choose.contents(PATHS)) == {"b": "", "c": ""}
    (tree / "plugins/a.py").write_text("changed")
    assert choose.changes(lost, (B, C), choose.contents(PATHS)) == {"b": "its files have changed since 2026-01-02", "c": ""}
    assert choose.changes(known, (B, C), choose.contents(PATHS)) == {"b": "plugins/a.py and 1 more changed", "c": ""}
    # One more, or one less, is a change as well; a record of old, without fingerprints, is none.
    (tree / "roles/x/new.yml").write_text("")
    assert choose.changes(lost, (C,), choose.contents([*PATHS, "roles/x/new.yml"]))["c"] != ""
    assert choose.changes(lost, (C,), choose.contents(PATHS[:1]))["c"] != ""
    assert choose.changes({"b": {"commit": "known", "date": "2026-01-02", "size": "full"}}, (B,), choose.contents(PATHS)) == {}


def test_what_does_not_fit_is_left_out_by_name_and_never_what_always_runs() -> None:
    chosen = [Choice(suite, "") for suite in (C, B, A)]
    taken, left = within(chosen, {}, minutes=15)
    assert [choice.suite.name for choice in taken] == ["c", "a"]
    assert [choice.suite.name for choice in left] == ["b"]
    # As it was measured, not as it was guessed.
    taken, left = within(chosen, {"c": {"seconds": 100}}, minutes=15)
    assert ([choice.suite.name for choice in taken], left) == (["c", "b", "a"], [])
    assert [choice.suite.name for choice in within(chosen, {}, minutes=0)[0]] == ["a"]


def test_a_release_needs_a_record_of_every_suite_on_its_own_tree(tree: Path) -> None:
    full, small = recorded("0123456789abcdef"), recorded(size="as in CI")
    (tree / "docs/project/benchmarks/r.json").write_text("of another run")
    assert choose.not_recorded(full, (B, C), choose.contents(PATHS)) == []
    assert choose.not_recorded({}, (B,), choose.contents(PATHS)) == ["b: no run of it is recorded"]
    assert choose.not_recorded(small, (B,), choose.contents(PATHS)) == ["b: recorded as in CI, not at full size"]
    (tree / "roles/x/b.yml").write_text("changed")
    assert choose.not_recorded(full, (B,), choose.contents(PATHS)) == ["b: recorded on 2026-01-02 at 0123456789ab, which is another tree"]


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the runner writes."""
    monkeypatch.setattr(runner_module, "BUILD", tmp_path)
    monkeypatch.setattr(runner_module, "TIMELINE", tmp_path / "timeline.jsonl")
    return tmp_path


def shell(name: str, script: str, **more: object) -> Suite:
    return Suite(name, name, command=("sh", "-c", script), **more)  # type: ignore[arg-type]


def run(*suites: Suite) -> tuple[list[Job], list[str]]:
    said: list[str] = []
    jobs = [Job(suite) for suite in suites]
    told: list[str] = []
    Runner(jobs, 2, False, lambda suite: suite.seconds, said.append, lambda job: told.append(job.suite.name)).run()
    assert sorted(told) == sorted(job.suite.name for job in jobs if job.ended is not None and job.suite in suites)
    return jobs, said


def test_all_run_whatever_one_says_and_its_words_are_kept(build: Path) -> None:
    jobs, said = run(shell("bad", "echo why; exit 3", seconds=9), shell("good", "true"), shell("late", "exit 1", seconds=1))
    assert [(job.suite.name, job.passed, job.failed) for job in jobs] == [("bad", 0, 1), ("good", 1, 0), ("late", 0, 1)]
    assert totals(jobs) == {"passed": 1, "failed": 2, "skipped": 0}
    assert "why" in failures(jobs[0])
    assert any("bad: FAILED" in line for line in said)


def test_two_at_a_time_but_never_on_one_lab_nor_beside_one_that_is_alone(build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "PREPARE", shell("prepare", "true"))
    monkeypatch.setattr(runner_module, "remove_lab", lambda shape: runner_module.subprocess.Popen(["true"]))
    # Each waits for the other: only side by side do they end.
    meet = "touch {own}; while [ ! -e {other} ]; do sleep 0.02; done"
    left, right = (meet.format(own=build / own, other=build / other) for own, other in (("l", "r"), ("r", "l")))
    jobs, _ = run(shell("left", left), shell("right", right))
    assert [job.failed for job in jobs] == [0, 0]

    # The life of a cluster has a lab of its own beside those of that shape.
    left, right = (text.replace("/l", "/ll").replace("/r", "/rr") for text in (left, right))
    jobs, _ = run(shell("install", left, lab="x", always=True), shell("other", right, lab="x"))
    assert [job.failed for job in jobs] == [0, 0]

    alone = f"test ! -e {build}/busy && touch {build}/busy && sleep 0.2 && rm {build}/busy"
    jobs, _ = run(shell("one", alone, lab="x"), shell("two", alone, lab="x"))
    assert [job.failed for job in jobs] == [0, 0]
    jobs, _ = run(shell("one", alone, alone=True), shell("two", alone), shell("three", alone, alone=True))
    assert [job.failed for job in jobs] == [0, 0, 0]


def test_without_the_cache_what_needs_a_lab_fails_and_the_rest_runs(build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "PREPARE", shell("prepare", "exit 1"))
    monkeypatch.setattr(runner_module, "remove_lab", lambda shape: runner_module.subprocess.Popen(["true"]))
    jobs, _ = run(shell("on-lab", "true", lab="x"), shell("free", "true"))
    results = {job.suite.name: (job.passed, job.failed) for job in jobs}
    assert results == {"on-lab": (0, 1), "free": (1, 0), "prepare": (0, 1)}


def test_a_lab_stays_for_the_next_suite_but_not_that_of_the_life_of_a_cluster(build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Two runs side by side have labs of other names, also while this test runs in one of them.
    monkeypatch.delenv("GPUSHARE_LABS", raising=False)
    monkeypatch.setattr(runner_module, "PREPARE", shell("prepare", "true"))
    monkeypatch.setattr(runner_module, "remove_lab", lambda shape: runner_module.subprocess.Popen(["true"]))
    tell = 'echo "lab: ${GPUSHARE_SHARED_LAB:-its own, $GPUSHARE_OWN_LAB}"'
    jobs, _ = run(
        shell("one", tell, lab="x"),
        shell("two", tell, lab="x"),
        shell("install", tell, lab="x", always=True),
        shell("alone", tell, lab="y"),
    )
    assert {job.suite.name: job.log.read_text().strip() for job in jobs} == {
        "one": "lab: t-x",
        "two": "lab: t-x",
        "install": "lab: its own, t-x-install",
        "alone": "lab: its own, t-y",
    }


REPORT = """<testsuites><testsuite>
<testcase classname="a" name="good"/><testcase classname="a" name="bad"><failure/></testcase>
<testcase classname="a" name="torn"/><testcase classname="a" name="torn"><error/></testcase>
<testcase classname="a" name="skipped"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>"""


def test_what_a_report_counts(tmp_path: Path) -> None:
    (tmp_path / "r.xml").write_text(REPORT)
    assert counts(tmp_path / "r.xml") == (1, 2, 1, ["a::bad", "a::torn"])
    assert counts(tmp_path / "absent.xml") == (0, 0, 0, [])
    assert left_out(tmp_path / "r.xml") == ["no GPU"]
    assert left_out(tmp_path / "absent.xml") == []


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("def test_good(): pass", (1, 0, "")),
        ("def test_bad(): assert False", (0, 1, "")),
        ("", (0, 1, "pytest ended with 5 after 0 tests that passed")),
        ("import nothing_of_that_name", (0, 1, "")),
        ("import os\ndef test_ends(): os._exit(0)", (0, 1, "pytest ended with 0 after 0 tests that passed")),
    ],
)
def test_a_suite_without_a_test_or_an_end_has_failed(build: Path, content: str, expected: tuple[int, int, str]) -> None:
    (build / "test_it.py").write_text(content)
    (job,), _ = run(Suite("it", "it", tests=(str(build / "test_it.py"), "-p", "no:cacheprovider")))
    assert (job.passed, job.failed, job.trouble) == expected
    # Its words are at hand.
    assert not job.failed or job.log.name in {path.name for path in build.iterdir()}


def test_a_suite_runs_on_the_newest_ansible_core_and_says_what_that_is(build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pip does not answer, on what there is; the suite cores fails then."""
    (build / "test_it.py").write_text(f"import pathlib\ndef test_it(): pathlib.Path({str(build / 'own')!r}).touch()")
    suite = Suite("it", "it", tests=(str(build / "test_it.py"), "-p", "no:cacheprovider"), newest_core=True)
    other = build / "python"
    other.write_text(f"#!/bin/sh\ntouch {build}/other\n")
    other.chmod(0o755)
    monkeypatch.setattr(runner_module, "newest", lambda: Core("2.99.1", "3.12", other, lacks="pip offers a newer one"))
    _, said = run(suite)
    assert ((build / "other").exists(), (build / "own").exists()) == (True, False)
    assert "it: ansible-core 2.99.1 on Python 3.12; pip offers a newer one" in said

    def no_index() -> Core:
        raise OSError("no index")

    monkeypatch.setattr(runner_module, "newest", no_index)
    (job,), said = run(suite)
    assert ((build / "own").exists(), job.failed) == (True, 0)
    assert any("it: on this environment's ansible-core" in line and "no index" in line for line in said)


def test_the_time_of_a_suite_is_told_by_kind_without_counting_twice(build: Path) -> None:
    spans = [
        {"suite": "a", "kind": "wait", "what": "x", "at": 100.0, "seconds": 10.0},
        {"suite": "a", "kind": "wait", "what": "in x", "at": 102.0, "seconds": 3.0},
        {"suite": "a", "kind": "wait", "what": "over its end", "at": 108.0, "seconds": 4.0},
        {"suite": "b", "kind": "wait", "what": "another's", "at": 100.0, "seconds": 50.0},
        {"suite": "a", "kind": "test", "what": "t::long", "at": 100.0, "seconds": 30.0},
        {"suite": "a", "kind": "test", "what": "t::short", "at": 100.0, "seconds": 3.0},
    ]
    assert covered(spans[:3]) == 12
    job = Job(A, began=1, ended=41, passed=2)
    found = by_suite([job], spans)
    assert (found["a"]["wait"], found["a"]["playbook"], found["a"]["seconds"]) == (12, 0, 40)
    assert found["a"]["long_tests"] == {"t::long": 30.0}
    assert "30.0  a: t::long" in table(found, 41)


def test_progress_says_how_far_a_suite_is(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    assert last_line(log) == ""
    log.write_text("tests/e2e/test_x.py::test_it PASSED      [ 41%]\n\n")
    assert last_line(log) == "41 % test_it"
    log.write_text("[gw1] [  7%] PASSED tests/unit/test_x.py::test_other[a b] \n")
    assert last_line(log).startswith("7 % test_other")
    log.write_text("building Kubernetes\n")
    assert last_line(log) == "building Kubernetes"
