"""Opens a page in a headless browser, from the file system."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NO_BROWSER = "there is no Chromium here; .ci/run installs one"


def visit(page: Path, script: str, size: str = "1280,900") -> dict[str, object]:
    """Open a copy of the page with a script appended; returns the JSON that the script leaves in element `seen`."""
    text = page.read_text()
    guard = "<script>window.errors = []; window.onerror = m => { window.errors.push(String(m)); };</script>"
    copy = page.with_name("visit.html")
    copy.write_text(text.replace("<head>", f"<head>{guard}", 1).replace("</body>", f"<script>{script}</script></body>"))
    command = [
        str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={size}", "--enable-logging=stderr",
        "--virtual-time-budget=3000", "--dump-dom", copy.as_uri(),
    ]  # fmt: skip
    browser = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    match = re.search(r'<pre id="seen">(.*?)</pre>', browser.stdout, re.DOTALL)
    assert match, browser.stderr[-2000:]
    assert "CONSOLE" not in browser.stderr or "Uncaught" not in browser.stderr
    seen: dict[str, object] = json.loads(unescape(match[1]))
    return seen
