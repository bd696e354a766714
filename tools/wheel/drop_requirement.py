"""Removes a requirement from the metadata of a wheel. auditwheel, which runs next, writes RECORD.

tools/wheel/drop_requirement.py WHEEL NAME
"""

import os
import sys
import zipfile


def main(wheel: str, name: str) -> None:
    header = f"Requires-Dist: {name}".encode()
    dropped = 0
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(f"{wheel}.new", "w") as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename.endswith(".dist-info/METADATA"):
                lines = data.splitlines(keepends=True)
                kept = [line for line in lines if not line.startswith(header)]
                dropped, data = len(lines) - len(kept), b"".join(kept)
            new.writestr(info, data)
    if dropped != 1:
        sys.exit(f"{wheel} requires {name} {dropped} times")
    os.replace(f"{wheel}.new", wheel)


main(*sys.argv[1:])
