"""Only project() in CMakeLists.txt states the version; everything else that prints or records it must agree.

Usage: versions_test.py BUILD

wheels_test.sh and debs_test.sh compare the versions of the packages that they build.
"""

import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build/release").resolve()
VERSION = re.search(r"^project\(routing_replay VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(), re.M)[1]
PROJECTS = ("client/python", "server/python")


def printed(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


class VersionsTest(unittest.TestCase):
    def test_it_is_of_three_numbers(self):
        self.assertRegex(VERSION, r"^\d+\.\d+\.\d+$")

    def test_the_build_is_of_this_version(self):
        self.assertIn(f"CMAKE_PROJECT_VERSION:STATIC={VERSION}\n", (BUILD / "CMakeCache.txt").read_text())

    def test_programs_say_it(self):
        for program in ("routing-replay-server", "rrctl"):
            self.assertEqual(printed(BUILD / "bin" / program, "--version").split()[-1], VERSION, program)

    def test_python_says_it(self):
        sources = [str(ROOT / folder / "python/src") for folder in ("client", "trainer_plugin")]  # In one wheel.
        for package in ("routing_replay", "routing_replay_trainer"):
            code = f"import sys; sys.path[:0] = {sources}; import {package} as p; print(p.__version__)"
            said = printed("env", f"ROUTING_REPLAY_LIBRARY_DIR={BUILD / 'lib'}", sys.executable, "-c", code)
            self.assertEqual(said, VERSION, package)

    def test_the_cmake_package_says_it(self):
        said = (BUILD / "routing_replay-config-version.cmake").read_text()
        self.assertIn(f'set(PACKAGE_VERSION "{VERSION}")', said)

    def test_the_changelog_begins_with_it(self):
        headings = re.findall(r"^## \[([^\]]+)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
        self.assertEqual(headings[0][0], VERSION)
        for version, date in headings[1:]:
            self.assertRegex(date, r"^\d{4}-\d\d-\d\d$", f"{version} was released, and its heading must say when")

    def test_python_projects_have_none_of_their_own(self):
        for project in PROJECTS:
            text = (ROOT / project / "pyproject.toml").read_text()
            self.assertNotRegex(text, r"(?m)^version\s*=", project)
            self.assertNotIn(VERSION, text, project)
            for source in (ROOT / project / "src").rglob("*.py"):
                self.assertNotRegex(source.read_text(), r'__version__\s*=\s*["\']', str(source))


if __name__ == "__main__":
    unittest.main()
