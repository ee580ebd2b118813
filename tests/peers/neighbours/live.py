"""Uses our client in one process with a neighbour: another library that contains gRPC, protobuf or Abseil.

    live.py NEIGHBOUR first|second local|global

The neighbour is imported first or second; with `global`, its libraries and ours are loaded with RTLD_GLOBAL. Then both
call servers at the same time, in threads. The process forks, and both processes append and read again.
"""

import os
import sys
import threading
from collections.abc import Callable

neighbour, order, scope = sys.argv[1:]
if scope == "global":
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)

import numpy as np  # noqa: E402

ROWS = np.random.default_rng(7).random((300, 4, 64)).argsort(axis=2)[:, :, :8].astype(np.int32)


def grpcio() -> Callable[[], None]:
    """Starts a server and a client of grpcio that exchange messages of protobuf. Returns a function that makes a
    call."""
    from concurrent.futures import ThreadPoolExecutor

    import grpc
    from google.protobuf import struct_pb2

    def answer(request, context):
        return request

    server = grpc.server(ThreadPoolExecutor(2))
    handler = grpc.unary_unary_rpc_method_handler(
        answer, struct_pb2.Struct.FromString, struct_pb2.Struct.SerializeToString
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", {"Say": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    say = channel.unary_unary("/test.Echo/Say", struct_pb2.Struct.SerializeToString, struct_pb2.Struct.FromString)

    def use() -> None:
        message = struct_pb2.Struct()
        message.update({"rows": "7" * 1000})
        assert server and say(message, timeout=60) == message  # A server without references stops.

    return use


def protobuf() -> Callable[[], None]:
    """Defines a .proto file at run time that has the name of one of ours. Returns a function that serializes and parses
    messages of this and another file."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2

    file = descriptor_pb2.FileDescriptorProto(name="routing_replay/v1/append.proto", package="theirs")
    file.message_type.add(name="AppendRequest").field.add(name="text", number=1, type=9, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("theirs.AppendRequest"))

    def use() -> None:
        assert kind.FromString(kind(text="ours?").SerializeToString()).text == "ours?"
        value = struct_pb2.Value(string_value="x" * 1000)
        assert struct_pb2.Value.FromString(value.SerializeToString()) == value

    return use


def flight() -> Callable[[], None]:
    """Starts a server and a client of Arrow Flight, which also contains gRPC. Returns a function that makes a call."""
    import pyarrow as pa
    import pyarrow.flight

    table = pa.table({"x": list(range(1000))})

    class Server(pa.flight.FlightServerBase):
        def do_get(self, context, ticket):
            return pa.flight.RecordBatchStream(table)

    server = Server("grpc://127.0.0.1:0")
    client = pa.flight.FlightClient(f"grpc://127.0.0.1:{server.port}")

    def use() -> None:
        assert client.do_get(pa.flight.Ticket(b"t")).read_all() == table

    return use


def ray() -> Callable[[], None]:
    """Starts Ray, whose core worker contains gRPC, protobuf and Abseil. Returns a function that runs a task."""
    import ray

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    square = ray.remote(lambda x: x * x)

    def use() -> None:
        assert ray.get(square.remote(7), timeout=120) == 49

    return use


def torch() -> Callable[[], None]:
    """Loads torch's own libraries, which include a protobuf. Returns a function that uses them."""
    import torch
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True)

    def use() -> None:
        store.set("x", "y")
        assert store.get("x") == b"y" and torch.ones(8, 8).matmul(torch.ones(8, 8)).sum() == 512

    return use


def ours() -> Callable[[str], None]:
    import routing_replay as rr

    run = rr.Client().run(f"{neighbour}-{order}-{scope}", rr.Geometry(num_layers=4, num_experts=64, top_k=8))

    def use(name: str) -> None:
        for i in range(20):
            run.append(f"{name}/{i}", ROWS, seal=True)
        run.flush()
        for read in run.read([f"{name}/{i}" for i in range(20)]):
            assert (np.asarray(read.rows) == ROWS).all()

    return use


def at_once(name: str) -> None:
    """Uses our client and the neighbour at the same time, in two threads."""
    failed: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(lambda: [use_theirs() for _ in range(20)],))]
    threads.append(threading.Thread(target=guarded, args=(lambda: use_ours(name),)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


if order == "first":
    use_theirs = globals()[neighbour]()
    use_ours = ours()
else:
    use_ours = ours()
    use_ours("before")
    use_theirs = globals()[neighbour]()
at_once("both")
# After the fork only our client is used, because grpcio, Flight and Ray do not support forks.
child = os.fork()
if child == 0:
    status = 1
    try:
        use_ours("child")
        status = 0
    finally:
        os._exit(status)
use_ours("parent")
assert os.waitpid(child, 0)[1] == 0, "the child's appends or reads failed"
print("ok", flush=True)
