#!/usr/bin/env python3
"""Finds the Debian packages that a built program or library consists of.

    deploy/closure.py FILE…    prints the shared libraries, including the loader, one path per line

The notices of packages and the container image use only this module. Paths are those by which the loader finds the
libraries; links must be followed (`cp -L`).
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import subprocess
import sys
from pathlib import Path


class ClosureError(Exception):
    """The packages cannot be determined; the message says what to do."""


@dataclasses.dataclass(frozen=True, order=True)
class Package:
    """An installed Debian package, or third-party software that owns a file."""

    name: str
    version: str
    source: str  # The name of the source package from which this package was built.
    source_version: str
    debian: bool = True  # False: not installed by dpkg, such as a CUDA toolkit of NVIDIA's own installer.


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClosureError(f"{' '.join(command[:4])} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def shared_libraries(file: Path) -> list[Path]:
    """The libraries that the loader maps for `file`, itself included, sorted."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LD_")}
    done = subprocess.run(["ldd", str(file)], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip()
        raise ClosureError(f"{file}: {said}; is it a program or library of this machine?")
    found = set()
    for line in done.stdout.splitlines():
        name = line.split()[0]
        if "not found" in line:
            raise ClosureError(f"{file} needs {name}, which is not installed")
        path = re.search(r"(?:=> |^\s*)(/\S+) \(0x", line)
        if path:
            found.add(Path(path[1]))
    return sorted(found)


def closure(files: list[Path]) -> list[Path]:
    """The union of the shared libraries of `files`."""
    return sorted(set().union(*(shared_libraries(file) for file in files)))


@functools.cache
def _described(names: tuple[str, ...]) -> dict[str, Package]:
    fields = "${binary:Package}\t${Version}\t${source:Package}\t${source:Version}\n"
    rows = (line.split("\t") for line in _run("dpkg-query", "-W", f"-f={fields}", *names).splitlines())
    return {row[0]: Package(row[0].partition(":")[0], *row[1:]) for row in rows}


@functools.cache
def _owners() -> dict[str, str]:
    """The package of each installed file. Reading dpkg's lists once is faster than one `dpkg -S` per header."""
    owners = {}
    for listing in Path("/var/lib/dpkg/info").glob("*.list"):
        for path in listing.read_text().splitlines():
            owners.setdefault(path, listing.stem)
    return owners


def _spellings(path: Path) -> list[str]:
    """Both forms of a path: /lib is a link to /usr/lib, and packages list files under either."""
    names = []
    for each in (str(path), str(path.resolve())):
        names += [each, each.removeprefix("/usr") if each.startswith("/usr/lib") else "/usr" + each]
    return names


def _foreign(path: Path) -> Package:
    """Finds the owner of a file that dpkg does not know."""
    cuda = next((parent for parent in path.resolve().parents if re.fullmatch(r"cuda(-[\d.]+)?", parent.name)), None)
    if cuda:
        version = cuda.name.partition("-")[2] or "unknown"
        return Package("cuda-toolkit", version, "cuda-toolkit", version, debian=False)
    return Package(path.name, "unknown", path.name, "unknown", debian=False)


def packages_of(paths: list[Path]) -> dict[Package, list[Path]]:
    """The packages that own `paths`, and which paths belong to which."""
    owners = _owners()
    owned = {path: next((owners[name] for name in _spellings(path) if name in owners), None) for path in paths}
    names = tuple(sorted({owner for owner in owned.values() if owner}))
    described = _described(names) if names else {}
    # dpkg names a package with its architecture only if several may be installed; its lists always have it.
    described |= {name.partition(":")[0]: package for name, package in described.items()}
    found: dict[Package, list[Path]] = {}
    for path, owner in owned.items():
        package = described[owner.partition(":")[0]] if owner else _foreign(path)
        found.setdefault(package, []).append(path)
    return dict(sorted(found.items()))


def compiled_in(build: Path, file: Path) -> dict[Package, list[Path]]:
    """The packages whose static libraries or headers went into `file` of the Ninja build tree `build`."""
    build = build.resolve()
    if not (build / "build.ninja").exists():
        raise ClosureError(f"{build} is no Ninja build tree; build with a preset of CMakePresets.json")
    target = os.path.relpath(file.resolve(), build)
    inputs = _run("ninja", "-C", str(build), "-t", "inputs", target).splitlines()
    objects = [name for name in inputs if name.endswith((".o", ".gch"))]
    outside = {Path(name) for name in inputs if name.startswith("/") and name.endswith(".a")}
    # Headers and archives of static_libraries.sh have the same names as those in Debian's packages.
    for name in inputs:
        if "/static/lib/" in name:
            outside.discard(Path(name))
            outside.update(Path("/usr/lib").glob(f"*/{Path(name).name}"))
    records = _run("ninja", "-C", str(build), "-t", "deps", *objects)
    cache = (build / "CMakeCache.txt").read_text()
    source = re.search(r"^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$", cache, re.MULTILINE)[1]
    for line in set(records.splitlines()):
        path = line.strip()
        if line.startswith("    /") and not path.startswith((f"{source}/", f"{build}/")):
            outside.add(Path(os.path.normpath(path)))
    if not outside:
        raise ClosureError(f"{build} has no record of what went into {target}; build it there first")
    return packages_of(sorted(outside))


def main() -> int:
    try:
        print(*closure([Path(name) for name in sys.argv[1:]]), sep="\n")
    except ClosureError as error:
        print(f"closure.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
