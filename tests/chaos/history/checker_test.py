"""The checker must find every fault planted in a log, and none in a correct log."""

from __future__ import annotations

import unittest
from typing import Any

import checker
import rows

RUN, SAMPLE = "main", "w0.0/0"
ALL = tuple(range(rows.LAYERS))


def made(attempt: int = 0, variant: int = 0, begin: int = 0, end: int = 24, layers: tuple[int, ...] = ALL) -> list[str]:
    source = (RUN, SAMPLE, attempt, variant)
    return rows.digests(rows.routes(source, begin, end)[:, layers], begin)


class Script:
    """A log whose calls follow each other, unless `begin` and `answer` say otherwise."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self._now = 0.0
        self._id = 0

    def note(self, **fields: Any) -> None:
        self._now += 1
        self.lines.append(("nemesis", {"at": self._now, **fields}))

    def begin(self, do: str, **fields: Any) -> int:
        self._now += 1
        self._id += 1
        self.lines.append(("worker", {"at": self._now, "id": self._id, "do": do, "run": RUN, **fields}))
        return self._id

    def answer(self, of: int, code: str = "OK", **fields: Any) -> None:
        self._now += 1
        self.lines.append(("worker", {"at": self._now, "of": of, "code": code, **fields}))

    def append(self, begin: int, end: int, attempt: int = 0, variant: int = 0, **answer: Any) -> None:
        span = [begin, end]
        call = self.begin("append", sample=SAMPLE, attempt=attempt, variant=variant, rows=span, seal=False)
        fields = {"committed": end, "revision": 1 + attempt, "num_tokens": None, "conflicting": 0}
        self.answer(call, **(fields if "code" not in answer else {}) | answer)

    def read(self, digests: list[str], committed: int = 24, span: tuple[int, int] | None = None, **more: Any) -> None:
        call = self.begin("read", sample=SAMPLE, rows=span, layers=None, wait=False)
        fields = {"status": "OK", "committed": committed, "revision": 1, "num_tokens": None, "digests": digests}
        self.answer(call, **fields | {"ranges": [span or (0, committed)], "layers": ALL} | more)

    def stat(self, committed: int | None, revision: int = 1, num_tokens: int | None = None) -> None:
        call = self.begin("stat", sample=SAMPLE)
        if committed is None:
            self.answer(call, status="NOT_FOUND")
        else:
            self.answer(call, status="STATE", committed=committed, revision=revision, num_tokens=num_tokens)

    def release(self) -> None:
        self.answer(self.begin("release", samples=[SAMPLE]), released=1)


class CheckerTest(unittest.TestCase):
    def setUp(self) -> None:
        self.log = Script()
        self.log.append(0, 16)
        self.log.append(8, 24)

    def found(self) -> list[str]:
        """The first words of the violations."""
        return [each.split(":")[0] for each in checker.check(checker.History(self.log.lines))]

    # Clean.

    def test_a_clean_log(self) -> None:
        self.log.read(made())
        self.log.read(made(begin=5, end=20, layers=(1, 3)), span=(5, 20), layers=(1, 3))
        self.log.append(16, 24, variant=1, conflicting=8)
        self.log.append(32, 40, code="FAILED_PRECONDITION", reason="GAP", committed=24, revision=1)
        self.log.append(0, 8, attempt=1)
        self.log.append(8, 16, code="FAILED_PRECONDITION", reason="OLD_REVISION", committed=8, revision=2)
        self.log.read(made(attempt=1, end=8), committed=8, revision=2)
        self.log.stat(8, 2, 9)
        self.log.note(memory=99, bound=100)
        self.log.release()
        self.log.stat(None)
        self.assertEqual(self.found(), [])

    def test_calls_at_one_time_may_take_effect_in_any_order(self) -> None:
        older = self.log.begin("stat", sample=SAMPLE)
        self.log.append(24, 32)
        self.log.answer(older, status="STATE", committed=24, revision=1, num_tokens=None)
        self.assertEqual(self.found(), [])

    def test_what_was_not_answered_may_be_there_or_not(self) -> None:
        self.log.begin("append", sample=SAMPLE, attempt=0, variant=0, rows=[24, 32], seal=False)
        self.log.read(made())
        self.log.read(made(end=32), committed=32)
        self.assertEqual(self.found(), [])

    def test_a_store_in_memory_loses_all_with_its_server(self) -> None:
        self.log.note(loss="all", **{"from": self.log.lines[-1][1]["at"] + 0.5})
        self.log.stat(None)
        self.log.append(0, 8, variant=1)
        self.log.read(made(variant=1, end=8), committed=8)
        self.assertEqual(self.found(), [])

    def test_after_a_failover_a_sample_is_as_it_was_before(self) -> None:
        self.log.note(loss="tail", **{"from": self.log.lines[-1][1]["at"] + 0.5})
        self.log.read(made(end=16), committed=16)
        self.assertEqual(self.found(), [])

    # Planted.

    def test_a_wrong_byte(self) -> None:
        ids = rows.routes((RUN, SAMPLE, 0, 0), 0, 24)
        ids[13, 2, 1] ^= 1
        self.log.read(rows.digests(ids, 0))
        self.assertEqual(self.found(), ["wrong rows"])

    def test_a_wrong_byte_after_a_failover(self) -> None:
        self.log.note(loss="tail", **{"from": self.log.lines[-1][1]["at"] + 0.5})
        self.test_a_wrong_byte()

    def test_a_lost_row(self) -> None:
        self.log.read(made(end=16), committed=16)
        self.assertEqual(self.found(), ["lost"])

    def test_a_row_that_is_missing_in_the_middle(self) -> None:
        digests = made()
        self.log.read([digests[0], digests[2]], ranges=[(0, 8), (16, 24)])
        self.assertEqual(self.found(), ["not a prefix"])

    def test_a_lost_sample(self) -> None:
        self.log.stat(None)
        self.assertEqual(self.found(), ["lost"])

    def test_a_sample_that_is_damaged(self) -> None:
        self.log.answer(self.log.begin("read", sample=SAMPLE), status="LOST", committed=24, revision=1)
        self.assertEqual(self.found(), ["lost"])

    def test_an_acknowledgement_without_its_rows(self) -> None:
        self.log.append(24, 32, committed=24)
        self.assertEqual(self.found(), ["lost"])

    def test_a_lost_seal(self) -> None:
        self.log.stat(24, num_tokens=25)
        self.log.stat(24)
        self.assertEqual(self.found(), ["lost"])

    def test_reordered_rows(self) -> None:
        ids = rows.routes((RUN, SAMPLE, 0, 0), 0, 24)
        ids[[3, 4]] = ids[[4, 3]]
        self.log.read(rows.digests(ids, 0))
        self.assertEqual(self.found(), ["wrong rows"])

    def test_reordered_cells(self) -> None:
        digests = made()
        self.log.read([digests[1], digests[0], digests[2]])
        self.assertEqual(self.found(), ["wrong rows"])

    def test_rows_of_two_attempts(self) -> None:
        self.log.append(0, 24, attempt=1)
        self.log.read([*made(attempt=1, end=16), made()[2]], revision=2)
        self.assertEqual(self.found(), ["wrong rows"])

    def test_rows_that_were_sent_later(self) -> None:
        self.log.read(made(end=32), committed=32)
        self.log.append(24, 32)
        self.assertIn("wrong rows", self.found())

    def test_two_first_writes(self) -> None:
        self.log.append(16, 24, variant=1)
        self.assertEqual(self.found(), ["double write"])

    def test_a_second_write_that_is_read(self) -> None:
        self.log.append(16, 24, variant=1, conflicting=8)
        self.log.read([*made(end=16), *made(variant=1, begin=16)])
        self.assertEqual(self.found(), ["double write"])

    def test_two_attempts_at_one_revision(self) -> None:
        self.log.append(0, 24, attempt=1, revision=1)
        self.assertEqual(self.found(), ["double write"])

    def test_a_stale_revision(self) -> None:
        self.log.append(0, 24, attempt=1)
        self.log.read(made())
        self.assertEqual(self.found(), ["stale"])

    def test_an_append_of_an_old_attempt_that_was_taken(self) -> None:
        self.log.append(0, 24, attempt=1)
        self.log.append(24, 32, revision=3)
        self.assertEqual(self.found(), ["stale"])

    def test_rows_past_the_seal(self) -> None:
        self.log.stat(24, num_tokens=25)
        self.log.append(24, 32, num_tokens=33)
        self.assertEqual(self.found(), ["past the seal"])

    def test_a_sample_that_comes_back(self) -> None:
        self.log.release()
        self.log.stat(24)
        self.assertEqual(self.found(), ["resurrected"])

    def test_untyped_errors(self) -> None:
        for code, reason in (("INTERNAL", None), ("FAILED_PRECONDITION", None), ("KeyError", None), ("UNKNOWN", None)):
            self.log.append(24, 32, code=code, reason=reason)
        self.assertEqual(self.found(), ["untyped"] * 4)

    def test_memory_over_the_bound(self) -> None:
        self.log.note(memory=101, bound=100)
        self.assertEqual(self.found(), ["memory"])

    def test_a_server_that_ended(self) -> None:
        self.log.note(ended=-11)
        self.assertEqual(self.found(), ["server"])


if __name__ == "__main__":
    unittest.main()
