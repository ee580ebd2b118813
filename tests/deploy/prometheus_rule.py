#!/usr/bin/env python3
"""Writes the project's address into the runbook_url of each alert of deploy/prometheus/rules.yaml, and its groups into
the PrometheusRule of deploy/kubernetes."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/prometheus/rules.yaml"
RESOURCE = ROOT / "deploy/kubernetes/components/monitoring/prometheusrule.yaml"
HOMEPAGE = re.search(r"HOMEPAGE_URL (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]


def main() -> None:
    rules = re.sub(r"(runbook_url: ).*(/deploy/OPERATING\.md#)", rf"\g<1>{HOMEPAGE}\2", RULES.read_text())
    RULES.write_text(rules)
    groups = rules.partition("\ngroups:\n")[2]
    indented = "".join(f"  {line}\n" if line else "\n" for line in groups.splitlines())
    head = RESOURCE.read_text().partition("  groups:\n")[0]
    RESOURCE.write_text(f"{head}  groups:\n{indented}")


if __name__ == "__main__":
    main()
