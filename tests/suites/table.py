# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The suites: what each runs, on which lab, and which files' changes ask for it.

`make test` runs those that are marked `always`; CI adds those whose paths have changed since their last recorded run; `make test-full`
runs all of them. A path is a pattern as in fnmatch, where * also stands for slashes. The order is the order of importance: where the
time is short, what stands first is run first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase

RUNTIME = "files/gpushare_runtime/gpushare_runtime"
UTILS = "plugins/module_utils"
PLUGIN_UTILS = "plugins/plugin_utils"
# Installing stands on these, whatever is installed.
HOST_CORE = (f"{UTILS}/_host/*", f"{UTILS}/_change/*", f"{UTILS}/_daemon/health.py")
# What a daemon on the hosts needs to be there at all.
INSTALL = (
    "files/gpushare_runtime/*.*",
    "playbooks/*",
    "site.yml",
    "ansible.cfg",
    "roles/python_environment/*",
    "roles/device_plugin/*",
    "roles/extender/*",
    "roles/cluster_objects/*",
    f"{UTILS}/_daemon/*",
    f"{PLUGIN_UTILS}/_wheel.py",
)
# One of each layer: scheduler, kubelet, containerd, driver, API server, container. The suite `verify` has the others.
LIFE_FAULTS = tuple(
    f"tests/verify/test_faults.py::test_a_planted_fault_is_named_with_its_cure[{code}]"
    for code in (
        "extender_address_wrong",
        "plugin_not_registered",
        "default_runtime_not_running",
        "driver_mismatch",
        "policy_differs",
        "wrong_card",
    )
)
# How pods come by their cards: the core that both daemons share.
CORE = f"{RUNTIME}/core/*"
# How another device plugin leaves a node, and programs that stand in for those of others.
TAKE_OVER = (
    "playbooks/take_over.yml",
    "roles/take_over/*",
    f"{UTILS}/_takeover/*",
    f"{UTILS}/_facts/device_managers.py",
    f"{PLUGIN_UTILS}/_takeover/*",
    "plugins/*/gpushare_takeover*.py",
    "tests/hosts/stand_in*",
)
# What every test of a cluster uses.
CLUSTER_TESTS = ("tests/e2e/[!t]*", "tests/labs.py", "tests/lab/*")


@dataclass(frozen=True)
class Suite:
    """One suite.

    command: run from the repository, `pytest` in front of `tests` where it is empty. lab: the shape that it needs, see labs.py.
    env: variables of its environment; full: those that make it larger in `make test-full`. only_full: CI never runs it.
    alone: nothing may run beside it. prepared: it needs what the lab's cache keeps. newest_core: on the newest ansible-core that pip
    offers. seconds: what it took on 2 cores, until a run has been recorded.
    """

    name: str
    what: str
    tests: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    lab: str = ""
    always: bool = False
    only_full: bool = False
    alone: bool = False
    env: dict[str, str] = field(default_factory=dict)
    full: dict[str, str] = field(default_factory=dict)
    seconds: int = 120
    prepared: bool = False
    newest_core: bool = False

    @property
    def instance(self) -> str:
        """Which lab of its shape it uses: one that always runs has its own from beginning to end, so that others run beside it."""
        return f"{self.lab}-{self.name}" if self.lab and self.always else self.lab

    def asks(self, path: str) -> bool:
        """Whether a change of that file asks for this suite."""
        return any(fnmatchcase(path, pattern) for pattern in self.paths)


SUITES = (
    Suite("lint", "linters and types", command=("make", "lint"), paths=("*",), always=True, seconds=100),
    Suite(
        "unit",
        "unit and property tests",
        tests=("tests/unit", "-n", "2"),
        paths=("*",),
        always=True,
        prepared=True,
        full={"GPUSHARE_FULL": "1"},
        seconds=300,
    ),
    Suite(
        "release",
        "the release from its tarball, and what the other suites stand on",
        tests=("tests/quality/test_collection.py", "tests/quality/test_results.py", "tests/quality/test_scenarios.py"),
        paths=("*",),
        always=True,
        seconds=150,
    ),
    Suite(
        "life",
        "a cluster from bare hosts over pods and planted faults to bare hosts",
        tests=(
            "tests/life/test_install.py",
            "tests/e2e/test_empty.py",
            "tests/e2e/test_requests.py",
            "tests/e2e/test_samples.py",
            "tests/e2e/test_full.py",
            "tests/e2e/test_churn.py",
            *LIFE_FAULTS,
            "tests/life/test_uninstall.py",
        ),
        env={"GPUSHARE_CHURN_PODS": "60"},
        lab="two",
        paths=("*",),
        always=True,
        newest_core=True,
        seconds=500,
    ),
    Suite(
        "cores",
        "action plugins and playbooks on the oldest ansible-core that is admitted, and on the newest that pip provides",
        tests=("tests/quality/test_cores.py",),
        paths=("*",),
        always=True,
        seconds=200,
    ),
    Suite(
        "pods",
        "every shape of request, every verb, and that the checks themselves find faults",
        tests=(
            "tests/e2e/test_shapes.py",
            "tests/e2e/test_verbs.py",
            "tests/e2e/test_whole_cards.py",
            "tests/e2e/test_explain.py",
            "tests/e2e/test_faults.py",
        ),
        lab="two",
        full={"GPUSHARE_FULL": "1"},
        paths=(
            CORE,
            f"{RUNTIME}/extender/*",
            f"{RUNTIME}/device_plugin/*",
            f"{RUNTIME}/kubectl_gpushare/explain.py",
            "tests/e2e/test_[!cdilnru]*",
            *CLUSTER_TESTS,
        ),
        seconds=320,
    ),
    Suite(
        "cards",
        "cards that fail, are exchanged, are used by others, or whose memory the driver limits",
        tests=(
            "tests/e2e/test_card_health.py",
            "tests/e2e/test_limits.py",
            "tests/e2e/test_mps.py",
            "tests/e2e/test_overuse.py",
            "tests/e2e/test_unmanaged.py",
        ),
        lab="two",
        paths=(
            f"{RUNTIME}/core/inventory.py",
            f"{RUNTIME}/core/overuse.py",
            f"{RUNTIME}/extender/evictor.py",
            f"{RUNTIME}/device_plugin/*",
            "tests/e2e/test_[clmou]*",
            *CLUSTER_TESTS,
        ),
        seconds=400,
    ),
    Suite(
        "alerts",
        "a real Prometheus on a cluster: the dashboard has data, and alerts fire with their cause and clear after it",
        tests=("tests/e2e/test_monitoring.py",),
        lab="two",
        paths=(
            "docs/operate/monitoring/*",
            f"{RUNTIME}/*/metrics*.py",
            "tests/monitoring/*",
            "tests/e2e/test_mon*",
            "tests/e2e/test_overuse.py",
            "playbooks/scrape_config.yml",
            "roles/report/*",
        ),
        seconds=300,
    ),
    Suite(
        "nodes",
        "kubelet, daemons, API server and nodes that stop and come back",
        tests=("tests/e2e/test_disturbed.py", "tests/e2e/test_node_life.py"),
        lab="two",
        full={"GPUSHARE_FULL": "1"},
        paths=(
            f"{RUNTIME}/daemon/*",
            f"{RUNTIME}/device_plugin/*",
            f"{RUNTIME}/kube/*",
            f"{RUNTIME}/extender/*",
            # systemd starts a daemon again that has ended.
            "roles/*/templates/*.service.j2",
            "tests/e2e/test_[dn]*",
            *CLUSTER_TESTS,
        ),
        seconds=400,
    ),
    Suite(
        "churn",
        "pods come and go at random, also by force",
        tests=("tests/e2e/test_churn.py",),
        lab="two",
        full={"GPUSHARE_FULL": "1", "GPUSHARE_CHURN_OUT": "docs/project/benchmarks/churn.json"},
        paths=(
            CORE,
            f"{RUNTIME}/extender/*",
            f"{RUNTIME}/device_plugin/*",
            "tests/e2e/churn*",
            "tests/e2e/test_churn.py",
            "tests/original/*",
        ),
        seconds=240,
    ),
    Suite(
        "rights",
        "permissions of the accounts, certificates and tokens",
        tests=("tests/e2e/test_rights.py", "tests/e2e/test_identity.py"),
        lab="two",
        paths=(
            f"{RUNTIME}/kube/*",
            f"{RUNTIME}/pki/*",
            "roles/admission/*",
            "roles/cluster_objects/*",
            "roles/*/templates/*.service.j2",
            f"{UTILS}/_identity/*",
            f"{UTILS}/_daemon/pki.py",
            f"{UTILS}/_cluster/*",
            "plugins/modules/*token*",
            "plugins/modules/*cluster*",
            "tests/e2e/test_[ri]*",
            *CLUSTER_TESTS,
        ),
        seconds=180,
    ),
    Suite(
        "policies",
        "verdicts and CPU time of the admission policies, by the API server's own code",
        tests=("tests/policies",),
        paths=("roles/cluster_objects/templates/admission.yml.j2", "tests/policies/*", "tests/lab/go/policies/*"),
        prepared=True,
        seconds=300,
    ),
    Suite(
        "verify",
        "verify names each planted fault",
        tests=("tests/verify", *(f"--deselect={test}" for test in LIFE_FAULTS)),
        lab="two",
        paths=(
            "roles/verify/*",
            "playbooks/verify.yml",
            f"{UTILS}/_evidence/*",
            f"{PLUGIN_UTILS}/_verdict/*",
            f"{UTILS}/_cluster/capacity.py",
            "plugins/*/gpushare_verify*",
            f"{RUNTIME}/doctor/*",
            "plugins/modules/gpu_mem_capacity.py",
            "tests/verify/*",
            *CLUSTER_TESTS,
        ),
        seconds=600,
    ),
    Suite(
        "inventory",
        "inventories as people have them: sudo by password, a bastion, other names, a new node, mistakes",
        # On one lab, whose hosts keep their users to the end.
        tests=("tests/people/test_install.py", "tests/e2e/test_inventory.py", "tests/people/test_uninstall.py"),
        lab="people",
        paths=(
            "roles/*",
            "playbooks/*",
            "site.yml",
            "ansible.cfg",
            "inventory.example/*",
            "plugins/action/*",
            f"{PLUGIN_UTILS}/_answers.py",
            f"{PLUGIN_UTILS}/_preflight/*",
            f"{UTILS}/_host/*",
            f"{UTILS}/_cluster/kubectl.py",
            "tests/people/*",
            "tests/e2e/test_inventory.py",
            "tests/hosts/site.py",
            "tests/hosts/print_file_tree.py",
            *CLUSTER_TESTS,
        ),
        seconds=600,
    ),
    Suite(
        "molecule",
        "each role by its scenario",
        tests=("tests/quality/test_molecule.py",),
        lab="one",
        paths=(
            "molecule/*",
            ".config/molecule/*",
            "roles/*",
            "plugins/*",
            "playbooks/*",
            "tests/quality/*",
            "tests/hosts/driver_nodes.py",
            "tests/driver_host/packages.py",
            *CLUSTER_TESTS,
        ),
        seconds=300,
    ),
    Suite(
        "check-mode",
        "check mode predicts what site.yml does; a run that has nothing to do changes nothing",
        tests=("tests/hosts/test_check_mode.py",),
        lab="one",
        paths=("roles/*", "plugins/*", "playbooks/*", "tests/hosts/test_check_mode.py", "tests/hosts/site.py", *CLUSTER_TESTS),
        seconds=180,
    ),
    Suite(
        "containerd",
        "the role container_runtime on a host: wrong, killed, restored, removed; real programs' configurations, and what they make of ours",
        tests=(
            "tests/hosts/test_container_runtime.py",
            "tests/hosts/test_written_by_tools.py",
            "tests/unit/plugins/runtimes/test_containerd.py",
        ),
        lab="one",
        env={"GPUSHARE_CONTAINERDS": "lab"},
        paths=(
            "roles/container_runtime/*",
            f"{UTILS}/_runtimes/*",
            f"{UTILS}/_formats/toml*",
            "plugins/modules/container_runtime.py",
            *HOST_CORE,
            "tests/hosts/*container_runtime*",
            "tests/hosts/test_written_by_tools.py",
            "tests/unit/plugins/runtimes/*",
            "tests/hosts/killed_at.py",
            "tests/hosts/conftest.py",
            *CLUSTER_TESTS,
        ),
        seconds=600,
    ),
    Suite(
        "runtimes",
        "site.yml on docker with cri-dockerd, containerd 1.7 and 2.4: broken files, killed daemons, pods, uninstall",
        tests=("tests/hosts/test_runtimes.py",),
        lab="runtimes",
        paths=(
            "roles/container_runtime/*",
            f"{UTILS}/_runtimes/*",
            f"{UTILS}/_formats/toml*",
            f"{UTILS}/_formats/json_edit.py",
            "plugins/modules/container_runtime.py",
            "tests/hosts/test_runtimes.py",
            "tests/hosts/shared.py",
            "tests/lab/gpushare_lab/runtimes.py",
            "tests/lab/node/docker/*",
        ),
        seconds=600,
    ),
    Suite(
        "visibility",
        "which cards each container sees, by strategy, on docker and three releases of containerd; a CDI spec that systemd writes at boot",
        tests=("tests/hosts/test_visibility.py",),
        lab="visibility",
        paths=(
            "docs/operate/isolation.md",
            "roles/container_runtime/*",
            "roles/nvidia_container_toolkit/*",
            f"{UTILS}/_toolkit/*",
            f"{UTILS}/_facts/device_strategy.py",
            f"{RUNTIME}/device_plugin/node/strategy.py",
            f"{RUNTIME}/device_plugin/node/cdi.py",
            f"{RUNTIME}/device_plugin/host/cdi_specs.py",
            "tests/hosts/*visibility*",
            "tests/lab/gpushare_lab/runtimes.py",
            "tests/lab/node/docker/*",
        ),
        seconds=1500,
    ),
    Suite(
        "dockershim",
        "site.yml on docker with dockershim, of a kubelet 1.22: a gate that is off, pods, restarts, uninstall",
        tests=("tests/hosts/test_dockershim.py",),
        lab="dockershim",
        paths=(
            "roles/container_runtime/*",
            "roles/kubelet/*",
            f"{UTILS}/_facts/kubernetes.py",
            f"{UTILS}/_kubelet/*",
            f"{UTILS}/_runtimes/docker*",
            f"{RUNTIME}/device_plugin/kubelet/*",
            "tests/hosts/test_dockershim.py",
            "tests/hosts/shared.py",
            "tests/lab/gpushare_lab/runtimes.py",
            "tests/lab/node/docker/*",
        ),
        seconds=800,
    ),
    Suite(
        "new-release",
        "another release under running pods: no daemon-reload, containers keep their cards",
        tests=("tests/hosts/test_release.py",),
        lab="one",
        paths=(
            f"{UTILS}/_daemon/*",
            "plugins/modules/gpushare_service.py",
            "roles/*/templates/*.service.j2",
            "tests/hosts/test_release.py",
            "tests/hosts/releases.py",
        ),
        seconds=300,
    ),
    Suite(
        "packages",
        "packages and repositories on hosts with real apt, dnf, zypper and rpm",
        tests=("tests/packages",),
        paths=(
            f"{UTILS}/_packages/*",
            f"{UTILS}/_toolkit/*",
            f"{UTILS}/_change/*",
            "plugins/modules/gpushare_packages.py",
            "plugins/modules/gpushare_toolkit.py",
            "roles/nvidia_container_toolkit/*",
            "tests/packages/*",
            "tests/lab/gpushare_lab/debian.py",
        ),
        seconds=300,
    ),
    Suite(
        "scheduler",
        "the role scheduler on a control plane: wrong, killed, restored, removed",
        tests=("tests/hosts/test_scheduler.py",),
        lab="one",
        paths=(
            "roles/scheduler/*",
            f"{UTILS}/_scheduler/*",
            f"{UTILS}/_cluster/kubectl.py",
            f"{UTILS}/_daemon/service.py",
            f"{UTILS}/_formats/yaml*",
            f"{PLUGIN_UTILS}/_scheduler/*",
            "plugins/*/kube_scheduler_extender.py",
            *HOST_CORE,
            "tests/hosts/*scheduler*",
            "tests/hosts/control_plane.py",
            "tests/hosts/conftest.py",
            *CLUSTER_TESTS,
        ),
        seconds=300,
    ),
    Suite(
        "driver",
        "the role nvidia_driver with real apt, dnf, zypper and repositories, and Debian's real nvidia-smi without a driver",
        tests=("tests/driver_host",),
        paths=(
            "roles/nvidia_driver/*",
            f"{UTILS}/_driver/*",
            f"{UTILS}/_packages/*",
            *(f"{UTILS}/_facts/{name}.py" for name in ("driver", "nvidia_smi", "diagnosis", "cards")),
            f"{PLUGIN_UTILS}/_driver/*",
            "plugins/*/gpushare_driver*.py",
            "plugins/*/nvidia_smi_info.py",
            "plugins/*/gpushare_packages.py",
            "tests/driver_host/*",
            "tests/packages/machine.py",
        ),
        prepared=True,
        seconds=1200,
    ),
    Suite(
        "driver-upgrade",
        "upgrade_driver.yml on two GPU nodes: budgets, one node at a time with a real reboot, a node that fails",
        tests=("tests/hosts/test_upgrade_driver.py",),
        lab="two",
        paths=(
            "playbooks/upgrade_driver.yml",
            "roles/nvidia_driver/*",
            f"{UTILS}/_driver/*",
            f"{UTILS}/_cluster/drain.py",
            "plugins/*/gpushare_driver*.py",
            "plugins/modules/gpushare_drain.py",
            "tests/driver_host/packages.py",
            "tests/hosts/driver_nodes.py",
            "tests/hosts/test_upgrade_driver.py",
        ),
        seconds=700,
    ),
    Suite(
        "generations",
        "the real kube-schedulers and kubeadms of 1.22 to 1.36, and a kubelet, take what is written for them; pods are placed",
        tests=("tests/generations",),
        full={"GPUSHARE_FULL": "1"},
        paths=(
            f"{UTILS}/_scheduler/*",
            f"{PLUGIN_UTILS}/_scheduler/*",
            "tests/generations/*",
            *(f"tests/bench/scheduling/{name}.py" for name in ("control_plane", "extender", "objects")),
            "tests/unit/plugins/scheduler/*generations.py",
            f"{UTILS}/_kubelet/*",
            *HOST_CORE,
            "tests/lab/gpushare_lab/components.py",
        ),
        prepared=True,
        seconds=400,
    ),
    Suite(
        "uninstall",
        "uninstall.yml killed anywhere, with hosts away, with edits of others",
        tests=("tests/hosts/test_uninstall.py",),
        lab="one",
        paths=(
            "roles/uninstall/*",
            "roles/report/*",
            "playbooks/uninstall.yml",
            "playbooks/report.yml",
            f"{UTILS}/_removal/*",
            "plugins/modules/*remove*",
            "plugins/modules/*report*",
            *HOST_CORE,
            "tests/hosts/*uninstall*",
            "tests/hosts/removed_at.py",
            "tests/hosts/site.py",
            "tests/hosts/print_file_tree.py",
            *CLUSTER_TESTS,
        ),
        seconds=700,
    ),
    Suite(
        "planes",
        "three control planes; the leader is killed",
        tests=("tests/ha",),
        lab="three-planes",
        full={"GPUSHARE_FULL": "1", "GPUSHARE_HA_OUT": "docs/project/benchmarks/leader-killed.json"},
        paths=(
            f"{RUNTIME}/extender/*",
            f"{RUNTIME}/kube/*",
            f"{RUNTIME}/pki/*",
            f"{RUNTIME}/core/*ledger.py",
            "roles/extender/*",
            "roles/scheduler/*",
            "tests/ha/*",
            *CLUSTER_TESTS,
        ),
        seconds=500,
    ),
    Suite(
        "join",
        "control planes and GPU nodes join an installed cluster, also with a control plane down",
        tests=("tests/ways/test_join.py",),
        lab="three-planes",
        paths=(
            "playbooks/scale.yml",
            "playbooks/inventory.yml",
            "roles/preflight/tasks/joined.yml",
            "roles/preflight/tasks/control_planes.yml",
            "roles/scheduler/tasks/prepare.yml",
            f"{UTILS}/_scheduler/join.py",
            "plugins/modules/gpushare_scheduler_join.py",
            "tests/ways/test_join.py",
            "tests/ways/[!t]*",
        ),
        seconds=600,
    ),
    Suite(
        "ways",
        "another release goes through node by node or is rolled back; nodes are removed, alive and dead",
        # In this order: a node that was removed is not upgraded.
        tests=("tests/ways/test_upgrade.py", "tests/ways/test_removal.py"),
        lab="two",
        paths=(
            "playbooks/upgrade.yml",
            "playbooks/remove*.yml",
            "playbooks/site.yml",
            "roles/uninstall/tasks/*",
            "roles/verify/tasks/*",
            f"{UTILS}/_removal/cluster.py",
            f"{PLUGIN_UTILS}/_removal/*",
            "plugins/modules/gpushare_drain.py",
            "plugins/*/gpushare_dead_nodes_info.py",
            "tests/ways/test_[ru]*",
            "tests/ways/[!t]*",
            "tests/hosts/releases.py",
        ),
        seconds=800,
    ),
    Suite(
        "take-over",
        "nodes of NVIDIA's device plugin are taken over one at a time, and given back",
        tests=("tests/hosts/test_take_over.py",),
        lab="two",
        paths=(*TAKE_OVER, "tests/hosts/test_take_over.py"),
        seconds=700,
    ),
    Suite(
        "take-over-original",
        "a cluster of the original gpushare with 50 pods is taken over by the page's commands, given back, and taken over for good",
        tests=("tests/hosts/test_take_over_original.py",),
        lab="two-nvidia",
        paths=(
            *TAKE_OVER,
            "roles/uninstall/tasks/cluster.yml",
            f"{UTILS}/_removal/cluster.py",
            "docs/operate/migrate.md",
            "tests/hosts/test_take_over_original.py",
            "tests/walks/[!t]*",
        ),
        seconds=1500,
    ),
    Suite(
        "scale",
        "the worst pods on 5000 nodes, binds in virtual time, and kubectl gpushare on 50,000 pods",
        tests=("tests/scale",),
        paths=(
            CORE,
            f"{RUNTIME}/extender/*",
            f"{RUNTIME}/kubectl_gpushare/*",
            "tests/scale/*",
            "tests/bench/binds/*",
            "tests/bench/kubectl/*",
            "tests/unit/runtime/extender/test_hostile.py",
        ),
        seconds=200,
    ),
    Suite(
        "monitoring",
        "alerts, dashboard and recording rules with a real Prometheus that scrapes both daemons",
        tests=("tests/monitoring",),
        paths=(
            "docs/operate/monitoring/*",
            "docs/reference/metrics.md",
            f"{RUNTIME}/extender/metrics.py",
            f"{RUNTIME}/device_plugin/metrics.py",
            f"{RUNTIME}/daemon/metrics*.py",
            f"{RUNTIME}/extender/leadership.py",
            f"{RUNTIME}/kube/reflector.py",
            f"{RUNTIME}/device_plugin/node/cdi.py",
            f"{RUNTIME}/device_plugin/gpu/pod_memory.py",
            f"{RUNTIME}/kubectl_gpushare/used.py",
            "tests/monitoring/*",
        ),
        prepared=True,
        seconds=300,
    ),
    Suite(
        "dashboard",
        "the dashboard in a real browser and on a cluster: updates, filters, keyboard, themes, hostile names, accessibility",
        tests=("tests/dashboard", "tests/e2e/test_dashboard.py", "tests/e2e/test_dashboard_service.py"),
        lab="two",
        paths=(
            CORE,
            f"{RUNTIME}/dashboard/*",
            f"{RUNTIME}/kubectl_gpushare/*",
            f"{RUNTIME}/daemon/listener.py",
            "roles/dashboard/*",
            f"{RUNTIME}/pki/*",
            "tests/dashboard/*",
            "tests/bench/dashboard/*",
            "tests/e2e/test_dashboard*.py",
            *CLUSTER_TESTS,
        ),
        seconds=240,
    ),
    Suite(
        "walks",
        "the pages as a new user follows them: from the release to pods that share a card, samples, Pending pods from symptom to cure",
        tests=("tests/walks/test_tarball.py", "tests/walks/test_samples.py", "tests/walks/test_pending.py"),
        lab="two",
        paths=(
            "README.md",
            "docs/start/quickstart.md",
            "docs/operate/troubleshooting.md",
            "docs/operate/uninstall.md",
            "docs/use/samples/*",
            "galaxy.yml",
            "inventory.example/*",
            "tests/walks/*",
            *INSTALL,
            *CLUSTER_TESTS,
        ),
        seconds=400,
    ),
    Suite(
        "site",
        "the documentation as a site, the files of a release, and what hosts without a network need; needs a package index",
        tests=("tests/quality/test_site.py", "tests/quality/test_offline.py"),
        paths=(
            "README.md",
            "CONTRIBUTING.md",
            "SECURITY.md",
            "docs/*",
            "roles/*/README.md",
            "roles/*/meta/argument_specs.yml",
            "plugins/modules/*",
            "changelogs/*",
            "requirements/docs*",
            "tests/pages/*",
            "tests/release.py",
            "tests/quality/test_site.py",
            "tests/quality/test_offline.py",
            "files/gpushare_runtime/requirements*",
        ),
        seconds=200,
    ),
    Suite(
        "sanity",
        "ansible-test sanity on every Python of this machine",
        tests=("tests/quality/test_sanity.py",),
        paths=("plugins/*", "roles/*", "playbooks/*", "meta/*", "galaxy.yml", "tests/sanity/*", "tests/quality/*sanity.py"),
        seconds=150,
    ),
    Suite(
        "upgrade",
        "kubeadm upgrade over an installed cluster",
        tests=("tests/hosts/test_upgrade.py",),
        lab="old",
        paths=(
            "roles/scheduler/*",
            f"{UTILS}/_scheduler/*",
            f"{PLUGIN_UTILS}/_scheduler/*",
            "tests/hosts/test_upgrade.py",
            *INSTALL,
        ),
        seconds=400,
    ),
    Suite(
        "lab",
        "the lab itself: saved states, and that nothing stays behind",
        tests=("tests/lab/test_saved.py", "tests/lab/test_down.py"),
        paths=("tests/lab/*",),
        alone=True,
        seconds=180,
    ),
    Suite(
        "binds",
        "a hundred thousand binds in virtual time, and every flaw alone",
        command=("make", "test-binds"),
        paths=(CORE, f"{RUNTIME}/extender/*", "tests/bench/binds/*"),
        only_full=True,
        seconds=900,
    ),
    Suite(
        "mutants",
        "single mutations of the core that the tests must notice",
        command=("make", "mutants", "MUTANTS=--sample 60"),
        paths=("tests/mutants/*",),
        only_full=True,
        seconds=300,
    ),
)
BY_NAME = {suite.name: suite for suite in SUITES}
