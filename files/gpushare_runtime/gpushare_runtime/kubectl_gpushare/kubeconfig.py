# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""People's kubeconfigs, several files and programs that log in included: read by the `kubernetes` package, the extra `kubectl`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpushare_runtime.kube.credentials import Credentials, CredentialsError, Loaded, broken, missing, unreadable


@dataclass
class _Filled:
    """What the package fills in: all of these names are its own."""

    host: str = ""
    api_key: dict[str, str] = field(default_factory=dict)
    ssl_ca_cert: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify_ssl: bool = True
    tls_server_name: str | None = None
    proxy: str | None = None
    refresh_api_key_hook: Callable[[Any], None] | None = None


def load_kubeconfig(kubeconfig: str, *, context: str | None = None) -> Credentials:
    """Credentials from one file, or from several as KUBECONFIG names them. context: None for the current-context.

    CredentialsError says which file is missing or broken and what was expected.
    """
    return Credentials(lambda: _read(kubeconfig, context))


def _read(kubeconfig: str, context: str | None) -> Loaded:
    try:
        from kubernetes import config as kubernetes_config
    except ModuleNotFoundError:
        # A GPU node's environment has the program, too.
        raise CredentialsError(
            "the Python package `kubernetes` is not installed here; use the plugin of a control plane, or install gpushare-runtime[kubectl]"
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
        # The package meets what is no kubeconfig at all with whatever exception comes first.
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
