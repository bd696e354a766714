"""Prints the software bill of materials of a wheel as CycloneDX JSON: what is compiled into it,
with versions, licences, and the SHA-256 of the pinned sources.

    tools/wheel/sbom.py VERSION >cairn-VERSION.cdx.json

SOURCE_DATE_EPOCH is its time.
"""

import json
import os
import re
import subprocess
import sys
import urllib.parse
from datetime import datetime, timezone
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Of PyPI: the package, its licence, and the file that pins it.
OF_PYPI = {
    "nanobind": ("nanobind", {"expression": "BSD-3-Clause"}, "requirements.txt"),
    "cuda-runtime": ("nvidia-cuda-runtime", {"license": {"name": "NVIDIA CUDA Toolkit EULA"}},
                     "requirements-cuda-runtime.txt"),
}  # fmt: skip


def component(name: str, version: str, purl: str, licence: dict, sums: list[str]) -> dict:
    hashes = [{"alg": "SHA-256", "content": content} for content in sums]
    return {
        "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl,
        "licenses": [licence], **({"hashes": hashes} if hashes else {}),
    }  # fmt: skip


def components() -> list[dict]:
    found = []
    for line in (HERE / "sources.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, path, content, licence = line.split(maxsplit=3)
            source, version = re.fullmatch(
                r"(.+?)_(.+?)(?:\.orig\.tar\..z|\.dsc)", path.rsplit("/", 1)[1]
            ).groups()
            purl = f"pkg:deb/debian/{source}@{urllib.parse.quote(version)}?arch=source"
            found.append(component(name, version, purl, {"expression": licence}, [content]))
    for name, (package, licence, pins) in OF_PYPI.items():
        version, sums = re.search(
            rf"^{package}==(\S+)((?: |\\\n|--hash=sha256:\w+)+)", (HERE / pins).read_text(), re.M
        ).groups()
        purl = f"pkg:pypi/{package}@{version}"
        found.append(component(name, version, purl, licence, re.findall(r"sha256:(\w+)", sums)))
    version = subprocess.check_output(
        ["dpkg-query", "--show", "--showformat=${Version}", "libstdc++-12-dev"], text=True
    )
    purl = f"pkg:deb/debian/gcc-12@{urllib.parse.quote(version)}?arch=source"
    licence = {"expression": "GPL-3.0-or-later WITH GCC-exception-3.1"}
    found.append(component("libstdc++", version, purl, licence, []))
    return sorted(found, key=lambda one: one["name"])


def main(version: str) -> None:
    time = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), timezone.utc)
    purl = f"pkg:pypi/cairn-ckpt@{version}"
    product = component("cairn-ckpt", version, purl, {"expression": "Apache-2.0"}, [])
    contained = components()
    bom = {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"), "component": product},
        "components": contained,
        "dependencies": [{"ref": purl, "dependsOn": [one["bom-ref"] for one in contained]}],
    }  # fmt: skip
    print(json.dumps(bom, indent=2))


if __name__ == "__main__":
    main(*sys.argv[1:])
