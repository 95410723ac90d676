"""Chromium without a screen, driven over WebDriver by its own chromedriver.

It takes the standard library only.
"""

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from .process import ROOT, Child, Failure, free_port, poll, scratch

# Not a word to anybody but the page under test.
FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run
--disable-background-networking --disable-component-update --disable-sync --disable-default-apps
--disable-extensions --metrics-recording-only --hide-scrollbars
--force-device-scale-factor=1""".split()
UNPACKED = ROOT / ".tools" / "chromedriver"


def programs():
    """Chromium and chromedriver: installed, or Debian's unpacked by tools/debian.sh. None where
    there are neither.
    """
    if shutil.which("chromium") and shutil.which("chromedriver"):
        return [Path(shutil.which("chromium")), Path(shutil.which("chromedriver"))]
    if shutil.which("apt-get"):
        unpack = ". tools/debian.sh && debian chromedriver chromium-driver"
        subprocess.run(["bash", "-c", unpack], cwd=ROOT, capture_output=True)
    found = [UNPACKED / "usr/lib/chromium/chromium", UNPACKED / "chromedriver"]
    return found if all(path.exists() for path in found) else None


class Browser:
    """One window. Closing it ends chromedriver and Chromium with it."""

    def __init__(self):
        found = programs()
        if found is None:
            raise Failure("there is no chromium with chromedriver: apt install chromium-driver")
        chromium, driver = found
        self.folder = Path(scratch("browser-"))
        self.profile = tempfile.mkdtemp(dir=self.folder)
        self.port = free_port()
        log = self.folder / "chromedriver.log"
        self.child = Child("chromedriver", [driver, f"--port={self.port}"], log)
        self.session = ""
        poll("chromedriver to answer", self.is_ready, 20, check=self.child.check)
        options = {
            "binary": str(chromium),
            "args": [*FLAGS, f"--user-data-dir={self.profile}"],
        }
        wanted = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        answer = self.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"/session/{answer['sessionId']}"

    def is_ready(self):
        try:
            return self.call("GET", "/status")["ready"]
        except OSError:
            return False

    def call(self, method, path, body=None):
        """One command; its value."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=data,
            method=method,
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise Failure(
                f"chromedriver, {method} {path}: {error.read().decode()[:2000]}"
            ) from None

    def tell(self, path, body):
        """A command to the window."""
        return self.call("POST", self.session + path, body)

    def open(self, url):
        self.tell("/url", {"url": url})

    def run(self, script, *arguments):
        """What the body of a JavaScript function returns."""
        return self.tell("/execute/sync", {"script": script, "args": list(arguments)})

    def devtools(self, command, **parameters):
        return self.tell("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def screen(self, width, height, scheme="light", mobile=False):
        """A screen of that size, of somebody who likes it `light` or `dark`."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", features=features)

    def keys(self, *keys):
        """Presses keys, by their DevTools names, wherever the focus is."""
        for key in keys:
            for kind in ("rawKeyDown", "keyUp"):
                self.devtools("Input.dispatchKeyEvent", type=kind, key=key, code=key, **CODES[key])

    def console(self):
        """Lines of the console since the last call, without those of Chromium's own first page."""
        lines = self.tell("/se/log", {"type": "browser"})
        return [line for line in lines if not line["message"].startswith("chrome://")]

    def hosts(self):
        """Hosts and ports that something was asked of since the last call."""
        entries = [
            json.loads(entry["message"]) for entry in self.tell("/se/log", {"type": "performance"})
        ]
        sent = [
            e["message"]["params"]
            for e in entries
            if e["message"]["method"] == "Network.requestWillBeSent"
        ]
        urls = [urllib.parse.urlsplit(params["request"]["url"]) for params in sent]
        return {url.netloc for url in urls if url.scheme in ("http", "https", "ws", "wss")}

    def screenshot(self, path):
        """The whole page, as far down as it goes."""
        shot = self.devtools("Page.captureScreenshot", captureBeyondViewport=True)
        Path(path).write_bytes(base64.b64decode(shot["data"]))

    def close(self):
        if self.session:
            self.call("DELETE", self.session)
            self.session = ""
        # Also of a Chromium that would not go.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


CODES = {
    "Tab": {"windowsVirtualKeyCode": 9},
    "ArrowLeft": {"windowsVirtualKeyCode": 37},
    "ArrowRight": {"windowsVirtualKeyCode": 39},
    "End": {"windowsVirtualKeyCode": 35},
    "Home": {"windowsVirtualKeyCode": 36},
    "Escape": {"windowsVirtualKeyCode": 27},
}
