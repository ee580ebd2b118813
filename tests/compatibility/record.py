#!/usr/bin/env python3
"""Records the data that this version writes, for tests of later versions: record.py BUILD.

Creates recorded/VERSION (compatibility_test.py describes its files), which never changes once VERSION is released;
until then remove it and record again.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

BUILD = Path(sys.argv[1]).resolve()
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client/python/src"))
os.environ |= {"ROUTING_REPLAY_LIBRARY_DIR": str(BUILD / "lib"), "ROUTING_REPLAY_TRANSPORT": "grpc"}

import calls  # noqa: E402
import routing_replay as rr  # noqa: E402
import scene  # noqa: E402

# RocksDB writes the machine's name into its files.
NAMELESS = ("unshare", "--uts", "--map-root-user", "sh", "-c", 'hostname recorded && exec "$@"', "sh")


def main() -> None:
    server, rrctl = BUILD / "bin/routing-replay-server", BUILD / "bin/rrctl"
    version = subprocess.run([server, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    out = Path(__file__).parent / "recorded" / version
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as directory:
        store = Path(directory, "store")
        with scene.Server(server, Path(directory), "--store", f"rocksdb:{store}", under=NAMELESS) as endpoint:
            with calls.Recorder(endpoint) as recorder, rr.Client(recorder.endpoint) as client:
                scene.write(client)
                scene.check(client)
                client.close()
                recorder.write(out / "calls.jsonl")
            for run in scene.GEOMETRIES:
                subprocess.run([rrctl, "--endpoint", endpoint, "export", run, out / "exported" / run], check=True)
        with tarfile.open(out / "rocksdb.tar.xz", "w:xz") as archive:
            archive.add(store, "store")


if __name__ == "__main__":
    main()
