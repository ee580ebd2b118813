"""What a version leaves on disks: a RocksDB store and an exported run."""

from __future__ import annotations

import io
import lzma
import subprocess
import tarfile
from pathlib import Path

import replaying
import routes

FILES = ("rocksdb.tar.xz", "exported.tar.xz")
# name, layers, E, K, rows: one of each width.
RUNS = (("u8", 3, 128, 8, 300), ("packed", 2, 512, 4, 70), ("u16", 2, 5000, 2, 40))


def expected(run: tuple[str, int, int, int, int]):
    _, layers, experts, top_k, rows = run
    return routes.ids(rows, layers, experts, top_k)


def fill(endpoint: str) -> None:
    import routing_replay as rr

    with rr.Client(endpoint) as client:
        for run in RUNS:
            name, layers, experts, top_k, rows = run
            opened = client.run(name, rr.Geometry(num_layers=layers, num_experts=experts, top_k=top_k))
            ids, tokens = expected(run), routes.tokens(rows)
            opened.put("sealed", ids, tokens=tokens, group=2, weight_version=5, engine="recorded 1", seal=True)
            opened.put("open", ids[: rows // 2], tokens=tokens[: rows // 2], group=3)
            opened.put("gaps", ids[:10], unrecorded=[(10, 15)], group=3, seal=True)


def check(endpoint: str, *, opened: bool = True) -> None:
    """Everything that `fill` put in is there, bit for bit. opened: samples that are not sealed, too."""
    import routing_replay as rr

    with rr.Client(endpoint) as client:
        for run in RUNS:
            name, layers, experts, top_k, rows = run
            found = client.run(name, rr.Geometry(num_layers=layers, num_experts=experts, top_k=top_k))
            ids, tokens = expected(run), routes.tokens(rows)
            whole = found.read_one("sealed")
            assert (whole.rows == ids).all() and whole.num_tokens == rows + 1, (name, whole)
            state = found.stat("sealed")
            assert (state.group, state.committed_rows) == (2, rows), state
            assert [(span.begin, span.end, span.version) for span in state.weights] == [(0, rows, 5)], state
            gaps = found.read_one("gaps")
            assert (gaps.rows[:10] == ids[:10]).all() and list(gaps.unrecorded) == [(10, 15)], gaps
            if opened:
                # It goes on where it was, and knows its tokens.
                outcome = found.put("open", ids, tokens=tokens, group=3, seal=True)
                assert (outcome.committed_rows, outcome.trimmed_rows) == (rows, rows // 2), outcome
                assert (found.read_one("open").rows == ids).all(), name


def check_exported(folder: Path) -> None:
    """A trainer replays from the directories themselves."""
    import routing_replay_trainer as rt

    for run in RUNS:
        name, layers, experts, top_k, rows = run
        geometry = {"num_layers": layers, "num_experts": experts, "top_k": top_k}
        batch = {"format": "THD", "sequences": [{"sample": "sealed", "tokens": rows + 1}], "partition": "contiguous"}
        batch |= {"cu_seqlens_padded": [0, rows + 1], "total_rows": rows + 1}
        replay = rt.DirectorySource(folder / name).fetch(rt.plan(geometry, batch))
        for layer in range(layers):
            assert (replay.indices[layer][:rows] == expected(run)[:, layer]).all(), (name, layer)


def record(build: Path, folder: Path) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        store, exported = Path(directory, "rocksdb"), Path(directory, "exported")
        with replaying.server(build, "--store", f"rocksdb:{store}") as endpoint:
            fill(endpoint)
            for name, *_ in RUNS:
                rrctl(build, endpoint, "export", name, str(exported / name))
        pack(folder / "rocksdb.tar.xz", store)
        pack(folder / "exported.tar.xz", exported)


def rrctl(build: Path, endpoint: str, *arguments: str) -> None:
    done = subprocess.run(
        [build / "bin/rrctl", "--endpoint", endpoint, *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, (arguments, done)


def pack(archive: Path, folder: Path) -> None:
    """The folder's files, but for logs and locks, without times and owners."""
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as tar:
        for file in sorted(folder.rglob("*")):
            if not file.is_file() or file.name.startswith("LOG"):
                continue
            entry = tarfile.TarInfo(str(file.relative_to(folder)))
            entry.size = file.stat().st_size
            with file.open("rb") as content:
                tar.addfile(entry, content)
    archive.write_bytes(lzma.compress(memory.getvalue(), preset=9))


def unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(archive.read_bytes()))) as tar:
        tar.extractall(folder)
