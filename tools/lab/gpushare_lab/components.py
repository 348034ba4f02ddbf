# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The programs of the lab: from GPUSHARE_LAB_BIN, else official release binaries, else built from Go modules; and from C sources."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import releases
from .cache import Cache, sources_recipe
from .golang import GO, MINIMUM, downloaded, go_command, go_environment
from .places import SOURCES
from .process import LabError, run, run_logged
from .versions import version as version_of

KUBERNETES = version_of("kubernetes")
ETCD = version_of("etcd")
NVIDIA_TOOLKIT = version_of("nvidia-container-toolkit")
HELM = version_of("helm")
HELM_ENGINE = version_of("helm 3")
#: The version of Debian's nvidia-smi, and so of the simulated driver.
NVIDIA_DRIVER = version_of("nvidia-smi")

KUBERNETES_PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl", "kubeadm")
NVIDIA_PROGRAMS = ("nvidia-ctk", "nvidia-container-runtime", "nvidia-container-runtime-hook", "nvidia-cdi-hook")

# Before 1.0.2 it calls a function of Go's runtime as it was before Go 1.18, and a program ends when it writes a map as JSON.
_REFLECT2 = "github.com/modern-go/reflect2 v1.0.2"
#: Modules of pre-releases that cannot be had in the version that they name, and the one beside it that can: by Kubernetes' version.
_INSTEAD = {"1.38.0-beta.0": "sigs.k8s.io/structured-merge-diff/v7 v7.0.1 => sigs.k8s.io/structured-merge-diff/v7 v7.0.0"}
_TOOLKIT_MODULE = "github.com/NVIDIA/nvidia-container-toolkit"


def given(programs: Sequence[str], env: Mapping[str, str]) -> Path | None:
    """The folder of GPUSHARE_LAB_BIN if it has these programs; having only some of them is an error."""
    if not (named := env.get("GPUSHARE_LAB_BIN")):
        return None
    folder = Path(named).absolute()
    if not folder.is_dir():
        raise LabError(f"GPUSHARE_LAB_BIN={named} is not a folder: name a folder with programs, or unset it")
    missing = [name for name in programs if not os.access(folder / name, os.X_OK)]
    if not missing:
        return folder
    if len(missing) == len(programs):
        return None
    raise LabError(f"GPUSHARE_LAB_BIN={named} has only some of {', '.join(programs)}: add {', '.join(missing)}")


def _kubernetes_flags(version: str) -> str:
    major, minor, _ = version.split(".", 2)
    stamp = "k8s.io/component-base/version.git"
    return f"-s -w -X {stamp}Version=v{version} -X {stamp}Major={major} -X {stamp}Minor={minor}"


def _kubernetes_recipe(version: str) -> dict[str, str | bytes]:
    return {**sources_recipe(SOURCES / "go/kubernetes"), "flags": _kubernetes_flags(version)}


def kubernetes(cache: Cache, version: str) -> Path:
    """A folder with the seven Kubernetes programs of this version."""
    if folder := given(KUBERNETES_PROGRAMS, os.environ):
        found = run([folder / "kubelet", "--version"]).stdout.strip()
        if found != f"Kubernetes v{version}":
            raise LabError(
                f"GPUSHARE_LAB_BIN has {found}, expected Kubernetes v{version}: "
                f"call `lab up --kubernetes {found.rpartition('v')[2]}`, or unset it"
            )
        return folder

    def build(folder: Path) -> None:
        work = _work_folder(folder, SOURCES / "go/kubernetes")
        go, module = downloaded(cache, "k8s.io/kubernetes", version)
        (work / "go.mod").write_text(kubernetes_go_mod(Path(module["GoMod"]).read_text(), version))
        log = cache.log(f"kubernetes-{version}")
        argv: list[str | Path] = [go, "build", "-trimpath", "-ldflags", _kubernetes_flags(version), "-o", folder / "kubernetes", "."]
        run_logged(f"building Kubernetes {version}", argv, log, env=go_environment(cache, cgo=False), cwd=work)
        shutil.rmtree(work)
        for name in KUBERNETES_PROGRAMS:
            (folder / name).symlink_to("kubernetes")

    recipe = _kubernetes_recipe(version)
    if built := cache.present("kubernetes-built", version, recipe):
        return built
    return releases.kubernetes(cache, version, KUBERNETES_PROGRAMS) or cache.entry("kubernetes-built", version, recipe, build, turns=GO)


def kube_scheduler(cache: Cache, version: str) -> Path:
    """A folder with the kube-scheduler of this version alone, for the generations that no cluster of the lab has."""
    return _one_program(cache, "kube-scheduler", version)


def kubelet(cache: Cache, version: str) -> Path:
    """A folder with the kubelet of this version alone, for nodes that are older than their cluster; without the clouds' providers."""
    return _one_program(cache, "kubelet", version, "providerless", _REFLECT2)


def _one_program(cache: Cache, name: str, version: str, tags: str = "", raised: str = "") -> Path:
    """A folder with one Kubernetes program: from GPUSHARE_LAB_BIN_<version>, else all of them, else built alone.

    raised: a module and the least version of it, where Kubernetes' own does not run with the Go of today.
    """
    if folder := given([name], {"GPUSHARE_LAB_BIN": os.environ.get(f"GPUSHARE_LAB_BIN_{version}", "")}):
        return folder
    if together := cache.present("kubernetes-built", version, _kubernetes_recipe(version)):
        return together
    flags = _kubernetes_flags(version)

    def build(folder: Path) -> None:
        work = folder / ".work"
        work.mkdir()
        go, module = downloaded(cache, "k8s.io/kubernetes", version)
        lines = kubernetes_go_mod(Path(module["GoMod"]).read_text(), version)
        (work / "go.mod").write_text(lines + (f"require {raised}\n" if raised else ""))
        program = f"k8s.io/kubernetes/cmd/{name}"
        argv: list[str | Path] = [go, "build", "-trimpath", "-tags", tags, "-ldflags", flags, "-o", folder / name, program]
        env = go_environment(cache, cgo=False)
        run_logged(f"building {name} {version}", argv, cache.log(f"{name}-{version}"), env=env, cwd=work)
        shutil.rmtree(work)

    recipe = {"flags": flags, **({"tags": tags} if tags else {}), **({"raised": raised} if raised else {})}
    return cache.entry(f"{name}-built", version, recipe, build, turns=GO)


def kubernetes_go_mod(upstream: str, version: str) -> str:
    """The go.mod of a module that builds Kubernetes, from the go.mod of k8s.io/kubernetes itself.

    Kubernetes' own file points its k8s.io modules at folders of its repository; a module that
    requires it has to name their published versions, v0.X.Y for Kubernetes 1.X.Y.
    """
    needs_go = re.search(r"^go ", upstream, re.MULTILINE)
    staged = sorted(set(re.findall(r"^\s+(k8s\.io/\S+) v0\.0\.0(?= |$)", upstream, re.MULTILINE)))
    if not needs_go or not staged:
        raise LabError(
            f"the go.mod of k8s.io/kubernetes v{version} has no go line or no k8s.io modules at v0.0.0: "
            "this version is put together otherwise than the lab knows"
        )
    kept = re.findall(r"^(?:go|godebug) .*$", upstream, re.MULTILINE)
    published = "v0." + version.partition(".")[2]
    lines = ["module gpushare-lab/kubernetes", *kept, f"require k8s.io/kubernetes v{version}"]
    lines += [f"replace {module} => {module} {published}" for module in staged]
    lines += [f"replace {_INSTEAD[version]}"] if version in _INSTEAD else []
    return "\n".join(lines) + "\n"


def etcd(cache: Cache) -> Path:
    """A folder with etcd."""
    if folder := given(["etcd"], os.environ):
        return folder
    source = SOURCES / "go/etcd"

    def build(folder: Path) -> None:
        go, env = go_command(cache), go_environment(cache, cgo=False)
        work = _work_folder(folder, source)
        (work / "go.mod").write_text(f"module gpushare-lab/etcd\ngo 1.24\nrequire go.etcd.io/etcd/server/v3 v{ETCD}\n")
        argv: list[str | Path] = [go, "build", "-trimpath", "-ldflags", "-s -w", "-o", folder / "etcd", "."]
        run_logged(f"building etcd {ETCD}", argv, cache.log(f"etcd-{ETCD}"), env=env, cwd=work)
        shutil.rmtree(work)

    recipe = sources_recipe(source)
    if built := cache.present("etcd-built", ETCD, recipe):
        return built
    return releases.etcd(cache, ETCD) or cache.entry("etcd-built", ETCD, recipe, build, turns=GO)


def policies(cache: Cache) -> Path:
    """A folder with `policies`, the API server's own admission plugin for policies without the API server."""
    source = SOURCES / "go/policies"
    version = "0." + KUBERNETES.partition(".")[2]

    def build(folder: Path) -> None:
        go, env = go_command(cache), go_environment(cache, cgo=False)
        work = _work_folder(folder, source)
        needs = "".join(f"require k8s.io/{name} v{version}\n" for name in ("api", "apimachinery", "apiserver", "client-go"))
        (work / "go.mod").write_text(f"module gpushare-lab/policies\ngo {'.'.join(map(str, MINIMUM))}\n{needs}")
        argv: list[str | Path] = [go, "build", "-trimpath", "-ldflags", "-s -w", "-o", folder / "policies", "."]
        run_logged(f"building the admission plugin of Kubernetes {KUBERNETES}", argv, cache.log(f"policies-{version}"), env=env, cwd=work)
        shutil.rmtree(work)

    return cache.entry("policies-built", version, sources_recipe(source), build, turns=GO)


def chart(cache: Cache) -> Path:
    """A folder with `chart`, Helm's own engine without Helm."""
    source = SOURCES / "go/chart"

    def build(folder: Path) -> None:
        go, env = go_command(cache), go_environment(cache, cgo=False)
        work = _work_folder(folder, source)
        (work / "go.mod").write_text(
            f"module gpushare-lab/chart\ngo {'.'.join(map(str, MINIMUM))}\nrequire helm.sh/helm/v3 v{HELM_ENGINE}\n"
        )
        argv: list[str | Path] = [go, "build", "-trimpath", "-ldflags", "-s -w", "-o", folder / "chart", "."]
        run_logged(f"building the engine of Helm {HELM_ENGINE}", argv, cache.log(f"chart-{HELM_ENGINE}"), env=env, cwd=work)
        shutil.rmtree(work)

    return cache.entry("chart-built", HELM_ENGINE, sources_recipe(source), build, turns=GO)


def helm(cache: Cache) -> Path:
    """A folder with `helm`."""
    module = f"helm.sh/helm/v4/cmd/helm@v{HELM}"

    def build(folder: Path) -> None:
        env = {**go_environment(cache, cgo=False), "GOBIN": str(folder)}
        argv: list[str | Path] = [go_command(cache), "install", "-trimpath", "-ldflags", "-s -w", module]
        run_logged(f"building Helm {HELM}", argv, cache.log(f"helm-{HELM}"), env=env)

    return cache.entry("helm", HELM, {"module": module}, build, turns=GO)


def nvidia_toolkit(cache: Cache) -> Path:
    """A folder with NVIDIA's container toolkit, without libnvidia-container (the lab uses CDI only)."""
    if folder := given(NVIDIA_PROGRAMS, os.environ):
        return folder
    # Symbols of NVML are looked up when they are called, so the library need not be there at the start.
    flags = "-s -w -extldflags=-Wl,-z,lazy"

    def build(folder: Path) -> None:
        env = {**go_environment(cache, cgo=True), "GOBIN": str(folder)}
        packages = [f"{_TOOLKIT_MODULE}/cmd/{name}@v{NVIDIA_TOOLKIT}" for name in NVIDIA_PROGRAMS]
        argv: list[str | Path] = [go_command(cache), "install", "-trimpath", "-ldflags", flags, *packages]
        log = cache.log(f"nvidia-container-toolkit-{NVIDIA_TOOLKIT}")
        run_logged(f"building nvidia-container-toolkit {NVIDIA_TOOLKIT}", argv, log, env=env)

    recipe = {"programs": " ".join(NVIDIA_PROGRAMS), "flags": flags}
    return cache.entry("nvidia-container-toolkit", NVIDIA_TOOLKIT, recipe, build, turns=GO)


def nvidia_ctk(cache: Cache, go_architecture: str) -> Path:
    """A folder with nvidia-ctk alone, for another machine than this. LabError without a C compiler for that."""
    compiler = {"amd64": "x86_64-linux-gnu-gcc", "arm64": "aarch64-linux-gnu-gcc"}[go_architecture]
    if shutil.which(compiler) is None:
        raise LabError(f"there is no {compiler}, which builds nvidia-ctk for {go_architecture}: apt-get install gcc-{compiler[:-4]}")
    flags = "-s -w -extldflags=-Wl,-z,lazy"

    def build(folder: Path) -> None:
        # With another architecture `go install` puts programs below GOPATH only.
        work = folder / ".work"
        env = {**go_environment(cache, cgo=True), "GOPATH": str(work), "GOARCH": go_architecture, "CC": compiler}
        package = f"{_TOOLKIT_MODULE}/cmd/nvidia-ctk@v{NVIDIA_TOOLKIT}"
        log = cache.log(f"nvidia-ctk-{NVIDIA_TOOLKIT}-{go_architecture}")
        argv: list[str | Path] = [go_command(cache), "install", "-trimpath", "-ldflags", flags, package]
        run_logged(f"building nvidia-ctk {NVIDIA_TOOLKIT} for {go_architecture}", argv, log, env=env)
        next(work.glob("bin/**/nvidia-ctk")).rename(folder / "nvidia-ctk")
        shutil.rmtree(work)

    return cache.entry("nvidia-ctk", NVIDIA_TOOLKIT, {"architecture": go_architecture, "flags": flags}, build, turns=GO)


def nvml(cache: Cache) -> Path:
    """A folder with the simulated libnvidia-ml and libcuda and their links."""
    source = SOURCES / "nvml"

    def build(folder: Path) -> None:
        work = _work_folder(folder, source)
        log = cache.log(f"nvml-{NVIDIA_DRIVER}")
        run_logged("building the simulated NVML", ["make", "-C", work, f"OUT={folder}"], log)
        shutil.rmtree(work)
        for name in ("libnvidia-ml", "libcuda"):
            if not (folder / f"{name}.so.{NVIDIA_DRIVER}").is_file():
                raise LabError(f"make -C {source} made no {name}.so.{NVIDIA_DRIVER}: see {log}")

    recipe = sources_recipe(source, ("Makefile", "*.[ch]", "*.inc", "*.map"))
    return cache.entry("nvml", NVIDIA_DRIVER, recipe, build)


def pause(cache: Cache) -> Path:
    """A folder with ``pause``, the static program that holds a pod's namespaces."""
    source = SOURCES / "images/pause.c"

    def build(folder: Path) -> None:
        argv: list[str | Path] = ["gcc", "-O2", "-Wall", "-Werror", "-static", "-s", "-o", folder / "pause", source]
        run_logged("building pause", argv, cache.log("pause"))

    return cache.entry("pause", "1", {"source": source.read_bytes()}, build)


def _work_folder(folder: Path, source: Path) -> Path:
    """A copy of the sources inside the unfinished entry, so that a build never writes into the checkout."""
    work = folder / ".work"
    shutil.copytree(source, work, ignore=shutil.ignore_patterns("__pycache__", "*.o", "*.so*"))
    return work
