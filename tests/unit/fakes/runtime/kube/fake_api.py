# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A small API server over real HTTP: create, get, patch, delete, paged lists, watches in chunks, bindings, planned faults."""

from __future__ import annotations

import asyncio
import copy
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import yaml
from aiohttp import web

from gpushare_runtime.kube import credentials
from gpushare_runtime.kube.client import KubeClient

Json = dict[str, Any]
Fault = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


_COLLECTIONS = (
    *("pods", "nodes", "events", "poddisruptionbudgets", "resourcequotas", "namespaces"),
    *("resourceslices", "resourceclaims", "resourceclaimtemplates"),
)


def status(code: int, reason: str, message: str, **extra: object) -> web.Response:
    """The body that an API server sends with an error."""
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message}
    return web.json_response(body | extra, status=code)


def fail(code: int, reason: str = "InternalError", message: str = "planned") -> Fault:
    async def fault(_: web.Request) -> web.StreamResponse:
        return status(code, reason, message)

    return fault


class FakeApi:
    """Objects by path. `history` is what watches replay; `compact` makes older resourceVersions 410.

    faults: taken one by one, before the request is looked at; one that returns None lets it pass.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.history: list[tuple[int, str, str, Json]] = []
        self.version = 100
        self.oldest = 0
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.bodies: list[Json] = []
        self.headers: list[dict[str, str]] = []
        self.faults: list[Fault] = []
        self.lists = 0
        self.token: str | None = None
        self.url = ""
        self.watching = 0
        self._changed = asyncio.Condition()
        self._cut = 0

    # What tests do to the cluster.

    async def put(self, path: str, value: Json) -> Json:
        kind = "MODIFIED" if path in self.objects else "ADDED"
        return await self._write(path, kind, value)

    async def remove(self, path: str) -> None:
        await self._write(path, "DELETED", self.objects[path])

    async def compact(self) -> None:
        """All resourceVersions up to now are too old, and watches under way are told so."""
        async with self._changed:
            self.version += 1
            self.oldest = self.version
            self.history.clear()
            self._changed.notify_all()

    async def cut(self) -> None:
        """Break the connections of all watches."""
        async with self._changed:
            self._cut += 1
            self._changed.notify_all()

    async def _write(self, path: str, kind: str, value: Json) -> Json:
        async with self._changed:
            self.version += 1
            value = copy.deepcopy(value)
            value.setdefault("metadata", {})["resourceVersion"] = str(self.version)
            if kind == "DELETED":
                del self.objects[path]
            else:
                self.objects[path] = value
            self.history.append((self.version, kind, path, value))
            self._changed.notify_all()
            return value

    # What it serves.

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path, dict(request.query)))
        self.headers.append(dict(request.headers))
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return status(401, "Unauthorized", "Unauthorized")
        if self.faults:
            answer = await self.faults.pop(0)(request)
            if answer is not None:
                return answer
        if request.method == "GET" and request.query.get("watch") == "true":
            return await self._watch(request)
        if request.method == "GET":
            if request.path in self.objects:
                return web.json_response(self.objects[request.path])
            if request.path.rsplit("/", 1)[1] in _COLLECTIONS:
                return self._list(request)
            return status(404, "NotFound", f"{request.path} not found")
        if request.method == "DELETE":
            if request.path not in self.objects:
                return status(404, "NotFound", f"{request.path} not found")
            await self.remove(request.path)
            return web.json_response({"kind": "Status", "status": "Success"})
        body = json.loads(await request.read())
        self.bodies.append(body)
        if request.method == "PATCH":
            return await self._patch(request, body)
        if request.path.endswith("/binding"):
            return await self._bind(request, body)
        path = f"{request.path}/{body['metadata']['name']}"
        if path in self.objects:
            return status(409, "AlreadyExists", f'"{body["metadata"]["name"]}" already exists')
        return web.json_response(await self.put(path, body), status=201)

    def _under(self, collection: str, path: str) -> bool:
        parts = path.split("/")
        at = 4 if parts[1:2] == ["apis"] else 3
        of_all = "/".join(parts[:at] + parts[at + 2 : -1]) if parts[at : at + 1] == ["namespaces"] and len(parts) > at + 3 else ""
        return path.rsplit("/", 1)[0] == collection or of_all == collection

    def _list(self, request: web.Request) -> web.Response:
        token = request.query.get("continue", "")
        if not token:
            self.lists += 1
        names = sorted(path for path in self.objects if self._under(request.path, path) and path > token)
        limit = int(request.query.get("limit", "0")) or len(names)
        page, more = names[:limit], len(names) > limit
        metadata = {"resourceVersion": str(self.version), "continue": page[-1] if more else ""}
        return web.json_response({"kind": "List", "metadata": metadata, "items": [self.objects[name] for name in page]})

    async def _patch(self, request: web.Request, body: Json) -> web.Response:
        name, slash, subresource = request.path.rpartition("/status")
        path = name if slash and not subresource else request.path
        if path == request.path and path.split("/")[-2] in ("pods", "nodes"):
            # Our daemons' rights: who may patch a pod itself may change its images.
            return status(403, "Forbidden", f"cannot patch resource {path.split('/')[-2]!r}")
        old = self.objects.get(path)
        if old is None:
            return status(404, "NotFound", f"{path} not found")
        if body.get("metadata", {}).get("uid", old["metadata"].get("uid")) != old["metadata"].get("uid"):
            return status(409, "Conflict", "the UID in the precondition does not match the UID in record")
        new = _merge(copy.deepcopy(old), body)
        if path != request.path:
            # As the API server has it: by the status, metadata change, and the spec does not.
            new["spec"] = old.get("spec", {})
        return web.json_response(await self.put(path, new))

    async def _bind(self, request: web.Request, body: Json) -> web.Response:
        path = request.path.removesuffix("/binding")
        pod = copy.deepcopy(self.objects.get(path))
        if pod is None:
            return status(404, "NotFound", f'pods "{body["metadata"]["name"]}" not found')
        uid = body["metadata"].get("uid")
        if uid and uid != pod["metadata"]["uid"]:
            found = pod["metadata"]["uid"]
            return status(409, "Conflict", f"Precondition failed: UID in precondition: {uid}, UID in object meta: {found}")
        if pod["spec"].get("nodeName"):
            return status(409, "Conflict", f'pod {pod["metadata"]["name"]} is already assigned to node "{pod["spec"]["nodeName"]}"')
        pod["spec"]["nodeName"] = body["target"]["name"]
        pod["metadata"].setdefault("annotations", {}).update(body["metadata"].get("annotations") or {})
        await self.put(path, pod)
        return web.json_response({"kind": "Status", "status": "Success", "code": 201}, status=201)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        at = int(request.query["resourceVersion"])
        if at < self.oldest:
            return status(410, "Expired", "too old resource version")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        cut, self.watching = self._cut, self.watching + 1
        try:
            while True:
                async with self._changed:
                    while not (news := [entry for entry in self.history if entry[0] > at]):
                        if self._cut != cut or at < self.oldest:
                            break
                        await self._changed.wait()
                if self._cut != cut:
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                if at < self.oldest:
                    error = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
                    await response.write(_line("ERROR", error))
                    return response
                for version, kind, path, value in news:
                    if self._under(request.path, path):
                        await _in_pieces(response, _line(kind, value))
                    at = version
                await response.write(_line("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(at)}}))
        finally:
            self.watching -= 1


def _line(kind: str, value: Json) -> bytes:
    return json.dumps({"type": kind, "object": value}).encode() + b"\n"


async def _in_pieces(response: web.StreamResponse, line: bytes) -> None:
    """Cut where it hurts: within the line, and the end of it together with nothing else."""
    for piece in (line[:7], line[7:-1], line[-1:]):
        await response.write(piece)


def _merge(value: Json, change: Json) -> Json:
    for key, new in change.items():
        if new is None:
            value.pop(key, None)
        elif isinstance(new, dict):
            value[key] = _merge(value.get(key) or {}, new)
        else:
            value[key] = new
    return value


@asynccontextmanager
async def serving(api: FakeApi, tls: ssl.SSLContext | None = None) -> AsyncIterator[FakeApi]:
    """The server on a free port of 127.0.0.1; `api.url` is its address."""
    runner = web.ServerRunner(web.Server(api.handle), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    host, port = runner.addresses[0][:2]
    api.url = f"{'https' if tls else 'http'}://{host}:{port}"
    try:
        yield api
    finally:
        await runner.cleanup()


def kubeconfig(server: str, **user: object) -> str:
    """The text of a kubeconfig for that server."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "clusters": [{"name": "here", "cluster": {"server": server}}],
            "users": [{"name": "me", "user": user}],
        }
    )


@asynccontextmanager
async def connected(api: FakeApi, directory: Any, *, timeout: float = 5.0) -> AsyncIterator[KubeClient]:
    """A client of that server, with credentials from a kubeconfig in `directory`."""
    file = directory / "kubeconfig"
    file.write_text(kubeconfig(api.url, token=api.token or "unused"))
    async with KubeClient(credentials.load(str(file)), timeout=timeout) as client:
        yield client


async def until(condition: Callable[[], object], *, seconds: float = 60.0) -> None:
    """Wait for a condition; one that raises because a thing is not there yet does not hold. AssertionError when it does not come.

    seconds: a deadline for a busy machine, not what it takes.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    trouble: Exception | None = None
    while True:
        try:
            if condition():
                return
        except (LookupError, AttributeError, TypeError) as error:
            trouble = error
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"the condition did not come within {seconds:g} s") from trouble
        await asyncio.sleep(0.005)


async def stays(condition: Callable[[], object], passes: Callable[[], int], times: int = 5) -> None:
    """A condition holds until a count, such as the passes of a loop that could break it, has grown by so much."""
    last = passes() + times

    def over() -> bool:
        assert condition()
        return passes() >= last

    await until(over)
