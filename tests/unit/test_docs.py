# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The pages: links lead somewhere, commands exist, names exist, each block of commands is run or says why not, no page is forgotten."""

from __future__ import annotations

import json
import os
import re
import shlex
import textwrap
from collections.abc import Iterator
from email import message_from_string
from pathlib import Path
from typing import Any

import pytest
import tomllib
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.names import LABEL_NODE
from ansible_collections.gpushare.kubernetes.plugins.module_utils._driver import generations
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.variables import variables
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.findings import CHECKS, PREFLIGHT

import reference
from docs import faults
from docs.pages import BLOCK, Block, blocks, codes, rows, section, steps
from gpushare_lab.images import TEST_IMAGES
from gpushare_runtime.core import protocol
from suites.table import SUITES
from tree import REPOSITORY, files, released

PAGES = [path for path in files() if path.endswith(".md") and not path.startswith(".github/")]
#: What users read; pages for those who change the code name its internals.
FOR_USERS = [path for path in PAGES if path.startswith(("docs/", "roles/")) or path in ("README.md", "README.zh-CN.md", "SECURITY.md")]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]*)(#[^)\s]*)?\)")
#: Of the README as its reader sees it, and of its tables.
MOST_LINES, MOST_WORDS, MOST_LINKS = 160, 1200, 50
MOST_COLUMNS, MOST_WORDS_OF_A_CELL = 4, 14
VARIABLES = set(variables(REPOSITORY))
METRICS = set(re.findall(r"^\| `(gpushare_\w+)` \|", (REPOSITORY / "docs/reference/metrics.md").read_text(), re.M))
MODULES = {path.stem for path in (REPOSITORY / "plugins/modules").glob("*.py")}
PLAYBOOKS = {path.stem for path in (REPOSITORY / "playbooks").glob("*.yml")}
PREFLIGHT_CHECKS = {name for name, (_, by) in CHECKS.items() if PREFLIGHT in by}
EVENTS = {value for name, value in vars(protocol).items() if name.startswith("EVENT_")}
ALERTS = {
    rule["alert"]
    for group in yaml.safe_load((REPOSITORY / "docs/operate/monitoring/rules.yml").read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
}


def prose(page: str) -> str:
    """A page without its fenced blocks and comments."""
    text = re.sub(r"^```.*?^```$", "", (REPOSITORY / page).read_text(), flags=re.M | re.S)
    return re.sub(r"<!--.*?-->", "", text, flags=re.S)


def slugs(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them of its headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ (.+)$", text, re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|`", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found[slug] = found.get(slug, 0) + 1
    return {*found, *(f"{slug}-{number}" for slug, count in found.items() for number in range(1, count))}


def broken(page: str, text: str) -> Iterator[str]:
    """Relative links of a text that lead nowhere."""
    for target, anchor in LINK.findall(re.sub(r"`[^`]*`", "", text)):
        if "://" in target or target.startswith("mailto:"):
            continue
        path = REPOSITORY / (os.path.normpath(os.path.join(os.path.dirname(page), target)) if target else page)
        if not path.exists():
            yield target
        elif anchor and anchor[1:] not in slugs(path / "README.md" if path.is_dir() else path):
            yield f"{target}{anchor}"


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    assert list(broken(page, prose(page))) == []


def test_a_link_that_leads_nowhere_is_found() -> None:
    text = "[a](names.md) [b](name.md) [c](names.md#events) [d](names.md#event) [e](https://x.example/) `[f](nothing)`"
    assert list(broken("docs/reference/x.md", text)) == ["name.md", "names.md#event"]


def test_pages_of_the_release_link_only_to_its_files() -> None:
    ours = set(released())
    known = {"CONTRIBUTING.md", "tools/lab/README.md", "tools/suites/table.py", "tests/labs.py"}  # named as parts of the checkout
    beyond = {
        f"{page}: {target}"
        for page in ours
        if page.endswith(".md")
        for target, _ in LINK.findall(prose(page))
        if target and "://" not in target
        for path in [os.path.normpath(os.path.join(os.path.dirname(page), target))]
        if path not in ours and path not in known and not any(one.startswith(f"{path}/") for one in ours)
    }
    assert beyond == set()


def test_the_index_names_every_page() -> None:
    index = (REPOSITORY / "docs/README.md").read_text()
    linked = {os.path.normpath(os.path.join("docs", target)) for target, _ in LINK.findall(index)}
    of_benchmarks = {f"docs/project/benchmarks/{name}.md" for name in ("fleet", "scheduling", "transport")}
    hidden = {"docs/README.md", *of_benchmarks}
    assert {page for page in PAGES if page.startswith("docs/")} - linked - hidden == set()


def seen(text: str) -> str:
    """A page as its reader sees it: without comments and the targets of links, wrapped again, with one line for each picture."""
    text = re.sub(r"<picture>.*?</picture>", "(picture)", re.sub(r"<!--.*?-->\n?", "", text, flags=re.S), flags=re.S)
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"<\w[^>]*>|</\w+>", "", text))
    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    joined = (part if at % 2 else re.sub(r"(?<=\S)\n(?:> | +)?(?!> |[\n|#-]|\d+\. )", " ", part) for at, part in enumerate(parts))
    lines = [
        wrapped
        for line in "".join(joined).splitlines()
        for wrapped in ([line] if line.startswith("|") else textwrap.wrap(line, 120) or [""])
    ]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_the_readme_is_short(page: str) -> None:
    text = (REPOSITORY / page).read_text()
    assert len(seen(text).splitlines()) <= MOST_LINES
    assert len(LINK.findall(text)) <= MOST_LINKS
    assert max(map(len, rows(text))) <= MOST_COLUMNS
    # Chinese has no spaces between words. A cell of a table is read at a glance.
    assert sum(1 for word in seen(text).split() if re.search(r"\w", word)) <= MOST_WORDS
    assert [cell for row in rows(seen(text)) for cell in row if len(cell.split()) > MOST_WORDS_OF_A_CELL] == []


def test_the_size_of_a_page_is_that_which_a_reader_sees() -> None:
    text = "<!-- generated: x -->\n\n# A\n\n<picture><source>\n<img></picture><br>*b*\n\n<!-- /generated -->\n\n"
    text += "[c d](e.md#f)\ng\n\n- h\n  i\n- j\n\n> k\n> l\n\n```shell\nm\nn\n```\n\n| o |\n|---|\n| p |\n"
    expected = "# A\n\n(picture)*b*\n\n[c d] g\n\n- h i\n- j\n\n> k l\n\n```shell\nm\nn\n```\n\n| o |\n|---|\n| p |"
    assert seen(text) == expected


def test_the_readme_shows_a_pod_and_the_product() -> None:
    text = (REPOSITORY / "README.md").read_text()
    (manifest,) = (block for block in blocks("README.md") if block.kind == "yaml")
    assert yaml.safe_load(manifest.body) == {"resources": {"limits": {"aliyun.com/gpu-mem": 8}}}
    # What a test sees the quick start print.
    (shown,) = (block for block in blocks("README.md") if block.kind == "text")
    assert any(block.body.startswith(shown.body) and block.text == shown.text for block in blocks("docs/start/quickstart.md"))
    # Two commands do everything on a fresh machine.
    assert all(command in text for command in ("\nmake demo\n", "`make test-full`"))
    # A phone shows so many columns of a block.
    assert max(map(len, manifest.body.splitlines())) <= 40
    assert text.index(manifest.body) < text.index("<picture>") < text.index("a real H100")


def test_the_page_of_gpus_has_the_drivers_of_their_generations() -> None:
    """And limits by the driver where a branch that can limit serves the generation."""
    known = {one.name: one for one in vars(generations).values() if isinstance(one, generations.Generation)}
    models = [row for row in rows(section("docs/start/gpus.md", "By GPU")) if row[1] in known]
    assert len(models) >= 7
    for _, name, drivers, limits, mps in models:
        one = known[name]
        assert drivers == (f"{one.first} or newer" if one.last is None else f"{one.first} to {one.last}"), name
        assert (limits == "**never**") == (one.last is not None and one.last < 615), name
        # From Volta on.
        assert mps.startswith("yes") == (one.first >= generations.VOLTA.first), name


# How far something was tried.

LEGEND = "docs/start/support.md"
WORDS = set(re.findall(r"^- \*\*([^*]+)\*\*:", section(LEGEND, "What the words mean"), re.M))
#: Former words for the same.
SYNONYMS = re.compile(r"\*\*(?:rules|run|tried|lab)\*\*|[(;] ?(?:rules|lab)\)|\| (?:not yet run|rules) \|")


def of_another_legend(page: str, text: str) -> list[str]:
    """Words for how far something was tried that the legend does not have, and a page that uses its words without a way there."""
    found = SYNONYMS.findall(text)
    cells = {cell.strip("*") for row in rows(text) for cell in row[1:]}
    used = cells & (WORDS - {"rejected", "simulated"})
    linked = page == LEGEND or f"{Path(LEGEND).name}#what-the-words-mean" in text
    return found + [word for word in sorted(used) if not linked]


@pytest.mark.parametrize("page", PAGES)
def test_how_far_something_was_tried_is_said_in_the_words_of_one_legend(page: str) -> None:
    assert of_another_legend(page, prose(page)) == []


def test_another_word_and_a_page_without_the_legend_are_found() -> None:
    assert len(WORDS) == 6
    assert of_another_legend("a.md", "It is **rules**, and so (lab).") == ["**rules**", "(lab)"]
    text = "| a | b |\n|---|---|\n| x | **from docs** |\n"
    assert of_another_legend("a.md", text) == ["from docs"]
    assert of_another_legend("a.md", f"{text}[words](support.md#what-the-words-mean)") == []


# Blocks of YAML and TOML.

READ = {"yaml": lambda text: list(yaml.safe_load_all(text)), "toml": tomllib.loads, "json": json.loads}
DATA = [(page, number, block) for page in PAGES for number, block in enumerate(blocks(page)) if block.kind in READ]


@pytest.mark.parametrize(("page", "block"), [pytest.param(p, b, id=f"{p}-{n}") for p, n, b in DATA])
def test_a_block_of_data_can_be_read(page: str, block: Block) -> None:
    assert READ[block.kind](block.body)


def test_the_sample_pod_of_eks_runs_on_the_nodes_of_its_samples() -> None:
    """Label and taint stand in each node group and in the NodePool; the pods tolerate what they have."""
    by_kind = objects_of("docs/operate/eks.md")
    (pod, without), (pool,), (overlay,) = by_kind["Pod"], by_kind["NodePool"], by_kind["NodeOverlay"]
    assert_is_placed_without_a_request(without, pod)
    template = pool["spec"]["template"]
    groups = [group for one in by_kind["ClusterConfig"] for group in one["managedNodeGroups"]]
    pools = [*((one["labels"], one["taints"]) for one in groups), (template["metadata"]["labels"], template["spec"]["taints"])]
    assert [group["amiFamily"] for group in groups] == ["AmazonLinux2023", "Bottlerocket"]
    tolerated = [{key: one[key] for key in ("key", "value", "effect")} for one in pod["spec"]["tolerations"]]
    assert pools == [({LABEL_NODE: "true"}, tolerated)] * 3
    assert {one["key"]: one["values"] for one in overlay["spec"]["requirements"]}["karpenter.sh/nodepool"] == [pool["metadata"]["name"]]
    assert set(overlay["spec"]["capacity"]) == {protocol.RESOURCE_MEMORY, protocol.RESOURCE_GPUS}
    # Karpenter's nodes are prepared as those of the node groups: by the same words, in the user data.
    linux, bottlerocket = by_kind["EC2NodeClass"]
    assert template["spec"]["nodeClassRef"]["name"] == linux["metadata"]["name"] == bottlerocket["metadata"]["name"]
    _, part = message_from_string(linux["spec"]["userData"]).walk()
    ((command,), own) = groups[0]["preBootstrapCommands"], groups[1]["bottlerocket"]["settings"]
    assert part.get_content_type() == "text/x-shellscript"
    assert part.get_payload().replace("\\\n", "").split() == ["#!/bin/bash", *command.split()]
    assert tomllib.loads(bottlerocket["spec"]["userData"])["settings"] == own


def test_the_sample_pod_of_openshift_runs_on_the_nodes_that_the_page_makes() -> None:
    page = "docs/operate/openshift.md"
    pod, without = objects_of(page)["Pod"]
    assert_is_placed_without_a_request(without, pod)
    (machines,) = (one["spec"]["template"]["spec"] for one in objects_of(page)[""] if "template" in one["spec"])
    (taint,) = machines["taints"]
    assert [{key: one[key] for key in taint} for one in pod["spec"]["tolerations"]] == [taint]
    assert machines["metadata"]["labels"] == {LABEL_NODE: "true"}
    commands = [command for block in blocks(page) for command in block.commands]
    assert f"oc label node gpu1 {LABEL_NODE}=true" in commands
    assert f"oc adm taint node gpu1 {taint['key']}={taint['value']}:{taint['effect']}" in commands


def assert_is_placed_without_a_request(pod: Any, shared: Any) -> None:
    """A check whether pods without a request see GPUs says something only where such a pod can start, on a node with GPUs."""
    (container,) = pod["spec"]["containers"]
    assert "schedulerName" not in pod["spec"]
    assert "resources" not in container
    assert container["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    assert pod["spec"]["nodeSelector"] == {LABEL_NODE: "true"}
    assert pod["spec"]["tolerations"] == shared["spec"]["tolerations"]


def objects_of(page: str) -> dict[str, list[Any]]:
    """What the blocks of YAML of a page have, by kind; "" for values and patches."""
    found: dict[str, list[Any]] = {}
    for block in blocks(page):
        for one in yaml.safe_load_all(block.body) if block.kind == "yaml" else ():
            found.setdefault(one.get("kind", ""), []).append(one)
    return found


# Blocks of commands.

SHELL = [(page, number, block) for page in PAGES for number, block in enumerate(blocks(page)) if block.kind in ("shell", "sh", "bash")]


@pytest.mark.parametrize(("page", "block"), [pytest.param(p, b, id=f"{p}-{n}") for p, n, b in SHELL])
def test_a_block_of_commands_is_run_by_a_test_or_says_why_not(page: str, block: Block) -> None:
    assert block.mark in ("run", "tried", "not run"), "put <!-- run: TEST -->, <!-- tried: TEST --> or <!-- not run: WHY --> above it"
    assert block.commands
    if block.mark == "not run":
        assert len(block.text.split()) >= 4
        return
    test = REPOSITORY / block.text
    assert test.is_file(), f"{block.text} does not exist"
    if block.mark == "run":
        code = test.read_text()
        # steps() has every block with this mark: the test cannot leave one out.
        runs = f'steps("{page}", TEST)' in code or ("steps(PAGE, TEST)" in code and f'"{page}"' in code)
        assert runs, f"{block.text} does not run {page}"
    else:
        playbooks = {word for command in block.commands for word in re.findall(r"gpushare\.kubernetes\.(\w+)", command)}
        around = "\n".join(path.read_text() for path in test.parent.glob("*.py"))
        assert [name for name in playbooks if f"{name}.yml" not in around and f'"{name}"' not in around and name not in read_by(test)] == []


def read_by(test: Path) -> str:
    """The pages that a test runs commands of."""
    return "\n".join(
        (REPOSITORY / page).read_text() for page in re.findall(r"[\w/]+\.md", test.read_text()) if (REPOSITORY / page).is_file()
    )


COMMANDS = [(page, command) for page, _, block in SHELL for command in block.commands]


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=[f"{p}: {c[:60]}" for p, c in COMMANDS])
def test_the_parts_of_a_command_exist(page: str, command: str) -> None:
    assert not wrong_in(command)


def wrong_in(command: str) -> str:
    """What a command names that does not exist; "" if all does."""
    if "$(" in command or "…" in command or command.startswith("-"):
        return ""
    words = shlex.split(command.partition(" > ")[0])
    if words[0] == "ansible-playbook":
        for word in words:
            if word.startswith("gpushare.kubernetes.") and word.removeprefix("gpushare.kubernetes.") not in PLAYBOOKS:
                return f"no playbook {word}"
        for name in re.findall(r"-e (\w+)=", command):
            if name.startswith("gpushare_") and name not in VARIABLES:
                return f"no variable {name}"
    if words[0] == "make" and not re.search(rf"^{re.escape(words[1])}:", (REPOSITORY / "Makefile").read_text(), re.M):
        return f"no goal {words[1]}"
    if words[:2] == ["kubectl", "gpushare"]:
        try:
            reference.parser_of("kubectl_program.main").parse_args(words[2:] or ["nodes"])
        except SystemExit:
            return "another command line than kubectl gpushare takes"
    return ""


def test_a_command_that_does_not_exist_is_found() -> None:
    assert "no playbook" in wrong_in("ansible-playbook -i inventory gpushare.kubernetes.sight")
    assert "no variable" in wrong_in("ansible-playbook gpushare.kubernetes.site -e gpushare_drian=true")
    assert "no goal" in wrong_in("make demos")
    assert "command line" in wrong_in("kubectl gpushare pods --every")


def test_outputs_that_a_page_shows_belong_to_a_command() -> None:
    assert [step.command for step in steps("docs/start/quickstart.md", "tests/docs/test_tarball.py") if step.output] == ["kubectl gpushare"]
    assert len(BLOCK.findall("<!-- run: x -->\n\n```shell\na\n```\n\n```text\nb\n```\n")) == 2


# Names.


def unknown_names(text: str) -> set[str]:
    """Names in code quotes that look like ours and that nothing has."""
    wrong = set()
    for quoted in codes(text):
        for name in re.findall(r"(?<![\w./:-])gpushare_[a-z0-9_]+(?![\w/*])", quoted):
            known = name in VARIABLES or name in MODULES or name in METRICS or any(metric.startswith(name) for metric in METRICS)
            if not known and name not in ("gpushare_runtime", "gpushare_control_planes"):
                wrong.add(name)
        wrong |= {name for name in re.findall(r"\bGPUShare\w+", quoted) if name not in EVENTS | ALERTS and name != "GPUShare"}
    return wrong


@pytest.mark.parametrize("page", FOR_USERS)
def test_every_variable_metric_and_event_that_a_page_names_exists(page: str) -> None:
    assert unknown_names(prose(page)) == set()


def test_a_name_that_does_not_exist_is_found() -> None:
    text = "`gpushare_drian` `gpushare_drain` `gpushare_extender_ready` `GPUShareEvicted` `GPUShareEviction` `gpushare_serial: 1`"
    assert unknown_names(text) == {"gpushare_drian", "GPUShareEviction"}


def options() -> set[str]:
    """Every long option of the programs."""
    found = set()
    for _, module in reference.PROGRAMS:
        parser = reference.parser_of(module)
        for one in (parser, *reference.subcommands(parser).values()):
            found |= {option for action in one._actions for option in action.option_strings}
    return found


def test_every_option_of_our_programs_exists() -> None:
    pages = ("docs/reference/kubectl.md", "docs/reference/device-plugin.md", "docs/use/dashboard.md", "docs/reference/metrics.md")
    others = {"--cgroups-per-qos", "--root-dir", "--force"}  # of kubelet and kubectl
    named = {(page, option) for page in pages for quoted in codes(prose(page)) for option in re.findall(r"(?<![\w-])--[a-z][\w-]+", quoted)}
    assert len(named) > 40
    assert {(page, option) for page, option in named if option not in options() | others} == set()


# Commands within sentences and tables.


def unknown_command(quoted: str) -> str:
    """The part of a command in code quotes that does not exist; "" if all does, or if it is no command of ours."""
    words = quoted.split()
    if words[0] == "make" and len(words) > 1 and not re.search(rf"^{re.escape(words[1])}:", MAKEFILE, re.M):
        return words[1]
    if words[0] == "python" and "-m" in words[:-1]:
        module = words[words.index("-m") + 1].replace(".", "/")
        places = [REPOSITORY / area / name for area in ("tests", "tools") for name in (f"{module}/__main__.py", f"{module}.py")]
        return "" if any(place.is_file() for place in places) else module
    if words[:2] == ["kubectl", "gpushare"] and len(words) > 2 and words[2][0] not in "-[":
        known = reference.subcommands(reference.parser_of("kubectl_program.main"))
        return "" if words[2] in known or words[2].isupper() else words[2]
    if words[0] == "systemctl":
        unit = next((word for word in words if word.startswith("gpushare-")), "")
        return "" if not unit or re.sub(r"\.service$|\.timer$|(-metrics)?\.socket$", "", unit) in UNITS else unit
    if words[0].startswith("gpushare-") and len(words) > 1:
        return "" if words[0] in SCRIPTS else words[0]
    return ""


MAKEFILE = (REPOSITORY / "Makefile").read_text()
SCRIPTS = set(re.findall(r"^([\w-]+) = \"gpushare_runtime\.", (REPOSITORY / "files/gpushare_runtime/pyproject.toml").read_text(), re.M))
UNITS = {path.name.partition(".")[0] for path in (REPOSITORY / "roles").glob("*/templates/gpushare-*.j2")}


@pytest.mark.parametrize("page", PAGES)
def test_every_suite_that_a_page_names_exists(page: str) -> None:
    text = " ".join(prose(page).split())
    assert set(re.findall(r"[Ss]uites? `([\w-]+)`", text)) - {suite.name for suite in SUITES} == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_command_that_a_page_names_exists(page: str) -> None:
    assert [quoted for quoted in codes(prose(page)) if quoted.strip() and unknown_command(quoted)] == []


def test_a_command_within_a_sentence_that_does_not_exist_is_found() -> None:
    wrong = {
        "make demos": "demos",
        "python -m bench.bind": "bench/bind",
        "kubectl gpushare explains POD": "explains",
        "systemctl status gpushare-plugin": "gpushare-plugin",
        "gpushare-doc --all": "gpushare-doc",
    }
    assert {quoted: unknown_command(quoted) for quoted in wrong} == wrong
    right = (
        "make demo",
        "python -m suites recorded",
        "kubectl gpushare explain POD",
        "systemctl restart gpushare-pki.timer",
        "systemctl stop gpushare-extender-metrics.socket",
        "gpushare-pki x",
    )
    assert not any(map(unknown_command, right))


def test_every_program_playbook_module_and_goal_is_documented() -> None:
    told = {word for page in FOR_USERS for quoted in codes(prose(page)) for word in re.findall(r"[\w-]+", quoted)}
    assert {name for name in SCRIPTS if name not in told} == set()
    # Parts of site.yml, which nobody runs alone.
    parts = {"control_planes", "finish", "gpu_nodes", "inventory", "pods_planned", "pods_scheduler", "pods_served"}
    parts |= {"scheduler_from_pods", "scheduler_to_pods"}
    assert PLAYBOOKS - told <= parts
    public = {path.stem for path in (REPOSITORY / "plugins/modules").glob("*.py") if "may change in any release" not in path.read_text()}
    assert len(public) >= 3
    assert public - told == set()
    text = "\n".join((REPOSITORY / page).read_text() for page in PAGES)
    goals = re.findall(r"^([a-z-]+):.* ## ", MAKEFILE, re.M)
    assert [goal for goal in goals if not re.search(rf"make {goal}\b(?!-)", text)] == []


# Tables that are made from code, or compared with it.


def test_the_parts_that_are_made_from_code_are_current() -> None:
    assert list(reference.problems()) == []


def test_a_part_that_is_stale_missing_or_of_another_page_is_found(tmp_path: Path) -> None:
    for page in reference.PARTS:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text((REPOSITORY / page).read_text())
    codes_page, cli = tmp_path / "docs/reference/codes.md", tmp_path / "docs/reference/cli.md"
    row = "| `driver_too_old` | driver and GPUs |"
    codes_page.write_text(codes_page.read_text().replace(f"{row} error |", f"{row} warning |"))
    cli.write_text("# Commands\n")
    assert [problem.split()[0] for problem in reference.problems(tmp_path)] == ["docs/reference/cli.md", "docs/reference/codes.md"]
    for page in ("docs/x.md", "docs/reference/cli.md"):
        with pytest.raises(KeyError):
            reference.filled(page, "<!-- generated: codes -->\n<!-- /generated -->")


def between(page: str, name: str) -> str:
    """The text between <!-- name: … --> and <!-- /name -->."""
    text = (REPOSITORY / page).read_text()
    found = re.search(rf"<!-- {name}: .*? -->(.*?)<!-- /{name} -->", text, re.S)
    assert found, f"{page} has no part {name}"
    return found[1]


def test_the_code_makes_the_findings_of_its_table_and_no_other() -> None:
    utils = REPOSITORY / "plugins/plugin_utils"
    files = [*utils.glob("_preflight/*.py"), *utils.glob("_verdict/*.py"), *utils.glob("_judge/*.py")]
    files += [utils / "_answers.py", utils / "_bundle/contents.py"]
    files += (REPOSITORY / "files/gpushare_runtime/gpushare_runtime/doctor").glob("*.py")
    text = "".join(path.read_text() for path in files)
    said = re.findall(r'(?:\.(error|warn|note)|\.say|\bFinding|\bof_verify)\)?\(\s*"([a-z_]+)"', text)
    assert len(said) > 200
    severity = {"error": "error", "warn": "warning", "note": "note"}
    assert [name for how, name in said if name not in CHECKS or (how and severity[how] not in CHECKS[name][0])] == []
    text += "".join((REPOSITORY / f"plugins/module_utils/_facts/{name}.py").read_text() for name in ("capacity", "diagnosis"))
    assert [name for name in CHECKS if f'"{name}"' not in text and f'"{{short}}_{name.partition("_")[2]}"' not in text] == []


def test_troubleshooting_has_each_code_and_no_other() -> None:
    written = [code for row in rows(between(faults.PAGE, "codes")) for code in codes(row[0])]
    assert sorted(written) == sorted(CHECKS.keys() - PREFLIGHT_CHECKS)
    assert all(len(row) == 4 and row[1] and row[3] for row in rows(between(faults.PAGE, "codes")))


def test_troubleshooting_has_each_check_and_no_other() -> None:
    written = [code for row in rows(between(faults.PAGE, "checks")) for code in codes(row[0])]
    assert sorted(written) == sorted(PREFLIGHT_CHECKS)
    required = rows((REPOSITORY / "docs/start/requirements.md").read_text().partition("## Distributions")[0])
    assert len(required) > 10
    assert [row for row in required if not codes(row[2])] == [], "a requirement that preflight does not assert"
    named = {check for row in required for check in codes(row[2])}
    assert named - VARIABLES <= PREFLIGHT_CHECKS


def test_the_readme_of_preflight_has_each_check() -> None:
    table = (REPOSITORY / "roles/preflight/README.md").read_text().partition("| check |")[2]
    written = {code for row in rows("|" + table) for code in codes(row[0]) if re.fullmatch(r"[a-z_]+", code)}
    assert PREFLIGHT_CHECKS - written == set()


def test_the_rows_that_are_marked_are_those_that_a_test_follows() -> None:
    marked = {code for row in rows(section(faults.PAGE, faults.PENDING)) if row[-1] == "✓" for code in codes(row[0])}
    assert marked == faults.FOLLOWED


def test_the_messages_of_pending_pods_are_those_of_the_code() -> None:
    sources = "\n".join(path.read_text() for path in (REPOSITORY / "files/gpushare_runtime/gpushare_runtime/core/placement").glob("*.py"))
    sources = re.sub(r'"\s*\n\s*f?"', "", sources)
    of_kubernetes = {"Insufficient aliyun.com/gpu-mem", "certificate", "lease", "expected at least one victim pod"}
    of_kubernetes |= {"connection refused", "context deadline exceeded", "EOF", "connection reset"}
    # Of webhooks and extenders; the last one is how the address of ours ends.
    of_kubernetes |= {"failed calling webhook", "denied the request", "denied request", 'Post "URL"', "/gpushare-scheduler"}
    words = {code for row in rows(section(faults.PAGE, faults.PENDING)) for code in codes(row[0])} - of_kubernetes
    # "GPUs are empty" has a count in the middle.
    assert [text for text in words if text not in sources and text != "GPUs are empty"] == []
    assert "GPUs are empty" in sources


# Numbers and versions.


def test_versions_are_the_collections() -> None:
    version = yaml.safe_load((REPOSITORY / "galaxy.yml").read_text())["version"]
    for page in ("docs/start/quickstart.md",):
        named = re.findall(r"gpushare-kubernetes-([\d.]+)\.tar\.gz", (REPOSITORY / page).read_text())
        assert set(named) == {version}
    assert f'version = "{version}"' in (REPOSITORY / "files/gpushare_runtime/pyproject.toml").read_text()


def test_the_samples_are_listed_and_those_with_pytorch_have_the_lines_of_its_page() -> None:
    folder = REPOSITORY / "docs/use/samples"
    listed = set(re.findall(r"^\| \[([\w.-]+)\]", (folder / "README.md").read_text(), re.M))
    assert listed == {path.name for path in folder.glob("*.yaml")}
    scripts = [
        next(yaml.safe_load_all((folder / sample).read_text()))["data"][name]
        for sample, name in (("08-pytorch.yaml", "main.py"), ("11-notebook.yaml", "share.py"))
    ]
    (lines,) = [block.body for block in blocks("docs/use/frameworks.md") if "set_per_process_memory_fraction" in block.body]
    shared = [line.strip().partition("  #")[0] for line in lines.splitlines() if re.search(r"units|mib|fraction", line)]
    assert len(shared) == 4
    assert [line for line in shared for script in scripts if line not in script] == []


def pod_specs(sample: str) -> list[dict[str, Any]]:
    """Of all pods and templates in a sample."""
    documents = yaml.safe_load_all((REPOSITORY / "docs/use/samples" / sample).read_text())
    specs = [one.get("spec") or {} for one in documents]
    found = [spec.get("template", {}).get("spec") or spec for spec in specs]
    return [spec for spec in found if "containers" in spec]


def containers(sample: str) -> list[dict[str, Any]]:
    """Of all pods and templates in a sample."""
    return [container for spec in pod_specs(sample) for container in spec["containers"]]


#: Word in an image → the variable that its program reads as a number, and that Kubernetes sets to tcp://… where a Service has this name.
OF_SERVICES = {"vllm": "VLLM_PORT", "jupyter": "JUPYTER_PORT"}


def test_no_program_of_a_sample_takes_the_address_of_a_service_for_its_port() -> None:
    samples = sorted(path.name for path in (REPOSITORY / "docs/use/samples").glob("*.yaml"))
    objects = [one for sample in samples for one in yaml.safe_load_all((REPOSITORY / "docs/use/samples" / sample).read_text())]
    services = [one["metadata"]["name"] for one in objects if one["kind"] == "Service"]
    assert services
    assert {f"{name.replace('-', '_').upper()}_PORT" for name in services} & set(OF_SERVICES.values()) == set()
    # Users name Services, too.
    read = [
        (word, spec.get("enableServiceLinks"))
        for sample in samples
        for spec in pod_specs(sample)
        for word in OF_SERVICES
        if any(word in container["image"] for container in spec["containers"])
    ]
    assert sorted(read) == [(word, False) for word in sorted(OF_SERVICES)]


def test_the_samples_that_tests_run_have_images_of_the_lab() -> None:
    run = {
        row[0].strip("[").partition("]")[0] for row in rows((REPOSITORY / "docs/use/samples/README.md").read_text()) if "tests" in row[2]
    }
    assert len(run) > 8
    images = {one["image"] for sample in run for one in containers(sample)}
    in_the_lab = {name.removeprefix("docker.io/").removeprefix("library/") for name in TEST_IMAGES}
    assert images - in_the_lab == set()


def test_each_sample_but_that_of_the_original_has_a_tag_and_no_old_image() -> None:
    old = [
        path.name for path in (REPOSITORY / "docs/use/samples").glob("*.yaml") for one in containers(path.name) if "caffe" in one["image"]
    ]
    assert old == ["13-original.yaml"]


def test_the_vllm_sample_has_the_line_of_its_page() -> None:
    (lines,) = [block.body for block in blocks("docs/use/frameworks.md") if "gpu-memory-utilization" in block.body]
    limit = re.search(r"--gpu-memory-utilization.*\)\"", lines.replace("\\\n", ""), re.S)
    assert limit
    (container,) = containers("10-vllm.yaml")
    assert lines.partition("    #")[0] in container["args"][0]
    assert " ".join(limit[0].split()) in " ".join(container["args"][0].replace("\\\n", "").split())


def test_the_parts_of_the_guide_for_tenants_are_those_of_its_sample() -> None:
    documents = {one["kind"]: one for one in yaml.safe_load_all((REPOSITORY / "docs/use/samples/09-tenant.yaml").read_text())}
    shown = [yaml.safe_load(block.body)["spec"] for block in blocks("docs/use/tenants.md") if block.kind == "yaml"]
    assert shown == [documents["ResourceQuota"]["spec"], documents["LimitRange"]["spec"]]


def test_the_quick_start_leaves_the_checkout_before_it_installs_the_collection() -> None:
    """The settings of a checkout install into the checkout, and the page takes the inventory from the home folder."""
    assert "collections_path = .collections" in (REPOSITORY / "ansible.cfg").read_text()
    before, _, after = (REPOSITORY / "docs/start/quickstart.md").read_text().partition("ansible-galaxy collection install ")
    leaves = "collection build --output-path ..\ncd ..\n"
    assert leaves in before
    assert "~/.ansible/collections/" in after
