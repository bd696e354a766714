#!/usr/bin/env python3
"""Runs the tests of this folder with the standard library only: run.py [MODULE ...]

Without a GPU, the modules are skipped, with the reason.
"""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from gpu_machine import why_not


def main() -> int:
    modules = sys.argv[1:] or sorted(path.stem for path in HERE.glob("test_*.py"))
    if (reason := why_not()) is not None:
        for module in modules:
            print(f"{module}: Skipped\nneeds a GPU: {reason}")
        return 0
    suite = unittest.defaultTestLoader.loadTestsFromNames(modules)
    return 0 if unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
