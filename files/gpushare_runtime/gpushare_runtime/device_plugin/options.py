# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The settings of gpushare-device-plugin by its file or its command line, which takes that of the original, too."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from gpushare_runtime.core import mps, protocol
from gpushare_runtime.settings import options
from gpushare_runtime.settings.device_plugin import AUTO, DRA, EVICT, DevicePluginConfig

NAME: Final = "gpushare-device-plugin"
# Options of the original for querying pods from kubelet over HTTPS.
_OF_KUBELET: Final = ("kubelet-address", "kubelet-port", "client-cert", "client-key", "token", "timeout")


def directory() -> Path:
    """systemd's StateDirectory= if the unit has one, else a directory that a reboot empties."""
    return Path(os.environ.get("STATE_DIRECTORY", "/run/gpushare-device-plugin").split(":")[0])


@dataclass(frozen=True)
class PluginSettings(DevicePluginConfig):
    """The plugin's settings, with what follows from them."""

    state: Path = field(default_factory=directory)  # folder for the usage file
    cdi_folders: tuple[str, ...] = protocol.CDI_FOLDERS  # lowest priority first
    notes: tuple[str, ...] = ()  # warnings to log at the start
    mps_folder: Path = Path(mps.RUN_FOLDER)  # state of the MPS control daemons
    choose: bool = False  # the strategy by what is seen of the node
    node_kind: str = ""  # of node_kind.NODE_KINDS, once it is known


def parse_arguments(arguments: Sequence[str] | None = None) -> PluginSettings:
    """The settings by arguments and environment; None: this process's arguments. Ends the process with a message if they are invalid."""
    parser = argparse.ArgumentParser(prog=NAME, description="Share the NVIDIA GPUs of this node by memory.")
    options.add_options(parser, DevicePluginConfig)
    parser.add_argument("-v", "--v", "--verbosity", dest="verbosity", type=int, default=0, metavar="N", help="4 and more: log level debug")
    _add_options_of_the_original(parser)
    given = options.read(parser, DevicePluginConfig, arguments)
    settings = _resolved(given)
    given.checked()
    return settings


def _resolved(given: options.Given[DevicePluginConfig]) -> PluginSettings:
    """The settings with their consequences. Ends the process with a message if they do not fit each other."""
    config, asked = given.settings, given.options
    isolation = protocol.ISOLATION_MPS if asked.mps and config.isolation == AUTO else config.isolation
    if isolation == protocol.ISOLATION_NONE and config.overuse == EVICT:
        measured = f"use {given.name('isolation')} {protocol.ISOLATION_WATCH}, which measures what pods use"
        given.reject(f"{given.name('isolation')} {isolation} with {given.name('overuse')} {EVICT}: {measured}")
    if config.cdi_dir and not config.host_root:
        mounted = "name the folder below which the host's /usr, /dev and /run/nvidia are mounted"
        given.reject(f"{given.name('cdi_dir')} without {given.name('host_root')}: {mounted}")
    if config.backend == DRA:
        _check_dra(given, isolation)
    elif config.unhealthy == EVICT:
        evicting = f"leave it out: only {given.name('backend')} {DRA} evicts the pods of a GPU that fails"
        given.reject(f"{given.name('unhealthy')} {EVICT} with {given.name('backend')} {config.backend}: {evicting}")
    if not config.node:
        wanted = f"set NODE_NAME or {given.name('node')} to its name in `kubectl get nodes`"
        given.reject(f"the name of this node is unknown: {wanted}")
    own: dict[str, Any] = {
        "state": config.state or directory(),
        "kubeconfig": config.kubeconfig or _kubeconfig(os.environ),
        "isolation": isolation,
    }
    own["strategy"] = protocol.STRATEGY_MOUNTS if config.strategy == AUTO else config.strategy
    if config.backend == DRA:
        own["strategy"] = protocol.STRATEGY_CDI
    own["cdi_folders"] = config.cdi_folders or ((str(config.cdi_dir),) if config.cdi_dir else protocol.CDI_FOLDERS)
    own["log_level"] = "debug" if asked.verbosity >= 4 else config.log_level
    return PluginSettings(
        **{each.name: getattr(config, each.name) for each in fields(config)} | own,
        notes=tuple(_notes(config, asked)),
        choose=config.in_container and config.strategy == AUTO and config.backend != DRA,
    )


def _check_dra(given: options.Given[DevicePluginConfig], isolation: str) -> None:
    """Ends the process with a message if claims cannot give what the settings say."""
    backend = f"{given.name('backend')} {DRA}"
    if isolation == protocol.ISOLATION_MPS:
        given.reject(f"{backend} with {given.name('isolation')} {isolation}: claims give no access to control daemons; use driver or watch")
    # The default is the original's, which needs no mention.
    strategy = given.settings.strategy
    if strategy == protocol.STRATEGY_MOUNTS:
        given.reject(f"{backend} with {given.name('strategy')} {strategy}: claims need {protocol.STRATEGY_CDI}")


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


def _notes(config: DevicePluginConfig, asked: argparse.Namespace) -> Iterator[str]:
    if config.strategy == AUTO and not config.in_container:
        # Only the installer knows what this kubelet and the running container runtime do. A guess of CDI would leave containers without
        # a GPU.
        yield f"device strategy {AUTO}: using {protocol.STRATEGY_MOUNTS}, which needs no CDI in kubelet and in the container runtime"
    # --health-check needs no note: the plugin always checks the GPUs.
    if asked.mps:
        yield f"--mps: as --isolation {protocol.ISOLATION_MPS}; the control daemons are those of gpushare-mps"
    of_kubelet = [f"--{name}" for name in _OF_KUBELET if getattr(asked, name.replace("-", "_")) is not None]
    if asked.query_kubelet:
        of_kubelet.insert(0, "--query-kubelet")
    if of_kubelet:
        yield f"{', '.join(of_kubelet)}: no effect, this plugin watches pods at the API server"


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
