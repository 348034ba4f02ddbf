# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""`python -m mutants`: every single mistake is planted, one that no test notices is told, one noted as equivalent is not counted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mutants.generate import REMOVED, Mutant, Source, required_arguments
from mutants.given import read_given
from mutants.notes import Note, read_notes, stale
from mutants.table import EQUIVALENT, KILLED, SURVIVED, TIMEOUT, Verdict, per_file, score, survivors
from mutants.targets import FURTHER, ROOT, TOO_SLOW, NearAndFar, derived, room_of, targets
from mutants.work import Asked, cases, sources
from tree import files


def source(folder: Path, text: str) -> Source:
    path = folder / "subject.py"
    path.write_text(text)
    return Source("subject.py", path, required_arguments([path]))


def changes(folder: Path, body: str) -> set[tuple[str, str]]:
    return {(one.was, one.became) for one in source(folder, body).mutants}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x = a < b", {("x = a < b", "x = a <= b")}),
        ("x = a >= b", {("x = a >= b", "x = a > b")}),
        ("x = a == b", {("x = a == b", "x = a != b")}),
        ("x = a is not b", {("x = a is not b", "x = a is b")}),
        ("x = a not in b", {("x = a not in b", "x = a in b")}),
        ("x = a and b", {("x = a and b", "x = a or b"), ("x = a and b", "x = a"), ("x = a and b", "x = b")}),
        ("x = not a", {("x = not a", "x = a")}),
        ("x = 0", {("x = 0", "x = 1")}),
        ("x = 1", {("x = 1", "x = 0"), ("x = 1", "x = 2")}),
        ("x = True", {("x = True", "x = False")}),
        ("x = a // b", {("x = a // b", "x = a * b")}),
        ("x = a if c else b", {("x = a if c else b", "x = a"), ("x = a if c else b", "x = b")}),
        ("x = [a for a in b if a]", {("x = [a for a in b if a]", "x = [a for a in b]")}),
        ("x = min(a)", {("x = min(a)", "x = max(a)")}),
        ("x = any(a)", {("x = any(a)", "x = all(a)")}),
        ("x = sorted(a, key=b)", {("x = sorted(a, key=b)", "x = sorted(a)")}),
        ("x = a[:b]", {("x = a[:b]", "x = a[:b + 1]")}),
        ("x = a.strip()", {("x = a.strip()", "x = a")}),
        ("a()", {("a()", REMOVED)}),
        ("a[b] = c", {("a[b] = c", REMOVED)}),
        ("a += b", {("a += b", REMOVED), ("a += b", "a -= b")}),
        ("del a", {("del a", REMOVED)}),
        ("raise a(1, b + c)", {("raise a(1, b + c)", REMOVED)}),
        ("d.setdefault(a, b)", {("d.setdefault(a, b)", "d.__setitem__(a, b)"), ("d.setdefault(a, b)", REMOVED)}),
        ("if a: x = b", {("if a:", "if True:"), ("if a:", "if False:")}),
        # left alone
        ("'''words'''", set()),
        ("x = f'{a + 1} units'", set()),
        ("x = '%s units' % (a + 1)", set()),
        ("log.info(1 + a, key=b)", set()),
        ("x: Annotated[int, 1] = a", set()),
        ("__all__ = a + b", set()),
        ("if TYPE_CHECKING: x = 1", set()),
        ("@a(b=1)\ndef f(): pass", set()),
    ],
)
def test_each_kind_of_mistake_is_planted_and_what_is_only_words_is_not(tmp_path: Path, line: str, expected: set[tuple[str, str]]) -> None:
    assert changes(tmp_path, line) == expected


def test_what_a_function_returns_is_planted_too(tmp_path: Path) -> None:
    assert changes(tmp_path, "def f(): return a, b, c") == {
        ("return (a, b, c)", became) for became in ("return None", "return (b, c)", "return (a, c)", "return (a, b)")
    }
    assert ("{'a': b}", REMOVED) in changes(tmp_path, "def f(): return {'a': b, 'c': d}")


def test_an_argument_without_a_default_stays(tmp_path: Path) -> None:
    text = "def f(*, a, b=c): pass\nx = f(a=d, b=e)"
    assert changes(tmp_path, text) == {("x = f(a=d, b=e)", "x = f(a=d)")}


def test_the_mutated_code_is_what_the_words_say_and_the_next_one_starts_afresh(tmp_path: Path) -> None:
    found = source(tmp_path, "def f(a):\n    if a > 3:\n        return 7\n    return 8\n")
    results = set()
    for mutant in found.mutants:
        names: dict[str, object] = {}
        exec(found.mutated(mutant), names)
        f = names["f"]
        assert callable(f)
        results.add((mutant.line, mutant.was, mutant.became, f(3), f(4)))
    assert results == {
        (2, "if a > 3:", "if a >= 3:", 7, 7),
        (2, "if a > 3:", "if a > 4:", 8, 8),
        (2, "if a > 3:", "if True:", 7, 7),
        (2, "if a > 3:", "if False:", 8, 8),
        (3, "return 7", "return 8", 8, 8),
        (3, "return 7", "return None", 8, None),
        (4, "return 8", "return 9", 9, 7),
        (4, "return 8", "return None", None, 7),
    }
    assert {one.function for one in found.mutants} == {"f"}


def test_a_table_by_hand_is_found_though_its_lines_have_moved(tmp_path: Path) -> None:
    found = source(
        tmp_path, "class C:\n    def f(self, a):\n        if a:\n            self.g()\n            self.h()\n        return a | 1\n"
    )
    table = """
| where | was | became |
|---|---|---|
| subject.py:9 | `if a: ⏎ self.g()` | `if False: ⏎ self.g()` |
| subject.py:1 | `self.g() ⏎ self.h()` | `self.h()` |
| subject.py:6 | `return a \\| 1` | (removed) |
| subject.py:6 | `return b` | `return c` |
| other.py:6 | `return a` | `return c` |
"""
    given, lost = read_given(table, [found])
    assert [(one.mutant.line, one.mutant.function) for one in given] == [(3, "C.f"), (4, "C.f"), (6, "C.f")]
    assert lost == ["| subject.py:6 | `return b` | `return c` |"]
    calls: list[str] = []
    for one in given:
        names: dict[str, object] = {}
        exec(one.code(), names)
        kind = names["C"]
        assert isinstance(kind, type)
        subject = type("Subject", (kind,), {"g": lambda self: calls.append("g"), "h": lambda self: calls.append("h")})()
        calls.append(f"-> {subject.f(2)}")
    assert calls == ["-> 3", "h", "-> 3", "g", "h", "-> None"]


def test_what_is_written_of_survivors_is_read_again(tmp_path: Path) -> None:
    found = source(tmp_path, "def f(a, b):\n    if a and b:\n        g(a | b,\n          b)\n    return a\n")
    table = survivors([Verdict(mutant, SURVIVED) for mutant in found.mutants])
    given, lost = read_given(table, [found])
    assert ([one.mutant for one in given], lost) == (sorted(found.mutants, key=lambda one: one.line), [])


A = Mutant("a.py", 1, 1, "f", "kind", "x < (y)", "x <= y")
B = Mutant("b.py", 1, 1, "f", "kind", "x", "y")


def test_a_sample_is_one_of_each_file_before_two_of_any_and_not_of_the_first_files_alone(tmp_path: Path) -> None:
    names = [f"{letter}.py" for letter in "abcdefgh"]
    for name in names:
        (tmp_path / name).write_text("x = a < b\ny = a == b\n")
    found = sources(names, tmp_path, ())

    def sample(size: int, seed: int) -> list[str]:
        return [case.mutant.file for case in cases(found, Asked(tuple(names), size, seed), ())[0]]

    assert (sorted(sample(8, 1)), len(set(sample(4, 1)))) == (names, 4)
    assert {name for seed in range(20) for name in sample(4, seed)} == set(names)


def test_the_score_leaves_out_what_is_equivalent_and_counts_a_timeout_as_killed() -> None:
    verdicts = [Verdict(A, KILLED), Verdict(A, SURVIVED), Verdict(B, TIMEOUT), Verdict(B, EQUIVALENT)]
    assert score(verdicts) == pytest.approx(200 / 3)
    assert [line.split() for line in per_file(verdicts, {"a.py": (1.5, 1.0), "b.py": (2.0, 0.5)}, (3.5, 1.5)).splitlines()[1:]] == [
        ["a.py", "2", "1", "0", "0", "1", "50.0", "%", "1.5", "1.0"],
        ["b.py", "2", "1", "1", "1", "0", "100.0", "%", "2.0", "0.5"],
        ["all", "4", "2", "1", "1", "1", "66.7", "%", "3.5", "1.5"],
    ]


def test_a_note_that_fits_no_mutant_or_is_there_twice_is_told() -> None:
    fits = Note("a.py", "f", "x<y", "x <= y", "a reason")
    gone = Note("a.py", "g", "x<y", "x <= y", "a reason")
    assert stale([fits], [A]) == []
    assert len(stale([fits, gone], [A])) == 1
    assert len(stale([fits, fits], [A])) == 1


ROW = "| a.py:7 | f (no test comes by) | `x \\| 1` | (removed) |"


def test_a_note_is_a_row_of_the_survivors_with_a_reason(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text(f"# Notes\n\n| where | function | was | became | reason |\n|---|---|---|---|---|\n{ROW} a reason |\n")
    assert read_notes(notes) == [Note("a.py", "f", "x | 1", "(removed)", "a reason")]
    for row in (ROW, f"{ROW} |", f"{ROW} a reason | more |"):
        notes.write_text(row)
        with pytest.raises(ValueError, match=r"notes\.txt"):
            read_notes(notes)


def test_every_note_of_the_repository_still_fits() -> None:
    notes = read_notes()
    noted = {note.file for note in notes}
    assert set() < noted <= set(targets())
    assert stale(notes, [mutant for found in sources(noted) for mutant in found.mutants]) == []


RUNTIME = "files/gpushare_runtime/gpushare_runtime"
COLLECTION = "from ansible_collections.gpushare.kubernetes.plugins"
DATA = f"{COLLECTION}.plugin_utils._driver import data\n"
TREE = {
    f"{RUNTIME}/core/units.py": "GIB = 2**30\n",
    f"{RUNTIME}/core/placement/fit.py": "from gpushare_runtime.core import units\n",
    f"{RUNTIME}/core/words.py": "",
    f"{RUNTIME}/core/main.py": "",
    f"{RUNTIME}/mps/shares.py": "from gpushare_runtime.core import units\n",
    "plugins/module_utils/_driver/plan.py": "from .names import name\n",
    "plugins/module_utils/_driver/names.py": "",
    "plugins/plugin_utils/_driver/data.py": "",
    "plugins/modules/gpushare_driver.py": "from ..module_utils._driver import plan\n",
    "tests/unit/fakes/runtime/node.py": "from gpushare_runtime.core.placement import fit\n",
    "tests/unit/runtime/core/conftest.py": "from unit.fakes.runtime import node\n",
    "tests/unit/runtime/core/test_units.py": "from gpushare_runtime.core.units import GIB\n",
    "tests/unit/runtime/core/test_main.py": "from gpushare_runtime.core import main\n",
    "tests/unit/runtime/core/test_words_of_errors.py": 'PROGRAM = ["python", "-m", "gpushare_runtime.core.words"]\n',
    "tests/unit/runtime/core/placement/test_fit.py": "",
    "tests/unit/runtime/mps/test_shares.py": "from gpushare_runtime.mps import shares\n",
    "tests/unit/plugins/driver/test_plan.py": f"{COLLECTION}.module_utils._driver import plan\n{DATA}",
}


def test_the_tests_of_a_source_are_those_of_its_room_that_reach_it() -> None:
    fit, main, units, words = (
        f"tests/unit/runtime/core/{name}.py" for name in ("placement/test_fit", "test_main", "test_units", "test_words_of_errors")
    )
    assert derived(TREE) == {
        f"{RUNTIME}/core/units.py": NearAndFar((units,), (fit, main, words)),
        f"{RUNTIME}/core/placement/fit.py": NearAndFar((fit,), (main, units, words)),
        f"{RUNTIME}/core/words.py": NearAndFar((words,)),
        f"{RUNTIME}/mps/shares.py": NearAndFar(("tests/unit/runtime/mps/test_shares.py",)),
        "plugins/module_utils/_driver/plan.py": NearAndFar(("tests/unit/plugins/driver/test_plan.py",)),
        "plugins/plugin_utils/_driver/data.py": NearAndFar(("tests/unit/plugins/driver/test_plan.py",)),
    }


def test_each_file_of_the_core_is_a_target_and_each_exception_names_a_file() -> None:
    core = [path for path in files() if path.startswith(f"{RUNTIME}/core/") and path.endswith(".py")]
    # A file without a function, such as one of types, has nothing to mutate.
    core = [path for path in core if "def " in (ROOT / path).read_text()]
    assert len(core) > 20
    assert [path for path in core if path not in targets()] == []
    exceptions = [*TOO_SLOW, *FURTHER, *(test for tests in FURTHER.values() for test in tests)]
    assert [path for path in exceptions if not (ROOT / path).is_file()] == []
    assert [test for test in TOO_SLOW if any(test in tests.all for tests in targets().values())] == []
    assert [test for path, tests in FURTHER.items() for test in tests if test.startswith(room_of(path))] == []


SUBJECT = """
def noticed(a):
    return a < 3

def run_only(a):
    while a < 3:
        a += 1
    return a

def used_elsewhere(a):
    return a > 9

def noted(a):
    return a < 5

def unseen(a):
    del a
"""
TESTS = """
from subject import noticed, run_only

def test_noticed():
    assert [noticed(a) for a in (2, 3)] == [True, False]

def test_run_only():
    run_only(0)
"""
FAR_TESTS = """
from subject import noticed, used_elsewhere

def test_user():
    assert [used_elsewhere(a) for a in (9, 10)] == [False, True] == [noticed(3), noticed(2)]
"""
RUN = """
import sys
from pathlib import Path
from mutants.generate import Source
from mutants.targets import NearAndFar
from mutants.work import Case, execute

root = Path(sys.argv[1])
scratch = root / "scratch"
scratch.mkdir()
found = Source("subject.py", root / "subject.py")
cases = [Case(one, found.path, lambda one=one: found.mutated(one), one.was == "return a < 5") for one in found.mutants]
cases = [case for case in cases if case.mutant.became not in ("a += 0", "a += 2", "a -= 1")]  # one that never ends is enough
report = execute(cases, {"subject.py": NearAndFar(("test_subject.py",), ("test_far.py",))}, root, scratch, 2)
assert report.sound, report.failed
for one in report.verdicts:
    print(one.mutant.function, one.mutant.was, "->", one.mutant.became, "|", one.fate, one.by)
"""


OTHERS = """
import asyncio
import os
import subprocess
import sys
from pathlib import Path

import ansible.constants

async def current():
    return asyncio.current_task()

def test_a_task_knows_itself():
    assert asyncio.run(current()) is not None

def test_a_process_finds_the_modules_of_the_run():
    assert subprocess.run([sys.executable, "-c", "import beside"]).returncode == 0

def test_a_program_of_another_user_can_stand_in_a_folder_of_the_run():
    folder = Path(os.environ["TMPDIR"])
    assert [bool(one.stat().st_mode & 0o001) for one in (folder, folder.parent)] == [True, True]
"""
RUN_OTHERS = """
import sys
from pathlib import Path
from mutants.run import Task, Workers

root = Path(sys.argv[1])
assert not {"asyncio", "ansible"} & set(sys.modules)
(root / "scratch").mkdir()
workers, outcomes = Workers(root, root / "scratch", 1), []
workers.add([Task(("test_others.py",), outcomes.append)] * 2)
workers.run(lambda: None)
assert [one.passed for one in outcomes] == [True, True], outcomes
"""


def ran(folder: Path, script: str, **environment: str) -> str:
    """What a process prints that runs the tests of this folder on mutants."""
    (folder / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    environment["PYTHONPATH"] = os.pathsep.join((os.path.relpath(ROOT / "tools", folder), "."))
    command = [sys.executable, "-c", script, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False, env=environment, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_one_run_has_imported_serves_the_next_also_where_only_the_scratch_folder_is_writable(tmp_path: Path) -> None:
    (tmp_path / "test_others.py").write_text(OTHERS)
    (tmp_path / "beside.py").touch()
    ran(tmp_path, RUN_OTHERS, HOME="/proc")


def test_a_run_tells_which_mistakes_the_tests_notice(tmp_path: Path) -> None:
    (tmp_path / "subject.py").write_text(SUBJECT)
    (tmp_path / "test_subject.py").write_text(TESTS)
    (tmp_path / "test_far.py").write_text(FAR_TESTS)
    verdicts = dict(line.rsplit(" | ", 1) for line in ran(tmp_path, RUN).splitlines() if " | " in line)
    of_noticed = {fate for mutant, fate in verdicts.items() if mutant.startswith("noticed")}
    assert of_noticed == {"killed test_subject.py::test_noticed"}
    assert {fate for mutant, fate in verdicts.items() if mutant.startswith("used")} == {"killed test_far.py::test_user"}
    assert verdicts["run_only return a -> return None"] == "survived "
    assert verdicts["run_only a += 1 -> (removed)"] == "timeout "
    assert {fate for mutant, fate in verdicts.items() if mutant.startswith("noted")} == {"equivalent "}
    assert verdicts["unseen del a -> (removed)"] == "survived no test comes by"
