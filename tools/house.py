# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The measures of this repository's order: `make house`. `LIMITS` has what each may be at most, and only falls.

A change that exceeds a limit removes as much elsewhere. A change that stays below one by a margin lowers it. The lines of code have no
limit, since they grow with what the product does, but for those of the back end dra: one that needs more shares too little with the other
back end. In older measures, `tests` were tests + tools.
"""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from pathlib import PurePath
from statistics import median

import language
from shared_variables import REFERENCE
from tree import REPOSITORY, files

RUNTIME = "files/gpushare_runtime/gpushare_runtime"
PLUGINS = ("plugins/module_utils", "plugins/plugin_utils")
#: Area → the start of its paths. The language is read where there is a limit for it.
AREAS = {"runtime": f"{RUNTIME}/", "plugins": "plugins/", "roles": "roles/", "tests": "tests/", "tools": "tools/"}
#: Files of Ansible, whose variables are all in one space.
PLAYBOOKS = "playbooks/"
#: What users run.
PRODUCT = (AREAS["runtime"], AREAS["plugins"], AREAS["roles"], PLAYBOOKS, "charts/")
#: The files of the back end dra alone: its folder, its part of the device plugin, its settings and its objects.
DRA = (
    f"{RUNTIME}/dra/",
    f"{RUNTIME}/device_plugin/dra_backend.py",
    f"{RUNTIME}/settings/claims.py",
    "plugins/plugin_utils/_manifests/dra.py",
)
TABLE = "plugins/module_utils/_change/subjects.py"
#: The rows of the daemons' settings, which are made.
SETTINGS = "plugins/plugin_utils/_settings/table.py"
_ROW = re.compile(r'DaemonSetting\(\s*"(\w+)",\s*"(\w+)",[^)]*?variable="(\w+)"')
#: In a module that reads settings.
_SETTINGS_READ = re.compile(r"^from \S*\b_?settings\b", re.MULTILINE)
#: Between the rows of daemons and those of variables that no daemon reads.
_SHARED = "\nSHARED = "
#: In the head of a file of the chart that is made.
_MADE_BY, _HEAD = "Made by tools/manifests.py", 300
#: The chart's values, whose comments are made.
VALUES, _COMMENT = "charts/gpushare/values.yaml", re.compile(r"^ *#.*$", re.MULTILINE)
#: A part of a file that is made from the settings.
_MADE_FROM = re.compile(r"^ *# made from \w+.*?^ *# end$", re.MULTILINE | re.DOTALL)
_PRIVATE = re.compile(r"\b__[a-z][a-z0-9_]*\b")
#: Three words of prose in a row.
_SENTENCE = re.compile(r"[A-Za-z]{2,}[,;:]? [a-z]+[,;:]? [a-z]+")
#: "One GPU" names the thing, "One of these" does not.
_PRONOUN = re.compile(r"(?:Those|It|They|Them|What|One (?:is|was|of|that|which|with|without|has))\b")
MADE = re.compile(r".*_pb2(?:_grpc)?\.pyi?")
#: Measure → its limit.
LIMITS = {
    "lines of the back end dra": 2500,
    "modules": 22,
    "files of the product by hand that name the public variable which most name": 20,
    "files by hand that name the setting of a daemon which most name": 20,
    "files by hand that name the shared variable which most name": 21,
    "breaches of the language in the code of runtime": 0,
    "breaches of the language in the code of plugins": 0,
    "public docstrings of runtime that begin with a pronoun": 0,
    "public docstrings of plugins that begin with a pronoun": 0,
    "class names used twice": 0,
    "roots of errors in runtime": 1,
    "roots of errors in plugins": 1,
    "imports of a test by a test": 0,
    "sentences in asserts and matches of unit tests": 912,
    "folder circles": 0,
    "registers of a role that another role or a playbook reads": 0,
    "private variables that several roles or playbooks name": 15,
    "places in playbooks and other roles that name a subject of the table": 8,
    "module constants of runtime below the first definition": 0,
    "module constants of plugins below the first definition": 0,
    "variables and functions of runtime that are called `of` or `one`": 0,
    "variables and functions of plugins that are called `of` or `one`": 0,
}
#: Register → the paths that a change edits where somebody keeps it by hand.
REGISTERS = {
    "where a behaviour lives": ("CONTRIBUTING.md",),
    "table of suites": ("tools/suites/table.py",),
    "targets of mutants": ("tools/mutants/targets.py",),
    "equivalent mutants": ("tools/mutants/equivalent.txt",),
    "figures of pages": ("tests/unit/test_figures.py", "tools/figures.py"),
    "imports": ("tools/contracts.py",),
    "troubleshooting": ("docs/operate/troubleshooting.md",),
    "measures of the house": ("tools/house.py",),
    "findings of ansible-test": ("tests/sanity/", "tools/sanity_ignores.py"),
    "topics of variables": ("tools/variables.py",),
}
COMMITS = 100
#: A limit that is further above its measure is lowered.
SLACK = 60


def measures(texts: Mapping[str, str]) -> dict[str, int]:
    """Every measure of a tree. texts: the text of each file by its path."""
    python = {path: text for path, text in texts.items() if path.endswith(".py") and not MADE.fullmatch(path)}
    found = {
        f"lines of {area}": sum(text.count("\n") for path, text in texts.items() if path.startswith(start)) for area, start in AREAS.items()
    }
    found["lines of tests + tools"] = found["lines of tests"] + found["lines of tools"]
    found["lines of the back end dra"] = sum(text.count("\n") for path, text in python.items() if path.startswith(DRA))
    found["modules"] = sum(re.fullmatch(r"plugins/modules/\w+\.py", path) is not None for path in python)
    for area in ("runtime", "plugins"):
        found[f"breaches of the language in the code of {area}"] = sum(1 for _ in breaches(python, AREAS[area]))
        found[f"module constants of {area} below the first definition"] = len(late_constants(python, AREAS[area]))
        found[f"variables and functions of {area} that are called `of` or `one`"] = len(unnamed(python, AREAS[area]))
        found[f"public docstrings of {area} that begin with a pronoun"] = len(pronouns(python, AREAS[area]))
        found[f"roots of errors in {area}"] = len(error_roots(python, AREAS[area]))
    found["files of the product by hand that name the public variable which most name"] = max(product_files(texts).values(), default=0)
    found["files by hand that name the setting of a daemon which most name"] = max(map(len, setting_places(texts).values()), default=0)
    found["files by hand that name the shared variable which most name"] = max(map(len, shared_places(texts).values()), default=0)
    found["class names used twice"] = len(twice(python))
    found["imports of a test by a test"] = len(test_imports(python))
    found["sentences in asserts and matches of unit tests"] = len(pinned_sentences(python))
    found["folder circles"] = len(circles(python))
    found["registers of a role that another role or a playbook reads"] = len(read_registers(texts))
    found["private variables that several roles or playbooks name"] = len(shared_variables(texts))
    found["places in playbooks and other roles that name a subject of the table"] = len(named_subjects(texts))
    return found


def breaches(python: Mapping[str, str], start: str) -> Iterator[str]:
    """What breaks a rule of language in the code below a path, with its place."""
    for path, text in python.items():
        if path.startswith(start):
            yield from (f"{path}:{block.line}: {problem}" for block in language.code(text) for problem in language.problems(block))


def unnamed(python: Mapping[str, str], start: str) -> list[str]:
    """The variables, arguments, fields and functions in the code below a path whose name is no noun, each with its place.

    A class reads well before its method `of`: `Allocation.of`.
    """
    found = []
    for path, text in python.items():
        nodes = list(ast.walk(ast.parse(text))) if path.startswith(start) else []
        methods = {id(method) for node in nodes if isinstance(node, ast.ClassDef) for method in node.body}
        for node in nodes:
            name = node.arg if isinstance(node, ast.arg) else _assigned(node)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and id(node) not in methods:
                name = node.name.lstrip("_")
            if name in ("of", "one"):
                found.append(f"{path}:{getattr(node, 'lineno', 0)}: {name}")
    return found


def _assigned(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id if isinstance(node.ctx, ast.Store) else ""
    return node.attr if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) else ""


def pronouns(python: Mapping[str, str], start: str) -> list[str]:
    """The places of the public docstrings below a path whose first word stands for a thing that it does not name."""
    found = []
    for path, text in python.items():
        for node in ast.walk(ast.parse(text)) if path.startswith(start) else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                first = (ast.get_docstring(node) or "").partition("\n")[0]
                if _PRONOUN.match(first):
                    found.append(f"{path}:{node.lineno}: {first[:60]}")
    return found


def twice(python: Mapping[str, str]) -> dict[str, list[str]]:
    """The names of classes of the product that more than one file defines, and those files."""
    where = defaultdict(list)
    for path, text in python.items():
        if path.startswith((AREAS["runtime"], AREAS["plugins"])):
            for node in ast.parse(text).body:
                # Ansible finds an action by this name.
                if isinstance(node, ast.ClassDef) and node.name not in ("ActionModule", "LookupModule", "ModuleDocFragment"):
                    where[node.name].append(path)
    return {name: paths for name, paths in sorted(where.items()) if len(paths) > 1}


def error_roots(python: Mapping[str, str], start: str) -> list[str]:
    """The places of the exception classes below a path that descend from no other one below it."""
    bases: dict[str, set[str]] = {}
    where = {}
    for path, text in python.items():
        for node in ast.walk(ast.parse(text)) if path.startswith(start) else ():
            if isinstance(node, ast.ClassDef):
                bases[node.name], where[node.name] = {ast.unparse(base).rpartition(".")[2] for base in node.bases}, f"{path}:{node.lineno}"
    errors: set[str] = set()
    while more := {
        name for name, above in bases.items() if name not in errors and any(base in errors or _is_error(base) for base in above)
    }:
        errors |= more
    return [f"{where[name]}: {name}" for name in sorted(errors) if errors.isdisjoint(bases[name])]


def _is_error(name: str) -> bool:
    """Whether a class of others is an exception, by its name."""
    found = getattr(builtins, name, None)
    return name.endswith(("Error", "Exception")) or (isinstance(found, type) and issubclass(found, BaseException))


def test_imports(python: Mapping[str, str]) -> list[str]:
    """The imports of a test's module by another file, each with its place."""
    found = []
    for path, text in python.items():
        for node in ast.walk(ast.parse(text)) if path.startswith((AREAS["tests"], AREAS["tools"])) else ():
            if isinstance(node, ast.ImportFrom):
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                if any(f"tests/{'/'.join(name.split('.')[:length])}.py" in python for name in names for length in _of_tests(name)):
                    found.append(f"{path}:{node.lineno}")
    return found


def pinned_sentences(python: Mapping[str, str]) -> list[str]:
    """The places of unit tests that have a sentence in an assert or a match, and not in the golden file of their folder."""
    found = []
    for path, text in python.items():
        for node in ast.walk(ast.parse(text)) if path.startswith("tests/unit/") else ():
            pinned = (
                node.test if isinstance(node, ast.Assert) else node.value if isinstance(node, ast.keyword) and node.arg == "match" else None
            )
            texts = (each.value for each in ast.walk(pinned) if isinstance(each, ast.Constant)) if pinned is not None else ()
            if any(isinstance(each, str) and _SENTENCE.search(each.replace("\\", "")) for each in texts):
                found.append(f"{path}:{getattr(node, 'lineno', 0)}")
    return found


def _of_tests(name: str) -> list[int]:
    """The lengths at which a dotted name may end with a test's module."""
    return [length for length, word in enumerate(name.split("."), 1) if word.startswith("test_")]


def late_constants(python: Mapping[str, str], start: str) -> list[str]:
    """The places of the module constants below a path that stand under a function or class, and need none of those above them."""
    found = []
    for path, text in python.items():
        made: set[str] = set()
        for node in ast.parse(text).body if path.startswith(start) else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                made.add(node.name)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and made:
                names = {each.id: isinstance(each.ctx, ast.Store) for each in ast.walk(node) if isinstance(each, ast.Name)}
                if made.isdisjoint(names):
                    found.append(f"{path}:{node.lineno}")
                else:
                    made |= {name for name, assigned in names.items() if assigned}
    return found


def circles(python: Mapping[str, str]) -> list[tuple[str, ...]]:
    """The folders of the product that import each other, directly or by others: each group once, sorted."""
    modules = {path.removesuffix(".py").removesuffix("/__init__") for path in python}
    arrows: dict[str, set[str]] = defaultdict(set)
    for path, text in python.items():
        if path.startswith((AREAS["runtime"], *PLUGINS)):
            own = path.rpartition("/")[0]
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ImportFrom):
                    found = (_module(path, node, alias.name, modules) for alias in node.names)
                    arrows[own] |= {other for module in found if (other := module.rpartition("/")[0]) and other != own}
    reach = {name: _reached(name, arrows) for name in arrows}
    groups = {tuple(sorted(two for two in reach if two in reach[one] and one in reach[two])) for one in reach}
    return sorted(group for group in groups if len(group) > 1)


def _module(path: str, node: ast.ImportFrom, name: str, modules: Collection[str]) -> str:
    """The path of the module that a file of the product imports a name from, "" for none of the product's. The runtime's are absolute."""
    start = PurePath(path).parts[: -node.level] if node.level else ("files/gpushare_runtime",)
    imported = "/".join([*start, *filter(None, (node.module or "").split(".")), name])
    return next((module for module in (imported, imported.rpartition("/")[0]) if module in modules), "")


def _reached(start: str, arrows: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    left = [start]
    while left:
        for other in arrows.get(left.pop(), set()) - found:
            found.add(other)
            left.append(other)
    return found


def shared_variables(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """The variables of Ansible with two underscores that more than one role, or a role and the playbooks, name, and who names each.

    Those that begin with `__gpushare_` are meant to be shared.
    """
    where = defaultdict(set)
    for path, text in _ansible(texts):
        for name in _PRIVATE.findall(text):
            where[name].add(_room(path))
    return {name: sorted(rooms) for name, rooms in sorted(where.items()) if len(rooms) > 1 and not name.startswith("__gpushare_")}


def read_registers(texts: Mapping[str, str]) -> list[str]:
    """The places that name a result which a task of another role, or of a playbook, has registered."""
    registered = defaultdict(set)
    for path, text in _ansible(texts):
        for name in re.findall(r"^ *(?:- )?register: (\w+)$", text, re.M):
            registered[name].add(_room(path))
    return [
        f"{path}: {name}"
        for path, text in _ansible(texts)
        for name in sorted(set(_PRIVATE.findall(text)) & set(registered))
        if _room(path) not in registered[name]
    ]


def named_subjects(texts: Mapping[str, str]) -> list[str]:
    """The places in playbooks and in tasks of other roles that name a subject which the batches of GPU nodes bring by the table."""
    roles = []
    for table in ast.walk(ast.parse(texts.get(TABLE, ""))):
        for key, row in zip(table.keys, table.values, strict=True) if isinstance(table, ast.Dict) else ():
            if isinstance(key, ast.Constant) and isinstance(row, ast.Call) and any(keyword.arg == "install" for keyword in row.keywords):
                roles.append(str(key.value))
    return [
        f"{path}:{number}: {role}"
        for path, text in _ansible(texts)
        for number, line in enumerate(text.splitlines(), 1)
        for role in roles
        if "/meta/" not in path
        and _room(path) != role
        and not line.lstrip().startswith("#")
        and re.search(rf"(?<![a-z])(?<![a-z]_){role}\b|__{role}\b", line)
    ]


def public_variables(texts: Mapping[str, str]) -> set[str]:
    """The names of the roles' options."""
    specs = (text for path, text in texts.items() if path.startswith(AREAS["roles"]) and path.endswith("/meta/argument_specs.yml"))
    return {name for text in specs for name in re.findall(r"^ +(gpushare_\w+):", text, re.M)}


def named_in(texts: Mapping[str, str], names: Collection[str]) -> dict[str, list[str]]:
    """The files that name each of these variables."""
    where: dict[str, list[str]] = {name: [] for name in names}
    for path, text in texts.items():
        for name in {*re.findall(r"\bgpushare_\w+", text)} & set(where):
            where[name].append(path)
    return where


def product_files(texts: Mapping[str, str]) -> dict[str, int]:
    """The public variables of the roles, and how many files of the product have each by hand."""
    where = named_in(_by_hand(texts), public_variables(texts))
    return {name: sum(path.startswith(PRODUCT) for path in paths) for name, paths in where.items()}


def setting_places(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """The settings of daemons that follow a variable, and the files in which a person has written a name of each.

    Its names are the field, its key in a file, the variable, and the option. Tests and pages are no places: a setting has its own there.
    A key of one word, such as `isolation`, is the name of other things, too: in Python it counts where settings are imported.
    """
    written = _by_hand(texts)
    found = {}
    for field, key, variable in _ROW.findall(texts.get(SETTINGS, "").partition(_SHARED)[0]):
        option = re.sub("([A-Z])", lambda letter: f"-{letter[1].lower()}", key)
        own = rf"\b{variable}\b|--{option}\b|\.Values\.{key}\b|\b(?:settings|config|values)\.{field}\b"
        certain = re.compile(rf"{own}|^    {field}: [^\n]*= (?:setting|common\.)", re.MULTILINE)
        likely = re.compile(rf"[\"'`]{key}[\"'`]|^ +{key}: ", re.MULTILINE)
        words = {field, key, variable, option}
        found[variable] = sorted(
            path
            for path, text in written.items()
            if any(word in text for word in words)
            and (
                certain.search(text)
                or (likely.search(text) and not (field == key and path.endswith(".py") and not _SETTINGS_READ.search(text)))
            )
        )
    return found


def shared_places(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """The variables that several roles read and no daemon does, and the files in which a person has written the name of each."""
    written = _by_hand(texts)
    variables = [variable for _field, _key, variable in _ROW.findall(texts.get(SETTINGS, "").partition(_SHARED)[2])]
    return {name: sorted(path for path, text in written.items() if re.search(rf"\b{name}\b", text)) for name in variables}


def _by_hand(texts: Mapping[str, str]) -> dict[str, str]:
    """The files of product and tools without what is made."""
    own = {
        path: _COMMENT.sub("", text) if path == VALUES else _MADE_FROM.sub("", text)
        for path, text in texts.items()
        if path.startswith((*PRODUCT, AREAS["tools"])) and not path.endswith(".md") and path != SETTINGS and _MADE_BY not in text[:_HEAD]
    }
    for specs in [path for path in own if path.startswith(AREAS["roles"]) and path.endswith("/meta/argument_specs.yml")]:
        named = {found[2] for found in REFERENCE.finditer(own[specs])}
        own[specs] = REFERENCE.sub("", own[specs])
        defaults = f"{specs.partition('/meta/')[0]}/defaults/main.yml"
        lines = own.get(defaults, "").splitlines(keepends=True)
        own[defaults] = "".join(line for line in lines if line.partition(":")[0] not in named)
    return own


def registers(commits: Collection[Collection[str]]) -> dict[str, int]:
    """Register → how many commits edit it, and how many edit any, under "". commits: the paths of each."""
    touched = [{name for name, paths in REGISTERS.items() if any(path.startswith(paths) for path in commit)} for commit in commits]
    return {"": sum(map(bool, touched)), **{name: sum(name in names for names in touched) for name in REGISTERS}}


def commits_of_the_product(count: int) -> list[list[str]]:
    """The paths of the last commits that edit the product; fewer where git knows fewer."""
    command = ["git", "-c", f"safe.directory={REPOSITORY}", "log", "--no-merges", "--name-only", "--format=%x00"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    every = (text.split("\n") for text in done.stdout.split("\0"))
    commits = ([path for path in paths if path] for paths in every)
    return list(islice((paths for paths in commits if any(path.startswith(PRODUCT) for path in paths)), count))


def _ansible(texts: Mapping[str, str]) -> list[tuple[str, str]]:
    """Playbooks, and the files of roles that Ansible reads."""
    return [(path, text) for path, text in texts.items() if path.startswith((PLAYBOOKS, AREAS["roles"])) and path.endswith((".yml", ".j2"))]


def _room(path: str) -> str:
    """The role that a file belongs to, or the playbooks."""
    parts = path.split("/")
    return parts[1] if parts[0] == "roles" else parts[0]


def tree() -> dict[str, str]:
    """The texts of this repository that are measured."""
    areas = (*AREAS.values(), *PRODUCT, "docs/", "molecule/", "inventory.example/")
    return {path: (REPOSITORY / path).read_text() for path in files() if path.startswith(areas) and _is_read(path)}


def _is_read(path: str) -> bool:
    return PurePath(path).suffix in (".py", ".yml", ".yaml", ".j2", ".md") and not (REPOSITORY / path).is_symlink()


def main(arguments: list[str]) -> None:
    """Print the measures; with `--where` also the places of what is counted."""
    texts = tree()
    for name, value in measures(texts).items():
        print(f"{value:7,}  {name}" + (f" (at most {LIMITS[name]:,})" if name in LIMITS else ""))
    _say_registers()
    _say_places(texts)
    if arguments == ["--where"]:
        python = {path: text for path, text in texts.items() if path.endswith(".py") and not MADE.fullmatch(path)}
        print("\nclass names used twice:", *(f"{name}: {', '.join(paths)}" for name, paths in twice(python).items()), sep="\n  ")
        for area in ("runtime", "plugins"):
            print(f"\nroots of errors in {area}:", *error_roots(python, AREAS[area]), sep="\n  ")
        print("\nimports of a test by a test:", *test_imports(python), sep="\n  ")
        shared = (f"{name}: {', '.join(rooms)}" for name, rooms in shared_variables(texts).items())
        print("\nprivate variables that several roles or playbooks name:", *shared, sep="\n  ")
        by_folder = Counter(place.rpartition("/")[0] for place in pinned_sentences(python))
        print("\nsentences in asserts and matches:", *(f"{count} {folder}" for folder, count in by_folder.most_common()), sep="\n  ")
        print("\nregisters of a role that another role or a playbook reads:", *read_registers(texts), sep="\n  ")
        print("\nplaces in playbooks and other roles that name a subject of the table:", *named_subjects(texts), sep="\n  ")
        print("\nfolder circles:", *map(" ↔ ".join, circles(python)), sep="\n  ")
        for area in ("runtime", "plugins"):
            print(f"\nmodule constants of {area} below the first definition:", *late_constants(python, AREAS[area]), sep="\n  ")
            print(f"\nvariables and functions of {area} that are called `of` or `one`:", *unnamed(python, AREAS[area]), sep="\n  ")
            print(f"\npublic docstrings of {area} that begin with a pronoun:", *pronouns(python, AREAS[area]), sep="\n  ")
            by_file = Counter(line.split(":")[0] for line in breaches(python, AREAS[area]))
            print(f"\nbreaches in {area}:", *(f"{count} {path}" for path, count in by_file.most_common()), sep="\n  ")


def _say_registers() -> None:
    commits = commits_of_the_product(COMMITS)
    found = registers(commits)
    any_of_them = found.pop("")
    print(f"\nof the last {len(commits)} commits of the product, {any_of_them} edit a register ({any_of_them / max(len(commits), 1):.0%}):")
    for name, count in sorted(found.items(), key=lambda row: -row[1]):
        print(f"{count:7,}  {name}")


def _say_places(texts: Mapping[str, str]) -> None:
    subjects = Counter(place.rpartition(": ")[2] for place in named_subjects(texts))
    print("\nplaces in playbooks and other roles for each subject:", ", ".join(f"{name} {count}" for name, count in subjects.most_common()))
    print("\nfiles by hand that name the setting of a daemon, those of its definition and its use included:")
    for name, paths in sorted(setting_places(texts).items(), key=lambda row: -len(row[1])):
        print(f"{len(paths):7,}  {name}")
    print("\nfiles by hand that name a variable which several roles read and no daemon does:")
    for name, paths in sorted(shared_places(texts).items(), key=lambda row: -len(row[1])):
        print(f"{len(paths):7,}  {name}")
    files_of, product = named_in(texts, public_variables(texts)), product_files(texts)
    print(f"\nfiles that name a public variable: {median(product.values()):g} of the product in the median, and most:")
    for name, count in Counter(product).most_common(5):
        print(f"{count:7,}  {name} ({len(files_of[name])} with docs and tests)")


if __name__ == "__main__":
    main(sys.argv[1:])
