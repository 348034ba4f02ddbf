# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The tree is no less orderly than it was, and each measure counts what it says."""

from __future__ import annotations

import house

CORE = f"{house.RUNTIME}/core"
TREE = {
    "plugins/modules/one.py": '"""Somebody else."""\none = 1\n',
    "plugins/module_utils/_a/x.py": "from .._b.y import Plan\nfrom .._b import y\nfrom . import w\nclass Found: ...\n",
    "plugins/module_utils/_b/y.py": "def f():\n    from .._c import z\nclass Plan: ...\n",
    "plugins/module_utils/_c/z.py": "from .._a.x import Found\n# It goes on\n# anew.\nclass Alone: ...\n",
    f"{CORE}/w.py": "class Plan: ...\nclass _Inner:\n    class Found(Exception): ...\nraise ValueError(f'held by {x}')\n",
    f"{CORE}/v.py": "class Rest:\n    of: int\n    def of(self, one): self.one = sum(one for one in self.of)\nasync def _of(of): ...\n",
    f"{CORE}/u.py": "EARLY = 1\ndef f(): ...\nLATE = EARLY\nNEEDS: int = f()\nAFTER = NEEDS\n",
    f"{CORE}/t.py": "class _Far(x.Near, KeyError): ...\nclass Near(OSError): ...\nclass Other(http.Exit, yaml.YAMLError): ...\n",
    "plugins/module_utils/_a/e.py": "class Root(KeyboardInterrupt): ...\nclass Leaf(Root, ValueError): ...\n",
    f"{CORE}/w_pb2.py": "class Plan: ...\n",
    "tests/fakes.py": "def memory(): ...\n",
    "tests/core/test_w.py": "from fakes import memory\n",
    "tests/core/test_z.py": "from core.test_w import memory\nfrom core import test_w\nfrom w import test_of_a_product\n",
    "tests/unit/test_a.py": "assert 'no GPU is free' in x, 'not one of these'\nraises(E, match=r'it\\ is\\ full')\nassert x == 'no GPU'\n",
    "tools/programs.py": "from core.test_z import memory\n",
    "roles/README.md": "one\ntwo\n",
    house.TABLE: 'OWNERS = {"kept": Owner("a", order=1), "brought": Owner("b", install="main")}\n',
    "roles/brought/tasks/main.yml": "register: __brought\n",
    "roles/other/tasks/main.yml": "when: __brought is changed\n# brought\nregister: __given\nvars: {__own: 1, __gpushare_all: 1}\n",
    "roles/other/meta/argument_specs.yml": "  gpushare_brought_x:\n    description: see brought\n  gpushare_rare:\n",
    "plugins/module_utils/_c/d.py": (
        'class A:\n    """One GPU."""\n'
        '    def a(self):\n        """Those of a node.\n\n        More."""\n'
        '    def _b(self):\n        """It is private."""\n'
        'def c():\n    """One of these."""\ndef d(): ...\n'
    ),
    house.DRA[-1]: "A = 1\nB = 2\n",
    f"{house.DRA[0]}x.py": "A = 1\n",
    f"{house.DRA[0]}x_pb2.py": "A = 1\n",
    "docs/variables.md": "gpushare_brought_x",
    "playbooks/site.yml": "- name: gpushare.kubernetes.brought\n  when: gpushare_brought_x or __own or __given or __gpushare_all\n",
}


def test_each_measure_counts_what_it_says() -> None:
    assert house.measures(TREE) == {
        "lines of runtime": 19,
        "lines of plugins": 29,
        "lines of roles": 10,
        "lines of tests": 8,
        "lines of tools": 1,
        "lines of tests + tools": 9,
        "lines of the back end dra": 3,
        "modules": 1,
        "files by hand that name the setting of a daemon which most name": 0,
        "files by hand that name the shared variable which most name": 0,
        "files of the product by hand that name the public variable which most name": 2,
        "breaches of the language in the code of runtime": 1,
        "breaches of the language in the code of plugins": 3,
        "public docstrings of runtime that begin with a pronoun": 0,
        "public docstrings of plugins that begin with a pronoun": 2,
        "class names used twice": 1,
        "imports of a test by a test": 3,
        "sentences in asserts and matches of unit tests": 2,
        "folder circles": 1,
        "roots of errors in runtime": 3,
        "roots of errors in plugins": 1,
        "registers of a role that another role or a playbook reads": 2,
        "private variables that several roles or playbooks name": 3,
        "places in playbooks and other roles that name a subject of the table": 2,
        "module constants of runtime below the first definition": 1,
        "module constants of plugins below the first definition": 0,
        "variables and functions of runtime that are called `of` or `one`": 6,
        "variables and functions of plugins that are called `of` or `one`": 1,
    }


def test_this_tree_is_no_less_orderly_than_it_was() -> None:
    found = house.measures(house.tree())
    assert {name: found[name] for name, limit in house.LIMITS.items() if found[name] > limit} == {}
    # A limit far above the measure is none any more.
    assert {name: found[name] for name, limit in house.LIMITS.items() if limit - found[name] > house.SLACK} == {}


def test_each_public_variable_has_the_files_that_name_it() -> None:
    specs = "roles/other/meta/argument_specs.yml"
    assert house.named_in(TREE, house.public_variables(TREE)) == {
        "gpushare_brought_x": [specs, "docs/variables.md", "playbooks/site.yml"],
        "gpushare_rare": [specs],
    }


def test_a_setting_has_the_files_in_which_somebody_wrote_its_name() -> None:
    """By variable, option, key and field; not where it is made, and not in the words of a page."""
    runtime = f"{house.RUNTIME}/settings/d.py"
    texts = {
        house.SETTINGS: 'DaemonSetting("grace", "overuseGrace", 60, variable="gpushare_grace", chart="overuseGrace")\n',
        runtime: "class D:\n    grace: int = setting(60)\n",
        f"{house.RUNTIME}/x.py": "self.grace = settings.grace\n",
        f"{house.RUNTIME}/y.py": "self.grace = other.grace; overuse_graceful, gpushare_graceful\n",
        "roles/a/defaults/main.yml": "# made from D of the runtime\ngpushare_grace: 60\n# end\n",
        "roles/a/tasks/main.yml": "when: gpushare_grace\n",
        "roles/a/templates/u.j2": "--overuse-grace 60\n",
        "roles/b/vars/main.yml": "d:\n  overuseGrace: 60\n",
        "plugins/module_utils/_a/f.py": "field(text, 'overuseGrace')\n",
        "charts/gpushare/templates/objects.yaml": "{{- /*\nMade by tools/manifests.py.\n*/ -}}\na: .Values.overuseGrace\n",
        "tools/chart.py": ".Values.overuseGrace\n",
        house.VALUES: "# Not before `overuseGrace`.\nother: 1\n",
        "roles/a/README.md": "gpushare_grace\n",
        "tests/unit/test_a.py": "gpushare_grace\n",
    }
    one_word = {
        house.SETTINGS: f'{texts[house.SETTINGS]}DaemonSetting("lease", "lease", "a", variable="gpushare_lease")\n',
        f"{house.RUNTIME}/m.py": "from gpushare_runtime.settings import options\ngiven.name('lease')\n",
        f"{house.RUNTIME}/n.py": "class Held:\n    lease: str\nprint('lease')\n",
        "roles/c/vars/main.yml": "d:\n  lease: a\n",
    }
    assert house.setting_places({**texts, **one_word}) == {
        "gpushare_grace": house.setting_places(texts)["gpushare_grace"],
        "gpushare_lease": [f"{house.RUNTIME}/m.py", "roles/c/vars/main.yml"],
    }
    mine = [f"{house.RUNTIME}/x.py", runtime, "plugins/module_utils/_a/f.py", "roles/a/tasks/main.yml", "roles/a/templates/u.j2"]
    assert house.setting_places(texts) == {"gpushare_grace": sorted([*mine, "roles/b/vars/main.yml", "tools/chart.py"])}


def test_a_shared_variable_has_the_files_that_name_it() -> None:
    """By its own name alone: its field may be any word, such as kubectl."""
    row = 'DaemonSetting("kubectl", "kubectl", "kubectl", variable="gpushare_kubectl")'
    texts = {
        house.SETTINGS: f"DAEMONS = {{}}\nSHARED = (\n    {row},\n)\n",
        f"{house.RUNTIME}/settings/cluster.py": 'kubectl: str = setting("kubectl", variable="gpushare_kubectl")\n',
        f"{house.RUNTIME}/x.py": "run('kubectl')\n",
        "roles/a/defaults/main.yml": "# made from other roles by tools/variables.py\ngpushare_kubectl: kubectl\n# end\n",
        "roles/a/vars/main.yml": "a: '{{ gpushare_kubectl }}'\n",
        # Its type and default are another role's, and are made, too.
        "roles/b/meta/argument_specs.yml": "      gpushare_kubectl: &k {description: See P(c#role)., type: str, default: kubectl}\n",
        "roles/b/defaults/main.yml": "gpushare_kubectl: kubectl\n",
    }
    assert house.shared_places(texts) == {"gpushare_kubectl": [f"{house.RUNTIME}/settings/cluster.py", "roles/a/vars/main.yml"]}
    assert house.setting_places(texts) == {}


def test_a_register_is_counted_once_for_a_commit() -> None:
    commits = [
        ["plugins/a.py", "CONTRIBUTING.md", "tests/sanity/ignore-2.19.txt", "tests/sanity/ignore-2.21.txt"],
        ["plugins/a.py", "CONTRIBUTING.md"],
        ["plugins/a.py", "docs/project/testing.md"],
    ]
    found = house.registers(commits)
    assert {name: count for name, count in found.items() if count} == {"": 2, "where a behaviour lives": 2, "findings of ansible-test": 1}


def test_each_register_is_there() -> None:
    paths = [path for paths in house.REGISTERS.values() for path in paths if not path.startswith("tests/sanity/")]
    assert [path for path in paths if not (house.REPOSITORY / path).exists()] == []
