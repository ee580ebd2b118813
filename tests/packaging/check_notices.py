"""Checks that a package's notices and bill of materials name everything the package contains.

    check_notices.py --name NAME --version V [--libraries DIR] [--parts NAME,…] FOLDER…

The FOLDERs hold THIRD_PARTY_NOTICES (or .gz) and sbom.spdx.json. --libraries: a folder of copied shared libraries; the
bill must list the Debian package of each as contained. --parts: packages that the bill must list as parts.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

PARTS = ("STATIC_LINK", "CONTAINS")


def found(folders: list[Path], name: str) -> bytes:
    for folder in folders:
        if (folder / name).exists():
            return (folder / name).read_bytes()
        if (folder / f"{name}.gz").exists():
            return gzip.decompress((folder / f"{name}.gz").read_bytes())
    sys.exit(f"FAILED: no {name} in {', '.join(map(str, folders))}")


def check(condition: object, message: str) -> None:
    if not condition:
        sys.exit(f"FAILED: {message}")


def package_of(copy: str) -> str:
    """Returns the name of the installed Debian package whose library auditwheel has copied to the file `copy`."""
    stem = re.sub(r"-[0-9a-f]{6,}\.so", ".so", copy).partition(".so")[0]
    said = subprocess.run(["dpkg", "-S", f"*/{stem}.so.*"], capture_output=True, text=True, check=True).stdout
    return said.partition(":")[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--libraries", type=Path)
    parser.add_argument("--parts", default="")
    parser.add_argument("folders", nargs="+", type=Path)
    options = parser.parse_args()
    bill = json.loads(found(options.folders, "sbom.spdx.json"))
    notices = found(options.folders, "THIRD_PARTY_NOTICES").decode()

    check(bill["spdxVersion"] == "SPDX-2.3" and bill["documentNamespace"], "no SPDX 2.3")
    packages = {package["SPDXID"]: package for package in bill["packages"]}
    check(len(packages) == len(bill["packages"]), "two packages have the same SPDXID")
    ours = packages["SPDXRef-Package"]
    check((ours["name"], ours["versionInfo"]) == (options.name, options.version), f"it describes {ours}")
    kinds = {}
    for relation in bill["relationships"]:
        check(relation["relatedSpdxElement"] in packages, f"{relation} leads nowhere")
        kinds[relation["relatedSpdxElement"]] = relation["relationshipType"]
    check(set(kinds) == set(packages), f"no relationship names {set(packages) - set(kinds)}")

    parts = {package["name"]: kinds[each] for each, package in packages.items() if kinds[each] in PARTS}
    for each, package in packages.items():
        if kinds[each] in PARTS:
            check(f"{package['name']} {package['versionInfo']}" in notices, f"no notice of {package['name']}")
    for part in filter(None, options.parts.split(",")):
        check(part in parts, f"the SBOM does not list {part} as a part of {options.name}")
    for copy in sorted(options.libraries.iterdir()) if options.libraries else ():
        package = package_of(copy.name)
        check(parts.get(package) == "CONTAINS", f"the SBOM does not list {package}, the package of {copy.name}")
    print(f"{options.name}: {len(parts)} parts, {len(packages) - len(parts) - 1} dependencies")


if __name__ == "__main__":
    main()
