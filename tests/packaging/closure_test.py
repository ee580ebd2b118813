"""What deploy/notices.py says of the programs of this build.

Usage: closure_test.py BUILD
"""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BUILD = Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build/release").resolve()
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "deploy"))
import notices  # noqa: E402

SERVER = BUILD / "bin/routing-replay-server"


class ClosureTest(unittest.TestCase):
    def test_the_loader_and_every_library_are_there(self):
        files = notices.closure([SERVER])
        self.assertTrue(all(file.is_file() for file in files))
        names = [file.name for file in files]
        for start in ("ld-linux", "libc.so", "libgrpc++.so", "librocksdb.so"):
            self.assertTrue(any(name.startswith(start) for name in names), start)
        self.assertEqual(names, list(dict.fromkeys(names)))

    def test_what_it_names_is_enough_to_run(self):
        files = notices.closure([SERVER])
        loader = next(file for file in files if file.name.startswith("ld-linux"))
        with tempfile.TemporaryDirectory() as directory:
            for file in files:
                Path(directory, file.name).symlink_to(file)
            # The loader may use only the libraries in this folder: if one of them were found elsewhere, such as in a
            # standard path, the last assertion would fail.
            listed = subprocess.run(
                [loader, "--inhibit-cache", "--library-path", directory, "--list", SERVER],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        found = [line.split()[2] for line in listed.splitlines() if "=>" in line and "vdso" not in line]
        self.assertTrue(found)
        self.assertEqual([], [path for path in found if not path.startswith((directory, "/lib64/ld-"))])

    def test_every_library_has_its_package(self):
        for package in notices.packages_of(notices.closure([SERVER])):
            self.assertTrue(package.debian, f"no Debian package has {package.name}")

    def test_static_libraries_and_headers_are_found(self):
        names = {package.name for package in notices.compiled_in(BUILD, SERVER)}
        # These are packages of a static library, of a library of headers only, and of the headers of a shared library.
        self.assertLessEqual({"libzstd-dev", "libcli11-dev", "libgrpc++-dev"}, names)

    def test_what_cannot_be_told_is_rejected(self):
        with self.assertRaisesRegex(notices.SoftwareError, "not a dynamic executable"):
            notices.shared_libraries(Path(__file__))
        with self.assertRaisesRegex(notices.SoftwareError, "no Ninja build tree"):
            notices.compiled_in(Path(__file__).parent, SERVER)
        with tempfile.TemporaryDirectory() as directory:
            source, library, program = (Path(directory, name) for name in ("a.c", "libgone.so", "program"))
            source.write_text("int main(void) { return 0; }\n")
            subprocess.run(["cc", "-shared", "-o", library, "-x", "c", "/dev/null"], check=True)
            link = ["cc", "-o", program, source, "-Wl,--no-as-needed", f"-L{directory}", "-lgone"]
            subprocess.run(link, check=True)
            library.unlink()
            with self.assertRaisesRegex(notices.SoftwareError, "needs libgone.so, which is not installed"):
                notices.shared_libraries(program)

    def test_a_file_of_no_package_is_told_apart(self):
        with tempfile.NamedTemporaryFile() as file:
            (package,) = notices.packages_of([Path(file.name)])
        self.assertFalse(package.debian)


if __name__ == "__main__":
    unittest.main()
