"""Creates docs/report.png and docs/report-summary.png: `kv-dump report` of a made-up run.

    PYTHONPATH=build/python .venv/bin/python docs/site/pictures.py

Needs build/bin/kv-dump, Chromium (tools/setup.sh --browser) and Pillow, which reduces the colors.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
sys.path += [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "tools")]
from browser import Browser  # noqa: E402
from report_runs import prepared_run  # noqa: E402

SIZES = {"report.png": (776, 1435), "report-summary.png": (1000, 640)}


def main():
    with tempfile.TemporaryDirectory() as directory:
        run = prepared_run(Path(directory) / "runs" / "gpt")
        page = Path(directory) / "report.html"
        command = [ROOT / "build" / "bin" / "kv-dump", "report", "runs/gpt", "-o", page]
        subprocess.run(command, cwd=run.parents[1], check=True)
        page.write_text(page.read_text().replace(f"{run.parents[1]}/", ""))
        browser = Browser()
        try:
            for name, size in SIZES.items():
                browser.resize(*size)
                browser.open(page)
                browser.devtools("Emulation.setScrollbarsHidden", {"hidden": True})
                browser.screenshot(DOCS / name, whole=False)
                picture = Image.open(DOCS / name).convert("RGB")
                picture = picture.quantize(64, dither=Image.Dither.NONE)
                picture.save(DOCS / name, optimize=True)
        finally:
            browser.close()


if __name__ == "__main__":
    main()
