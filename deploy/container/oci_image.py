"""Packs folders as an image with one layer each, in a tar archive in OCI's image layout.

Usage: oci_image.py --config CONFIG.json --tag NAME:TAG --out IMAGE.tar FOLDER…

The same folders give the same bytes on every machine with the same zlib: entries are sorted, owned by root except for
OWNED, and have the time SOURCE_DATE_EPOCH (default: 0). Prints the digest of the manifest, which is the image's digest
in every registry. `docker load`, `podman load`, `skopeo copy oci-archive:…` and `ctr image import` accept the archive.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
# The directories that the image's user may write to if nothing is mounted over them.
OWNED = {"var/lib/routing-replay": 65532}
OCI = "application/vnd.oci.image"


class Layout:
    """OCI's image layout: files, most of them blobs whose names are their digests."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}

    def add(self, media_type: str, content: bytes) -> dict[str, Any]:
        """Adds a blob and returns its descriptor."""
        digest = hashlib.sha256(content).hexdigest()
        self.files[f"blobs/sha256/{digest}"] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    def add_json(self, media_type: str, value: Any) -> dict[str, Any]:
        return self.add(media_type, json.dumps(value, sort_keys=True, separators=(",", ":")).encode())

    def archive(self) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for name, content in sorted(self.files.items()):
                entry = tarfile.TarInfo(name)
                entry.size, entry.mtime, entry.mode = len(content), EPOCH, 0o644
                tar.addfile(entry, io.BytesIO(content))
        return out.getvalue()


def layer(folder: Path) -> bytes:
    """The folder's entries as an uncompressed tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(folder))
            entry = tar.gettarinfo(path, name)
            entry.mtime = EPOCH
            entry.uid = entry.gid = OWNED.get(name, 0)
            entry.uname = entry.gname = ""
            if entry.isreg():
                with path.open("rb") as file:
                    tar.addfile(entry, file)
            else:
                tar.addfile(entry)
    return out.getvalue()


def image(folders: list[Path], config: dict[str, Any], tag: str) -> tuple[str, bytes]:
    """Returns the digest of the manifest, and the archive."""
    layout = Layout()
    created = datetime.datetime.fromtimestamp(EPOCH, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    layers, plain = [], []
    for folder in folders:
        content = layer(folder)
        plain.append(f"sha256:{hashlib.sha256(content).hexdigest()}")
        layers.append(layout.add(f"{OCI}.layer.v1.tar+gzip", gzip.compress(content, 6, mtime=0)))
    whole = {**config, "created": created, "rootfs": {"type": "layers", "diff_ids": plain}}
    whole["history"] = [{"created": created, "created_by": f"oci_image.py {folder.name}"} for folder in folders]
    described = layout.add_json(f"{OCI}.config.v1+json", whole)
    manifest = layout.add_json(
        f"{OCI}.manifest.v1+json",
        {"schemaVersion": 2, "mediaType": f"{OCI}.manifest.v1+json", "config": described, "layers": layers},
    )
    name = {"org.opencontainers.image.ref.name": tag.rpartition(":")[2], "io.containerd.image.name": tag}
    index = {"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": [{**manifest, "annotations": name}]}
    # manifest.json is for Docker versions that do not read the OCI layout. It names the same blobs by their paths.
    paths = [f"blobs/{blob['digest'].replace(':', '/')}" for blob in (described, *layers)]
    docker = [{"Config": paths[0], "RepoTags": [tag], "Layers": paths[1:]}]
    for file, value in (("index.json", index), ("manifest.json", docker)):
        layout.files[file] = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return manifest["digest"], layout.archive()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--tag", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    digest, archive = image(options.folders, json.loads(options.config.read_text()), options.tag)
    partial = options.out.with_name(options.out.name + ".partial")
    partial.write_bytes(archive)
    partial.rename(options.out)
    print(digest)


if __name__ == "__main__":
    main()
