"""A sample that grows turn by turn."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from routing_replay import _turns, _values
from routing_replay._turns import Missing, Outcome, Turn

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from routing_replay.appender import Appender
    from routing_replay.recorded import RecordedRows
    from routing_replay.run import Run
    from routing_replay.types import RowRange, Rows, WeightSpan


class Trajectory:
    """The rows of one sample over several turns, aborts and weight updates. Thread-safe. Made by `Run.trajectory`.

    A multi-turn agent, as it asks its engine (here SGLang) and tells of every answer:

        from routing_replay.engines import sglang

        trajectory = run.trajectory("step7/agent3", group=7)
        context = tokenizer.apply_chat_template(messages)
        while True:
            start = trajectory.next_row(context)              # the engine need not send rows that are there
            answer = engine.generate(
                input_ids=context, return_routed_experts=True, routed_experts_start_len=start
            )
            recorded = sglang.rows(answer, run.geometry, start_len=start, prompt_token_ids=context)
            trajectory.add(recorded, weight_version=version)  # Its tokens are the whole context.
            context = context + answer["output_ids"]
            if is_done(answer):
                break
            context = context + tokenizer.encode(run_tool(answer))
        trajectory.seal()

    A history of T tokens has rows 0 … T - 2: the last token was never fed to the model. So the row of a turn's last
    token is the first one that the next turn gives, and nothing is ever overwritten.

    - Token ids decide what is new. A turn that says its whole context (or `tokens_start` and what follows) is compared
      with what was told before; rows up to the first token that differs stay, those behind are taken back from the
      server (`Turn.truncated_rows`) and must come with the turn.
    - The first route of a row stays. Rows that are given again, perhaps under newer weights, are compared and not sent;
      differences are counted (`Turn.conflicting_rows`), or AlreadyExistsError (CONFLICTING_ROWS) in a strict run.
    - What a turn does not give (aborted, preempted, not recorded) stays open for the next one. A turn that leaves a gap
      is FailedPreconditionError (GAP); `missing="unrecorded"` says that nobody has those rows.
    - Every call may be repeated: what is there already is not sent again.

    `add` queues and returns, like `Run.append`; trouble of the service is met by the appender. Only two things wait for
    the server, and raise what it says: taking rows back, and finding out what it has after an append that failed.
    """

    def __init__(self, run: Run, writer: _turns.Writer, appender: Appender) -> None:
        """See `Run.trajectory`."""
        self._run = run
        self._writer = writer
        self._appender = appender
        self._lock = threading.Lock()

    def add(
        self,
        rows: Rows | RecordedRows | None = None,
        *,
        tokens: ArrayLike | None = None,
        tokens_start: int = 0,
        start: int | None = None,
        take: RowRange | None = None,
        layers: str | Sequence[int] | None = None,
        outcome: Outcome = "finished",
        weight_version: int | None = None,
        weight_label: str | None = None,
        weights: Sequence[WeightSpan] | None = None,
        missing: Missing = "raise",
        seal: bool = False,
    ) -> Turn:
        """One answer of the engine.

        rows: ids [rows, layers, K], a Payload, what an adapter of routing_replay.engines gives, or None: no rows. What
            an engine sent as text goes through its adapter
        tokens: ids of the whole context, prompt and answer; or of what follows the first `tokens_start` tokens of the
            history; None if the history stays as it is (with RecordedRows: theirs)
        start: absolute row of the first row (default 0, or as recorded)
        take, layers: see AppendOptions
        outcome: "finished", "aborted" or "preempted"; only a finished turn must give all rows up to its last token but
            one. A row for the last token is left out
        weight_version, weight_label: of the weights that routed these rows; `weights` (WeightSpan of absolute rows
            among those given) where there are several. A version that is given stands for all rows, those recorded of
            the engine are not looked at then; a label alone for those that have no version
        missing: "unrecorded" declares rows that nobody gave, before `rows` or before the seal, unrecorded rows; an
            adapter that gave no rows and declared them missing (absent="unrecorded") has said so, too
        seal: no more turns will come

        With an error nothing has changed but what `Turn.truncated_rows` would say. InvalidArgumentError (ROW_COUNT) if
        the rows do not fit the tokens, and for what the ingest checks refuse; FailedPreconditionError for a gap
        (missing_rows in its detail), a seal before all rows, or tokens after the seal; AlreadyExistsError for a sample
        with other tokens and, in a strict run, for conflicting rows.
        """
        with self._appender.counting_refusals():
            steps = self._writer.add(
                rows,
                tokens=tokens,
                tokens_start=tokens_start,
                start=start,
                take=take,
                layers=layers,
                outcome=outcome,
                weight_version=weight_version,
                weight_label=weight_label,
                weights=weights,
                missing=missing,
                seal=seal,
            )
            return self._do(steps)

    def abort(self, rows: Rows | RecordedRows | None = None, **options: Any) -> Turn:
        """A turn that was aborted, perhaps with some rows and tokens, perhaps with nothing. Options as of `add`."""
        return self.add(rows, outcome="aborted", **options)

    def cut(self, num_tokens: int, *, seal: bool = False, missing: Missing = "raise") -> Turn:
        """Leaves the first `num_tokens` tokens and their rows. A sample that was sealed is open again."""
        return self._do(self._writer.cut(num_tokens, seal, missing))

    def seal(self, num_tokens: int | None = None, *, missing: Missing = "raise") -> Turn:
        """No more turns will come. With num_tokens the sample is cut to so many tokens first."""
        return self._do(self._writer.seal(num_tokens, missing))

    def fork(self, sample: str, *, wait: float = 1.0) -> Trajectory:
        """A new sample that begins as this one: the other answers to a prompt, the branches of a tree.

        Its first turn says the whole context. Rows up to the first token or route that differs are not sent: the sample
        refers to these. The same prompt may have been routed otherwise; then nothing is shared from there on. Only
        acknowledged rows can be shared: they are waited for, but not longer than `wait` seconds.
        """
        with self._lock:
            self._writer.drain()
            wait = _values.seconds(wait, "wait")
            if wait > 0 and not self._acknowledged():
                self._appender._settled(self._writer.last_sequence, wait)
            return Trajectory(self._run, self._writer.fork(sample), self._appender)

    def siblings(self, samples: Sequence[str], *, wait: float = 1.0) -> list[Trajectory]:
        """As `fork`, for each of `samples`."""
        return [self.fork(sample, wait=wait) for sample in samples]

    def next_row(self, tokens: ArrayLike) -> int:
        """The first row that a request with this context must give: rows before are there and stay."""
        with self._lock:
            return self._writer.next_row(tokens)

    @property
    def sample(self) -> str:
        return self._writer.sample

    @property
    def num_tokens(self) -> int:
        """Of the history so far."""
        return self._state()["num_tokens"]

    @property
    def rows(self) -> int:
        """Rows 0 … rows - 1 are on their way or there."""
        return self._state()["rows"]

    @property
    def acknowledged_rows(self) -> int:
        """Rows 0 … acknowledged_rows - 1 are there."""
        return self._state()["acknowledged_rows"]

    @property
    def sealed(self) -> bool:
        return self._state()["sealed"]

    def metrics(self) -> dict[str, int]:
        """Counters since the start: turns, aborted_turns, preempted_turns, retokenised (turns that changed the
        history), appended_rows, unrecorded_rows, unrecorded_samples (1 if sealed without any route), repeated_rows,
        conflicting_rows, late_rows, uncompared_rows, shared_rows, shared_by_tokens (shared rows that the turn did
        not give: only their tokens were compared), surplus_rows, truncated_rows, lost_rows (appended and
        not stored), failed_appends."""
        return self._state()["counters"]

    def __repr__(self) -> str:
        state = self._state()
        return f"<Trajectory {self.sample}: {state['num_tokens']} tokens, {state['rows']} rows>"

    def _state(self) -> dict[str, Any]:
        with self._lock:
            return self._writer.state()

    def _acknowledged(self) -> bool:
        state = self._writer.core.state()
        return state["rows"] == state["acknowledged_rows"]

    def _do(self, steps: _turns.Steps) -> Turn:
        with self._lock:
            step = _turns.advance(steps)
            while not isinstance(step, Turn):
                try:
                    answer = self._execute(step)
                except BaseException as error:
                    step = _turns.advance(steps, error=error)
                else:
                    step = _turns.advance(steps, answer)
            return step

    def _execute(self, step: Any) -> Any:
        if isinstance(step, _turns.Queue):
            return self._appender._enqueue(step.plan, self.sample, self._writer.note)
        if isinstance(step, _turns.Settle):
            return self._appender._settle(self._writer.last_sequence)
        if isinstance(step, _turns.Truncate):
            return self._run.truncate(self.sample, step.rows, expected_revision=step.expected_revision)
        return self._run.stat_many([self.sample])
