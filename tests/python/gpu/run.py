#!/usr/bin/env python3
"""Runs the tests in this folder with the standard library only.

    python3 run.py [RESULTS.json]

The results have the format of GoogleTest. Without a GPU, each module counts as one skipped test,
with the reason.
"""

from __future__ import annotations

import json
import sys
import unittest
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from gpu_machine import why_not


class Results(unittest.TextTestResult):
    """Records the outcome of each test by its class and name."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.tests: dict[str, dict[str, Any]] = {}

    def note(self, test: Any, result: str = "COMPLETED", failure: str = "") -> None:
        names = test.id().split(".")
        entry = {"classname": ".".join(names[:-1]), "name": names[-1], "result": result}
        if failure:
            entry["failures"] = [{"failure": failure}]
        self.tests[test.id()] = entry

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        self.note(test)

    def addSkip(self, test: Any, reason: str) -> None:
        super().addSkip(test, reason)
        self.note(test, "SKIPPED")
        print(f"{test.id()}: Skipped\n{reason}")

    def addFailure(self, test: Any, err: Any) -> None:
        super().addFailure(test, err)
        self.note(test, failure=str(err[1]))

    def addError(self, test: Any, err: Any) -> None:
        super().addError(test, err)
        self.note(test, failure=str(err[1]))


def run() -> tuple[list[dict[str, Any]], bool]:
    """The outcome of every test, and whether all have passed."""
    reason = why_not()
    if reason is not None:
        modules = sorted(path.stem for path in HERE.glob("test_*.py"))
        for module in modules:
            print(f"{module}: Skipped\nneeds a GPU: {reason}")
        return [
            {"classname": module, "name": "all", "result": "SKIPPED"} for module in modules
        ], True
    suite = unittest.defaultTestLoader.discover(str(HERE), "test_*.py")
    results = unittest.TextTestRunner(verbosity=2, resultclass=Results).run(suite)
    return list(results.tests.values()), results.wasSuccessful()


def main() -> int:
    tests, good = run()
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps({"testsuites": [{"testsuite": tests}]}) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
