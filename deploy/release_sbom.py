#!/usr/bin/env python3
"""Writes the SBOM (SPDX 2.3, JSON) of a release: its files, each with its checksum, and their contents.

    deploy/release_sbom.py --version V --out FILE PACKAGE…

Each PACKAGE is a wheel, a Debian package or the container image. It contains its own SBOM, which notices.py wrote when
the package was built. This script merges the SBOMs, and does not look into the packages for anything else. It rejects a
package of another version.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import notices

BILL = "sbom.spdx.json"


def _tar(archive: bytes) -> Iterator[bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        yield from (tar.extractfile(entry).read() for entry in tar if entry.name.endswith(f"/{BILL}"))


def _bills(package: Path) -> Iterator[bytes]:
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            yield from (wheel.read(name) for name in wheel.namelist() if name.endswith(f"/sboms/{BILL}"))
    elif package.suffix == ".deb":
        yield from _tar(subprocess.run(["dpkg-deb", "--fsys-tarfile", package], stdout=-1, check=True).stdout)
    else:
        with tarfile.open(package) as image:
            (manifest,) = json.load(image.extractfile("manifest.json"))
            for layer in manifest["Layers"]:
                yield from _tar(gzip.decompress(image.extractfile(layer).read()))


def bill_in(package: Path) -> dict[str, Any]:
    """Returns the bill of materials inside a package, which must have exactly one."""
    found = []
    with contextlib.suppress(OSError, KeyError, tarfile.TarError, zipfile.BadZipFile, subprocess.CalledProcessError):
        found = list(_bills(package))
    if len(found) != 1:
        raise ValueError(f"{package.name} must be a package with one {BILL}, got {len(found)}")
    return json.loads(found[0])


def put_together(version: str, files: list[Path]) -> dict[str, Any]:
    packages: dict[str, dict[str, Any]] = {}
    relationships = []
    for file in files:
        bill = bill_in(file)
        # Here a package is identified by its file name, because a wheel and a Debian package may have the same name.
        ours = "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", file.name)
        for entry in bill["packages"]:
            if entry["SPDXID"] != "SPDXRef-Package":
                packages.setdefault(entry["SPDXID"], entry)
                continue
            if entry["versionInfo"] != version:
                raise ValueError(f"{file.name} must be of version {version}, got {entry['versionInfo']}")
            sum_of = {"algorithm": "SHA256", "checksumValue": hashlib.sha256(file.read_bytes()).hexdigest()}
            packages[ours] = entry | {"SPDXID": ours, "packageFileName": file.name, "checksums": [sum_of]}
        for relation in bill["relationships"]:
            ends = {key: ours for key, value in relation.items() if value == "SPDXRef-Package"}
            relationships.append(relation | ends)
    ordered = [packages[name] for name in sorted(packages)]
    return notices.spdx(f"routing-replay-{version}", ordered, relationships)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("files", nargs="+", type=Path, metavar="PACKAGE")
    options = parser.parse_args()
    try:
        bill = put_together(options.version, options.files)
    except ValueError as error:
        print(f"release_sbom.py: {error}", file=sys.stderr)
        return 1
    options.out.write_text(json.dumps(bill, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
