# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The API server's address and a client's credentials, read again after a change on disk."""

from __future__ import annotations

import base64
import contextlib
import os
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import yaml

from gpushare_runtime.daemon.runner import FatalError

REREAD_SECONDS: Final = 60.0
"""Projected tokens and kubelet's certificates are renewed long before they end; a minute is soon enough."""

UNANSWERED_SECONDS: Final = 1.0
"""After a request without an answer. The files may name another server now, and it takes only milliseconds to read them."""

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where kubelet puts a pod's token and the cluster's authority."""

_THIS_HOST: Final = ("localhost", "127.0.0.1", "::1")


class CredentialsError(FatalError):
    """Credentials that cannot be used; the text has the file, what was found and what was expected."""


@dataclass(frozen=True)
class Loaded:
    """The contents of a kubeconfig or a service account. source: for messages. *_file: paths, read whenever they change. *_pem: inline."""

    source: str
    server: str
    authorization: str | None = None
    ca_file: str | None = None
    ca_pem: str | None = None
    client_file: str | None = None
    client_key_file: str | None = None
    client_pem: str | None = None
    verify: bool = True
    tls_server_name: str | None = None
    proxy: str | None = None

    def __post_init__(self) -> None:
        if not self.server.startswith(("https://", "http://")):
            raise self._other_server("a URL such as https://10.0.0.1:6443")

    def sends_token(self) -> Loaded:
        """Itself. CredentialsError if a token would go over the network in clear text."""
        if self.server.startswith("http://") and urlsplit(self.server).hostname not in _THIS_HOST:
            raise self._other_server("https://, because a token goes there")
        return self

    def _other_server(self, expected: str) -> CredentialsError:
        return CredentialsError(f"{self.source}: the current context's cluster has server {self.server[:80]!r}; expected {expected}")

    def tls_state(self) -> tuple[object, ...]:
        """Changes when a file of the TLS context has changed."""
        files = (self.ca_file, self.client_file, self.client_key_file)
        return (self.verify, self.ca_pem, self.client_pem, *map(_file_state, files))


class Tokens(Protocol):
    """Where the Authorization header comes from instead of the kubeconfig."""

    def authorization(self) -> str | None:
        """The header's value."""

    def unauthorized(self, authorization: str | None) -> None:
        """The API server answered 401 to this header."""


class Credentials:
    """Server URL, TLS context and Authorization header, which follow the files that they come from."""

    def __init__(self, read: Callable[[], Loaded], *, tokens: Tokens | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._tokens = tokens
        self._clock = clock
        self._loaded = read()
        self._read_at = clock()
        self._reread_after = REREAD_SECONDS
        self._tls_state = self._loaded.tls_state()
        self._context = _ssl_context(self._loaded)

    @property
    def server(self) -> str:
        """The API server's URL, without a slash at the end."""
        self._refresh()
        return self._loaded.server.rstrip("/")

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

    def of_user(self, token: str) -> Credentials:
        """For the same API server, of the person whose token this is: nothing of our own identity goes there. CredentialsError."""
        self._refresh()
        own = self._loaded
        user = replace(
            own, source="a person's token", authorization=f"Bearer {token}", client_file=None, client_key_file=None, client_pem=None
        )
        return Credentials(user.sends_token)

    def unanswered(self) -> None:
        """The API server did not answer. The files are read again before the next use, because they may name another server now."""
        self._reread_after = UNANSWERED_SECONDS

    def reload(self, unauthorized: str | None = None) -> None:
        """Read everything again now. CredentialsError if it cannot be read; the old stays in use.

        unauthorized: the Authorization header to which the API server answered 401.
        """
        if self._tokens is not None:
            self._tokens.unauthorized(unauthorized)
        self._read_at, self._reread_after = self._clock(), REREAD_SECONDS
        loaded = self._read()
        state = loaded.tls_state()
        if state != self._tls_state:
            self._context = _ssl_context(loaded)
            self._tls_state = state
        self._loaded = loaded

    def _refresh(self) -> None:
        if self._clock() - self._read_at >= self._reread_after:
            # A file may be in the middle of being replaced; what we have works until the server rejects it.
            with contextlib.suppress(CredentialsError):
                self.reload()


def load(kubeconfig: str | None, *, tokens: Tokens | None = None) -> Credentials:
    """Credentials of a daemon: from one kubeconfig file, or from the pod's service account when that is None.

    The user may have a token, a tokenFile or a client certificate. Programs that log in (`exec`) need the `kubernetes` package, which costs
    a daemon 145 MiB on disk and 19 MiB resident: only kubectl's plugin reads kubeconfigs with it. tokens: used instead of the user.

    CredentialsError names the file that is missing or broken, and what was expected.
    """
    if not kubeconfig:
        return Credentials(_in_cluster, tokens=tokens)
    return Credentials(lambda: from_file(kubeconfig, own_tokens=tokens is not None), tokens=tokens)


def namespace_in(kubeconfig: str) -> str:
    """The namespace of the current context of a file that `from_file` reads, "default" where it has none."""
    data = yaml.safe_load(Path(kubeconfig).read_text())
    return str(_named(data["contexts"], "context", data["current-context"]).get("namespace") or "default")


def context_in(kubeconfig: str) -> str:
    """The name of the current context of a file that `from_file` reads."""
    return str(yaml.safe_load(Path(kubeconfig).read_text())["current-context"])


def from_file(kubeconfig: str, *, own_tokens: bool = False) -> Loaded:
    """The contents of one kubeconfig. own_tokens: the user in it does not count."""
    folder = Path(kubeconfig).parent
    try:
        data = yaml.safe_load(Path(kubeconfig).read_text())
        context = _named(data["contexts"], "context", data["current-context"])
        cluster = _named(data["clusters"], "cluster", context["cluster"])
        user = {} if own_tokens or "user" not in context else _named(data["users"], "user", context["user"]) or {}
        client_file, client_key_file, client_pem = _client(user, folder)
        ca_pem = _inline(cluster.get("certificate-authority-data"))
        loaded = Loaded(
            f"kubeconfig {kubeconfig}",
            str(cluster["server"]),
            _bearer(user, folder),
            None if ca_pem else _beside(cluster.get("certificate-authority"), folder),
            ca_pem,
            client_file,
            client_key_file,
            client_pem,
            not cluster.get("insecure-skip-tls-verify"),
            cluster.get("tls-server-name"),
            cluster.get("proxy-url"),
        )
    except FileNotFoundError as error:
        if error.filename not in (kubeconfig, None):
            raise unreadable(kubeconfig, error) from None
        raise missing(kubeconfig) from None
    except OSError as error:
        raise unreadable(kubeconfig, error) from None
    except KeyError as error:
        raise broken(kubeconfig, f"{error} is not there") from None
    except (yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise broken(kubeconfig, f"{error}") from None
    return loaded.sends_token() if own_tokens or loaded.authorization else loaded


def _named(entries: Any, kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {entry["name"]: entry[kind] for entry in entries}[name]
    return found


def _bearer(user: dict[str, Any], folder: Path) -> str | None:
    for way in ("exec", "auth-provider", "username"):
        if way in user:
            raise ValueError(f"its user logs in by `{way}`, where a daemon needs a token, a tokenFile or a client certificate")
    file = _beside(user.get("tokenFile"), folder)
    token = str(Path(file).read_text() if file else user.get("token") or "").strip()
    return f"Bearer {token}" if token else None


def _client(user: dict[str, Any], folder: Path) -> tuple[str | None, str | None, str | None]:
    """The client certificate: its file and its key's, or both inline."""
    certificate, key = _inline(user.get("client-certificate-data")), _inline(user.get("client-key-data"))
    files = (_beside(user.get("client-certificate"), folder), _beside(user.get("client-key"), folder))
    if certificate is None and key is None:
        return *files, None
    certificate, key = (inline or (Path(file).read_text() if file else "") for inline, file in zip((certificate, key), files, strict=True))
    return None, None, f"{certificate}\n{key}"


def _inline(value: str | None) -> str | None:
    return base64.b64decode(value).decode("ascii") if value else None


def _beside(path: str | None, folder: Path) -> str | None:
    """Paths in a kubeconfig are relative to its folder."""
    return str(folder / path) if path else None


def missing(kubeconfig: str) -> CredentialsError:
    """There is no such file."""
    return CredentialsError(f"kubeconfig {kubeconfig}: no such file; expected a kubeconfig there: name one with --kubeconfig or KUBECONFIG")


def unreadable(kubeconfig: str, error: OSError) -> CredentialsError:
    """The kubeconfig, or a file that it names, cannot be read."""
    return CredentialsError(
        f"kubeconfig {kubeconfig}: cannot read {error.filename or 'a file that it names'}: {error.strerror}; run as a user that may read it"
    )


def broken(kubeconfig: str, why: str, more: str = "") -> CredentialsError:
    """The kubeconfig cannot be used; more: what else was expected."""
    return CredentialsError(
        f"kubeconfig {kubeconfig}: {' '.join(why.split())}; expected a kubeconfig (kind: Config) whose "
        f"current-context names a cluster with `server`{more}"
    )


def _in_cluster() -> Loaded:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    token, ca = SERVICE_ACCOUNT / "token", SERVICE_ACCOUNT / "ca.crt"
    try:
        if not host or not port:
            raise ValueError("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
        bearer = f"Bearer {token.read_text().strip()}"
    except (OSError, ValueError) as error:
        raise CredentialsError(
            f"no kubeconfig was given, and this is not a pod with a service account ({error}); "
            "name a kubeconfig with --kubeconfig or KUBECONFIG"
        ) from None
    server = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    return Loaded("the pod's service account", server, bearer, str(ca))


def _ssl_context(loaded: Loaded) -> ssl.SSLContext | None:
    if not loaded.server.startswith("https://"):
        return None
    reading, wanted = loaded.ca_file or "certificate-authority-data", "a certificate authority"
    try:
        context = ssl.create_default_context(cafile=loaded.ca_file, cadata=loaded.ca_pem)
        if not loaded.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        wanted = "a client certificate, with its key in "
        if loaded.client_pem:
            reading, wanted = "client-certificate-data", f"{wanted}client-key-data"
            with _in_memory(loaded.client_pem) as path:
                context.load_cert_chain(path)
        elif loaded.client_file:
            reading, wanted = loaded.client_file, f"{wanted}{loaded.client_key_file or 'the same file'}"
            context.load_cert_chain(loaded.client_file, loaded.client_key_file)
    except (OSError, ssl.SSLError) as error:
        raise CredentialsError(f"{loaded.source}: {reading}: {error.strerror or error}; expected PEM: {wanted}") from None
    return context


@contextlib.contextmanager
def _in_memory(pem: str) -> Iterator[str]:
    """A path that `ssl` can read: it takes certificates from files only, and a key must not lie on a disk."""
    handle = os.memfd_create("client-certificate")
    try:
        os.write(handle, pem.encode())
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


def _file_state(path: str | None) -> tuple[object, ...]:
    if path is None:
        return ()
    try:
        status = os.stat(path)
    except OSError:
        return (path, None)
    return (path, status.st_mtime_ns, status.st_ino, status.st_size)
