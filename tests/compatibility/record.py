"""Records what a server of this build and its clients say to each other: the corpus of one version.

    record.py --build DIR corpus/VERSION

The folder holds scenario.py, which says what is asked. Everything else in it is written anew. README.md says when.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import grpc
import replaying
import stored
import wire_log
from messages import SERVICE, Messages
from proxy import OPTIONS, STREAMS, Proxy, headers


class Speaker:
    """Plays a scenario's messages over a channel, one after the other."""

    def __init__(self, messages: Messages, endpoint: str) -> None:
        self._messages = messages
        self._channel = grpc.insecure_channel(endpoint, options=OPTIONS)

    def call(self, method: str, request, token: str = "") -> object:
        """The answer, or None where it was refused; of a Read all answers."""
        sent, metadata = request.SerializeToString(), headers(f"Bearer {token}" if token else "")
        path, read = SERVICE + method, self._messages.answer(method).FromString
        try:
            if STREAMS.get(method, (False, False))[1]:
                return [read(each) for each in self._channel.unary_stream(path)(sent, metadata=metadata)]
            return read(self._channel.unary_unary(path)(sent, metadata=metadata, timeout=20))
        except grpc.RpcError:
            return None

    def stream(self, requests: list) -> None:
        """Each request waits for the answer to the one before."""
        sent = replaying.Requests()
        answers = self._channel.stream_stream(SERVICE + "Append")(sent, timeout=20)
        try:
            for request in requests:
                sent.put(request.SerializeToString())
                next(answers)
            sent.close()
            list(answers)
        except (grpc.RpcError, StopIteration):
            sent.close()

    def close(self) -> None:
        self._channel.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    build, folder = options.build.resolve(), options.folder.resolve()
    scenario = replaying.load_scenario(folder)
    descriptors = (build / "lib/routing_replay.binpb").read_bytes()
    messages = Messages(descriptors)

    def stranger(endpoint: str, play: str = "play") -> None:
        speaker = Speaker(messages, endpoint)
        getattr(scenario.Stranger(messages, speaker.call, speaker.stream), play)()
        speaker.close()

    parts = {
        "stranger": stranger,
        "guarded": lambda endpoint: stranger(endpoint, "guarded"),
        "python_client": scenario.python_client,
        "rrctl": lambda endpoint: scenario.rrctl(build / "bin/rrctl", endpoint),
    }
    for name, play in parts.items():
        with replaying.server_of(build, scenario, name) as endpoint:
            proxy = Proxy(endpoint)
            play(proxy.endpoint)
            proxy.stop()
        ended = {event.call for event in proxy.events if event.event == "end"}
        assert ended == {event.call for event in proxy.events}, f"{name}: calls without an end"
        wire_log.write(folder / f"{name}.jsonl.xz", proxy.events)
        print(f"{name}: {len(wire_log.calls(proxy.events))} calls")
    (folder / "routing_replay.binpb").write_bytes(descriptors)
    stored.record(build, folder)
    for file in sorted(folder.iterdir()):
        if file.is_file():
            print(f"{file.stat().st_size:8} {file.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
