# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""People's kubeconfigs, several files and programs that log in included: read by the `kubernetes` package, the extra `kubectl`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from gpushare_runtime.kube import credentials
from gpushare_runtime.kube.credentials import Credentials, CredentialsError, Loaded, broken, missing, unreadable

KUBECONFIG_HELP: Final = "default: $KUBECONFIG, or ~/.kube/config, or the administrator's of a control plane"
ADMINISTRATORS: Final = ("/etc/kubernetes/admin.conf", "/etc/rancher/rke2/rke2.yaml", "/etc/rancher/k3s/k3s.yaml")
"""Where distributions keep the kubeconfig of the cluster's administrator on a control plane; root may read it."""


@dataclass
class _Filled:
    """The fields that the package fills in: all of these names are its own."""

    host: str = ""
    api_key: dict[str, str] = field(default_factory=dict)
    ssl_ca_cert: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify_ssl: bool = True
    tls_server_name: str | None = None
    proxy: str | None = None
    refresh_api_key_hook: Callable[[Any], None] | None = None


def find_kubeconfig(flag: str | None = None) -> str:
    """Which kubeconfig is meant: as kubectl finds it, and where there is none, the administrator's if this process may read it."""
    own = os.path.expanduser("~/.kube/config")
    chosen = flag or os.environ.get("KUBECONFIG")
    if chosen or os.path.exists(own):
        return chosen or own
    return next((path for path in ADMINISTRATORS if os.access(path, os.R_OK)), own)


def context_name(kubeconfig: str, context: str | None = None) -> str:
    """The name of the context that is used, "" where the file names none. Ask after `load_kubeconfig`, which reports what is wrong."""
    if context:
        return context
    try:
        from kubernetes import config as kubernetes_config
    except ModuleNotFoundError:
        return credentials.context_in(kubeconfig)
    _, active = kubernetes_config.list_kube_config_contexts(config_file=kubeconfig)  # type: ignore[no-untyped-call]
    return str((active or {}).get("name") or "")


def context_namespace(kubeconfig: str, context: str | None = None) -> str:
    """The namespace of a context, "default" where it has none. Ask after `load_kubeconfig`, which reports what is wrong."""
    try:
        from kubernetes import config as kubernetes_config
    except ModuleNotFoundError:
        return credentials.namespace_in(kubeconfig)
    contexts, active = kubernetes_config.list_kube_config_contexts(config_file=kubeconfig)  # type: ignore[no-untyped-call]
    chosen = next((entry for entry in contexts if entry.get("name") == context), None) if context else active
    return str(((chosen or {}).get("context") or {}).get("namespace") or "default")


def load_kubeconfig(kubeconfig: str, *, context: str | None = None) -> Credentials:
    """Credentials from one file, or from several as KUBECONFIG names them. context: None for the current-context.

    CredentialsError says which file is missing or broken and what was expected.
    """
    return Credentials(lambda: _read(kubeconfig, context))


def _read(kubeconfig: str, context: str | None) -> Loaded:
    try:
        from kubernetes import config as kubernetes_config
    except ModuleNotFoundError:
        # The container image has the program without the package.
        if context is None and os.pathsep not in kubeconfig:
            return credentials.from_file(kubeconfig)
        raise CredentialsError(
            "the Python package `kubernetes` is not installed here, which reads several kubeconfigs and other contexts than the current "
            "one; use the plugin of a control plane, or install gpushare-runtime[kubectl]"
        ) from None
    if not any(Path(part).expanduser().exists() for part in kubeconfig.split(os.pathsep) if part):
        raise missing(kubeconfig)
    filled = _Filled()
    try:
        kubernetes_config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=kubeconfig, context=context, client_configuration=filled, persist_config=False
        )
    except OSError as error:
        raise unreadable(kubeconfig, error) from None
    except (kubernetes_config.ConfigException, yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        # The package meets a file that is not a kubeconfig at all with whatever exception comes first.
        raise broken(kubeconfig, f"{error}", " and a user") from None
    # The name of the key depends on the release of the package.
    token = (filled.api_key.get("BearerToken") or filled.api_key.get("authorization") or "").strip() or None
    loaded = Loaded(
        f"kubeconfig {kubeconfig}",
        filled.host,
        token,
        filled.ssl_ca_cert,
        client_file=filled.cert_file,
        client_key_file=filled.key_file,
        verify=filled.verify_ssl,
        tls_server_name=filled.tls_server_name,
        proxy=filled.proxy,
    )
    return loaded.sends_token() if token else loaded
