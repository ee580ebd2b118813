#!/usr/bin/env python3
"""Finds the third-party software in our packages; writes its licence notices and bill of materials (SPDX 2.3, JSON).

    deploy/notices.py write --name NAME --version V --build DIR [--contains DIR] --out DIR FILE…
    deploy/notices.py libraries FILE…    prints the shared libraries, including the loader, one path per line

For `write`, FILE are the programs and libraries of the package, in the build tree of --build. The package contains the
code that was compiled into them, so its licences are included. Shared libraries are only named as dependencies, unless
the folder of --contains has copies of them: auditwheel puts such copies into a wheel. Licence texts are those of
/usr/share/doc/*/copyright. The paths that `libraries` prints may be symbolic links: copy them with `cp -L`.

`write` makes THIRD_PARTY_NOTICES and sbom.spdx.json in the folder of --out.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import hashlib
import json
import os
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

OURS = "Apache-2.0"
# Debian's licence names and their SPDX names. Others are reported as NOASSERTION, together with Debian's name.
SPDX = {
    "apache-2.0": "Apache-2.0",
    "bsd-2-clause": "BSD-2-Clause",
    "bsd-3-clause": "BSD-3-Clause",
    "bsd-3-clause~google": "BSD-3-Clause",
    "expat": "MIT",
    "mit": "MIT",
    "gpl-2 or apache-2.0": "GPL-2.0-only OR Apache-2.0",
    "bsd-3-clause or gpl-2": "BSD-3-Clause OR GPL-2.0-only",
    "zlib": "Zlib",
}
# The licence terms of software that is in no Debian package.
FOREIGN_TERMS = {"cuda-toolkit": "The static CUDA runtime, under NVIDIA's CUDA Toolkit End User License Agreement."}
COMPILED, CONTAINED, NEEDED = "compiled in", "contained", "needed"


class SoftwareError(Exception):
    """The software in a package cannot be determined; the message says what to do."""


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
        raise SoftwareError(f"{' '.join(command[:4])} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def shared_libraries(file: Path) -> list[Path]:
    """The libraries that the loader maps for `file`, and the loader itself, sorted."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LD_")}
    done = subprocess.run(["ldd", str(file)], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip()
        raise SoftwareError(f"{file}: {said}; is it a program or library of this machine?")
    found = set()
    for line in done.stdout.splitlines():
        name = line.split()[0]
        if "not found" in line:
            raise SoftwareError(f"{file} needs {name}, which is not installed")
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
    # dpkg appends the architecture to some names (libc6:amd64), so packages are looked up without it.
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
        raise SoftwareError(f"{build} is no Ninja build tree; build with a preset of CMakePresets.json")
    target = os.path.relpath(file.resolve(), build)
    inputs = _run("ninja", "-C", str(build), "-t", "inputs", target).splitlines()
    objects = [name for name in inputs if name.endswith((".o", ".gch"))]
    outside = {Path(name) for name in inputs if name.startswith("/") and name.endswith(".a")}
    # Archives of static_libraries.sh count as the archives of the same name in Debian's packages.
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
        raise SoftwareError(f"{build} has no record of what went into {target}; build it there first")
    return packages_of(sorted(outside))


def copyright_file(package: Package) -> Path | None:
    path = Path("/usr/share/doc", package.name, "copyright")
    return path if package.debian and path.exists() else None


def licence_of(package: Package) -> tuple[str, str]:
    """An SPDX expression for the licence of most files, or NOASSERTION; and all licences that Debian names."""
    path = copyright_file(package)
    if path is None:
        return "NOASSERTION", FOREIGN_TERMS.get(package.name, "")
    text = path.read_text(errors="replace")
    names = list(dict.fromkeys(re.findall(r"^License:[ \t]*(\S.*)$", text, re.MULTILINE)))
    most = re.search(r"^Files:[ \t]*\*\s*$(?:\n(?!\n).*)*?\nLicense:[ \t]*(\S.*)$", text, re.MULTILINE)
    declared = SPDX.get(most[1].strip().lower(), "NOASSERTION") if most else "NOASSERTION"
    said = f"Debian's copyright file names: {', '.join(names)}" if names else "See Debian's copyright file."
    return declared, said


def bill(build: Path, files: list[Path], contains: Path | None) -> dict[Package, str]:
    """Each third-party package, and the first that is true of it: COMPILED into our files, CONTAINED, or NEEDED."""
    copies = [copy.name for copy in contains.iterdir()] if contains and contains.exists() else []

    def copied(path: Path) -> bool:
        # auditwheel adds a hash to the name: libfmt.so.9 becomes libfmt-4f700944.so.9.1.0.
        stem = re.escape(path.name.partition(".so")[0])
        return any(re.match(rf"{stem}(-[0-9a-f]{{6,}})?\.so", name) for name in copies)

    found: dict[Package, str] = {}
    loaded = [file for file in files if file.suffix != ".a"]
    for package, paths in packages_of(closure(loaded)).items():
        found[package] = CONTAINED if any(copied(path) for path in paths) else NEEDED
    for file in files:
        for package in compiled_in(build, file):
            found[package] = COMPILED
    return dict(sorted(found.items()))


def notices(name: str, parts: dict[Package, str]) -> str:
    """The licence texts of all `parts` that are in the package, each text once."""
    by_text: dict[str, list[Package]] = {}
    for package, how in parts.items():
        if how == NEEDED:
            continue
        path = copyright_file(package)
        text = path.read_text(errors="replace") if path else licence_of(package)[1]
        if not text:
            raise SoftwareError(f"{package.name} is part of {name}, and its licence file was not found")
        by_text.setdefault(text, []).append(package)
    head = f"{name} has parts of the software below: static libraries, code of headers"
    if CONTAINED in parts.values():
        head += ", and copies of shared libraries"
    head += (
        ".\nThe texts are those of Debian's packages and speak of whole sources, also of files that are not in here.\n"
    )
    out = [head]
    for text, packages in by_text.items():
        names = ", ".join(f"{each.name} {each.version}" for each in packages)
        out.append(f"{'=' * 100}\n{packages[0].source} ({names})\n{'=' * 100}\n\n{text.strip()}\n")
    return "\n".join(out)


def _entry(identifier: str, name: str, version: str, declared: str) -> dict[str, Any]:
    return {
        "SPDXID": identifier,
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": declared,
        "copyrightText": "NOASSERTION",
    }


def _entry_of(package: Package) -> dict[str, Any]:
    declared, said = licence_of(package)
    identifier = "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", f"{package.name}-{package.version}")
    entry = _entry(identifier, package.name, package.version, declared)
    entry["supplier"] = "Organization: Debian" if package.debian else "NOASSERTION"
    if said:
        entry["licenseComments"] = said
    if package.debian:
        name, version, source = (quote(each) for each in (package.name, package.version, package.source))
        locator = f"pkg:deb/debian/{name}@{version}?upstream={source}"
        reference = {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": locator}
        entry["externalRefs"] = [reference]
    return entry


def spdx(name: str, packages: list[dict[str, Any]], relationships: list[dict[str, Any]]) -> dict[str, Any]:
    """SPDX 2.3. The same content gives the same document, except for its time (SOURCE_DATE_EPOCH)."""
    content = json.dumps([packages, relationships], sort_keys=True)
    when = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())), datetime.timezone.utc)
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"urn:uuid:{uuid.UUID(hashlib.sha256(content.encode()).hexdigest()[:32])}",
        "creationInfo": {"created": when.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Tool: routing-replay-notices"]},
        "packages": packages,
        "relationships": relationships,
    }


def document(name: str, version: str, parts: dict[Package, str]) -> dict[str, Any]:
    relations = {COMPILED: "STATIC_LINK", CONTAINED: "CONTAINS", NEEDED: "DYNAMIC_LINK"}
    relationships = [
        {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-Package"}
    ]
    packages = [_entry("SPDXRef-Package", name, version, OURS)]
    for package, how in parts.items():
        packages.append(_entry_of(package))
        relation = {"spdxElementId": "SPDXRef-Package", "relationshipType": relations[how]}
        relation["relatedSpdxElement"] = packages[-1]["SPDXID"]
        if how == COMPILED:
            relation["comment"] = "a static library, or code of headers"
        relationships.append(relation)
    return spdx(f"{name}-{version}", packages, relationships)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    write, libraries = commands.add_parser("write"), commands.add_parser("libraries")
    write.add_argument("--name", required=True)
    write.add_argument("--version", required=True)
    write.add_argument("--build", type=Path, required=True)
    write.add_argument("--contains", type=Path)
    write.add_argument("--out", type=Path, required=True)
    for command in (write, libraries):
        command.add_argument("files", nargs="+", type=Path, metavar="FILE")
    options = parser.parse_args()
    try:
        if options.command == "libraries":
            print(*closure(options.files), sep="\n")
            return 0
        parts = bill(options.build, options.files, options.contains)
        text = notices(options.name, parts)
    except SoftwareError as error:
        print(f"notices.py: {error}", file=sys.stderr)
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "THIRD_PARTY_NOTICES").write_text(text)
    made = document(options.name, options.version, parts)
    (options.out / "sbom.spdx.json").write_text(json.dumps(made, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
