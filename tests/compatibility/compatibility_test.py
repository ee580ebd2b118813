"""What earlier releases said and wrote, beside this build.

Usage: compatibility_test.py BUILD [test …]

Needs the Python client and the trainer's face (PYTHONPATH, ROUTING_REPLAY_LIBRARY_DIR). Every folder of corpus/ is one
version; README.md says what is in it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import google.protobuf  # noqa: F401
    import grpc  # noqa: F401
    import numpy  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

BUILD = Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build/release").resolve()
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import replaying  # noqa: E402
import stored  # noqa: E402
import wire_log  # noqa: E402
from messages import Messages  # noqa: E402
from playback import Playback  # noqa: E402

# Where a difference is meant and the version is not released yet.
RECORD_AGAIN = "see tests/compatibility/README.md on when to record again"
VERSIONS = sorted((HERE / "corpus").iterdir())
PARTS = ("stranger", "guarded", "python_client", "rrctl")


def recorded(folder: Path, part: str) -> list[wire_log.Event]:
    return wire_log.read(folder / f"{part}.jsonl.xz")


class CompatibilityTest(unittest.TestCase):
    def each_version(self):
        self.assertTrue(VERSIONS)
        for folder in VERSIONS:
            yield folder, Messages.read(folder / "routing_replay.binpb")

    def test_this_server_answers_recorded_requests_as_then(self):
        for folder, messages in self.each_version():
            scenario = replaying.load_scenario(folder)
            for part in PARTS:
                with replaying.server_of(BUILD, scenario, part) as endpoint:
                    replay = replaying.Replay(messages, endpoint)
                    replay.play(recorded(folder, part))
                self.assertEqual([], replay.differences, f"{folder.name} {part}: {RECORD_AGAIN}")
                self.assertEqual(replay.calls, len(wire_log.calls(recorded(folder, part))))

    def played_back(self, folder, messages, part, play):
        server = Playback(messages, wire_log.calls(recorded(folder, part)))
        try:
            play(server.endpoint)
        finally:
            server.stop()
            self.assertEqual([], server.unknown, "calls that this client did not make then")

    def test_the_python_client_understands_recorded_answers(self):
        for folder, messages in self.each_version():
            self.played_back(folder, messages, "python_client", replaying.load_scenario(folder).python_client)

    def test_the_cxx_client_understands_recorded_answers(self):
        for folder, messages in self.each_version():
            play = functools.partial(replaying.load_scenario(folder).rrctl, BUILD / "bin/rrctl")
            self.played_back(folder, messages, "rrctl", play)

    def test_a_change_is_seen(self):
        folder, messages = VERSIONS[-1], Messages.read(VERSIONS[-1] / "routing_replay.binpb")
        events = recorded(folder, "python_client")

        def ack(event):
            answer = messages.AppendAck.FromString(event.bytes)
            answer.committed_rows += 1
            return answer.SerializeToString()

        def read(event):
            answer = messages.ReadResponse.FromString(event.bytes)
            answer.payload = bytes([answer.payload[0] ^ 1]) + answer.payload[1:]
            return answer.SerializeToString()

        def stat(event):
            answer = messages.StatResponse.FromString(event.bytes)
            answer.found[0].content_id ^= 1
            return answer.SerializeToString()

        methods = {event.call: event.method for event in events if event.event == "open"}
        for method, change, word in (
            ("Put", ack, "committed_rows"),
            ("Read", read, "bytes"),
            ("Stat", stat, "content_id"),
        ):
            changed = [
                dataclasses.replace(event, bytes=change(event))
                if (methods[event.call], event.event) == (method, "receive")
                else event
                for event in events
            ]
            with replaying.server(BUILD) as endpoint:
                replay = replaying.Replay(messages, endpoint)
                replay.play(changed)
            self.assertTrue(replay.differences, method)
            self.assertTrue(
                all(f" {method}" in each and word in each for each in replay.differences), replay.differences
            )

    def test_every_call_and_refusal_is_recorded(self):
        for folder, messages in self.each_version():
            calls = [call for part in PARTS for call in wire_log.calls(recorded(folder, part))]
            self.assertEqual({call.method for call in calls}, set(messages.methods()))
            reasons = {messages.error_detail(call.details).reason for call in calls if call.details}
            for call in calls:
                if call.method == "Append":
                    acks = (messages.AppendResponse.FromString(answer).ack for answer in call.answers)
                    reasons |= {ack.error.detail.reason for ack in acks}
            names = set(messages.ErrorDetail.Reason.keys()) - {
                messages.ErrorDetail.Reason.Name(each) for each in reasons
            }
            # Two ids of one hash are not known, and nobody records a server that ends.
            self.assertLessEqual(names, {"REASON_UNSPECIFIED", "HANDLE_COLLISION", "DRAINING"})

    def test_a_version_takes_little_room(self):
        for folder in VERSIONS:
            self.assertLess(
                sum(file.stat().st_size for file in folder.iterdir() if file.is_file()), 300_000, folder.name
            )

    def test_the_protocol_only_grows(self):
        today = Messages.read(BUILD / "lib/routing_replay.binpb")
        for _, messages in self.each_version():
            self.assertEqual([], list(_taken_back(messages.files, today.files)))

    def test_a_store_on_disk_opens(self):
        for folder, _ in self.each_version():
            with tempfile.TemporaryDirectory() as directory:
                stored.unpack(folder / "rocksdb.tar.xz", Path(directory))
                with replaying.server(BUILD, "--store", f"rocksdb:{directory}") as endpoint:
                    stored.check(endpoint)

    def test_an_exported_run_is_replayed_and_imported(self):
        for folder, _ in self.each_version():
            with tempfile.TemporaryDirectory() as directory:
                stored.unpack(folder / "exported.tar.xz", Path(directory))
                stored.check_exported(Path(directory))
                with replaying.server(BUILD) as endpoint:
                    for name, *_ in stored.RUNS:
                        stored.rrctl(BUILD, endpoint, "import", str(Path(directory, name)))
                    stored.check(endpoint, opened=False)


def _taken_back(before, now):
    """What the descriptors of `before` have and those of `now` have no more, or with another meaning."""
    there = {file.name: file for file in now.file}
    for file in before.file:
        with contextlib.suppress(KeyError):
            yield from _of_scope(file, there[file.name], file.package)
            continue
        yield f"{file.name} is gone"


def _of_scope(before, now, path):
    for kind in ("message_type", "nested_type", "enum_type", "service"):
        there = {each.name: each for each in getattr(now, kind, ())}
        for each in getattr(before, kind, ()):
            if each.name not in there:
                yield f"{path}.{each.name} is gone"
            else:
                yield from _of_type(each, there[each.name], f"{path}.{each.name}")


def _of_type(before, now, path):
    yield from _of_scope(before, now, path)
    facts = {
        "field": ("name", "type", "label", "type_name", "proto3_optional"),
        "value": ("name",),
        "method": ("input_type", "output_type", "client_streaming", "server_streaming"),
    }
    for kind, names in facts.items():
        there = {getattr(each, "number", each.name): each for each in getattr(now, kind, ())}
        for each in getattr(before, kind, ()):
            other = there.get(getattr(each, "number", each.name))
            if other is None:
                yield f"{path}.{each.name} is gone"
                continue
            yield from (
                f"{path}.{each.name}: another {name}" for name in names if getattr(each, name) != getattr(other, name)
            )


if __name__ == "__main__":
    unittest.main()
