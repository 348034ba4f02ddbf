# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The command line and environment of gpushare-device-plugin, including those of the original."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpushare_runtime.core import mps, protocol
from gpushare_runtime.core.quantity import GIB, UNITS, Unit, parse_unit
from gpushare_runtime.daemon import health_server, metrics_server, runner
from gpushare_runtime.daemon.metrics_server import MetricsAddress
from gpushare_runtime.device_plugin.gpu import pod_limits
from gpushare_runtime.device_plugin.publish import eviction_requests
from gpushare_runtime.kube import service_account
from gpushare_runtime.kube.service_account import TokenFiles

NAME: Final = "gpushare-device-plugin"
AUTO: Final = "auto"

# Long enough for several readings.
SHORTEST_GRACE: Final = 10
LONGEST_GRACE: Final = 86400

# Options of the original for querying pods from kubelet over HTTPS.
_OF_KUBELET: Final = ("kubelet-address", "kubelet-port", "client-cert", "client-key", "token", "timeout")


def directory() -> Path:
    """systemd's StateDirectory= if the unit has one, else a directory that a reboot empties."""
    return Path(os.environ.get("STATE_DIRECTORY", "/run/gpushare-device-plugin").split(":")[0])


@dataclass(frozen=True)
class PluginSettings:
    """The plugin's settings."""

    node: str  # name of this node in Kubernetes
    unit: Unit = GIB
    kubeconfig: str | None = None  # None for the pod's service account
    kubelet_root: Path = Path(protocol.KUBELET_ROOT)  # kubelet's --root-dir, for its podresources API
    device_plugins_dir: Path = Path(protocol.KUBELET_PLUGIN_DIR)  # where kubelet listens, whatever its root
    state: Path = field(default_factory=directory)  # folder for the usage file
    metrics: MetricsAddress | None = None  # None without a metrics page
    tokens: TokenFiles | None = None  # None for the kubeconfig's user
    notes: tuple[str, ...] = ()  # warnings to log at the start
    log_level: str = "info"
    isolation: str = pod_limits.AUTO  # of pod_limits.MODES
    mps_folder: Path = Path(mps.RUN_FOLDER)  # state of the MPS control daemons
    limit_running_pods: bool = False  # also those that started before limits were possible
    overuse: str = eviction_requests.REPORT  # of eviction_requests.MODES
    overuse_grace: int = 60  # seconds above its units until a pod's eviction is requested
    unstartable: str = eviction_requests.REPORT  # of eviction_requests.MODES
    strategy: str = protocol.STRATEGY_ENVIRONMENT  # how containers get their GPUs, of protocol.STRATEGIES
    cdi_folders: tuple[str, ...] = protocol.CDI_FOLDERS  # lowest priority first
    cdi_dir: Path | None = None  # the folder for a CDI spec of ours; None where others write it
    host_root: Path | None = None  # below which the host's paths are mounted, as far as they are; None on the host
    driver_root: str = ""  # of the driver's files, as the host sees it; "" for the usual places
    runtime_class: str = ""  # of the plugin's pod
    choose: bool = False  # the strategy by what is seen of the node
    node_kind: str = ""  # of node_kind.NODE_KINDS, once it is known
    health: health_server.Address | None = None  # None without pages for probes
    in_container: bool = False  # the host is seen through mounts only
    cgroup_root: Path | None = None  # where the host's control groups are mounted; None for the first mount
    dev_root: Path = Path("/dev")  # the host's /dev, to be read


def parse_arguments(arguments: Sequence[str] | None = None) -> PluginSettings:
    """The settings by arguments and environment; None: this process's arguments. Ends the process with a message if they are invalid."""
    parser = argparse.ArgumentParser(prog=NAME, description="Share the NVIDIA GPUs of this node by memory.")
    parser.add_argument("--node-name", default=os.environ.get("NODE_NAME"), help="name of this node in Kubernetes (or NODE_NAME)")
    parser.add_argument("--kubeconfig", help="(or KUBECONFIG); without: in-cluster")
    service_account.add_options(parser)
    parser.add_argument("--memory-unit", choices=list(UNITS), default=GIB.name, help="size of one unit of gpu-mem (default %(default)s)")
    parser.add_argument(
        "--device-strategy",
        choices=(AUTO, *protocol.STRATEGIES),
        default=protocol.STRATEGY_ENVIRONMENT,
        help=f"how containers get their GPUs (default %(default)s, as the original); {AUTO}: {protocol.STRATEGY_MOUNTS}, in a container "
        "by what is seen of the node",
    )
    parser.add_argument(
        "--cdi-spec-dir",
        action="append",
        type=_folder,
        metavar="DIR",
        help=f"folder of CDI specs; repeat it for others, the last one first (default {' and '.join(protocol.CDI_FOLDERS)})",
    )
    parser.add_argument(
        "--cdi-dir",
        type=_folder,
        metavar="DIR",
        help=f"write a CDI spec {protocol.CDI_FILE} there for devices {protocol.CDI_KIND_OWN}, where none of {protocol.CDI_KIND} fits the "
        "GPUs; the only folder of CDI specs, unless --cdi-spec-dir names others",
    )
    parser.add_argument(
        "--host-root", type=_folder, metavar="DIR", help="below which the host's /usr, /dev and /run/nvidia are mounted, for --cdi-dir"
    )
    parser.add_argument(
        "--driver-root",
        type=_folder_or_none,
        default="",
        metavar="DIR",
        help="of the driver's files, as the host sees it (default: /run/nvidia/driver if it has them, else /)",
    )
    parser.add_argument("--runtime-class", default="", metavar="NAME", help="of this pod; default: it has the nodes' default runtime")
    parser.add_argument(
        "--kubelet-root",
        type=Path,
        default=Path(protocol.KUBELET_ROOT),
        metavar="DIR",
        help="kubelet's --root-dir, which has its podresources API (default %(default)s)",
    )
    parser.add_argument(
        "--device-plugins-dir",
        type=Path,
        default=Path(protocol.KUBELET_PLUGIN_DIR),
        metavar="DIR",
        help="kubelet's folder of device plugins, which its --root-dir does not move (default %(default)s)",
    )
    parser.add_argument(
        "--in-container", action="store_true", help="the host is seen through mounts only, and another library needs a new container"
    )
    parser.add_argument(
        "--cgroup-root", type=_folder, metavar="DIR", help="where the host's control groups are mounted (default: their first mount)"
    )
    parser.add_argument(
        "--dev-root", type=_folder, default="/dev", metavar="DIR", help="where the host's /dev is mounted (default %(default)s)"
    )
    parser.add_argument("--state-dir", type=Path, default=directory(), help="(or STATE_DIRECTORY) default %(default)s")
    parser.add_argument(
        "--isolation",
        choices=pod_limits.MODES,
        default=pod_limits.AUTO,
        help="keep each pod to its units by the driver (r615 or newer), by MPS, by watching it, or not; auto: by the driver where "
        "possible, else by watching (default %(default)s)",
    )
    parser.add_argument("--limit-running-pods", action="store_true", help="also limit pods that started before limits were possible")
    parser.add_argument(
        "--overuse",
        choices=eviction_requests.MODES,
        default=eviction_requests.REPORT,
        help="consequence for a pod that uses more memory than its units: an Event, or also its eviction (default %(default)s)",
    )
    parser.add_argument(
        "--overuse-grace",
        type=_grace,
        default=60,
        metavar="SECONDS",
        help="time above its units after which the eviction of a pod is requested (default %(default)s)",
    )
    parser.add_argument(
        "--unstartable",
        choices=eviction_requests.MODES,
        default=eviction_requests.REPORT,
        help="consequence for a pod that can never start with the ids that it has: its Event from kubelet, or also its eviction "
        "(default %(default)s)",
    )
    metrics_server.add_options(parser)
    health_server.add_options(parser)
    runner.add_options(parser)
    parser.add_argument("-v", "--v", "--verbosity", dest="verbosity", type=int, default=0, metavar="N", help="4 and more: log level debug")
    _add_options_of_the_original(parser)
    given = parser.parse_args(arguments)
    if given.mps and given.isolation == pod_limits.AUTO:
        given.isolation = pod_limits.MPS
    if given.isolation == pod_limits.NONE and given.overuse == eviction_requests.EVICT:
        parser.error("--isolation none with --overuse evict: use --isolation watch, which measures what pods use")
    if given.cdi_dir and not given.host_root:
        parser.error("--cdi-dir without --host-root: name the folder below which the host's /usr, /dev and /run/nvidia are mounted")
    if not given.node_name:
        parser.error("the name of this node is unknown: set NODE_NAME or --node-name to its name in `kubectl get nodes`")
    return PluginSettings(
        node=given.node_name,
        unit=parse_unit(given.memory_unit),
        strategy=protocol.STRATEGY_MOUNTS if given.device_strategy == AUTO else given.device_strategy,
        cdi_folders=tuple(given.cdi_spec_dir or ([given.cdi_dir] if given.cdi_dir else protocol.CDI_FOLDERS)),
        cdi_dir=Path(given.cdi_dir) if given.cdi_dir else None,
        host_root=Path(given.host_root) if given.host_root else None,
        driver_root=given.driver_root,
        runtime_class=given.runtime_class,
        choose=given.in_container and given.device_strategy == AUTO,
        kubeconfig=given.kubeconfig or _kubeconfig(os.environ),
        kubelet_root=given.kubelet_root,
        device_plugins_dir=given.device_plugins_dir,
        state=given.state_dir,
        metrics=metrics_server.from_options(parser, given),
        health=health_server.from_options(parser, given),
        in_container=given.in_container,
        cgroup_root=Path(given.cgroup_root) if given.cgroup_root else None,
        dev_root=Path(given.dev_root),
        tokens=service_account.from_options(parser, given),
        notes=tuple(_notes(given)),
        log_level="debug" if given.verbosity >= 4 else given.log_level,
        isolation=given.isolation,
        limit_running_pods=given.limit_running_pods,
        overuse=given.overuse,
        overuse_grace=given.overuse_grace,
        unstartable=given.unstartable,
    )


def _kubeconfig(environment: Mapping[str, str]) -> str | None:
    """As the original: the file of KUBECONFIG if it exists, else the service account of the plugin's pod."""
    named = environment.get("KUBECONFIG") or None
    in_pod = "KUBERNETES_SERVICE_HOST" in environment
    return None if named and in_pod and not Path(named).exists() else named


def _add_options_of_the_original(parser: argparse.ArgumentParser) -> None:
    """For compatibility with its command lines."""
    hidden = argparse.SUPPRESS
    parser.add_argument("-logtostderr", "--logtostderr", nargs="?", const=True, help=hidden)
    for name in ("mps", "health-check", "query-kubelet"):
        parser.add_argument(f"--{name}", nargs="?", type=_boolean, const=True, default=False, help=hidden)
    for name in _OF_KUBELET:
        parser.add_argument(f"--{name}", help=hidden)


def _notes(given: argparse.Namespace) -> Iterator[str]:
    if given.device_strategy == AUTO and not given.in_container:
        # Only the installer knows what this kubelet and the running container runtime do. A guess of CDI would leave containers without
        # a GPU.
        yield f"--device-strategy {AUTO}: using {protocol.STRATEGY_MOUNTS}, which needs no CDI in kubelet and in the container runtime"
    # --health-check needs no note: the plugin always checks the GPUs.
    if given.mps:
        yield f"--mps: as --isolation {pod_limits.MPS}; the control daemons are those of gpushare-mps"
    of_kubelet = [f"--{name}" for name in _OF_KUBELET if getattr(given, name.replace("-", "_")) is not None]
    if given.query_kubelet:
        of_kubelet.insert(0, "--query-kubelet")
    if of_kubelet:
        yield f"{', '.join(of_kubelet)}: no effect, this plugin watches pods at the API server"


def _grace(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 6 and SHORTEST_GRACE <= int(text) <= LONGEST_GRACE:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a number of seconds from {SHORTEST_GRACE} to {LONGEST_GRACE}")


def _folder(text: str) -> str:
    if text.startswith("/") and "\0" not in text:
        return text
    raise argparse.ArgumentTypeError(f"{text[:80]!r} is not an absolute path")


def _folder_or_none(text: str) -> str:
    return _folder(text) if text else ""


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
