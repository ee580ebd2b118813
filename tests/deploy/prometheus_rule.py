#!/usr/bin/env python3
"""Writes the groups of deploy/prometheus/rules.yaml into the PrometheusRule of deploy/kubernetes."""

from pathlib import Path

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = DEPLOY / "prometheus/rules.yaml"
RESOURCE = DEPLOY / "kubernetes/components/monitoring/prometheusrule.yaml"

groups = RULES.read_text().partition("\ngroups:\n")[2]
indented = "".join(f"  {line}\n" if line else "\n" for line in groups.splitlines())
head = RESOURCE.read_text().partition("  groups:\n")[0]
RESOURCE.write_text(f"{head}  groups:\n{indented}")
