"""The container image: built twice, inspected, unpacked, and run as a container runtime would.

Usage: image_test.py BUILD

Needs root, to give the server a file system of its own. The Dockerfile is not built here: it takes its files from the
same script, and its other settings are compared with the image.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from pathlib import Path

BUILD = Path(sys.argv.pop(1)).resolve()
ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "deploy/quickstart/main.py"
CONTAINER = ROOT / "deploy/container"
IN_IMAGE = Path(__file__).with_name("in_image.sh")
SKIPPED = 77


def make(out: Path) -> str:
    """Builds the image into the folder `out`. Returns the digest that the script prints."""
    command = [CONTAINER / "build_image.sh", "--build", BUILD, "--out", out, "--tag", "routing-replay-server:test"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


class Image:
    """Opens an archive in OCI's image layout and checks each blob against its digest."""

    def __init__(self, archive: Path) -> None:
        with tarfile.open(archive) as tar:
            self._files = {entry.name: tar.extractfile(entry).read() for entry in tar.getmembers()}
        assert json.loads(self._files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
        (self.descriptor,) = json.loads(self._files["index.json"])["manifests"]
        manifest = json.loads(self.blob(self.descriptor))
        self.config = json.loads(self.blob(manifest["config"]))
        # Docker without containerd's image store reads this file.
        (self.docker,) = json.loads(self._files["manifest.json"])
        named = [self.docker["Config"], *self.docker["Layers"]]
        assert named == [
            f"blobs/{blob['digest'].replace(':', '/')}" for blob in (manifest["config"], *manifest["layers"])
        ]
        self.layers = [gzip.decompress(self.blob(layer)) for layer in manifest["layers"]]

    def blob(self, descriptor: dict) -> bytes:
        content = self._files[f"blobs/{descriptor['digest'].replace(':', '/')}"]
        assert len(content) == descriptor["size"]
        assert hashlib.sha256(content).hexdigest() == descriptor["digest"].removeprefix("sha256:")
        return content

    def entries(self) -> list[tarfile.TarInfo]:
        return [entry for layer in self.layers for entry in tarfile.open(fileobj=io.BytesIO(layer)).getmembers()]

    def unpack(self, root: Path) -> None:
        for layer in self.layers:
            with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
                tar.extractall(root, numeric_owner=True)


class ImageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="image-test-")
        cls.addClassCleanup(cls.directory.cleanup)
        work = Path(cls.directory.name)
        work.chmod(0o755)
        cls.digest = make(work / "image.tar")
        cls.image = Image(work / "image.tar")
        cls.root = work / "root"
        cls.image.unpack(cls.root)

    def scratch(self) -> Path:
        """A folder that the image's user may write to, at the same path inside and outside of the image."""
        directory = tempfile.TemporaryDirectory(dir="/tmp", prefix="image-test-")
        self.addCleanup(directory.cleanup)
        os.chown(directory.name, 65532, 65532)
        return Path(directory.name)

    def start(self, *arguments: str) -> tuple[subprocess.Popen, str]:
        """Starts the image's server. Returns its process and its address."""
        endpoint = self.scratch() / "endpoint"
        command = [IN_IMAGE, self.root, "--listen", "127.0.0.1:0", "--endpoint-file", endpoint, *arguments]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.addCleanup(server.stderr.close)
        self.addCleanup(server.kill)
        while not endpoint.exists():
            self.assertIsNone(server.poll(), "the server has ended")
            time.sleep(0.01)
        return server, endpoint.read_text().strip()

    def test_the_same_build_gives_the_same_image(self):
        again = Path(self.directory.name, "again.tar")
        self.assertEqual(make(again), self.digest)
        self.assertEqual(again.read_bytes(), Path(self.directory.name, "image.tar").read_bytes())
        self.assertEqual(self.image.descriptor["digest"], self.digest)

    def test_the_layers_are_those_of_the_config(self):
        plain = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in self.image.layers]
        self.assertEqual(self.image.config["rootfs"]["diff_ids"], plain)

    def test_it_holds_what_the_server_needs_and_no_tools(self):
        names = {entry.name for entry in self.image.entries()}
        programs = {name for name in names if name.startswith("usr/bin/")}
        self.assertEqual(programs, {"usr/bin/routing-replay-server", "usr/bin/rrctl"})
        self.assertIn("etc/ssl/certs/ca-certificates.crt", names)
        libraries = {name for name in names if re.search(r"\.so(\.|$)", name)}
        self.assertTrue(any("ld-linux" in name for name in libraries))
        self.assertTrue(any("librocksdb" in name for name in libraries))

    def test_files_are_roots_and_nobody_gains_rights_by_them(self):
        for entry in self.image.entries():
            self.assertFalse(entry.mode & 0o6000, entry.name)
            if entry.name == "var/lib/routing-replay":
                self.assertEqual(entry.uid, 65532)
                continue
            self.assertEqual((entry.uid, entry.gid), (0, 0), entry.name)
            if not entry.issym() and entry.name != "tmp":
                self.assertFalse(entry.mode & 0o022, entry.name)

    def test_it_says_what_it_is_made_of_and_under_which_licences(self):
        doc = self.root / "usr/share/doc/routing-replay"
        self.assertTrue((doc / "copyright").stat().st_size)
        parts = {}
        bill = json.loads((doc / "sbom.spdx.json").read_text())
        names = {package["SPDXID"]: package["name"] for package in bill["packages"]}
        for relation in bill["relationships"]:
            parts.setdefault(relation["relationshipType"], set()).add(names.get(relation["relatedSpdxElement"]))
        # The image has everything that the server loads.
        self.assertNotIn("DYNAMIC_LINK", parts)
        self.assertTrue(any(name.startswith("librocksdb") for name in parts["CONTAINS"]))
        self.assertIn("libcli11-dev", parts["STATIC_LINK"])
        notices = (doc / "THIRD_PARTY_NOTICES").read_text()
        for name in parts["CONTAINS"] | parts["STATIC_LINK"]:
            self.assertIn(f"{name} ", notices)
        self.assertTrue((self.root / "usr/share/doc/ca-certificates/copyright").stat().st_size)

    def test_the_dockerfile_describes_the_same_image(self):
        config = self.image.config["config"]
        text = (CONTAINER / "Dockerfile").read_text()
        final = text[text.index("FROM scratch") :]

        def said(word: str) -> str:
            return re.search(rf"^{word} (.*)$", final, re.MULTILINE)[1]

        self.assertEqual(said("USER"), config["User"])
        self.assertEqual({f"{port}/tcp" for port in said("EXPOSE").split()}, set(config["ExposedPorts"]))
        self.assertEqual([said("ENV")], config["Env"])
        self.assertEqual(json.loads(said("ENTRYPOINT")), config["Entrypoint"])
        self.assertEqual(said("STOPSIGNAL"), config["StopSignal"])
        self.assertEqual(re.findall(r"^COPY --from=build /(\w+) /$", final, re.MULTILINE), ["libraries", "programs"])
        self.assertIn("make_root.sh build/release /libraries /programs", text)
        # The image must have no HEALTHCHECK: a check in plaintext would report every server with TLS as unhealthy.
        self.assertNotIn("\nHEALTHCHECK", final)
        owned = {entry.name: entry.uid for entry in self.image.entries() if entry.uid}
        given = re.findall(r"^COPY --from=build --chown=(\d+):\d+ /libraries/(\S+) /\S+$", final, re.MULTILINE)
        self.assertEqual({name: int(user) for user, name in given}, owned)

    def test_the_manifests_run_it_as_its_own_user_on_its_own_ports(self):
        text = (ROOT / "deploy/kubernetes/base/statefulset.yaml").read_text()
        user = self.image.config["config"]["User"]
        self.assertEqual(user, ":".join(re.findall(r"runAs(?:User|Group): (\d+)", text)))
        ports = {f"{port}/tcp" for port in re.findall(r"containerPort: (\d+)", text)}
        self.assertEqual(ports, set(self.image.config["config"]["ExposedPorts"]))

    def test_it_runs_without_rights_on_a_file_system_that_it_cannot_change(self):
        server, endpoint = self.start()
        status = Path(f"/proc/{server.pid}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        self.assertEqual(fields["Uid"].split(), ["65532"] * 4)
        self.assertEqual(fields["Gid"].split(), ["65532"] * 4)
        for kind in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
            self.assertEqual(int(fields[kind], 16), 0, kind)
        self.assertEqual(fields["NoNewPrivs"], "1")
        mounts = Path(f"/proc/{server.pid}/mountinfo").read_text().splitlines()
        (options,) = [mount.split()[5] for mount in mounts if mount.split()[4] == "/"]
        self.assertIn("ro", options.split(","))
        rrctl = [BUILD / "bin/rrctl", "--endpoint", endpoint, "status"]
        self.assertEqual(subprocess.run(rrctl, capture_output=True, check=False).returncode, 0)
        # Runs the image's own program, as a health check does.
        inside = [
            "/usr/sbin/chroot",
            "--userspec=65532:65532",
            self.root,
            "/usr/bin/rrctl",
            "--endpoint",
            endpoint,
            "status",
        ]
        self.assertEqual(subprocess.run(inside, capture_output=True, check=False).returncode, 0)
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(30), 0)

    def test_a_store_needs_a_volume(self):
        command = [IN_IMAGE, self.root, "--listen", "127.0.0.1:0", "--store", "rocksdb:/var/lib/routing-replay/store"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("/var/lib/routing-replay", done.stderr)
        store = self.scratch() / "store"
        server, _ = self.start("--store", f"rocksdb:{store}")
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(30), 0)
        self.assertEqual(store.stat().st_uid, 65532)

    def test_it_serves_the_quick_start(self):
        # The quick start compares every id that a rank receives with an independent calculation.
        directory = self.scratch()
        start = directory / "server"
        start.write_text(f'#!/bin/sh\nchown -R 65532:65532 "$TMPDIR"\nexec {IN_IMAGE} {self.root} "$@"\n')
        start.chmod(0o755)
        done = subprocess.run(
            [sys.executable, QUICKSTART, "--server", start],
            env={
                **os.environ,
                "TMPDIR": str(directory),
                "PYTHONPATH": f"{ROOT}/client/python/src:{ROOT}/trainer_plugin/python/src",
                "ROUTING_REPLAY_LIBRARY_DIR": str(BUILD / "lib"),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        print(done.stdout)


if __name__ == "__main__":
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        print("skipped: running an image needs root and the right to mount")
        sys.exit(SKIPPED)
    unittest.main()
