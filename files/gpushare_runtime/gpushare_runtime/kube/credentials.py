# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Where the API server is and how to prove who we are, read again when it changes on disk."""

from __future__ import annotations

import contextlib
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from kubernetes import config as kubernetes_config

REREAD_SECONDS: Final = 60.0
"""Projected tokens and kubelet's certificates are renewed long before they end; a minute is soon enough."""


class CredentialsError(Exception):
    """Credentials that cannot be used; says which file, what was found and what was expected."""


@dataclass
class _Loaded:
    """What the `kubernetes` package fills in; all attributes but `source` are its own."""

    source: str
    host: str = ""
    api_key: dict[str, str] = field(default_factory=dict)
    ssl_ca_cert: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify_ssl: bool = True
    tls_server_name: str | None = None
    proxy: str | None = None
    refresh_api_key_hook: Callable[[Any], None] | None = None

    @property
    def authorization(self) -> str | None:
        # The name of the key depends on the release of the `kubernetes` package.
        value = self.api_key.get("BearerToken") or self.api_key.get("authorization")
        return value.strip() if value else None

    def tls_state(self) -> tuple[object, ...]:
        """Changes when a file of the TLS context has changed."""
        return (self.verify_ssl, *(_file_state(path) for path in (self.ssl_ca_cert, self.cert_file, self.key_file)))


class Credentials:
    """Server URL, TLS context and Authorization header; the latter two follow the files that they come from."""

    def __init__(self, read: Callable[[], _Loaded], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._loaded = read()
        self._read_at = clock()
        self._tls_state = self._loaded.tls_state()
        self._context = _ssl_context(self._loaded)

    @property
    def server(self) -> str:
        """The API server's URL, without a slash at the end."""
        return self._loaded.host.rstrip("/")

    @property
    def tls_server_name(self) -> str | None:
        """The name to expect in the server's certificate, where it is not the URL's host."""
        return self._loaded.tls_server_name

    @property
    def proxy(self) -> str | None:
        """The kubeconfig's proxy-url. Proxies in the environment are not used."""
        return self._loaded.proxy

    def authorization(self) -> str | None:
        """The value of the Authorization header, None when a client certificate speaks for us."""
        self._refresh()
        return self._loaded.authorization

    def ssl(self) -> ssl.SSLContext | None:
        """The TLS context, None for plain http. A new object only after its files have changed."""
        self._refresh()
        return self._context

    def reload(self) -> None:
        """Read everything again now, such as after a 401. CredentialsError if it cannot be read; the old stays in use."""
        self._read_at = self._clock()
        loaded = self._read()
        state = loaded.tls_state()
        if state != self._tls_state:
            self._context = _ssl_context(loaded)
            self._tls_state = state
        self._loaded = loaded

    def _refresh(self) -> None:
        if self._clock() - self._read_at >= REREAD_SECONDS:
            # A file may be in the middle of being replaced; what we have works until the server says otherwise.
            with contextlib.suppress(CredentialsError):
                self.reload()


def load(kubeconfig: str | None, *, context: str | None = None) -> Credentials:
    """Credentials from a kubeconfig file, or from the pod's service account when that is None.

    context: of the kubeconfig, None for its current-context.

    CredentialsError says which file is missing or broken and what was expected.
    """
    return Credentials((lambda: _from_file(kubeconfig, context)) if kubeconfig else _in_cluster)


def _from_file(kubeconfig: str, context: str | None) -> _Loaded:
    paths = [Path(part).expanduser() for part in kubeconfig.split(os.pathsep) if part]
    if not any(path.exists() for path in paths):
        raise CredentialsError(
            f"kubeconfig {kubeconfig}: no such file; expected a kubeconfig there: name one with --kubeconfig or KUBECONFIG"
        )
    loaded = _Loaded(f"kubeconfig {kubeconfig}")
    try:
        kubernetes_config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=kubeconfig, context=context, client_configuration=loaded, persist_config=False
        )
    except OSError as error:
        raise CredentialsError(
            f"kubeconfig {kubeconfig}: cannot read {error.filename or 'a file that it names'}: {error.strerror}; "
            "run as a user that may read it"
        ) from None
    except (kubernetes_config.ConfigException, yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        # The package meets what is no kubeconfig at all with whatever exception comes first.
        raise CredentialsError(
            f"kubeconfig {kubeconfig}: {' '.join(str(error).split())}; expected a kubeconfig (kind: Config) whose "
            "current-context names a cluster with `server` and a user"
        ) from None
    if not loaded.host.startswith(("https://", "http://")):
        raise CredentialsError(
            f"kubeconfig {kubeconfig}: the current context's cluster has server {loaded.host!r}; "
            "expected a URL such as https://10.0.0.1:6443"
        )
    return loaded


def _in_cluster() -> _Loaded:
    loaded = _Loaded("the pod's service account")
    try:
        kubernetes_config.load_incluster_config(client_configuration=loaded)  # type: ignore[no-untyped-call]
    except (kubernetes_config.ConfigException, OSError) as error:
        raise CredentialsError(
            f"no kubeconfig was given, and this is no pod with a service account ({error}); "
            "name a kubeconfig with --kubeconfig or KUBECONFIG"
        ) from None
    return loaded


def _ssl_context(loaded: _Loaded) -> ssl.SSLContext | None:
    if not loaded.host.startswith("https://"):
        return None
    reading, wanted = loaded.ssl_ca_cert, "a certificate authority"
    try:
        context = ssl.create_default_context(cafile=loaded.ssl_ca_cert)
        if not loaded.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if loaded.cert_file:
            reading, wanted = loaded.cert_file, f"a client certificate, with its key in {loaded.key_file or 'the same file'}"
            context.load_cert_chain(loaded.cert_file, loaded.key_file)
    except (OSError, ssl.SSLError) as error:
        # What the kubeconfig has inline is read through a temporary file.
        raise CredentialsError(f"{loaded.source}: {reading}: {error.strerror or error}; expected PEM: {wanted}") from None
    return context


def _file_state(path: str | None) -> tuple[object, ...]:
    if path is None:
        return ()
    try:
        status = os.stat(path)
    except OSError:
        return (path, None)
    return (path, status.st_mtime_ns, status.st_ino, status.st_size)
