"""A headless Chromium that tests drive with chromedriver.

chromedriver is an HTTP server (W3C WebDriver), so that the standard library is enough. Debian has
it in the package chromium-driver. Ubuntu has Chromium only as a snap, without it.
"""

import base64
import json
import pathlib
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # of W3C WebDriver
KEYS = {"Enter": "\ue007", "Tab": "\ue004", "Escape": "\ue00c", "Backspace": "\ue003",
        "Left": "\ue012", "Up": "\ue013", "Right": "\ue014", "Down": "\ue015",
        "Home": "\ue011", "End": "\ue010", "Shift": "\ue008"}  # fmt: skip


def missing_browser() -> str | None:
    """Returns why there is no browser, or None if there is one."""
    for name in ("chromedriver", "chromium"):
        if shutil.which(name) is None:
            return (f"{name} is not installed; on Debian, `tools/setup.sh --browser` installs it "
                    "(Ubuntu has only a snap, without chromedriver)")
    return None


class Browser:
    """One window. Errors of WebDriver are AssertionErrors."""

    def __init__(self, width=1280, height=900):
        self._profile = tempfile.TemporaryDirectory(prefix="cairn-chromium-")
        self._server = subprocess.Popen(
            [shutil.which("chromedriver"), "--port=0"], stdout=subprocess.PIPE, text=True,
            stderr=subprocess.DEVNULL)  # fmt: skip
        self._url = self._wait_for_url()
        options = {
            "binary": shutil.which("chromium"),
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--force-color-profile=srgb", f"--user-data-dir={self._profile.name}",
                     f"--window-size={width},{height}"],
        }  # fmt: skip
        always = {"browserName": "chrome", "goog:chromeOptions": options,
                  "goog:loggingPrefs": {"browser": "ALL"}}  # fmt: skip
        try:
            session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": always}})
        except BaseException:
            self._server.kill()
            self._server.wait()
            raise
        self._url += "/session/" + session["sessionId"]
        self.prefer("light")

    def close(self):
        """Ends the browser and its server."""
        try:
            self._call("DELETE", "")
        finally:
            self._server.terminate()
            self._server.wait(timeout=20)
            self._server.stdout.close()
            self._profile.cleanup()

    def open(self, address):
        """Opens a file or a URL, and waits until it is loaded."""
        if isinstance(address, pathlib.Path):
            address = address.resolve().as_uri()
        self._call("POST", "/url", {"url": address})

    def run(self, script, *arguments):
        """Runs JavaScript in the page, and returns what it returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait_until(self, condition):
        """Waits until a JavaScript expression is true, as `cairn_testing.wait_until`."""
        for _ in range(30_000):
            if self.run(f"return {condition}"):
                return
            time.sleep(0.02)
        raise AssertionError(f"never true: {condition}")

    def press(self, *keys):
        """Presses and releases keys: names of KEYS, or characters."""
        actions = []
        for key in keys:
            value = KEYS.get(key, key)
            actions += [{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}]
        source = {"type": "key", "id": "keyboard", "actions": actions}
        self._call("POST", "/actions", {"actions": [source]})

    def click(self, selector):
        """Scrolls to the element that a CSS selector names, and clicks on it."""
        self.run("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", selector)
        found = self._call("POST", "/element", {"using": "css selector", "value": selector})
        self._call("POST", f"/element/{found[_ELEMENT]}/click", {})

    def resize(self, width, height=900):
        """Sets the size of the viewport."""
        self.devtools("Emulation.setDeviceMetricsOverride",
                      {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})

    def prefer(self, scheme):
        """Sets the preferred color scheme, "light" or "dark", and turns animations off."""
        features = [{"name": "prefers-color-scheme", "value": scheme},
                    {"name": "prefers-reduced-motion", "value": "reduce"}]  # fmt: skip
        self.devtools("Emulation.setEmulatedMedia", {"features": features})

    def devtools(self, command, parameters=None):
        """Sends a command of the Chrome DevTools Protocol."""
        return self._call("POST", "/goog/cdp/execute",
                          {"cmd": command, "params": parameters or {}})  # fmt: skip

    def console(self):
        """Returns the messages of the console since the last call: errors, and what was blocked."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def screenshot(self, path, whole=True):
        """Writes a PNG of the complete page, or of the viewport."""
        shot = self.devtools("Page.captureScreenshot", {"captureBeyondViewport": whole})
        pathlib.Path(path).write_bytes(base64.b64decode(shot["data"]))

    def _wait_for_url(self):
        for line in self._server.stdout:
            if "started successfully on port" in line:
                return "http://127.0.0.1:" + line.split("on port ")[1].strip(" .\n")
        raise AssertionError("chromedriver did not start")

    def _call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data=data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from None
