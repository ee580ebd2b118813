"""The calls without a payload: what to send and what the answer means, for the sync and the async client alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from routing_replay import _core, _messages, _values
from routing_replay._lives import Lives
from routing_replay._transport import DEFAULTS
from routing_replay.errors import (
    DeadlineExceededError,
    NotFoundError,
    ResourceExhaustedError,
    RoutingReplayError,
    UnavailableError,
)
from routing_replay.geometry import Geometry
from routing_replay.types import (
    Provenance,
    ReleaseOutcome,
    RunSettings,
    RunSummary,
    SampleState,
    ServerInfo,
    TokenCheck,
    WeightSpan,
)

K = TypeVar("K", str, int)
T_co = TypeVar("T_co", covariant=True)

_PRODUCERS = {"rollout": 1, "trainer": 2}
_PRODUCER_NAMES = {number: name for name, number in _PRODUCERS.items()}
_CODECS = {None: 0, "": 0, "RAW": 1, "PACKED": 2}
_CODEC_NAMES = {0: "", 1: "RAW", 2: "PACKED"}
_FIRST_LOOK, _LONGEST_LOOK = 0.05, 1.0  # Seconds between looks for a run.
NOT_THERE = (NotFoundError, UnavailableError, DeadlineExceededError)
_RELEASE_MODES = {"now": 1, "after_checkpoint": 2, "checkpointed": 3}
_DURABILITIES = {None: 0, "": 0, "memory": 1, "written": 2, "synced": 3}
_DURABILITY_NAMES = {0: "", 1: "memory", 2: "written", 3: "synced"}


class Waiting:
    """For a run that nobody has made yet, and for a server that is not there yet."""

    def __init__(self, run: str, seconds: float) -> None:
        self._run = run
        self._seconds = _values.seconds(seconds, "wait")
        self._end = time.monotonic() + self._seconds
        self._pause = _FIRST_LOOK

    def pause(self, error: RoutingReplayError) -> float:
        """Seconds until the next look after one that found `error`. DeadlineExceededError where the time is over."""
        if isinstance(error, NotFoundError) and error.reason != "NO_RUN":
            raise error
        left = self._end - time.monotonic()
        if left <= 0:
            raise DeadlineExceededError(
                f"run {self._run} could not be joined within {self._seconds:g} s: {error.message}", reason=error.reason
            ) from error
        pause, self._pause = min(self._pause, left), min(2 * self._pause, _LONGEST_LOOK)
        return pause


@dataclass(frozen=True)
class Call(Generic[T_co]):
    """`repeat`: idempotent, so that it is made again while the server is unavailable."""

    method: str
    request: bytes
    read: Callable[[bytes], T_co]
    repeat: bool = True


class OpenedRun(NamedTuple):
    core: _core.Run
    geometry: Geometry
    settings: RunSettings
    dropped: ReleaseOutcome
    lives: Lives


def open_run(
    run: str,
    geometry: Geometry | None,
    ttl: float | None,
    strict: bool,
    block_rows: int | None,
    codec: str | None,
    durability: str | None,
    resume_at: int | None,
) -> Call[OpenedRun]:
    request = _messages.OpenRunRequest(run=_values.text(run, "run"), client_version=DEFAULTS["version"])
    if geometry is not None:
        request.geometry.num_layers = geometry.num_layers
        request.geometry.moe_layer_ids.extend(geometry.moe_layers)
        request.geometry.num_experts.extend(geometry.num_experts)
        request.geometry.top_k.extend(geometry.top_k)
    seconds = 0.0 if ttl is None else _values.seconds(ttl, "ttl")
    block = 0 if block_rows is None else _values.integer(block_rows, "block_rows", _values.INT32)
    number = _values.choice(codec, "codec", _CODECS)
    level = _values.choice(durability, "durability", _DURABILITIES)
    if seconds or strict or block or number or level:
        request.options.ttl_ms = round(seconds * 1000)
        request.options.strict = bool(strict)
        request.options.block_rows = block
        request.options.codec = number
        request.options.durability = level

    if resume_at is not None:
        request.resume_at = _values.integer(resume_at, "resume_at", _values.INT64)
        request.required_features.append("resume-at")

    def read(answer: bytes) -> OpenedRun:
        response = _messages.OpenRunResponse.FromString(answer)
        core = _core.Run(
            {
                "run": run,
                "server_version": response.server_version,
                "geometry": _geometry_json(response.geometry),
                "block_rows": response.options.block_rows,
                "codec": response.options.codec,
                "max_message_bytes": response.max_message_bytes,
                "max_payload_bytes": response.max_payload_bytes,
            }
        )
        lives = Lives()
        lives.open(0, response.life)
        return OpenedRun(
            core,
            _geometry(response.geometry),
            _settings(response.options),
            _released(response.dropped),
            lives,
        )

    # What was removed is told once.
    return Call("OpenRun", request.SerializeToString(), read, repeat=resume_at is None)


def seal(run: str, sample: str, num_tokens: int, revision: int, producer: str) -> Call[SampleState]:
    request = _messages.SealRequest(
        run=run,
        sample=_values.text(sample, "sample"),
        producer=_values.choice(producer, "producer", _PRODUCERS),
        num_tokens=_values.integer(num_tokens, "num_tokens", sample=sample),
        revision=_values.integer(revision, "revision", sample=sample),
    )
    return Call("Seal", request.SerializeToString(), _read_state)


def truncate(run: str, sample: str, rows: int, expected_revision: int | None, producer: str) -> Call[SampleState]:
    request = _messages.TruncateRequest(
        run=run,
        sample=_values.text(sample, "sample"),
        producer=_values.choice(producer, "producer", _PRODUCERS),
        rows=_values.integer(rows, "rows", sample=sample),
    )
    if expected_revision is not None:
        request.expected_revision = _values.integer(expected_revision, "expected_revision", sample=sample)
    # Each one begins a new life of the sample.
    return Call("Truncate", request.SerializeToString(), _read_state, repeat=False)


def stat(run: str, samples: Sequence[str], producer: str) -> Call[list[SampleState]]:
    request = _messages.StatRequest(run=run, producer=_values.choice(producer, "producer", _PRODUCERS), samples=samples)

    def read(answer: bytes) -> list[SampleState]:
        return [_state(state) for state in _messages.StatResponse.FromString(answer).found]

    return Call("Stat", request.SerializeToString(), read)


def list_page(
    run: str, lives: Lives, groups: tuple[int, int] | None, producer: str, page_token: str
) -> Call[tuple[list[SampleState], str]]:
    request = _messages.ListRequest(
        run=run, producer=_values.choice(producer, "producer", _PRODUCERS), page_token=page_token
    )
    _set_groups(request, groups)

    def read(answer: bytes) -> tuple[list[SampleState], str]:
        page = _messages.ListResponse.FromString(answer)
        lives.check(0, run, page.life)
        return [_state(state) for state in page.samples], page.next_page_token

    return Call("List", request.SerializeToString(), read)


def list_runs(page_token: str) -> Call[tuple[list[RunSummary], str]]:
    """A page of runs, and the token of the next one, which is empty at the end."""

    def read(answer: bytes) -> tuple[list[RunSummary], str]:
        page = _messages.ListRunsResponse.FromString(answer)
        return [_summary(run) for run in page.runs], page.next_page_token

    return Call("ListRuns", _messages.ListRunsRequest(page_token=page_token).SerializeToString(), read)


def release(
    run: str,
    mode: str,
    samples: Sequence[str] = (),
    groups: tuple[int, int] | None = None,
    producer: str | None = None,
    content_ids: Sequence[int] = (),
    handles: Sequence[int] = (),
) -> Call[ReleaseOutcome]:
    request = _messages.ReleaseRequest(
        run=run,
        samples=samples,
        handles=handles,
        producer=_values.choice(producer, "producer", {None: 0, **_PRODUCERS}),
        mode=_RELEASE_MODES[mode],
        content_ids=content_ids,
    )
    _set_groups(request, groups)

    def read(answer: bytes) -> ReleaseOutcome:
        return _released(_messages.ReleaseResponse.FromString(answer))

    method = "Release" if mode == "now" else "ReleaseForCheckpoint"
    return Call(method, request.SerializeToString(), read)


def release_mode(keep_until_checkpoint: bool) -> str:
    return "after_checkpoint" if keep_until_checkpoint else "now"


def sum_of(parts: Iterable[ReleaseOutcome]) -> ReleaseOutcome:
    counts = [(part.samples, part.bytes, part.kept) for part in parts]
    return ReleaseOutcome(*map(sum, zip(*counts, strict=True))) if counts else ReleaseOutcome()


def drop(run: str) -> Call[ReleaseOutcome]:
    def read(answer: bytes) -> ReleaseOutcome:
        response = _messages.DropRunResponse.FromString(answer)
        return ReleaseOutcome(response.samples, response.bytes)

    return Call("DropRun", _messages.DropRunRequest(run=run).SerializeToString(), read, repeat=False)


def server_info() -> Call[ServerInfo]:
    def read(answer: bytes) -> ServerInfo:
        info = _messages.ServerInfo.FromString(answer)
        return ServerInfo(
            version=info.version,
            store=info.store,
            budget_bytes=info.budget_bytes,
            stored_bytes=info.stored_bytes,
            reserved_bytes=info.reserved_bytes,
            samples=info.samples,
            runs=info.runs,
            uptime=info.uptime_ms / 1000,
            draining=info.draining,
            counters=dict(info.counters),
            spill_budget_bytes=info.spill_budget_bytes,
            spilled_bytes=info.spilled_bytes,
        )

    return Call("GetServerInfo", _messages.GetServerInfoRequest().SerializeToString(), read)


def releases(
    run: str, samples: Iterable[str | int], keep_until_checkpoint: bool, producer: str | None
) -> Iterator[Call[ReleaseOutcome]]:
    """Of ids and handles; handle 0 is that of no sample."""
    if isinstance(samples, str) or not isinstance(samples, Iterable):
        raise _values.invalid("samples", f"{samples!r} is not a list of ids and handles")
    names: list[str] = []
    handles: list[int] = []
    for one in samples:
        if isinstance(one, str):
            names.append(one)
        elif (handle := _values.integer(one, "samples")) != 0:
            handles.append(handle)
    mode = release_mode(keep_until_checkpoint)
    for some in names_in_calls(names):
        yield release(run, mode, some, producer=producer)
    for some in _in_calls(list(dict.fromkeys(handles))):
        yield release(run, mode, handles=some, producer=producer)


def names_in_calls(names: Iterable[str]) -> Iterator[list[str]]:
    """Each name once, as many at a time as one call takes."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise _values.invalid("samples", f"{names!r} is not a list of ids")
    yield from _in_calls(list(dict.fromkeys(_values.text(name, "samples") for name in names)))


def _in_calls(keys: list[K]) -> Iterator[list[K]]:
    size = DEFAULTS["max_names_per_call"]
    for begin in range(0, len(keys), size):
        yield keys[begin : begin + size]


def halves(names: list[str], error: ResourceExhaustedError) -> tuple[list[str], list[str]]:
    """Of names whose answer would be too long, the second half first; any other error is raised."""
    if error.reason != "LENGTH" or len(names) < 2:
        raise error
    return names[len(names) // 2 :], names[: len(names) // 2]


def no_sample(run: str, sample: str) -> NotFoundError:
    return NotFoundError(f"run {run} has no sample {sample}", reason="NO_SAMPLE", sample=sample or None)


def states_for_core(states: list[SampleState]) -> list[dict[str, Any]]:
    """What the core asks for (rr_appender_on_states, rr_trajectory_on_state, rr_export_on_list, rr_import_begin)."""
    return [
        {
            "sample": state.sample,
            "producer": state.producer,
            "group": state.group,
            "committed_rows": state.committed_rows,
            "num_tokens": state.num_tokens,
            "revision": state.revision,
            "content_id": state.content_id,
            "unrecorded": [list(rows) for rows in state.unrecorded],
            "weights": [[span.begin, span.end, span.version, span.label] for span in state.weights],
            "awaits_checkpoint": state.awaits_checkpoint,
            "token_check": state.token_check and [state.token_check.rows, state.token_check.crc32c],
        }
        for state in states
    ]


def _set_groups(request: Any, groups: tuple[int, int] | None) -> None:
    if groups is not None:
        request.groups.begin, request.groups.end = _values.row_ranges([groups], "groups")[0]


def _geometry_json(message: Any) -> dict[str, Any]:
    return {
        "num_layers": message.num_layers,
        "moe_layers": list(message.moe_layer_ids),
        "num_experts": list(message.num_experts),
        "top_k": list(message.top_k),
    }


def _geometry(message: Any) -> Geometry:
    return Geometry.from_json(_geometry_json(message))


def _settings(options: Any) -> RunSettings:
    return RunSettings(
        ttl=options.ttl_ms / 1000,
        strict=options.strict,
        block_rows=options.block_rows,
        codec=_CODEC_NAMES.get(options.codec, str(options.codec)),
        durability=_DURABILITY_NAMES.get(options.durability, str(options.durability)),
    )


def _summary(run: Any) -> RunSummary:
    return RunSummary(
        run=run.run,
        geometry=_geometry(run.geometry),
        settings=_settings(run.options),
        samples=run.samples,
        sealed_samples=run.sealed_samples,
        committed_rows=run.committed_rows,
        stored_bytes=run.stored_bytes,
    )


def _read_state(answer: bytes) -> SampleState:
    return _state(_messages.SampleState.FromString(answer))


def _state(state: Any) -> SampleState:
    check = state.token_checks[-1] if state.token_checks else None
    return SampleState(
        sample=state.sample,
        handle=state.handle,
        producer=_PRODUCER_NAMES.get(state.producer, "rollout"),  # type: ignore[arg-type]
        group=state.group,
        committed_rows=state.committed_rows,
        num_tokens=state.num_tokens if state.HasField("num_tokens") else None,
        revision=state.revision,
        content_id=state.content_id,
        unrecorded=tuple((rows.begin, rows.end) for rows in state.unrecorded),
        weights=tuple(WeightSpan(w.rows.begin, w.rows.end, w.version, w.label) for w in state.weights),
        stored_bytes=state.stored_bytes,
        token_check=None if check is None else TokenCheck(check.rows, check.crc32c),
        engine=state.engine,
        idle_ms=state.idle_ms,
        provenance=tuple(
            Provenance(p.rows.begin, p.rows.end, p.weight_version, p.weight_label, p.engine, p.appends)
            for p in state.provenance
        ),
        awaits_checkpoint=state.awaits_checkpoint,
    )


def _released(response: Any) -> ReleaseOutcome:
    return ReleaseOutcome(response.samples, response.bytes, response.kept)
