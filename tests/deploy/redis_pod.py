"""Runs the scripts of a pod of components/redis-cluster on this machine, with folders in place of the pod's volumes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from manifests import KUBERNETES, Template, of_kind, render, started

# Both names are the same program, which runs as the server under the name redis-server.
REDIS = shutil.which("redis-server") or shutil.which("redis-check-rdb")
VOLUMES = {
    "/etc/redis": "etc",
    "/etc/redis-create": "create",
    "/etc/redis-auth": "auth",
    "/etc/redis-tls": "tls",
    "/run/redis": "run",
    "/data": "data",
}
PASSWORD, SERVER_PASSWORD = "secret", "less"
# The name of a program that the pod needs and this machine lacks; None if it has all.
missing = next((name for name in ("redis-check-rdb", "redis-cli", "openssl") if not shutil.which(name)), None)


def issue(directory: Path, serial: int) -> None:
    """Writes tls.crt and tls.key to the folder: a certificate with the DNS names of examples/cert-manager, and its key.
    The authority that signs the certificate is in the same folder; the first call creates it."""
    certificates = of_kind(render(KUBERNETES / "examples/cert-manager"), "Certificate")
    (names,) = [each["spec"]["dnsNames"] for each in certificates if each["spec"]["secretName"].endswith("-redis-tls")]
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    if not (directory / "ca.crt").exists():
        openssl("req", "-x509", *curve, "-days", "1", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.crt")
    (directory / "names").write_text("subjectAltName=" + ",".join(f"DNS:{name}" for name in names))
    openssl("req", *curve, "-subj", "/CN=redis", "-keyout", "new.key", "-out", "request")
    signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-set_serial", str(serial), "-days", "1", "-extfile", "names")
    openssl("x509", "-req", "-in", "request", *signed, "-out", "new.crt")
    (directory / "new.key").rename(directory / "tls.key")
    (directory / "new.crt").rename(directory / "tls.crt")


def mounted(template: Template, resources: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """The files that a pod's first container gets from ConfigMaps, by folder and name."""
    data = {each["metadata"]["name"]: each["data"] for each in of_kind(resources, "ConfigMap")}
    volumes = {each["name"]: each["configMap"]["name"] for each in template.spec["volumes"] if "configMap" in each}
    mounts = template.containers()[0]["volumeMounts"]
    return {each["mountPath"]: dict(data[volumes[each["name"]]]) for each in mounts if each["name"] in volumes}


class RedisPod:
    """directory: the folder in which a folder for each volume of the pod is made
    name: name of the pod
    files: content of the files from its ConfigMaps, by folder and name, as `mounted` returns them
    tls: the folder in which `issue` has put certificate and key
    """

    def __init__(self, directory: Path, name: str, files: dict[str, dict[str, str]], tls: Path) -> None:
        self.directory, self._name = directory, name
        for volume in (*VOLUMES.values(), "bin"):
            (directory / volume).mkdir(parents=True)
        (directory / "tls").rmdir()
        (directory / "tls").symlink_to(tls)
        (directory / "bin/redis-server").symlink_to(REDIS)
        (directory / "auth/password").write_text(f"{PASSWORD}\n")
        (directory / "auth/server-password").write_text(f"{SERVER_PASSWORD}\n")
        for folder, texts in files.items():
            for file, text in texts.items():
                (directory / VOLUMES[folder] / file).write_text(self.here(text))

    def here(self, text: str) -> str:
        """Replaces the paths of the pod's volumes by those of their folders on this machine."""
        for inside, name in VOLUMES.items():
            text = re.sub(rf"{inside}(?=/|$)", f"{self.directory}/{name}", text, flags=re.MULTILINE)
        return text

    def started(self, container: dict[str, Any], address: str) -> tuple[list[str], dict[str, str]]:
        """Returns the command that the kubelet would start for the container, and its environment. `here` replaces the
        paths of the pod's volumes in the command."""
        command, variables = started(container, {"metadata.name": self._name, "status.podIP": address})
        path = f"{self.directory}/bin:{os.environ['PATH']}"
        return [self.here(word) for word in command], {**variables, "PATH": path}

    def ask(
        self, address: str, *command: str, password: str = PASSWORD, user: str = "default", port: int = 6379
    ) -> str:
        cli = ["redis-cli", "--tls", "--cacert", self.directory / "tls/ca.crt", "--user", user, "-h", address]
        environment = {"PATH": os.environ["PATH"], "REDISCLI_AUTH": password}
        done = subprocess.run([*cli, "-p", str(port), *command], env=environment, capture_output=True, text=True)
        return done.stdout + done.stderr
