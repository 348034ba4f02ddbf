# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Where the API server is and how to prove who we are, read again when it changes on disk."""

from __future__ import annotations

import base64
import contextlib
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import yaml

REREAD_SECONDS: Final = 60.0
"""Projected tokens and kubelet's certificates are renewed long before they end; a minute is soon enough."""

_THIS_HOST: Final = ("localhost", "127.0.0.1", "::1")


class CredentialsError(Exception):
    """Credentials that cannot be used; says which file, what was found and what was expected."""


@dataclass
class _Loaded:
    """What the `kubernetes` package fills in; all attributes but `source` and `ca_pem` are its own."""

    source: str
    ca_pem: str | None = None
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
        return (self.verify_ssl, self.ca_pem, *(_file_state(path) for path in (self.ssl_ca_cert, self.cert_file, self.key_file)))


class Tokens(Protocol):
    """Where the Authorization header comes from instead of the kubeconfig."""

    def authorization(self) -> str | None:
        """The header's value."""

    def refuse(self, authorization: str | None) -> None:
        """The API server answered 401 to this."""


class Credentials:
    """Server URL, TLS context and Authorization header; the latter two follow the files that they come from."""

    def __init__(self, read: Callable[[], _Loaded], *, tokens: Tokens | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._tokens = tokens
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
        if self._tokens is not None:
            return self._tokens.authorization()
        self._refresh()
        return self._loaded.authorization

    def ssl(self) -> ssl.SSLContext | None:
        """The TLS context, None for plain http. A new object only after its files have changed."""
        self._refresh()
        return self._context

    def reload(self, refused: str | None = None) -> None:
        """Read everything again now. CredentialsError if it cannot be read; the old stays in use.

        refused: the Authorization header to which the API server answered 401.
        """
        if self._tokens is not None:
            self._tokens.refuse(refused)
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


def load(kubeconfig: str | None, *, context: str | None = None, tokens: Tokens | None = None) -> Credentials:
    """Credentials from a kubeconfig file, or from the pod's service account when that is None.

    context: of the kubeconfig, None for its current-context; tokens: to use instead of its user, with the current-context's cluster.

    CredentialsError says which file is missing or broken and what was expected.
    """
    if not kubeconfig:
        return Credentials(_in_cluster, tokens=tokens)
    return Credentials(lambda: _cluster_of(kubeconfig) if tokens else _from_file(kubeconfig, context), tokens=tokens)


def _from_file(kubeconfig: str, context: str | None) -> _Loaded:
    from kubernetes import config as kubernetes_config

    paths = [Path(part).expanduser() for part in kubeconfig.split(os.pathsep) if part]
    if not any(path.exists() for path in paths):
        raise _missing(kubeconfig)
    loaded = _Loaded(f"kubeconfig {kubeconfig}")
    try:
        kubernetes_config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=kubeconfig, context=context, client_configuration=loaded, persist_config=False
        )
    except OSError as error:
        raise _unreadable(kubeconfig, error) from None
    except (kubernetes_config.ConfigException, yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        # The package meets what is no kubeconfig at all with whatever exception comes first.
        raise _broken(kubeconfig, f"{error}", " and a user") from None
    return _with_url(loaded, token=loaded.authorization is not None)


def _cluster_of(kubeconfig: str) -> _Loaded:
    """Where the API server is, for a daemon with a token of its own. The package is left out: it costs 19 MiB resident."""
    loaded = _Loaded(f"kubeconfig {kubeconfig}")
    try:
        data = yaml.safe_load(Path(kubeconfig).read_text())
        contexts = {entry["name"]: entry["context"] for entry in data["contexts"]}
        clusters = {entry["name"]: entry["cluster"] for entry in data["clusters"]}
        cluster = clusters[contexts[data["current-context"]]["cluster"]]
        loaded.host = str(cluster["server"])
        if cluster.get("certificate-authority-data"):
            loaded.ca_pem = base64.b64decode(cluster["certificate-authority-data"]).decode("ascii")
        elif cluster.get("certificate-authority"):
            loaded.ssl_ca_cert = str(Path(kubeconfig).parent / cluster["certificate-authority"])
        loaded.verify_ssl = not cluster.get("insecure-skip-tls-verify")
        loaded.tls_server_name, loaded.proxy = cluster.get("tls-server-name"), cluster.get("proxy-url")
    except FileNotFoundError:
        raise _missing(kubeconfig) from None
    except OSError as error:
        raise _unreadable(kubeconfig, error) from None
    except KeyError as error:
        raise _broken(kubeconfig, f"{error} is not there") from None
    except (yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise _broken(kubeconfig, f"{error}") from None
    return _with_url(loaded, token=True)


def _missing(kubeconfig: str) -> CredentialsError:
    return CredentialsError(f"kubeconfig {kubeconfig}: no such file; expected a kubeconfig there: name one with --kubeconfig or KUBECONFIG")


def _unreadable(kubeconfig: str, error: OSError) -> CredentialsError:
    return CredentialsError(
        f"kubeconfig {kubeconfig}: cannot read {error.filename or 'a file that it names'}: {error.strerror}; run as a user that may read it"
    )


def _broken(kubeconfig: str, why: str, more: str = "") -> CredentialsError:
    return CredentialsError(
        f"kubeconfig {kubeconfig}: {' '.join(why.split())}; expected a kubeconfig (kind: Config) whose "
        f"current-context names a cluster with `server`{more}"
    )


def _with_url(loaded: _Loaded, *, token: bool) -> _Loaded:
    if not loaded.host.startswith(("https://", "http://")):
        raise CredentialsError(
            f"{loaded.source}: the current context's cluster has server {loaded.host!r}; expected a URL such as https://10.0.0.1:6443"
        )
    if token and loaded.host.startswith("http://") and urlsplit(loaded.host).hostname not in _THIS_HOST:
        raise CredentialsError(
            f"{loaded.source}: the current context's cluster has server {loaded.host!r}; expected https://, because a token goes there"
        )
    return loaded


def _in_cluster() -> _Loaded:
    from kubernetes import config as kubernetes_config

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
    reading, wanted = loaded.ssl_ca_cert or "certificate-authority-data", "a certificate authority"
    try:
        context = ssl.create_default_context(cafile=loaded.ssl_ca_cert, cadata=loaded.ca_pem)
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
