"""Runs deploy/release.sh with the packages that wheels_test and debs_test built, in a clean copy of the tree.

Usage: release_test.py BUILD

Only the image is built, which takes seconds. The signing key is generated for the test.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(sys.argv.pop(1)).resolve()
VERSION = re.search(r"^project\(routing_replay VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(), re.M)[1]
SKIPPED = 77
PARTS = ("STATIC_LINK", "CONTAINS")


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def made():
    return sorted([*BUILD.glob("wheels/dist/*.whl"), *BUILD.glob("debs-test/*.deb")])


class ReleaseTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory(prefix="release-test-")
        cls.addClassCleanup(directory.cleanup)
        cls.work = Path(directory.name)
        cls.tree, cls.key, cls.packages = (cls.work / name for name in ("tree", "key", "packages"))
        unwanted = shutil.ignore_patterns("build", "dist", ".git", "__pycache__", ".ruff_cache", ".venv")
        shutil.copytree(ROOT, cls.tree, ignore=unwanted, symlinks=True)
        cls.change("CHANGELOG.md", r"^## \[([0-9.]+)\] - \S+$", r"## [\1] - 2026-01-02")
        cls.git("init", "--quiet")
        cls.commit()
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", cls.key)
        cls.packages.mkdir()
        for file in made():
            shutil.copy(file, cls.packages)
        image = cls.packages / f"routing-replay-server-{VERSION}-image.tar"
        done = run(ROOT / "deploy/container/build_image.sh", "--build", BUILD, "--out", image)
        assert done.returncode == 0, done.stderr
        cls.release = cls.work / "release"
        done = cls.make(cls.release)
        assert done.returncode == 0, done.stdout + done.stderr
        cls.said = done.stdout

    @classmethod
    def git(cls, *arguments):
        who = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
        done = run("git", *who, *arguments, cwd=cls.tree)
        assert done.returncode == 0, done.stderr

    @classmethod
    def commit(cls):
        cls.git("add", "--all")
        cls.git("commit", "--quiet", "--message", "test")

    @classmethod
    def change(cls, path, pattern, replacement):
        text = (cls.tree / path).read_text()
        changed = re.sub(pattern, replacement, text, flags=re.M)
        (cls.tree / path).write_text(changed)

    @classmethod
    def make(cls, out, packages=None):
        command = (cls.tree / "deploy/release.sh", "--key", cls.key, "--out", out)
        # The script must see the copy's own Git repository, so variables such as GIT_DIR, with which a Git hook would
        # run this test, are removed.
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        return run(*command, "--packages", packages or cls.packages, env=clean)

    def rejected(self, said, packages=None):
        out = self.work / "rejected"
        done = self.make(out, packages)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stderr, said)
        self.assertFalse((out / "SHA256SUMS.sig").exists())
        shutil.rmtree(out, ignore_errors=True)

    def with_change(self, path, pattern, replacement, said, commit=True):
        head = run("git", "rev-parse", "HEAD", cwd=self.tree).stdout.strip()
        before = (self.tree / path).read_text()
        self.change(path, pattern, replacement)
        self.assertNotEqual((self.tree / path).read_text(), before)
        if commit:
            self.commit()
        try:
            self.rejected(said)
        finally:
            self.git("reset", "--quiet", "--hard", head)

    def verify(self, public, sums):
        """Runs the verification commands of the release notes in a shell, in a folder with the files."""
        (command,) = re.findall(r"^ *(printf .*\n *ssh-keygen .*)$", self.said, re.M)
        where = Path(tempfile.mkdtemp(dir=self.work))
        for file in self.release.iterdir():
            (where / file.name).symlink_to(file)
        (where / "SHA256SUMS").unlink()
        (where / "SHA256SUMS").write_text(sums)
        shutil.copy(public, where / "KEY.pub")
        return run("sh", "-ec", command, cwd=where)

    def test_sums_and_signature_hold_and_notice_a_change(self):
        sums = (self.release / "SHA256SUMS").read_text()
        named = {line.split()[1] for line in sums.splitlines()}
        self.assertEqual(named, {file.name for file in self.release.iterdir()} - {"SHA256SUMS", "SHA256SUMS.sig"})
        self.assertEqual(len(named), 8)
        public = self.key.with_suffix(".pub")
        done = self.verify(public, sums)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count(": OK"), 8)
        self.assertNotEqual(self.verify(public, sums.replace("0", "1", 1)).returncode, 0)
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.work / "other")
        self.assertNotEqual(self.verify(self.work / "other.pub", sums).returncode, 0)

    def test_the_bill_names_each_file_and_all_that_is_in_it(self):
        bill = json.loads((self.release / "sbom.spdx.json").read_text())
        self.assertEqual((bill["spdxVersion"], bill["dataLicense"]), ("SPDX-2.3", "CC0-1.0"))
        self.assertEqual(set(bill["creationInfo"]), {"created", "creators"})
        packages = {package["SPDXID"]: package for package in bill["packages"]}
        self.assertEqual(len(packages), len(bill["packages"]))
        for each, package in packages.items():
            self.assertRegex(each, r"^SPDXRef-[A-Za-z0-9.-]+$")
            self.assertTrue(package["name"] and package["versionInfo"] and package["downloadLocation"])
            known = package["licenseDeclared"] != "NOASSERTION" or package.get("licenseComments")
            self.assertTrue(known, f"{each} has no licence")
        ours = {package["packageFileName"]: each for each, package in packages.items() if "checksums" in package}
        sums = dict(line.split()[::-1] for line in (self.release / "SHA256SUMS").read_text().splitlines())
        self.assertEqual(set(ours), set(sums) - {"sbom.spdx.json", "RELEASE_NOTES.md"})
        for name, each in ours.items():
            self.assertEqual(packages[each]["checksums"], [{"algorithm": "SHA256", "checksumValue": sums[name]}])
        parts = {name: set() for name in ours}
        described = set()
        for relation in bill["relationships"]:
            self.assertIn(relation["relatedSpdxElement"], packages)
            if relation["relationshipType"] == "DESCRIBES":
                described.add(relation["relatedSpdxElement"])
            elif relation["relationshipType"] in PARTS:
                part = packages[relation["relatedSpdxElement"]]
                parts[packages[relation["spdxElementId"]]["packageFileName"]].add(
                    f"{part['name']} {part['versionInfo']}"
                )
        self.assertEqual(described, set(ours.values()))
        for file in self.release.glob("*.whl"):
            self.assertEqual(parts[file.name], self.noticed(file))

    def noticed(self, wheel):
        """Name and version of each package in a wheel's notices."""
        with zipfile.ZipFile(wheel) as opened:
            (name,) = (name for name in opened.namelist() if name.endswith("/THIRD_PARTY_NOTICES"))
            text = opened.read(name).decode()
        rule = "=" * 100
        heads = re.findall(rf"^{rule}\n\S+ \((.*)\)\n{rule}$", text, re.M)
        self.assertGreater(len(heads), 3)
        return {part for head in heads for part in head.split(", ")}

    def test_notes_tell_users_what_to_do_and_what_was_not_run(self):
        notes = (self.release / "RELEASE_NOTES.md").read_text()
        self.assertTrue(notes.startswith(f"# routing-replay {VERSION} (2026-01-02)\n"))
        names = "verl slime Megatron-Core NeMo-RL SkyRL ms-swift miles vLLM SGLang transformers"
        for name in names.split():
            (entry,) = re.findall(rf"(?ms)^### {name}\n(.*?)(?=^##)", notes)
            self.assertIn("routing_replay", entry)
            self.assertRegex(entry, r"Tested: \d|Tested: [0-9a-f]{7}")
            self.assertIn("Untested: GPUs", entry)
        for name in re.findall(r"(?<!\S)(?:\./|<)?(routing[_-]replay\S+\.(?:whl|deb|tar))", notes):
            self.assertEqual(len(list(self.release.glob(name))), 1, name)
        not_run = notes.partition("## Not run\n")[2]
        for word in ("GPU", "NEON", "kTLS", "Redis 7.2", "cluster"):
            self.assertIn(word, not_run)
        fingerprint = run("ssh-keygen", "-lf", self.key).stdout.split()[1]
        self.assertIn(fingerprint, notes)
        for line in re.findall(r"^ *((?:printf|ssh-keygen) .*?)(?: &&.*)?$", self.said, re.M):
            self.assertIn(line, notes)

    def test_a_changelog_of_another_version_or_without_a_day_is_rejected(self):
        heading = rf"first heading of CHANGELOG.md must be \[{VERSION}\] - YYYY-MM-DD, got "
        self.with_change("CHANGELOG.md", r"^## \[[0-9.]+\]", "## [9.9.9]", heading)
        self.with_change("CHANGELOG.md", r"2026-01-02$", "unreleased", heading)

    def test_another_version_of_the_project_is_rejected(self):
        self.with_change(
            "CMakeLists.txt", r"^(project\(routing_replay VERSION) [0-9.]+", r"\1 9.9.9", "CHANGELOG.md must be"
        )

    def test_manifests_of_another_version_are_rejected(self):
        path = "deploy/kubernetes/overlays/dev/kustomization.yaml"
        self.with_change(path, r"newTag: [0-9.]+", "newTag: 9.9.9", rf"(?s)must say newTag: {VERSION}, got .*9\.9\.9")

    def test_a_tree_with_changes_is_rejected(self):
        self.with_change("README.md", r"\Z", "more\n", "tree must be clean", commit=False)

    def test_packages_of_another_version_are_rejected(self):
        for pattern in ("routing_replay-*.whl", "routing-replay-dev_*.deb", "*-image.tar"):
            packages = Path(tempfile.mkdtemp(dir=self.work))
            shutil.copytree(self.packages, packages, dirs_exist_ok=True)
            (file,) = packages.glob(pattern)
            file.rename(packages / file.name.replace(VERSION, "9.9.9"))
            self.rejected(rf"there must be one \S*{VERSION}\S*, got 0", packages)
        # These files have this version in their names and another version inside.
        version = VERSION.rpartition(".")[0] + ".999"
        with zipfile.ZipFile(next(packages.glob("routing_replay_server*.whl")), "w") as wheel:
            bill = {"packages": [{"SPDXID": "SPDXRef-Package", "versionInfo": version}], "relationships": []}
            wheel.writestr(f"any-{version}.dist-info/sboms/sbom.spdx.json", json.dumps(bill))
        file = next(packages.glob("*-image.tar"))
        file.rename(packages / file.name.replace("9.9.9", VERSION))
        self.rejected(f"must be of version {VERSION}, got {version}", packages)

    def test_what_is_no_package_is_rejected(self):
        packages = Path(tempfile.mkdtemp(dir=self.work))
        shutil.copytree(self.packages, packages, dirs_exist_ok=True)
        for pattern in ("routing_replay-*.whl", "routing-replay-dev_*.deb", "*-image.tar"):
            (file,) = packages.glob(pattern)
            whole = file.read_bytes()
            file.write_bytes(whole[: len(whole) // 2])
            self.rejected(f"{re.escape(file.name)} must be a package", packages)
            file.write_bytes(whole)


if __name__ == "__main__":
    missing = [tool for tool in ("git", "ssh-keygen") if not shutil.which(tool)]
    if missing or len(made()) != 5:
        print("skipped:", f"no {missing[0]}" if missing else "wheels_test and debs_test have not built all packages")
        sys.exit(SKIPPED)
    unittest.main()
