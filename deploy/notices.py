#!/usr/bin/env python3
"""Writes the licence notices and the bill of materials (SPDX 2.3, JSON) of third-party software in our packages.

    deploy/notices.py --name NAME --version V --build DIR [--contains DIR] --out DIR FILE…

FILE are the programs and libraries of the package, in the build tree DIR. closure.py finds the software that they
consist of. Code that was compiled in is part of the package. Shared libraries are only dependencies, unless the folder
of --contains has a copy of them: auditwheel puts such copies into a wheel. The licence texts are those of
/usr/share/doc/*/copyright.

Writes DIR/THIRD_PARTY_NOTICES and DIR/sbom.spdx.json.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import re
import sys
import time
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

import closure

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
# Licence files of software that is in no Debian package.
FOREIGN_TERMS = {"cuda-toolkit": "The static CUDA runtime, under NVIDIA's CUDA Toolkit End User License Agreement."}
COMPILED, CONTAINED, NEEDED = "compiled in", "contained", "needed"


def copyright_file(package: closure.Package) -> Path | None:
    path = Path("/usr/share/doc", package.name, "copyright")
    return path if package.debian and path.exists() else None


def licence_of(package: closure.Package) -> tuple[str, str]:
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


def bill(build: Path, files: list[Path], contains: Path | None) -> dict[closure.Package, str]:
    """Each third-party package, and how the package contains or uses it; the closest relation if there are several."""
    copies = [copy.name for copy in contains.iterdir()] if contains and contains.exists() else []

    def copied(path: Path) -> bool:
        # auditwheel adds a hash to the name: libfmt.so.9 becomes libfmt-4f700944.so.9.1.0.
        stem = re.escape(path.name.partition(".so")[0])
        return any(re.match(rf"{stem}(-[0-9a-f]{{6,}})?\.so", name) for name in copies)

    found: dict[closure.Package, str] = {}
    loaded = [file for file in files if file.suffix != ".a"]
    for package, paths in closure.packages_of(closure.closure(loaded)).items():
        found[package] = CONTAINED if any(copied(path) for path in paths) else NEEDED
    for file in files:
        for package in closure.compiled_in(build, file):
            found[package] = COMPILED
    return dict(sorted(found.items()))


def notices(name: str, parts: dict[closure.Package, str]) -> str:
    """The texts of all parts of the package, each source once."""
    by_text: dict[str, list[closure.Package]] = {}
    for package, how in parts.items():
        if how == NEEDED:
            continue
        path = copyright_file(package)
        text = path.read_text(errors="replace") if path else licence_of(package)[1]
        if not text:
            raise closure.ClosureError(f"{package.name} is part of {name}, and its licence file was not found")
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


def _entry_of(package: closure.Package) -> dict[str, Any]:
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


def document(name: str, version: str, parts: dict[closure.Package, str]) -> dict[str, Any]:
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
    parser.add_argument("--name", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--contains", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    options = parser.parse_args()
    try:
        parts = bill(options.build, options.files, options.contains)
        text = notices(options.name, parts)
    except closure.ClosureError as error:
        print(f"notices.py: {error}", file=sys.stderr)
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "THIRD_PARTY_NOTICES").write_text(text)
    made = document(options.name, options.version, parts)
    (options.out / "sbom.spdx.json").write_text(json.dumps(made, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
