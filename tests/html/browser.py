# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven over the DevTools protocol with the standard library alone."""
import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import urllib.request


def find():
    """Path of a Chromium, or None."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path:
            return path
    return None


class WebSocket:
    """A client of text messages (RFC 6455)."""

    def __init__(self, url):
        host, path = url.removeprefix("ws://").split("/", 1)
        name, port = host.split(":")
        self.socket = socket.create_connection((name, int(port)), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                             f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.socket.recv(1)
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise OSError(f"no websocket: {head[:80]!r}")

    def send(self, text):
        data = text.encode()
        size = (struct.pack("!BB", 0x81, 0x80 | len(data)) if len(data) < 126 else
                struct.pack("!BBH", 0x81, 0xFE, len(data)) if len(data) < 65536 else
                struct.pack("!BBQ", 0x81, 0xFF, len(data)))
        mask = os.urandom(4)
        self.socket.sendall(size + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def _exactly(self, n):
        out = bytearray()
        while len(out) < n:
            part = self.socket.recv(min(n - len(out), 1 << 20))
            if not part:
                raise OSError("the browser closed the connection")
            out += part
        return bytes(out)

    def receive(self):
        text = b""
        while True:
            first, size = self._exactly(2)
            size &= 0x7F
            if size == 126:
                size, = struct.unpack("!H", self._exactly(2))
            elif size == 127:
                size, = struct.unpack("!Q", self._exactly(8))
            data = self._exactly(size)
            if first & 0x0F in (0, 1):
                text += data
                if first & 0x80:
                    return text.decode()


class Browser:
    """One page. `problems` has what its console and its network said that it should not."""

    def __init__(self, path):
        self.folder = tempfile.mkdtemp(prefix="stowage-chromium-")
        arguments = [path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                     "--hide-scrollbars", "--remote-debugging-port=0", f"--user-data-dir={self.folder}", "about:blank"]
        self.process = subprocess.Popen(arguments, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        port = None
        for line in self.process.stderr:
            if "DevTools listening on" in line:
                port = line.split("ws://")[1].split("/")[0]
                break
        if port is None:
            raise OSError("Chromium did not start")
        with urllib.request.urlopen(f"http://{port}/json/list", timeout=30) as answer:
            page = next(t for t in json.load(answer) if t["type"] == "page")
        self.socket = WebSocket(page["webSocketDebuggerUrl"])
        self.number = 0
        self.problems = []
        self.loaded = False
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def _event(self, message):
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"])[:600])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.problems.append(json.dumps(params["args"])[:300])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(json.dumps(params["entry"])[:300])
        elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(("file:", "blob:", "data:", "about:")):
            self.problems.append("request of " + params["request"]["url"][:120])
        elif method == "Page.loadEventFired":
            self.loaded = True

    def call(self, method, **params):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.receive())
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self._event(message)

    def size(self, width, height, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
        self.call("Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, path):
        self.loaded = False
        self.call("Page.navigate", url="file://" + os.path.abspath(path))
        while not self.loaded:
            self._event(json.loads(self.socket.receive()))
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script):
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:600])
        return answer["result"].get("value")

    def key(self, name):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def move(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path, full=True):
        if full:
            height = self.run("document.documentElement.scrollHeight")
            clip = {"x": 0, "y": 0, "width": self.run("innerWidth"), "height": min(height, 12000), "scale": 1}
            data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        else:
            data = self.call("Page.captureScreenshot", format="png")
        with open(path, "wb") as file:
            file.write(base64.b64decode(data["data"]))

    def pdf(self, path, width_in, height_in):
        data = self.call("Page.printToPDF", paperWidth=width_in, paperHeight=height_in, printBackground=True, preferCSSPageSize=False)
        with open(path, "wb") as file:
            file.write(base64.b64decode(data["data"]))

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=30)
        shutil.rmtree(self.folder, ignore_errors=True)
