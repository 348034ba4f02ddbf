# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The suites: what each runs, on which lab, and which files' changes ask for it.

A test file says with `pytestmark = pytest.mark.suite("NAME")` which suite runs it. Here stand the tests that several suites run, or one in
a certain order, and folders of one suite. The modules of tests that a suite's tests import ask for it, too, without a line here.

`make test` runs those that are marked `always`; CI adds those whose paths have changed since their last recorded run; `make test-full`
runs all of them. A path is a pattern as in fnmatch, where * also stands for slashes. The order is the order of importance: where the
time is short, what stands first is run first.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from suites.imported import helpers, marked

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
INSTALL_FAULTS = tuple(
    f"tests/verify/test_faults.py::test_planted_faults_are_named_and_their_cures_help[{group}]" for group in ("first-day", "driver")
)
SHAPES = tuple(
    f"tests/e2e/test_shapes.py::test_{name}"
    for name in (
        "memory_on_two_gpus_of_one_node",
        "an_amount_that_gpus_cannot_share_is_rejected",
        "containers_of_one_pod_share_its_gpu",
        "an_init_container_and_a_sidecar_count_as_in_kubernetes",
        "both_kinds_of_request_use_the_same_gpus",
    )
)
# Of the end-to-end tests those that look at pods alone: others ask the extender, or read units, on a control plane's host.
IN_CLUSTER = (
    "tests/e2e/test_requests.py",
    "--deselect=tests/e2e/test_requests.py::test_filter_rejects_what_cannot_be_meant",
    "--deselect=tests/e2e/test_requests.py::test_an_annotation_makes_the_scheduler_look_at_a_rejected_pod_again",
    *SHAPES,
    "tests/e2e/test_whole_gpus.py",
    "tests/e2e/test_samples.py::test_every_container_has_the_gpu_of_its_annotation",
    "tests/e2e/test_samples.py::test_nvidia_smi_lists_one_gpu",
    "tests/e2e/test_samples.py::test_the_large_pod_is_told_why",
    "tests/e2e/test_full.py",
)
# Of the end-to-end tests those of pods, without what claims do not have: tests/dra/test_same_pods.py says what.
BY_CLAIMS = (
    "tests/e2e/test_requests.py",
    "tests/e2e/test_shapes.py",
    "tests/e2e/test_whole_gpus.py",
    "tests/e2e/test_full.py",
    *(
        f"--deselect=tests/e2e/test_{name}"
        for name in (
            "requests.py::test_both_resources_at_once_are_rejected",
            "requests.py::test_bytes_instead_of_units_are_explained",
            "requests.py::test_filter_rejects_what_cannot_be_meant",
            "requests.py::test_an_annotation_makes_the_scheduler_look_at_a_rejected_pod_again",
            "shapes.py::test_an_amount_that_gpus_cannot_share_is_rejected",
            "shapes.py::test_a_mistaken_annotation_is_named",
            "shapes.py::test_the_nodes_label_names_the_model_of_gpus_that_are_alike",
            "shapes.py::test_pods_choose_their_neighbours",
            "shapes.py::test_compute_is_counted_where_the_node_shares_it_out",
            "shapes.py::test_compute_is_rejected_where_nobody_shares_it_out",
            "shapes.py::test_a_nodes_label_is_the_policy_between_its_gpus",
            "shapes.py::test_a_pods_own_policy_goes_first",
            "shapes.py::test_pods_spread_between_nodes_by_their_own_policy",
            "whole_gpus.py::test_a_whole_gpu_is_taken_from_nobody_and_given_to_nobody",
        )
    ),
)
# How pods come by their GPUs: the core that both daemons share.
CORE = f"{RUNTIME}/core/*"
# How another device plugin leaves a node, and programs that stand in for those of others.
TAKE_OVER = (
    "playbooks/take_over.yml",
    "roles/take_over/*",
    f"{UTILS}/_takeover/*",
    f"{UTILS}/_facts/device_managers.py",
    f"{PLUGIN_UTILS}/_takeover/*",
    "plugins/*/gpushare_api.py",
    "tests/take_over/stand_in*",
)
# What Ansible runs.
INSTALLER = (
    "plugins/*",
    "roles/*",
    "playbooks/*",
    "site.yml",
    "galaxy.yml",
    "meta/*",
    "inventory.example/*",
    "ansible.cfg",
    "requirements/dev.txt",
)
# The tests that run it on this machine, what they stand on, and the options that the units of the daemons name.
THROUGH_ANSIBLE = (
    "tests/playbooks/*",
    "tests/unit/plugins/*",
    "tests/unit/fakes/plugins/*",
    "tests/results.py",
    "tests/blocks.py",
    f"{RUNTIME}/*/options.py",
    f"{RUNTIME}/dashboard/main.py",
    f"{RUNTIME}/dashboard/access.py",
    f"{RUNTIME}/pki/*",
    "files/gpushare_runtime/*.toml",
)
#: Of the programs that the lab and tests have built.
VERSIONS = "tools/lab/versions.ini"
# What every test of a cluster uses.
CLUSTER_TESTS = ("tests/e2e/[!t]*", "tests/labs.py", "tests/lab/*", "tools/lab/*")


@dataclass(frozen=True)
class Suite:
    """One suite.

    command: run from the repository, `pytest` in front of `tests` where it is empty. lab: the shape that it needs, see labs.py.
    always: whatever has changed; quick: `make test` without a mode runs it as well, CI by its paths.
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
    quick: bool = False
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
        """Whether a change of that file asks for this suite, as one of its own tests and their helpers does."""
        return (
            any(fnmatchcase(path, pattern) for pattern in self.paths)
            or any(path == test or path.startswith(f"{test}/") for test in self.tests)
            or path in helpers(tuple(test for test in self.tests if test.startswith("tests/")))
        )


_TABLE = (
    Suite("lint", "linters and types, except ansible-lint", command=("make", "lint-code"), paths=("*",), always=True, seconds=70),
    Suite(
        "unit",
        "unit and property tests",
        tests=("tests/unit", "-n", "2"),
        paths=("*",),
        always=True,
        prepared=True,
        full={"GPUSHARE_FULL": "1"},
        seconds=400,
    ),
    Suite(
        "release",
        "the release from its tarball, and what the other suites stand on",
        tests=("tests/collection/test_collection.py", "tests/installer/test_results.py", "tests/collection/test_scenarios.py"),
        paths=("*",),
        always=True,
        seconds=150,
    ),
    Suite(
        "install",
        "a cluster from bare hosts, one with another `--root-dir` of kubelet, over pods and planted faults to bare hosts",
        tests=(
            "tests/install/test_install.py",
            "tests/e2e/test_empty.py",
            "tests/e2e/test_requests.py",
            "tests/e2e/test_samples.py",
            "tests/e2e/test_full.py",
            "tests/e2e/test_churn.py",
            *INSTALL_FAULTS,
            "tests/install/test_uninstall.py",
        ),
        env={"GPUSHARE_CHURN_PODS": "60"},
        lab="two",
        paths=("*",),
        always=True,
        newest_core=True,
    ),
    Suite(
        "ansible-lint",
        "ansible-lint over roles, playbooks and scenarios",
        command=("make", "lint-ansible"),
        paths=(*INSTALLER, "molecule/*", "changelogs/*", ".ansible-lint", ".yamllint*"),
        quick=True,
        seconds=140,
    ),
    Suite(
        "playbooks",
        "action plugins and playbooks through ansible-playbook, with their hosts on this machine",
        tests=("tests/playbooks", "-n", "2"),
        paths=(*INSTALLER, *THROUGH_ANSIBLE),
        quick=True,
    ),
    Suite(
        "cores",
        "the same on the oldest ansible-core that is admitted, on the newest that pip provides, and on the next pre-release",
        tests=("tests/collection/test_cores.py",),
        paths=(*INSTALLER, *THROUGH_ANSIBLE, "tools/cores.py"),
        quick=True,
    ),
    Suite(
        "pods",
        "every shape of request, every verb, and that the checks themselves find faults",
        tests=("tests/e2e/test_shapes.py", "tests/e2e/test_verbs.py", "tests/e2e/test_whole_gpus.py"),
        lab="two",
        full={"GPUSHARE_FULL": "1"},
        paths=(
            CORE,
            f"{RUNTIME}/extender/*",
            f"{RUNTIME}/device_plugin/*",
            f"{RUNTIME}/kubectl_gpushare/explain.py",
            "tests/e2e/test_[!cdgilnru]*",
            *CLUSTER_TESTS,
        ),
    ),
    Suite(
        "gpus",
        "GPUs that fail, are exchanged, are used by others, or whose memory the driver limits",
        lab="two",
        paths=(
            f"{RUNTIME}/core/inventory.py",
            f"{RUNTIME}/core/overuse.py",
            f"{RUNTIME}/extender/evictor.py",
            f"{RUNTIME}/device_plugin/*",
            "tests/e2e/test_[cglmou]*",
            *CLUSTER_TESTS,
        ),
    ),
    Suite(
        "alerts",
        "a real Prometheus on a cluster: the dashboard has data, and alerts fire with their cause and clear after it",
        lab="two",
        paths=(
            "docs/operate/monitoring/*",
            f"{RUNTIME}/*/metrics*.py",
            "tests/monitoring/*",
            "tests/e2e/test_overuse.py",
            "playbooks/scrape_config.yml",
            "roles/report/*",
        ),
    ),
    Suite(
        "failures",
        "kubelet, daemons, API server and nodes that stop and come back",
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
    ),
    Suite(
        "churn",
        "pods come and go at random, also by force",
        tests=("tests/e2e/test_churn.py",),
        lab="two",
        full={"GPUSHARE_FULL": "1", "GPUSHARE_CHURN_OUT": "docs/project/benchmarks/churn.json"},
        paths=(CORE, f"{RUNTIME}/extender/*", f"{RUNTIME}/device_plugin/*", "tests/e2e/churn*"),
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
            "plugins/modules/gpushare_daemon.py",
            "plugins/modules/*cluster*",
            "tests/e2e/test_[ri]*",
            *CLUSTER_TESTS,
        ),
    ),
    Suite(
        "policies",
        "verdicts and CPU time of the admission policies, by the API server's own code",
        tests=("tests/policies",),
        paths=(f"{PLUGIN_UTILS}/_manifests/policies.py", f"{PLUGIN_UTILS}/_manifests/dra.py", "tools/lab/go/policies/*", VERSIONS),
        prepared=True,
    ),
    Suite(
        "chart",
        "the Helm chart has the objects of the playbook, and its schema rejects bad values, by Helm's own engine",
        tests=("tests/charts",),
        paths=(f"{PLUGIN_UTILS}/_manifests/*", "charts/*", "tools/chart.py", "tools/lab/go/chart/*", VERSIONS),
        prepared=True,
        seconds=120,
    ),
    Suite(
        "cluster-mode",
        "gpushare as pods, with another `--root-dir` of kubelet: bad input, install, requests, killed pods, uninstall; kubectl, helm",
        tests=(
            "tests/cluster_mode/test_install.py",
            *IN_CLUSTER,
            "tests/cluster_mode/test_rights.py",
            "tests/cluster_mode/test_metrics.py",
            "tests/cluster_mode/test_flooded.py",
            "tests/cluster_mode/test_killed.py",
            "tests/cluster_mode/test_uninstall.py",
            # On the cluster that is bare again.
            "tests/cluster_mode/test_without_ansible.py",
        ),
        lab="in-cluster",
        paths=(
            CORE,
            f"{RUNTIME}/extender/*",
            f"{RUNTIME}/device_plugin/*",
            f"{RUNTIME}/daemon/*_server.py",
            f"{RUNTIME}/daemon/listener.py",
            f"{PLUGIN_UTILS}/_manifests/*",
            f"{PLUGIN_UTILS}/_preflight/in_cluster.py",
            f"{UTILS}/_in_cluster/*",
            f"{UTILS}/_cluster/objects.py",
            "plugins/modules/gpushare_in_cluster.py",
            f"{PLUGIN_UTILS}/_judge/in_cluster.py",
            "roles/in_cluster/*",
            "playbooks/cluster.yml",
            "charts/*",
            "docs/manifests/*",
            "tests/container_image/*",
            "tools/image/*",
            "tests/cluster_mode/*",
            "tests/e2e/test_[frsw]*",
            *CLUSTER_TESTS,
        ),
        full={"GPUSHARE_FULL": "1"},
    ),
    Suite(
        "dra",
        "Kubernetes' own scheduler counts GPU memory by claims: samples, devices, over-booking, killed daemons, reboots, tokens",
        lab="in-cluster",
        full={"GPUSHARE_FULL": "1", "GPUSHARE_CHURN_OUT": "docs/project/benchmarks/claims-churn.json"},
        paths=(
            f"{RUNTIME}/dra/*",
            f"{RUNTIME}/device_plugin/*",
            f"{RUNTIME}/kubectl_gpushare/*",
            f"{PLUGIN_UTILS}/_manifests/*",
            "docs/manifests/dra/*",
            "docs/use/dra.md",
            "docs/use/samples/*",
            "tools/image/*",
            *CLUSTER_TESTS,
        ),
        seconds=480,
    ),
    Suite(
        "pods-by-claims",
        "the requests and shapes of the suite `pods` where Kubernetes' own scheduler counts GPU memory by claims",
        tests=("tests/dra/test_same_pods.py", *BY_CLAIMS),
        lab="in-cluster",
        paths=(
            f"{RUNTIME}/dra/*",
            f"{RUNTIME}/device_plugin/*",
            f"{PLUGIN_UTILS}/_manifests/dra.py",
            "docs/manifests/dra/*",
            *CLUSTER_TESTS,
        ),
    ),
    Suite(
        "modes",
        "site.yml with the daemons as pods; the mode of a cluster changes both ways under running pods",
        tests=("tests/cluster_mode/test_modes.py",),
        lab="two-mounts",
        paths=(
            f"{UTILS}/_in_cluster/*",
            "plugins/modules/gpushare_in_cluster.py",
            "playbooks/*_pods.yml",
            "playbooks/pods_*.yml",
            "playbooks/gpu_nodes.yml",
            "playbooks/change_mode.yml",
            "playbooks/site.yml",
            "playbooks/tasks/*",
            "roles/in_cluster/*",
            "roles/device_plugin/tasks/*",
            "roles/uninstall/tasks/*",
            *CLUSTER_TESTS,
        ),
    ),
    Suite(
        "cluster-scheduler",
        "the extender in pods beside the kube-schedulers of three control planes; the leader's host dies",
        tests=("tests/cluster_mode/test_default_scheduler.py",),
        lab="three-planes",
        paths=(
            f"{RUNTIME}/pki/*",
            f"{RUNTIME}/extender/tls.py",
            f"{PLUGIN_UTILS}/_manifests/workloads.py",
            "playbooks/pods_*.yml",
            "roles/in_cluster/*",
            *CLUSTER_TESTS,
        ),
    ),
    Suite(
        "offline",
        "hosts without a way out: installed, upgraded and removed from a bundle, as services and as pods; nothing is asked of the network",
        tests=("tests/offline",),
        lab="in-cluster",
        paths=(
            f"{PLUGIN_UTILS}/_bundle/*",
            f"{PLUGIN_UTILS}/_preflight/bundle.py",
            f"{UTILS}/_formats/tar.py",
            f"{UTILS}/_host/received.py",
            f"{UTILS}/_runtimes/images.py",
            "plugins/*/gpushare_bundle.py",
            "plugins/*/gpushare_host_runtime.py",
            "plugins/*/gpushare_runtime_env.py",
            "plugins/module_utils/_operations/environment.py",
            "roles/bundle/*",
            "roles/python_environment/*",
            "roles/in_cluster/tasks/*",
            "playbooks/bundle.yml",
            "playbooks/cluster.yml",
            "files/gpushare_runtime/requirements*",
            *CLUSTER_TESTS,
        ),
    ),
    Suite(
        "cdi-nodes",
        "nodes of the GPU Operator, with containerd 2.4 and 1.7: a CDI spec of our own, exchanged GPUs, another driver, specs of others",
        tests=(
            "tests/cdi_nodes/test_install.py",
            # Not the samples, one of which is nvidia-smi: the simulated GPUs are in no CDI spec but the lab's.
            *SHAPES,
            "tests/e2e/test_whole_gpus.py",
            "tests/e2e/test_churn.py",
            "tests/cdi_nodes/test_changes.py",
            "tests/cdi_nodes/test_uninstall.py",
        ),
        env={"GPUSHARE_CHURN_PODS": "100"},
        lab="gpu-operator",
        paths=(
            f"{RUNTIME}/device_plugin/*.py",
            f"{RUNTIME}/device_plugin/gpu/nvml.py",
            f"{RUNTIME}/device_plugin/host/*cdi*",
            f"{RUNTIME}/device_plugin/host/own_spec.py",
            f"{RUNTIME}/device_plugin/node/*cdi*",
            f"{RUNTIME}/device_plugin/node/node_kind.py",
            f"{RUNTIME}/device_plugin/node/strategy.py",
            f"{PLUGIN_UTILS}/_manifests/workloads.py",
            f"{UTILS}/_in_cluster/*",
            "tests/container_image/*",
            "tools/image/*",
            "tests/cdi_nodes/*",
            "tests/e2e/test_[csw]*",
            *CLUSTER_TESTS,
        ),
        seconds=900,
    ),
    Suite(
        "others",
        "a real API server: the GPU Operator's ClusterPolicy, DRA drivers, OpenShift's constraints; a user with rights in one namespace",
        tests=("tests/others",),
        paths=(
            *TAKE_OVER,
            f"{UTILS}/_in_cluster/facts.py",
            f"{UTILS}/_cluster/dra.py",
            f"{UTILS}/_cluster/kubectl.py",
            f"{PLUGIN_UTILS}/_preflight/dra.py",
            f"{PLUGIN_UTILS}/_preflight/gpu_operator.py",
            f"{PLUGIN_UTILS}/_manifests/openshift.py",
            f"{PLUGIN_UTILS}/_preflight/in_cluster.py",
            "roles/in_cluster/*",
            "tools/bench/scheduling/control_plane.py",
            f"{UTILS}/_cluster/public.py",
            f"{PLUGIN_UTILS}/_manifests/accounts.py",
            f"{RUNTIME}/core/placement/gpu_sizes.py",
            f"{RUNTIME}/extender/sizes.py",
            *(f"{RUNTIME}/kubectl_gpushare/{name}.py" for name in ("api", "commands", "explain")),
            "docs/use/first-pod.md",
            "docs/use/samples/10-vllm.yaml",
            "docs/use/samples/11-notebook.yaml",
            "docs/manifests/*",
        ),
        prepared=True,
    ),
    Suite(
        "integrations",
        "Kueue 0.19 on a cluster with gpushare: the page's Jobs and pods wait for quota, and run on their GPUs",
        tests=("tests/integrations",),
        lab="two",
        paths=(
            "docs/operate/integrations.md",
            "docs/use/samples/14-kueue.yaml",
            f"{RUNTIME}/extender/*",
            "tests/take_over/stand_in*",
            *CLUSTER_TESTS,
        ),
        seconds=700,
    ),
    Suite(
        "verify",
        "verify names each planted fault",
        tests=("tests/verify", *(f"--deselect={test}" for test in INSTALL_FAULTS)),
        lab="two",
        paths=(
            "roles/verify/*",
            "playbooks/verify.yml",
            f"{UTILS}/_evidence/*",
            f"{PLUGIN_UTILS}/_judge/verify.py",
            f"{PLUGIN_UTILS}/_verdict/*",
            f"{UTILS}/_facts/capacity.py",
            "plugins/*/gpushare_verify*",
            f"{RUNTIME}/doctor/*",
            "plugins/modules/gpu_mem_capacity.py",
            *CLUSTER_TESTS,
        ),
        # 50 runs while pods come and go.
        full={"GPUSHARE_FULL": "1"},
    ),
    Suite(
        "inventory",
        "inventories as people have them: sudo by password, a bastion, other names, a new node, mistakes",
        # On one lab, whose hosts keep their users to the end.
        tests=("tests/inventory/test_install.py", "tests/e2e/test_inventory.py", "tests/inventory/test_uninstall.py"),
        lab="inventory",
        paths=(
            "roles/*",
            "playbooks/*",
            "site.yml",
            "ansible.cfg",
            "inventory.example/*",
            "plugins/action/*",
            f"{PLUGIN_UTILS}/_answers.py",
            f"{PLUGIN_UTILS}/_judge/*",
            f"{PLUGIN_UTILS}/_preflight/*",
            f"{UTILS}/_host/*",
            f"{UTILS}/_cluster/kubectl.py",
            "tests/inventory/*",
            "tests/installer/print_file_tree.py",
            *CLUSTER_TESTS,
        ),
    ),
    Suite(
        "molecule",
        "each role by its scenario",
        tests=("tests/collection/test_molecule.py",),
        lab="one",
        paths=(
            "molecule/*",
            ".config/molecule/*",
            "roles/*",
            "plugins/*",
            "playbooks/*",
            "tests/collection/*",
            "tests/results.py",
            "tests/installer/snapshot.py",
            "tests/installer/print_host_state.py",
            "tests/installer/test_results.py",
            "tests/installer/driver_nodes.py",
            "tools/cores.py",
            "tools/pythons.py",
            "tools/tree.py",
            "tests/driver_host/packages.py",
            *CLUSTER_TESTS,
        ),
    ),
    Suite(
        "check-mode",
        "check mode predicts what site.yml does; a run that has nothing to do changes nothing",
        tests=("tests/installer/test_check_mode.py",),
        lab="one",
        paths=("roles/*", "plugins/*", "playbooks/*", *CLUSTER_TESTS),
    ),
    Suite(
        "containerd",
        "the role container_runtime on a host: wrong, killed, restored, removed; real programs' configurations, and what they make of ours",
        tests=(
            "tests/installer/test_container_runtime.py",
            "tests/installer/test_written_by_tools.py",
            "tests/unit/plugins/runtimes/test_containerd.py",
            "tests/unit/plugins/real_files/test_containerd.py",
        ),
        lab="one",
        env={"GPUSHARE_CONTAINERDS": "lab"},
        paths=(
            "roles/container_runtime/*",
            f"{UTILS}/_runtimes/*",
            f"{UTILS}/_formats/toml*",
            "plugins/modules/container_runtime.py",
            "plugins/module_utils/_operations/container_runtime.py",
            *HOST_CORE,
            "tests/installer/*container_runtime*",
            "tests/unit/plugins/runtimes/*",
            "tests/unit/plugins/real_files/*containerd*",
            "tests/unit/fakes/plugins/runtimes/*",
            "tests/installer/killed_at.py",
            *CLUSTER_TESTS,
        ),
    ),
    Suite(
        "runtimes",
        "Kubernetes 1.36 on docker with cri-dockerd and containerd 1.6, 1.7 and 2.4: broken files, killed daemons, pods, uninstall",
        tests=("tests/installer/test_runtimes.py",),
        lab="runtimes",
        paths=(
            "roles/container_runtime/*",
            f"{UTILS}/_runtimes/*",
            f"{UTILS}/_formats/toml*",
            f"{UTILS}/_formats/json_edit.py",
            "plugins/modules/container_runtime.py",
            "plugins/module_utils/_operations/container_runtime.py",
            "tools/lab/gpushare_lab/runtimes.py",
            VERSIONS,
            "tools/lab/node/docker/*",
        ),
    ),
    Suite(
        "cri-o",
        "site.yml on CRI-O, where GPUSHARE_CRIO names one: a broken file, restarts, pods, a churn, uninstall",
        tests=("tests/installer/test_crio_by_hand.py",),
        lab="cri-o",
        paths=(
            f"{UTILS}/_runtimes/crio.py",
            f"{UTILS}/_runtimes/service.py",
            "tools/lab/gpushare_lab/runtimes.py",
            "tools/lab/node/crio/*",
        ),
        seconds=1200,
    ),
    Suite(
        "visibility",
        "which GPUs containers see, by strategy, on docker and containerd 1.6, 1.7 and 2.4, and runc's arguments; a CDI spec made at boot",
        tests=("tests/installer/test_cgroup_drivers.py", "tests/installer/test_visibility.py"),
        lab="visibility",
        paths=(
            "docs/operate/visibility.md",
            "roles/container_runtime/*",
            "roles/nvidia_container_toolkit/*",
            f"{UTILS}/_runtimes/containerd*",
            f"{UTILS}/_toolkit/*",
            f"{UTILS}/_facts/device_strategy.py",
            f"{RUNTIME}/device_plugin/node/strategy.py",
            f"{RUNTIME}/device_plugin/node/cdi.py",
            f"{RUNTIME}/device_plugin/host/cdi_specs.py",
            "tests/installer/*visibility*",
            "tools/lab/gpushare_lab/runtimes.py",
            VERSIONS,
            "tools/lab/node/docker/*",
        ),
    ),
    Suite(
        "dockershim",
        "site.yml on docker with dockershim, of a kubelet 1.22: a gate that is off, pods, restarts, uninstall",
        tests=("tests/installer/test_dockershim.py",),
        lab="dockershim",
        paths=(
            "roles/container_runtime/*",
            "roles/kubelet/*",
            f"{UTILS}/_facts/kubernetes.py",
            f"{UTILS}/_kubelet/*",
            f"{UTILS}/_runtimes/docker*",
            f"{RUNTIME}/device_plugin/kubelet/*",
            "tools/lab/gpushare_lab/runtimes.py",
            VERSIONS,
            "tools/lab/node/docker/*",
        ),
    ),
    Suite(
        "next-scheduler",
        "the newest pre-release of kube-scheduler: a cluster from bare hosts, every shape of request, every verb, preemption, uninstall",
        tests=(
            "tests/install/test_install.py",
            "tests/e2e/test_requests.py",
            "tests/e2e/test_shapes.py",
            "tests/e2e/test_verbs.py",
            "tests/e2e/test_whole_gpus.py",
            "tests/install/test_uninstall.py",
        ),
        lab="next-scheduler",
        env={"GPUSHARE_SCHEDULER": "1.38"},
        paths=(VERSIONS, f"{UTILS}/_scheduler/*", f"{RUNTIME}/extender/*"),
        seconds=1500,
    ),
    Suite(
        "new-release",
        "another release under running pods: no daemon-reload, containers keep their GPUs",
        tests=("tests/installer/test_release.py",),
        lab="one",
        paths=(f"{UTILS}/_daemon/*", "plugins/modules/gpushare_daemon.py", "roles/*/templates/*.service.j2"),
    ),
    Suite(
        "packages",
        "packages and repositories on hosts with real apt, dnf, zypper and rpm",
        tests=("tests/packages",),
        paths=(
            f"{UTILS}/_packages/*",
            f"{PLUGIN_UTILS}/_bundle/*",
            f"{UTILS}/_host/received.py",
            f"{UTILS}/_toolkit/*",
            f"{UTILS}/_change/*",
            "plugins/*/gpushare_packages.py",
            "plugins/modules/gpushare_toolkit.py",
            "plugins/module_utils/_operations/toolkit.py",
            "roles/nvidia_container_toolkit/*",
            "tools/lab/gpushare_lab/debian.py",
        ),
    ),
    Suite(
        "scheduler",
        "the role scheduler on a control plane: wrong, killed, restored, removed",
        tests=("tests/installer/test_scheduler.py",),
        lab="one",
        paths=(
            "roles/scheduler/*",
            f"{UTILS}/_scheduler/*",
            f"{UTILS}/_cluster/kubectl.py",
            f"{UTILS}/_daemon/service.py",
            f"{UTILS}/_formats/yaml*",
            f"{UTILS}/_formats/json_edit.py",
            f"{PLUGIN_UTILS}/_scheduler/*",
            f"{PLUGIN_UTILS}/_yaml.py",
            "plugins/*/kube_scheduler_extender.py",
            *HOST_CORE,
            "tests/installer/*scheduler*",
            *CLUSTER_TESTS,
        ),
    ),
    Suite(
        "driver",
        "the role nvidia_driver with real apt, dnf, zypper and repositories, and Debian's real nvidia-smi without a driver",
        tests=("tests/driver_host",),
        paths=(
            "roles/nvidia_driver/*",
            f"{UTILS}/_driver/*",
            f"{UTILS}/_packages/*",
            *(f"{UTILS}/_facts/{name}.py" for name in ("driver", "nvidia_smi", "diagnosis", "gpus")),
            f"{PLUGIN_UTILS}/_driver/*",
            f"{PLUGIN_UTILS}/_judge/driver.py",
            "plugins/*/gpushare_driver*.py",
            "plugins/*/nvidia_smi_info.py",
            "plugins/*/gpushare_packages.py",
        ),
        prepared=True,
    ),
    Suite(
        "driver-upgrade",
        "upgrade_driver.yml on two GPU nodes: budgets, one node at a time with a real reboot, a node that fails",
        tests=("tests/installer/test_upgrade_driver.py",),
        lab="two",
        paths=(
            "playbooks/upgrade_driver.yml",
            "roles/nvidia_driver/*",
            f"{UTILS}/_driver/*",
            f"{UTILS}/_cluster/drain.py",
            "plugins/*/gpushare_driver*.py",
            "plugins/modules/gpushare_node.py",
        ),
    ),
    Suite(
        "generations",
        "the real kube-schedulers and kubeadms of 1.22 to 1.38, and a kubelet, take what is written for them; pods are placed, gangs too",
        tests=("tests/generations",),
        full={"GPUSHARE_FULL": "1"},
        paths=(
            f"{UTILS}/_scheduler/*",
            f"{UTILS}/_formats/json_edit.py",
            f"{UTILS}/_formats/yaml*",
            f"{PLUGIN_UTILS}/_scheduler/*",
            f"{PLUGIN_UTILS}/_yaml.py",
            *(f"tools/bench/scheduling/{name}.py" for name in ("control_plane", "extender", "objects")),
            *(
                f"{RUNTIME}/{name}.py"
                for name in ("core/ledger", "core/reservation", "extender/verbs", "extender/cache", "extender/requeue")
            ),
            f"{RUNTIME}/core/placement/*",
            "tests/unit/plugins/scheduler/test_generations.py",
            "tests/unit/plugins/real_files/scheduler/*",
            f"{UTILS}/_kubelet/*",
            *HOST_CORE,
            "tools/lab/gpushare_lab/components.py",
            VERSIONS,
        ),
        prepared=True,
    ),
    Suite(
        "uninstall",
        "uninstall.yml killed anywhere, with hosts away, with edits of others",
        tests=("tests/installer/test_uninstall.py",),
        lab="one",
        paths=(
            "roles/uninstall/*",
            "roles/report/*",
            "playbooks/uninstall.yml",
            "playbooks/report.yml",
            f"{UTILS}/_removal/*",
            "plugins/modules/gpushare_cluster.py",
            "plugins/modules/gpushare_traces.py",
            *HOST_CORE,
            "tests/installer/removed_at.py",
            "tests/installer/print_file_tree.py",
            *CLUSTER_TESTS,
        ),
    ),
    Suite(
        "ha",
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
            *CLUSTER_TESTS,
        ),
    ),
    Suite(
        "join",
        "control planes and GPU nodes join an installed cluster, also with a control plane down",
        tests=("tests/operations/test_join.py",),
        lab="three-planes",
        paths=(
            "playbooks/scale.yml",
            "playbooks/inventory.yml",
            "roles/preflight/tasks/joined.yml",
            "roles/preflight/tasks/control_planes.yml",
            "roles/scheduler/tasks/prepare.yml",
            f"{UTILS}/_scheduler/before_join.py",
            "plugins/*/kube_scheduler_extender.py",
        ),
    ),
    Suite(
        "upgrade",
        "another release goes through node by node or is rolled back; nodes are removed, alive and dead",
        # In this order: a node that was removed is not upgraded.
        tests=("tests/operations/test_upgrade.py", "tests/operations/test_removal.py"),
        lab="two",
        paths=(
            "playbooks/upgrade.yml",
            "playbooks/remove*.yml",
            "playbooks/site.yml",
            "roles/uninstall/tasks/*",
            "roles/verify/tasks/*",
            f"{UTILS}/_removal/cluster.py",
            f"{PLUGIN_UTILS}/_removal/*",
            "plugins/modules/gpushare_node.py",
            "plugins/modules/gpushare_api.py",
            f"{PLUGIN_UTILS}/_judge/dead_nodes.py",
        ),
    ),
    Suite(
        "take-over",
        "nodes of NVIDIA's device plugin are taken over one at a time, and given back",
        tests=("tests/take_over/test_take_over.py",),
        lab="two",
        paths=TAKE_OVER,
    ),
    Suite(
        "take-over-original",
        "a cluster of the original gpushare with 50 pods is taken over by the page's commands, given back, and taken over for good",
        tests=("tests/take_over/test_take_over_original.py",),
        lab="two-nvidia",
        paths=(
            *TAKE_OVER,
            "roles/uninstall/tasks/cluster.yml",
            f"{UTILS}/_removal/cluster.py",
            "docs/operate/migrate-original.md",
            "tests/docs/[!t]*",
        ),
    ),
    Suite(
        "scale",
        "the worst pods on 5000 nodes, binds in virtual time, 50,000 pods in kubectl gpushare, placement on a real kube-scheduler",
        tests=("tests/scale",),
        paths=(
            CORE,
            f"{RUNTIME}/extender/*",
            f"{RUNTIME}/kubectl_gpushare/*",
            f"{RUNTIME}/kubectl_program/*",
            "tools/bench/binds/*",
            "tools/bench/kubectl/*",
            "tools/bench/placement/*",
            "tools/bench/scheduling/*",
        ),
        prepared=True,
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
            f"{RUNTIME}/device_plugin/gpu/use.py",
            f"{RUNTIME}/kubectl_gpushare/used.py",
        ),
        prepared=True,
    ),
    Suite(
        "dashboard",
        "the dashboard in a real browser and on a cluster: updates, filters, keyboard, themes, hostile names, accessibility",
        tests=("tests/dashboard",),
        lab="two",
        paths=(
            CORE,
            f"{RUNTIME}/dashboard/*",
            f"{RUNTIME}/kubectl_gpushare/*",
            f"{RUNTIME}/kubectl_program/*",
            f"{RUNTIME}/daemon/listener.py",
            "roles/dashboard/*",
            f"{RUNTIME}/pki/*",
            "tools/bench/dashboard/*",
            *CLUSTER_TESTS,
        ),
    ),
    Suite(
        "docs",
        "the pages as a new user follows them: from the release to pods that share a GPU, samples, Pending pods from symptom to cure",
        tests=("tests/docs/test_tarball.py", "tests/docs/test_samples.py", "tests/docs/test_pending.py", "tests/docs/test_tenant.py"),
        lab="two",
        paths=(
            "docs/start/quickstart.md",
            "docs/operate/troubleshooting.md",
            "docs/operate/uninstall.md",
            "docs/use/samples/*",
            "docs/use/first-pod.md",
            "galaxy.yml",
            "inventory.example/*",
            "tests/docs/*",
            *INSTALL,
            *CLUSTER_TESTS,
        ),
    ),
    Suite(
        "site",
        "the documentation as a site, the files of a release, and what hosts without a network need; needs a package index",
        tests=("tests/collection/test_site.py", "tests/collection/test_offline.py"),
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
            "tools/pages/*",
            "tools/release.py",
            "files/gpushare_runtime/requirements*",
        ),
    ),
    Suite(
        "image",
        "the container image: built twice with the same bytes, its programs run by podman without any right",
        tests=("tests/container_image",),
        paths=("tools/image/*", "tools/lab/gpushare_lab/archive.py", "files/gpushare_runtime/*.*", f"{RUNTIME}/*/main.py"),
        prepared=True,
        seconds=400,
    ),
    Suite(
        "sanity",
        "ansible-test sanity on every Python of this machine",
        tests=("tests/collection/test_sanity.py",),
        paths=("plugins/*", "roles/*", "playbooks/*", "meta/*", "galaxy.yml", "tools/sanity_ignores.py"),
    ),
    Suite(
        "kubeadm-upgrade",
        "kubeadm upgrade over an installed cluster",
        tests=("tests/installer/test_kubeadm_upgrade.py",),
        lab="old",
        paths=("roles/scheduler/*", f"{UTILS}/_scheduler/*", f"{PLUGIN_UTILS}/_scheduler/*", *INSTALL),
    ),
    Suite(
        "lab",
        "the lab itself: saved states, and that nothing stays behind",
        tests=("tests/lab/test_saved.py", "tests/lab/test_down.py"),
        paths=("tools/lab/*",),
        alone=True,
    ),
    Suite(
        "gpu-proof",
        "the verification for a real GPU, on simulated ones; each step with a planted fault",
        tests=("tests/gpu_proof",),
        paths=(
            "tools/lab/nvml/*",
            "tools/bench/isolation.py",
            "tools/bench/cuda_client.py",
            "tests/unit/fakes/runtime/mps/mps_control.py",
            f"{RUNTIME}/device_plugin/gpu/*",
            f"{RUNTIME}/device_plugin/host/*",
            f"{RUNTIME}/mps/*",
            f"{UTILS}/_facts/nvidia_smi.py",
        ),
        prepared=True,
        seconds=420,
    ),
    Suite(
        "binds",
        "a hundred thousand binds in virtual time, and every flaw alone",
        command=("make", "test-binds"),
        paths=(CORE, f"{RUNTIME}/extender/*", "tools/bench/binds/*"),
        only_full=True,
        seconds=900,
    ),
    Suite(
        "mutants",
        "single mutations of the core that the tests must notice",
        command=("make", "mutants", "MUTANTS=--sample 60"),
        paths=("tools/mutants/*",),
        only_full=True,
        seconds=300,
    ),
)
SUITES = tuple(replace(suite, tests=(*suite.tests, *marked().get(suite.name, ()))) for suite in _TABLE)
BY_NAME = {suite.name: suite for suite in SUITES}
