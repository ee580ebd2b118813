"""What is said to a server to record this version, and what must come back.

`Stranger` speaks to it as clients of any language do, with messages of the protocol and nothing of ours.
`python_client` and `rrctl` are a user's programs: they must go on working, unchanged, with the clients of later
releases, over the answers that were recorded here.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import routes

ROWS = 40


def _entry(token, prefix, *scopes):
    digest = hashlib.sha256(token.encode()).hexdigest()
    return {"name": token, "sha256": digest, "runs": [prefix], "scopes": list(scopes)}


TOKEN_FILE = json.dumps(
    [_entry("writer", "team-", "put"), _entry("reader", "team-", "read"), _entry("coordinator", "team-", "admin")]
)
NONCE = 0x1122334455667788


def _tensor(request, array, encoding, dtype=0, *, zstd=False, basis=0, layer_ids=(), give_shape=True):
    """Puts ids into a request as an engine would."""
    tensor = request.append.tensor
    tensor.encoding = encoding
    tensor.dtype = dtype
    tensor.layer_basis = basis
    tensor.layer_ids.extend(layer_ids)
    if give_shape:
        tensor.shape.extend(array.shape)
    data = routes.npy(array) if encoding in (2, 4) else array.tobytes()
    if encoding in (3, 4):
        data = routes.base64_of(data)
    if zstd:
        tensor.compression, tensor.raw_size = 2, len(data)
        data = routes.zstd(data)
    request.payload = data


def _blocks(request, array, experts, packed, first_row=0, window=256, damage=False):
    """Puts ids [rows, layers, K] in as blocks."""
    payload = b""
    start, end = first_row, first_row + len(array)
    while start < end:
        stop = min(end, (start // window + 1) * window)
        header = request.append.blocks.blocks.add(row_start=start, rows=stop - start, codec=2 if packed else 1)
        for layer in range(array.shape[1]):
            plane = routes.plane(array[start - first_row : stop - first_row, layer], experts, packed)
            header.plane_crc32c.append(routes.crc32c(plane) ^ damage)
            payload += plane
        start = stop
    request.payload = payload


class Stranger:
    """call(method, request) -> answer or None where it is refused; stream(requests); read(request)."""

    def __init__(self, messages, call, stream):
        self.m, self.call, self.stream = messages, call, stream

    def play(self):
        self.runs()
        self.payloads()
        self.blocks()
        self.overlaps_and_revisions()
        self.refusals()
        self.forks()
        self.streams()
        self.reads()
        self.control()
        self.ends()

    def guarded(self):
        """Of a server that asks for tokens: who may do what, and what the others are told."""
        m = self.m
        opened = m.OpenRunRequest(run="team-a")
        opened.geometry.num_layers = 2
        opened.geometry.moe_layer_ids.extend([0, 1])
        opened.geometry.num_experts.append(32)
        opened.geometry.top_k.append(2)
        rows = self.put("team-a", "a", 5, seal_num_tokens=6)
        _tensor(rows, routes.ids(5, 2, 32, 2).astype("<u1"), 1, 1)
        for token in ("", "unknown", "reader", "writer", "coordinator"):
            self.call("OpenRun", opened, token)
        for token in ("", "reader", "writer"):
            self.call("Put", rows, token)
        for token in ("", "unknown", "writer", "reader"):
            self.call("Read", m.ReadRequest(run="team-a", samples=[m.SampleRead(sample="a")]), token)
            self.call("Stat", m.StatRequest(run="team-a", samples=["a"]), token)
        # Others' runs and those that are not there look the same.
        self.call("Stat", m.StatRequest(run="others", samples=["a"]), "reader")
        self.call("OpenRun", m.OpenRunRequest(run="others"), "writer")
        for token in ("", "reader", "coordinator"):
            self.call("ListRuns", m.ListRunsRequest(), token)
            self.call("GetServerInfo", m.GetServerInfoRequest(), token)
        for token in ("writer", "reader", "coordinator"):
            self.call("Release", m.ReleaseRequest(run="team-a", samples=["a"]), token)
            self.call("DropRun", m.DropRunRequest(run="team-a"), token)

    def put(self, run, sample, rows, **fields):
        request = self.m.AppendRequest(run=run)
        request.append.append_id = fields.pop("append_id", 1)
        request.append.sample = sample
        request.append.rows = rows
        for name, value in fields.items():
            if isinstance(value, list):
                getattr(request.append, name).extend(value)
            else:
                setattr(request.append, name, value)
        return request

    def runs(self):
        def opened(run, layers, moe, experts, top_k, **options):
            request = self.m.OpenRunRequest(run=run, client_version="")
            geometry = request.geometry
            geometry.num_layers = layers
            geometry.moe_layer_ids.extend(moe)
            geometry.num_experts.extend(experts)
            geometry.top_k.extend(top_k)
            for name, value in options.items():
                setattr(request.options, name, value)
            return request

        self.call("OpenRun", opened("u8", 4, range(4), [128], [8]))
        self.call("OpenRun", opened("u16", 2, range(2), [5000], [4], block_rows=32))
        self.call("OpenRun", opened("packed", 3, range(3), [512], [4], block_rows=32, ttl_ms=3_600_000))
        self.call("OpenRun", opened("mixed", 6, [1, 3, 5], [64, 256, 300], [2, 4, 8], strict=True))
        self.call("OpenRun", opened("raw", 2, range(2), [32], [2], codec=1))
        self.call("OpenRun", opened("u8", 4, range(4), [128], [8]))  # Joined.
        self.call("OpenRun", self.m.OpenRunRequest(run="u8"))
        self.call("OpenRun", self.m.OpenRunRequest(run="nobody"))  # NO_RUN
        self.call("OpenRun", opened("u8", 4, range(4), [256], [8]))  # GEOMETRY_MISMATCH
        self.call("OpenRun", opened("bad", 4, [2, 1], [128], [8]))  # FIELD
        self.call("OpenRun", self.m.OpenRunRequest(run="u8", client_version="9.0.0"))  # VERSION_MISMATCH
        self.call("OpenRun", self.m.OpenRunRequest(run="u8", required_features=["nothing-of-the-kind"]))
        unordered = opened("unordered", 2, range(2), [32], [2])
        unordered.geometry.order_policy = 2
        self.call("OpenRun", unordered)  # UNIMPLEMENTED

    def payloads(self):
        small = routes.ids(ROWS, 4, 128, 8)
        forms = [
            ("raw-u8", small.astype("<u1"), 1, 1, {}),
            ("raw-i32", small.astype("<i4"), 1, 5, {}),
            ("npy-i64", small.astype("<i8"), 2, 0, {"give_shape": False}),
            ("base64-i16", small.astype("<i2"), 3, 4, {}),
            ("base64-npy-u16", small.astype("<u2"), 4, 3, {}),
            ("zstd-u8", small.astype("<u1"), 1, 1, {"zstd": True}),
            ("zstd-npy-i32", small.astype("<i4"), 2, 5, {"zstd": True}),
            ("explicit", small[:, [2, 0, 3, 1]].astype("<u1"), 1, 1, {"basis": 3, "layer_ids": [2, 0, 3, 1]}),
        ]
        for name, array, encoding, dtype, more in forms:
            request = self.put("u8", f"form/{name}", ROWS, group=3, weight_version=17, seal_num_tokens=ROWS + 1)
            _tensor(request, array, encoding, dtype, **more)
            self.call("Put", request)
        long = self.put("u8", "long", 3000, group=7)  # More than one message of a read.
        _tensor(long, routes.ids(3000, 4, 128, 8).astype("<u1"), 1, 1)
        self.call("Put", long)
        wide = self.put("u16", "wide", ROWS, weight_label="step-17", engine="an engine 1.0")
        _tensor(wide, routes.ids(ROWS, 2, 5000, 4).astype("<u2"), 1, 3)
        self.call("Put", wide)
        narrow = self.put("raw", "narrow", 5, token_ids=routes.token_bytes(routes.tokens(5)))
        _tensor(narrow, routes.ids(5, 2, 32, 2).astype("<i8"), 1, 6, basis=1)
        self.call("Put", narrow)
        gaps = self.put("u8", "gaps", 20, group=4, weight_version=18)
        gaps.append.unrecorded.add(begin=3, end=7)
        gaps.append.unrecorded.add(begin=19, end=20)
        _tensor(gaps, routes.ids(15, 4, 128, 8, salt=5).astype("<u1"), 1, 1)
        self.call("Put", gaps)

    def blocks(self):
        for run, sample, layers, experts, top_k, packed, window in (
            ("u8", "blocks/u8", 4, 128, 8, False, 256),
            ("u16", "blocks/u16", 2, 5000, 4, False, 32),
            ("packed", "blocks/packed", 3, 512, 4, True, 32),
            ("raw", "blocks/raw", 2, 32, 2, False, 256),
        ):
            request = self.put(run, sample, 70, weight_version=1, group=5, seal_num_tokens=71)
            request.append.token_ids = routes.token_bytes(routes.tokens(70))
            _blocks(request, routes.ids(70, layers, experts, top_k), experts, packed, window=window)
            self.call("Put", request)
        self.call("Put", self.mixed("blocks/mixed", seal_num_tokens=11))
        short = self.mixed("short")
        short.payload = short.payload[:-1]
        self.call("Put", short)  # LENGTH
        damaged = self.put("u8", "damaged", 10)
        _blocks(damaged, routes.ids(10, 4, 128, 8), 128, False, damage=True)
        self.call("Put", damaged)  # CHECKSUM

    def mixed(self, sample, salt=0, **fields):
        """Ten rows of the run whose layers differ in E and K, each in the width of its own E."""
        request = self.put("mixed", sample, 10, **fields)
        header = request.append.blocks.blocks.add(row_start=0, rows=10, codec=1)
        for experts, top_k in ((64, 2), (256, 4), (300, 8)):
            plane = routes.plane(routes.ids(10, 1, experts, top_k, salt)[:, 0], experts, packed=False)
            header.plane_crc32c.append(routes.crc32c(plane))
            request.payload += plane
        return request

    def overlaps_and_revisions(self):
        def append(sample, start, rows, salt=0, run="u8", **fields):
            request = self.put(run, sample, rows, row_start=start, **fields)
            layers, experts, top_k = {"u8": (4, 128, 8), "raw": (2, 32, 2)}[run]
            _tensor(request, routes.ids(rows, layers, experts, top_k, salt, start).astype("<u1"), 1, 1)
            self.call("Put", request)

        append("turns", 0, 10, token_ids=routes.token_bytes(routes.tokens(10)), weight_version=1)
        append("turns", 6, 10, token_ids=routes.token_bytes(routes.tokens(16)[6:]), weight_version=2)  # Trimmed.
        append("turns", 8, 10, salt=1)  # Conflicting.
        append("turns", 30, 2)  # GAP
        other = routes.token_bytes(routes.tokens(4, salt=9))
        append("turns", 0, 4, token_ids=other)  # Unverified: nothing is known of the middle of a window.
        append("turns", 0, 16, token_ids=routes.token_bytes(routes.tokens(16, salt=9)))  # OTHER_TOKENS
        append("gaps", 2, 6, salt=5)  # Late rows.
        self.call("Truncate", self.m.TruncateRequest(run="u8", sample="turns", rows=12, expected_revision=0))
        self.call("Truncate", self.m.TruncateRequest(run="u8", sample="turns", rows=99))  # OUT_OF_RANGE
        append("turns", 12, 3)  # OLD_REVISION
        append("turns", 12, 3, revision=1)
        append("turns", 0, 9, revision=1, restart_nonce=NONCE)
        append("turns", 9, 2, revision=1, restart_nonce=NONCE)
        self.call("Seal", self.m.SealRequest(run="u8", sample="turns", num_tokens=50, revision=2))  # NOT_COMMITTED
        self.call("Seal", self.m.SealRequest(run="u8", sample="turns", num_tokens=12, revision=2))
        self.call("Seal", self.m.SealRequest(run="u8", sample="turns", num_tokens=12, revision=2))
        append("turns", 11, 3, revision=2)  # SEALED
        append("open", 0, 8, group=9)
        append("trainer", 0, 6, producer=2, group=3, seal_num_tokens=7)
        dropped = self.put("u8", "dropped", 12, group=4, seal_num_tokens=13)
        dropped.append.unrecorded.add(begin=0, end=12)
        self.call("Put", dropped)

    def refusals(self):
        good = routes.ids(6, 4, 128, 8)

        def refused(array, dtype=5, rows=6, encoding=1, run="u8", sample="refused", payload=None, **more):
            request = self.put(run, sample, rows)
            _tensor(request, array, encoding, dtype, **more)
            if payload is not None:
                request.payload = payload
            self.call("Put", request)

        def changed(row, layer, slot, value):
            array = good.astype("<i4")
            array[row, layer, slot] = value
            return array

        refused(changed(2, 1, 3, 128))  # ID_RANGE
        refused(changed(2, 1, 3, int(good[2, 1, 4])))  # DUPLICATE_ID
        refused(changed(4, 0, 0, -1))  # PARTIAL_ROW
        refused(np.zeros_like(good).astype("<i4"))  # ALL_ZERO_LAYER or DUPLICATE_ID
        refused(good[:, :3].astype("<i4"))  # SHAPE
        refused(good.astype("<i4"), dtype=0)  # DTYPE
        refused(good.astype("<i4"), rows=7)  # LENGTH
        refused(good.astype("<i4"), payload=b"123")
        refused(good.astype("<u1"), dtype=1, encoding=3, payload=b"=!=")  # ENCODING
        refused(good.astype("<i4"), dtype=0, encoding=2, payload=b"\x93NUMPY\x02\x00")
        refused(good.astype("<u1"), dtype=1, zstd=True, payload=b"no frame")
        refused(good.astype("<i4"), run="nobody")  # NO_RUN
        refused(good.astype("<i4"), sample="not a name")  # FIELD
        refused(good.astype("<i4"), sample="")
        self.call("Put", self.m.AppendRequest(run="u8"))
        request = self.put("u8", "refused", 4)
        request.append.blocks.blocks.add(row_start=0, rows=4, codec=3)
        self.call("Put", request)  # UNIMPLEMENTED
        self.call("Put", self.mixed("blocks/mixed", salt=1))  # CONFLICTING_ROWS
        self.call("Put", self.put("u8", "past-the-end", 2, seal_num_tokens=2))  # ROW_COUNT

    def forks(self):
        def forked(sample, parent, rows, revision=0, row_start=None, own=0):
            request = self.put("u8", sample, own, row_start=rows if row_start is None else row_start)
            request.append.prefix.sample = parent
            request.append.prefix.rows = rows
            request.append.prefix.revision = revision
            if own:
                _tensor(request, routes.ids(own, 4, 128, 8, 3, rows).astype("<u1"), 1, 1)
            self.call("Put", request)

        forked("fork/0", "form/raw-u8", 30, own=5)
        forked("fork/1", "form/raw-u8", 10)
        forked("fork/2", "open", 20)  # NOT_COMMITTED
        forked("fork/3", "open", 4, revision=7)  # OLD_REVISION
        forked("fork/4", "nobody", 4)  # NO_SAMPLE

    def streams(self):
        def message(run, sample, array, append_id, want=0, **fields):
            request = self.put(run, sample, len(array), append_id=append_id, **fields)
            _tensor(request, array.astype("<u1"), 1, 1)
            request.want_bytes = want
            return request

        first, second = routes.ids(12, 4, 128, 8), routes.ids(12, 4, 128, 8, first_row=12)
        bad = first.copy()
        bad[0, 0, 0] = 200
        self.stream(
            [
                self.m.AppendRequest(run="u8", want_bytes=1 << 16),
                message("", "stream/a", first, 1, group=6),
                message("", "stream/b", first, 2, group=6, weight_version=4),
                message("", "stream/bad", bad, 3),  # ID_RANGE, and the stream goes on.
                message("", "stream/a", second, 4, row_start=12, seal_num_tokens=25),
                message("packed", "stream/nowhere", first, 5),  # SHAPE
                message("u8", "stream/b", second, 6, row_start=40),  # GAP
            ]
        )
        self.stream([message("u8", "stream/c", first, 1)])  # Without credit.
        self.stream([self.m.AppendRequest(want_bytes=100)])  # Without a run.

    def reads(self):
        def read(run, samples, layers=(), **fields):
            request = self.m.ReadRequest(run=run, layers=layers, **fields)
            for sample in samples:
                request.samples.add(**sample)
            self.call("Read", request)

        read("u8", [{"sample": "form/raw-u8"}])
        read("u8", [{"sample": "form/npy-i64", "row_bounds": [3, 9, 20, 21]}], layers=[1, 2])
        read("u16", [{"sample": "blocks/u16"}, {"sample": "wide", "row_bounds": [30, 35]}])
        read("packed", [{"sample": "blocks/packed"}], max_message_bytes=65536)
        read("packed", [{"sample": "blocks/packed", "row_bounds": [1, 2, 31, 35]}], layers=[2])  # Bit offsets.
        read("mixed", [{"sample": "blocks/mixed"}], layers=[1, 5])
        read("raw", [{"sample": "narrow"}, {"sample": "blocks/raw"}])
        read("u8", [{"sample": "trainer"}], producer=2)
        read("u8", [{"sample": "long"}], max_message_bytes=65536)
        read("u8", [{"sample": "open", "row_bounds": [0, 8]}], wait=True)
        read("u8", [{"sample": "fork/0", "row_bounds": [28, 35]}])
        (state,) = self.call("Stat", self.m.StatRequest(run="u8", samples=["gaps"])).found
        check = routes.crc32c(routes.token_bytes(routes.tokens(70)))
        read(
            "u8",
            [
                {"sample": "nobody"},
                {"handle": state.handle},
                {"sample": "dropped"},
                {"sample": "open", "row_bounds": [0, 20]},
                {"sample": "form/raw-u8", "row_bounds": [0, 99]},
                {"sample": "form/raw-u8", "num_tokens": 12},
                {"sample": "form/raw-u8", "min_weight_version": 18},
                {"sample": "blocks/u8", "token_checks": [{"rows": 70, "crc32c": check ^ 1}]},
                {"sample": "blocks/u8", "token_checks": [{"rows": 70, "crc32c": check}], "row_bounds": [69, 70]},
                {"sample": "form/raw-u8", "num_tokens": ROWS + 1, "max_weight_version": 17, "row_bounds": [0, 1]},
            ],
        )
        read("nobody", [{"sample": "a"}])  # NO_RUN
        read("u8", [{"sample": "form/raw-u8"}], layers=[9])  # FIELD
        read("u8", [{"sample": "form/raw-u8", "row_bounds": [4, 4]}])

    def control(self):
        m = self.m
        found = self.call("Stat", m.StatRequest(run="u8", samples=["turns", "gaps", "nobody", "fork/0"])).found
        handles = [state.handle for state in found]
        self.call("Stat", m.StatRequest(run="u8", handles=[*handles, 12345]))
        self.call("Stat", m.StatRequest(run="u8", producer=2, samples=["trainer", "turns"]))
        self.call("Stat", m.StatRequest(run="nobody", samples=["a"]))
        token = ""
        while True:
            page = self.call("List", m.ListRequest(run="u8", page_size=5, page_token=token))
            token = page.next_page_token
            if not token:
                break
        self.call("List", m.ListRequest(run="u8", groups=m.GroupRange(begin=3, end=5)))
        self.call("List", m.ListRequest(run="u8", producer=2))
        self.call("List", m.ListRequest(run="nobody"))
        self.call("ListRuns", m.ListRunsRequest())
        self.call("GetServerInfo", m.GetServerInfoRequest())

    def ends(self):
        m = self.m
        (state,) = self.call("Stat", m.StatRequest(run="u8", samples=["form/raw-i32"])).found
        self.call("ReleaseForCheckpoint", m.ReleaseRequest(run="u8", samples=["form/raw-i32", "open"], mode=2))
        self.call("Stat", m.StatRequest(run="u8", samples=["form/raw-i32", "open"]))
        given = {"run": "u8", "samples": ["form/raw-i32"], "mode": 3}
        self.call("ReleaseForCheckpoint", m.ReleaseRequest(**given, content_ids=[state.content_id ^ 1]))
        self.call("ReleaseForCheckpoint", m.ReleaseRequest(**given, content_ids=[state.content_id]))
        self.call("Release", m.ReleaseRequest(run="u8", samples=["form/zstd-u8", "nobody"]))
        self.call("Release", m.ReleaseRequest(run="u8", groups=m.GroupRange(begin=4, end=5)))
        self.call("Release", m.ReleaseRequest(run="u8", samples=["a"], groups=m.GroupRange(begin=4, end=5)))
        self.call("Read", m.ReadRequest(run="u8", samples=[m.SampleRead(sample="form/zstd-u8")]))
        self.call("OpenRun", m.OpenRunRequest(run="u8", resume_at=6))
        self.call("List", m.ListRequest(run="u8"))
        self.call("DropRun", m.DropRunRequest(run="raw"))
        self.call("DropRun", m.DropRunRequest(run="raw"))
        self.call("ListRuns", m.ListRunsRequest())


def python_client(endpoint):
    """The package routing-replay, as its README shows it."""
    import routing_replay as rr

    with rr.Client(endpoint, call_timeout=20) as client:
        run = client.run("python", rr.Geometry(num_layers=3, num_experts=384, top_k=4), block_rows=32)
        rows, tokens = routes.ids(50, 3, 384, 4), routes.tokens(50)
        run.append("a", rows, tokens=tokens, group=1, weight_version=7, engine="recorded 1", seal=True)
        run.flush()
        run.append("b", rows[:20], unrecorded=[(20, 24)], group=2)
        run.flush()
        outcome = run.put("c", rows[:9].astype(np.int32), group=2, seal=True)
        assert (outcome.committed_rows, outcome.sealed) == (9, True), outcome
        back = run.read_one(rr.SampleRead("a", rows=[(5, 40)]), layers=[0, 2])
        assert (back.rows == rows[5:40][:, [0, 2]]).all() and back.num_tokens == 51, back
        back = run.read_one("b")
        assert (back.rows[:20] == rows[:20]).all() and list(back.unrecorded) == [(20, 24)], back
        state = run.stat("a")
        assert (state.committed_rows, state.num_tokens, state.group, state.engine) == (50, 51, 1, "recorded 1"), state
        assert [each.sample for each in run.stat_many(["a", "zzz"])] == ["a"]
        assert [each.sample for each in run.list(groups=(2, 3))] == ["b", "c"]
        try:
            run.put("a", rows[:32], tokens=routes.tokens(32, salt=1))
            raise AssertionError("other tokens were taken")
        except rr.AlreadyExistsError as error:
            assert (error.reason, error.sample) == ("OTHER_TOKENS", "a"), error
        assert run.release(["c"]).samples == 1
        run.close()


def rrctl(program, endpoint):
    """The command-line tool: the client in C++."""

    def run(*arguments, code=0):
        done = subprocess.run(
            [program, "--endpoint", endpoint, "-w", "json", *arguments], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == code, (arguments, done)
        return json.loads(done.stdout) if done.stdout else None

    rows = routes.ids(30, 2, 96, 4)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "rows.npy")
        file.write_bytes(routes.npy(rows.astype("<i4")))
        run("put", "shell", "a/1", str(file), "--experts", "96", "--group", "3", "--seal")
    (state,) = run("stat", "shell", "a/1")
    assert (state["rows"], state["tokens"], state["group"]) == (30, 31, 3), state
    assert [each["sample"] for each in run("ls", "shell")] == ["a/1"]
    got = run("get", "shell", "a/1", "--layer", "1", "--rows", "4:6")
    assert rows[4:6, 1].tolist() == [each["experts"] for each in got], got
    run("verify", "shell")
    assert any(each["run"] == "shell" for each in run("runs"))
    assert run("status")["store"] == "memory"
    run("stat", "shell", "nobody", code=1)
    run("rm", "shell", "a/1")
    run("rm", "shell", "--all")
