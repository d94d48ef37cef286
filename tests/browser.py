"""Headless Chromium for tests of the live page, over its debugging protocol.

A page is opened at a width and a colour scheme. What its console, its security policy and its
exceptions have to say is collected, so that a test can refuse all of it.
"""

import asyncio
import base64
import contextlib
import json
import pathlib
import signal
import tempfile

import aiohttp
import programs

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-extensions", "--hide-scrollbars", "--remote-debugging-port=0"),
)
PATIENCE = 60.0
# The number of each key, and what it writes.
KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "ArrowLeft": (37, ""), "ArrowRight": (39, "")}
MOST_TABS = 60


class Page:
    """One tab: `evaluate` runs an expression in it, `complaints` is what went wrong in it."""

    def __init__(self, socket):
        self._socket, self._number, self._answers = socket, 0, {}
        self._reading = asyncio.create_task(self._read())
        self.complaints = []

    async def close(self):
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading
        await self._socket.close()

    async def _read(self):
        async for message in self._socket:
            said = json.loads(message.data)
            if said.get("id") in self._answers:
                self._answers.pop(said["id"]).set_result(said)
            elif said.get("method") in {"Log.entryAdded", "Runtime.exceptionThrown"}:
                self.complaints.append(json.dumps(said["params"]))

    async def call(self, method, **params):
        """Call a method of the protocol."""
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        said = await asyncio.wait_for(answer, PATIENCE)
        assert "error" not in said, (method, said["error"])
        return said["result"]

    async def open(self, address, *, width=1_440, height=900, scheme="light", scripts=True):
        """Go to `address` and wait until it is loaded."""
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        size = {"width": width, "height": height, "deviceScaleFactor": 1}
        await self.call("Emulation.setDeviceMetricsOverride", mobile=width < 600, **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=features)
        await self.call("Page.navigate", url=address)
        await self.wait_for("document.readyState === 'complete'")

    async def evaluate(self, expression):
        """The value of an expression; of a promise, what it is fulfilled with."""
        found = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def wait_for(self, expression):
        """Wait until an expression is true."""
        async with asyncio.timeout(PATIENCE):
            while not await self.evaluate(expression):  # noqa: ASYNC110  the browser tells nobody
                await asyncio.sleep(0.05)

    async def text(self, selector="body"):
        """The visible text of an element."""
        return await self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")

    async def press(self, key):
        """Press one of `KEYS`."""
        code, text = KEYS[key]
        pressed = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **pressed)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **pressed)

    async def tab_to(self, selector):
        """Press Tab until the focus is on an element."""
        found = f"document.activeElement.matches({json.dumps(selector)})"
        for _ in range(MOST_TABS):
            await self.press("Tab")
            if await self.evaluate(found):
                return
        raise AssertionError(f"Tab does not reach {selector}")

    async def write(self, text):
        """Write into the element that has the focus."""
        await self.call("Input.insertText", text=text)

    async def picture(self, path, height=None):
        """Write a picture of the page, or of its first `height` pixels."""
        size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
        clip = {"x": 0, "y": 0, "scale": 1, "width": size["width"]}
        clip["height"] = min(height or size["height"], size["height"])
        taken = await self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        pathlib.Path(path).write_bytes(base64.b64decode(taken["data"]))  # noqa: ASYNC240


@contextlib.asynccontextmanager
async def browser():
    """A function that opens tabs of a new browser, which ends with the block."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            programs.need("chromium"),
            *FLAGS,
            f"--user-data-dir={folder}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with aiohttp.ClientSession() as session:
                address = await _debugging(pathlib.Path(folder) / "DevToolsActivePort")
                async with contextlib.AsyncExitStack() as tabs:

                    async def tab():
                        async with session.put(f"http://{address}/json/new?about:blank") as answer:
                            socket = (await answer.json())["webSocketDebuggerUrl"]
                        page = Page(await session.ws_connect(socket, max_msg_size=0))
                        tabs.push_async_callback(page.close)
                        return page

                    yield tab
        finally:
            process.send_signal(signal.SIGTERM)
            await process.wait()


async def _debugging(file):
    async with asyncio.timeout(PATIENCE):
        while not file.exists() or "\n" not in file.read_text():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return f"127.0.0.1:{file.read_text().splitlines()[0]}"
