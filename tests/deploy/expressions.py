"""The expressions of the alerts and of the dashboard, and the metrics that they name."""

from __future__ import annotations

import json
import re

import yaml
from manifests import ROOT

RULES = ROOT / "deploy/prometheus/rules.yaml"
DASHBOARD = ROOT / "deploy/grafana/routing-replay.json"


def alerts() -> list[dict]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def dashboard() -> dict:
    return json.loads(DASHBOARD.read_text())


def panels(row: str | None = None) -> list[dict]:
    """The panels of the dashboard, or of one of its rows, without the rows themselves."""
    found, under = [], None
    for panel in dashboard()["panels"]:
        if panel["type"] == "row":
            under = panel["title"]
        elif row in (None, under):
            found.append(panel)
    return found


def of_panels(chosen: list[dict]) -> list[str]:
    return [target["expr"] for panel in chosen for target in panel["targets"]]


def commands(*names: str) -> list[str]:
    """Returns the kubectl commands in these documents, each in one line."""
    found = []
    for name in names:
        text = re.sub(r"\\\n\s*", "", (ROOT / name).read_text())
        found += re.findall(r"^(?: {4})?(kubectl .*?)(?: {2,}#.*| \| .*)?$", text, re.MULTILINE)
    return found


def metrics(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:routing_replay|process)_[a-z0-9_]*[a-z0-9]\b", expression))


def trainer_metrics() -> set[str]:
    """Each key of a trainer's report, spelled as a Prometheus name; NN stands for a layer."""
    source = (ROOT / "trainer_plugin/python/src/routing_replay_trainer/metrics.py").read_text()
    prefix = re.search(r'^PREFIX = "(.*)"$', source, re.MULTILINE)[1]
    keys = re.findall(r'Key\(\s*"([\w/]+)"', source)
    return {re.sub(r"[^a-zA-Z0-9_:]", "_", prefix + key) for key in keys}
