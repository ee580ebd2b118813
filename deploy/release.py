#!/usr/bin/env python3
"""Writes the notes and the bill of materials (SPDX 2.3, JSON) of a release.

    deploy/release.py notes --version V --key FINGERPRINT --image FILE >RELEASE_NOTES.md
    deploy/release.py bill --version V PACKAGE… >sbom.spdx.json

The changes in the notes are those of CHANGELOG.md; the READMEs say how a framework is started and what it was tested
with. A section or a row that is missing there is an error, so that the notes are complete.

Each PACKAGE is a wheel, a Debian package or the container image. It contains its own bill, which notices.py wrote when
the package was built. The bill of the release names the files, each with its checksum, and merges their bills; nothing
else in the packages is looked at. A package of another version is rejected.
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

ROOT = Path(__file__).resolve().parents[1]
BILL = "sbom.spdx.json"
TRAINERS, CLIENTS = "trainer_plugin/README.md", "client/README.md"
# For each framework, by its name in the README's table: the file and the section that tell its users what to do.
FRAMEWORKS = {
    "verl": (TRAINERS, "verl"),
    "slime": (TRAINERS, "slime"),
    "miles": (TRAINERS, "miles"),
    "Megatron-Core": (TRAINERS, "Megatron-LM"),
    "NeMo-RL": (TRAINERS, "NeMo-RL"),
    "SkyRL": (TRAINERS, "SkyRL"),
    "ms-swift": (TRAINERS, "ms-swift"),
    "transformers": (TRAINERS, "Hugging Face and FSDP"),
    "vLLM": (CLIENTS, "From an engine"),
    "SGLang": (CLIENTS, "From an engine"),
}
# What to_do says about frameworks whose README section has no short indented code at its start to quote.
FIRST = {
    "Megatron-Core": "Build the model with `moe_enable_routing_replay=True`, and add `megatron.attach` of "
    "`routing_replay_trainer` and three calls to your training step.",
    "transformers": "Add `hf.attach` of `routing_replay_trainer` and three calls to your training loop.",
    "vLLM": "Start vLLM with `--enable-return-routed-experts`, and append its answers as they are "
    "(`routing_replay.engines.vllm`); or set `ROUTING_REPLAY_RUN`, and its server appends them.",
    "SGLang": "Start SGLang with `--enable-return-routed-experts`, and append its answers as they are "
    "(`routing_replay.engines.sglang`); or set `ROUTING_REPLAY_RUN`, and its server appends them.",
}
NOTES = """\
# routing-replay {version} ({day})

{changes}

## Verify

With the public key of the project (fingerprint {key}), which must not come from where these files come from:

    printf 'routing-replay %s\\n' "$(cat KEY.pub)" >allowed_signers
    ssh-keygen -Y verify -f allowed_signers -I routing-replay -n file -s SHA256SUMS.sig <SHA256SUMS
    sha256sum --check --ignore-missing SHA256SUMS

## Install

    pip install routing_replay-{version}-*.whl            # where an engine, a worker or a trainer runs
    pip install routing_replay_server-{version}-*.whl     # where the server runs; or one of:
    sudo apt-get install ./routing-replay-server_{version}-1_amd64.deb ./routing-replay-client_{version}-1_amd64.deb
    docker load <{image}

Wheels need Python 3.10 or later on x86-64 Linux, Debian packages Debian 12. `sbom.spdx.json` names all software in each
file.

## By framework

Start a server, install the first wheel wherever the framework runs, and set `ROUTING_REPLAY_ENDPOINT=HOST:7400` for all
of its processes. Begin with `ROUTING_REPLAY_MODE=shadow` (`mode="shadow"` of `attach`), which compares and changes
nothing.

{frameworks}

## Everything else

| | tested | by recorded form | untested |
|---|---|---|---|
{rest}

## Not run

{not_run}"""


def section(path: str, title: str) -> str:
    """The text under a heading, with the contents of its code blocks removed."""
    text = re.sub(r"(?ms)^```.*?^```$", "```", (ROOT / path).read_text())  # In code, `#` begins no heading.
    found = re.search(rf"(?ms)^#+ {re.escape(title)}$(.+?)(?=^#|\Z)", text)
    if found:
        return found[1].strip("\n")
    raise ValueError(f"{path} must have a section {title!r}")


def changes(version: str) -> tuple[str, str]:
    """The date and the changes of `version`, which must be the first version in CHANGELOG.md."""
    found = re.search(r"(?ms)^## \[([^\]]+)\] - (\S+)$(.*?)(?=^## |\Z)", (ROOT / "CHANGELOG.md").read_text())
    if not found or found[1] != version or not re.fullmatch(r"\d{4}-\d\d-\d\d", found[2]):
        said = f"[{found[1]}] - {found[2]}" if found else "nothing"
        raise ValueError(f"the first heading of CHANGELOG.md must be [{version}] - YYYY-MM-DD, got {said}")
    return found[2], re.sub(r"^###", "##", found[3].strip(), flags=re.M)


def tested() -> dict[str, list[str]]:
    """For each name in the README's table of what was tested, its cells "tested", "by recorded form", "untested"."""
    table = section("README.md", "What it was tested with").partition("-->\n")[2].partition("<!--")[0]
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines()[2:]]
    return {name: cells for name, *cells in rows}


def to_do(name: str, path: str, title: str) -> str:
    """What a user must write: the section up to its last line of code before a table or fenced code."""
    if name in FIRST:
        return FIRST[name]
    lines = re.match(r"(?s).*\n    [^\n]+", section(path, title).partition("```")[0].partition("\n|")[0])
    if not lines:
        raise ValueError(f"{path} must say how to start {title}")
    return re.sub(r"\[([^\]]+)\]\((?!http)[^)]*\)", r"\1", lines[0])


def release_notes(version: str, key: str, image: str) -> str:
    day, changed = changes(version)
    rows = tested()
    frameworks = []
    for name, (path, title) in FRAMEWORKS.items():
        runs, recorded, untested = rows.pop(name)
        said = f"Tested: {runs}.\n\nCompared with saved output of: {recorded}. Untested: {untested}."
        frameworks.append(f"### {name}\n\n{to_do(name, path, title)}\n\n{said} More: `{path}`, {title}.")
    return NOTES.format(
        version=version,
        key=key,
        image=image,
        day=day,
        changes=changed,
        frameworks="\n\n".join(frameworks),
        rest="\n".join(f"| {' | '.join((name, *cells))} |" for name, cells in rows.items()),
        not_run=section("tests/README.md", "What was not run"),
    )


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


def merged_bill(version: str, files: list[Path]) -> dict[str, Any]:
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
    commands = parser.add_subparsers(dest="command", required=True)
    notes, bill = (commands.add_parser(name) for name in ("notes", "bill"))
    for option in ("version", "key", "image"):
        notes.add_argument(f"--{option}", required=True)
    bill.add_argument("--version", required=True)
    bill.add_argument("files", nargs="+", type=Path, metavar="PACKAGE")
    options = parser.parse_args()
    try:
        if options.command == "notes":
            print(release_notes(options.version, options.key, options.image))
        else:
            print(json.dumps(merged_bill(options.version, options.files), indent=1))
    except (KeyError, ValueError) as error:
        print(f"release.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
