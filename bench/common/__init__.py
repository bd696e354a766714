"""Code that the programs of bench/ share: states, libraries, child processes, meters, reports.

Importing it makes the package `cairn` of the build tree importable, so it precedes that package.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "build" / "python"))
