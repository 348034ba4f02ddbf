# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Chromium without a screen, driven over its DevTools protocol: pages, keys, themes, sizes, the accessibility tree, pictures."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp

T = TypeVar("T")
Json = dict[str, Any]

PACKAGE: Final = "chromium"
START_SECONDS: Final = 60.0
INSTALL_SECONDS: Final = 600
DEADLINE_SECONDS: Final = 30.0
"""Of what takes a moment, on a busy machine."""


class Loop:
    """An event loop in a thread of its own, for tests that are not coroutines."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], seconds: float = 120.0) -> T:
        """Its result; TimeoutError after so many seconds."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def close(self) -> None:
        async def cancel() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.run(cancel(), 30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


class PageError(AssertionError):
    """A script of the test failed in the page."""


def chromium() -> str:
    """The program, which root gets from Debian if the machine lacks it, as the lab gets its packages; it stays. AssertionError without."""
    found = shutil.which("chromium")
    if not found and os.geteuid() == 0 and shutil.which("apt-get"):
        for argv in (["update"], ["install", "-y", "--no-install-recommends", PACKAGE]):
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(["apt-get", "-q", *argv], check=True, capture_output=True, timeout=INSTALL_SECONDS, env=environment)
        found = shutil.which("chromium")
    assert found, f"found no Chromium; install it: apt-get install --no-install-recommends {PACKAGE}"
    return found


class Browser:
    """One Chromium. AssertionError if it is not installed."""

    def __init__(self, loop: Loop) -> None:
        program = chromium()
        self.loop = loop
        self._folder = tempfile.mkdtemp(prefix="gpushare-browser-")
        self._process = subprocess.Popen(
            [
                program,
                "--headless=new",
                # Of the test's own pages, also as root.
                "--no-sandbox",
                "--remote-debugging-port=0",
                f"--user-data-dir={self._folder}",
                "--no-first-run",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--disable-component-update",
                "--hide-scrollbars",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._number = 0
        self._answers: dict[int, asyncio.Future[Json]] = {}
        self._events: dict[str, Callable[[str, Json], None]] = {}
        loop.run(self._connect(), START_SECONDS)

    async def _connect(self) -> None:
        until = time.monotonic() + START_SECONDS
        while len(text := self._devtools()) < 2:
            assert self._process.poll() is None, f"Chromium ended with {self._process.returncode}"
            assert time.monotonic() < until, "Chromium has not opened its DevTools port"
            await asyncio.sleep(0.05)
        self._http = aiohttp.ClientSession()
        self._socket = await self._http.ws_connect(f"ws://127.0.0.1:{text[0]}{text[1]}", max_msg_size=0)
        self._reader = asyncio.ensure_future(self._read())

    def _devtools(self) -> list[str]:
        """Port and path, once Chromium has written them."""
        file = Path(self._folder, "DevToolsActivePort")
        return file.read_text().split() if file.exists() else []

    async def _read(self) -> None:
        async for message in self._socket:
            data = message.json()
            if "id" in data:
                answer = self._answers.pop(data["id"], None)
                if answer is not None and not answer.done():
                    answer.set_result(data)
            elif data.get("sessionId") in self._events:
                self._events[data["sessionId"]](data["method"], data.get("params") or {})

    async def _send(self, method: str, parameters: Json, session: str = "") -> Json:
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        message = {"id": self._number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        await self._socket.send_json(message)
        data = await asyncio.wait_for(answer, 60)
        if "error" in data:
            raise PageError(f"{method}: {data['error']}")
        return dict(data["result"])

    def send(self, method: str, session: str = "", **parameters: Any) -> Json:
        """A command of the protocol, and its result."""
        return self.loop.run(self._send(method, parameters, session))

    @contextmanager
    def page(self, url: str, width: int = 1280, height: int = 900) -> Iterator[Page]:
        """A new page with storage of its own."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        target = self.send("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        self._events[session] = page.on_event
        try:
            for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
                page.send(f"{domain}.enable")
            page.resize(width, height)
            page.open(url)
            yield page
        finally:
            del self._events[session]
            self.send("Target.disposeBrowserContext", browserContextId=context)

    def close(self) -> None:
        async def end() -> None:
            self._reader.cancel()
            await self._socket.close()
            await self._http.close()

        self.loop.run(end())
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)
        shutil.rmtree(self._folder, ignore_errors=True)


class Page:
    """One page. errors: what the console, the network and the content security policy complained of."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.errors: list[str] = []
        self.urls: list[str] = []

    def on_event(self, method: str, parameters: Json) -> None:
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(f"exception: {details.get('exception', {}).get('description') or details['text']}")
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(f"console: {[argument.get('value') for argument in parameters['args']]}")
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"log: {parameters['entry']['text']} {parameters['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.urls.append(parameters["request"]["url"])

    def send(self, method: str, **parameters: Any) -> Json:
        return self._browser.send(method, self._session, **parameters)

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)

    def eval(self, script: str) -> Any:
        """The value of an expression, awaited."""
        found = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True)
        if "exceptionDetails" in found:
            details = found["exceptionDetails"]
            raise PageError(f"{script[:200]}: {details.get('exception', {}).get('description') or details['text']}")
        return found["result"].get("value")

    def until(self, what: str, script: str, seconds: float = DEADLINE_SECONDS) -> Any:
        """The value of an expression when it is true. AssertionError with what the page shows then."""
        deadline, trouble = time.monotonic() + seconds, ""
        while True:
            try:
                value = self.eval(script)
                if value:
                    return value
                trouble = ""
            except PageError as error:
                # The page is not there yet.
                trouble = str(error)
            if time.monotonic() > deadline:
                text = self.eval("document.body?.innerText")
                raise AssertionError(
                    f"{what}: not within {seconds:g} s; {trouble}; errors {self.errors}; the page shows:\n{str(text)[:3000]}"
                )
            time.sleep(0.02)

    @property
    def text(self) -> str:
        """What a person sees."""
        return str(self.eval("document.body.innerText"))

    def key(self, key: str, *, shift: bool = False) -> None:
        """Press and release a key by its DOM name, or a character."""
        codes = {"Tab": 9, "Enter": 13, "ArrowDown": 40, "ArrowUp": 38, "Home": 36, "End": 35, "PageDown": 34, "PageUp": 33, "Escape": 27}
        more: Json = {"windowsVirtualKeyCode": codes[key]} if key in codes else {"text": key}
        if key == "Enter":
            more["text"] = "\r"
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, modifiers=8 if shift else 0, **more)

    def type(self, text: str) -> None:
        """Into what has the focus."""
        self.send("Input.insertText", text=text)

    def resize(self, width: int, height: int) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, name: str) -> None:
        """light or dark, as the operating system would have it."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def accessible(self) -> list[Json]:
        """The nodes of the accessibility tree that are not ignored: {role, name, properties}."""
        nodes = self.send("Accessibility.getFullAXTree")["nodes"]
        return [
            {
                "role": node.get("role", {}).get("value", ""),
                "name": node.get("name", {}).get("value", ""),
                "properties": {one["name"]: one["value"].get("value") for one in node.get("properties", ())},
            }
            for node in nodes
            if not node.get("ignored")
        ]

    def picture(self, path: Path) -> None:
        """A PNG of what is seen."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))
