#!/usr/bin/env python3
"""Prints the tests of a ctest JUnit file that were skipped, and their reasons.

A whole test is skipped by exit status 77; its reason is the last line it printed. A test program may also skip some of
its cases (GTEST_SKIP); the reason is the line that GoogleTest prints before the case's verdict.
"""

import sys
from xml.etree import ElementTree


def skipped_cases(lines):
    """Yields (case, reason) for every case that GoogleTest skipped, once each."""
    for i, line in enumerate(lines):
        if line.startswith("[  SKIPPED ]") and line.endswith(")"):
            case = line[len("[  SKIPPED ]") :].split("(")[0].strip()
            reason = next((r for r in reversed(lines[:i]) if r and not r.startswith("[")), "")
            yield case, reason


def skips(path):
    for test in ElementTree.parse(path).getroot().iter("testcase"):
        lines = [line.rstrip() for line in (test.findtext("system-out") or "").splitlines()]
        if test.find("skipped") is not None:
            yield test.get("name"), next((line for line in reversed(lines) if line), "no reason given")
        else:
            for case, reason in skipped_cases(lines):
                yield f"{test.get('name')}: {case}", reason or "no reason given"


def main():
    found = list(skips(sys.argv[1]))
    if not found:
        print("Nothing was skipped.")
        return
    print(f"Skipped ({len(found)}):")
    for name, reason in found:
        print(f"  {name}: {reason}")


if __name__ == "__main__":
    main()
