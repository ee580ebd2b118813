#!/usr/bin/env python3
"""Writes the notes of a release.

    deploy/release.py --version V --key FINGERPRINT --image FILE >RELEASE_NOTES.md

The changes in the notes are those of CHANGELOG.md.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
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

Wheels need Python 3.10 or later on x86-64 Linux, Debian packages Debian 12. The `sbom.spdx.json` inside each file names
all software in it.

## Start

Start a server, install the first wheel wherever the framework runs, and set `ROUTING_REPLAY_ENDPOINT=HOST:7400` for all
of its processes. Begin with `ROUTING_REPLAY_MODE=shadow` (`mode="shadow"` of `attach`), which compares and changes
nothing. `README.md` says what was tested and how, `trainer_plugin/README.md` how each framework is started,
`client/README.md` how engines are, and `tests/README.md` what was not run.
"""


def changes(version: str) -> tuple[str, str]:
    """The date and the changes of `version`, which must be the first version in CHANGELOG.md."""
    found = re.search(r"(?ms)^## \[([^\]]+)\] - (\S+)$(.*?)(?=^## |\Z)", (ROOT / "CHANGELOG.md").read_text())
    if not found or found[1] != version or not re.fullmatch(r"\d{4}-\d\d-\d\d", found[2]):
        said = f"[{found[1]}] - {found[2]}" if found else "nothing"
        raise ValueError(f"the first heading of CHANGELOG.md must be [{version}] - YYYY-MM-DD, got {said}")
    return found[2], re.sub(r"^###", "##", found[3].strip(), flags=re.M)


def release_notes(version: str, key: str, image: str) -> str:
    day, changed = changes(version)
    return NOTES.format(version=version, key=key, image=image, day=day, changes=changed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("version", "key", "image"):
        parser.add_argument(f"--{option}", required=True)
    options = parser.parse_args()
    try:
        print(release_notes(options.version, options.key, options.image))
    except ValueError as error:
        print(f"release.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
