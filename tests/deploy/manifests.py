"""Renders manifests, and looks up what tests need in them."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
TOOLS = Path(os.environ.get("DEPLOY_TOOLS", "build/release/deploy-tools")).resolve()
RENDERED = sorted(
    path.parent for kind in ("overlays", "examples") for path in KUBERNETES.glob(f"{kind}/*/kustomization.yaml")
)
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # The C loader is ten times as fast, but not always there.
SERVER_IMAGE = re.compile(r"(.*/)?routing-replay-server([:@].*)?$")


@dataclasses.dataclass(frozen=True)
class Template:
    """A pod template of a resource: the part of a Deployment, for example, from which its pods are made."""

    where: str
    body: dict[str, Any]
    namesake: dict[str, Any]  # The resource that contains it.

    @property
    def spec(self) -> dict[str, Any]:
        return self.body["spec"]

    @property
    def labels(self) -> dict[str, str]:
        return self.body.get("metadata", {}).get("labels", {})

    def containers(self) -> list[dict[str, Any]]:
        return self.spec["containers"] + self.spec.get("initContainers", [])


@functools.cache
def _text(directory: Path) -> str:
    done = subprocess.run([TOOLS / "kubectl", "kustomize", directory], capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"kubectl kustomize {directory}: {done.stderr}")
    return done.stdout


def render(directory: Path) -> list[dict[str, Any]]:
    """The output of `kubectl kustomize` for a folder."""
    return [document for document in yaml.load_all(_text(directory), LOADER) if document]


def name_of(resource: dict[str, Any]) -> str:
    return f"{resource['kind']}/{resource['metadata']['name']}"


def of_kind(resources: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [resource for resource in resources if resource["kind"] == kind]


def templates(resources: list[dict[str, Any]]) -> list[Template]:
    """The pod templates of every kind of resource that makes pods."""
    return [
        Template(f"{name_of(resource)} {path}".strip(), body, resource)
        for resource in resources
        for path, body in _bodies(resource)
    ]


def _bodies(resource: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    kind, spec = resource["kind"], resource.get("spec", {})
    if kind in ("Deployment", "StatefulSet", "Job"):
        yield "", spec["template"]
    elif kind == "LeaderWorkerSet":
        for part in ("leaderTemplate", "workerTemplate"):
            yield part, spec["leaderWorkerTemplate"][part]
    elif kind == "Pod":
        yield "", resource
    elif kind == "RayCluster":
        yield "head", spec["headGroupSpec"]["template"]
        for group in spec["workerGroupSpecs"]:
            yield group["groupName"], group["template"]
    elif kind == "JobSet":
        for job in spec["replicatedJobs"]:
            yield job["name"], job["template"]["spec"]["template"]


REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


def expand(text: str, variables: dict[str, str]) -> str:
    """Expands like the kubelet: $(NAME) is the value of a known variable, `$$` is `$`, and everything else stays."""
    return REFERENCE.sub(lambda found: "$" if found[1] is None else variables.get(found[1], found[0]), text)


def started(container: dict[str, Any], fields: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Returns the command that the kubelet starts (`command` with `args`), and its environment variables.

    fields: the values of the pod's fields, such as its name, by path
    """
    variables: dict[str, str] = {}
    for each in container.get("env", []):
        given = each["value"] if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        variables[each["name"]] = expand(given, variables)
    words = container.get("command", []) + container.get("args", [])
    return [expand(word, variables) for word in words], variables


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether the selector matches the labels. It has matchLabels and matchExpressions (only In), or, like a Service's,
    plain labels."""
    if not {"matchLabels", "matchExpressions"} & set(selector):
        return all(labels.get(key) == value for key, value in selector.items())
    for expression in selector.get("matchExpressions", []):
        assert expression["operator"] == "In", expression
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


_UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def number_of_bytes(text: str) -> int:
    """The bytes of a size in the form of Kubernetes ("8Gi") or of the server ("8GiB")."""
    number, unit = re.fullmatch(r"(\d+)([A-Za-z]*)", str(text)).groups()
    return int(number) * _UNITS[unit]


def seconds(text: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(ms|s|m|h)", text).groups()
    return int(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit]
