"""A Python client with only protobuf and grpcio puts and reads a sample.

Usage: stock_client_test.py SERVER PROTO_DIR
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

try:
    import google.protobuf  # noqa: F401
    import grpc
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
if not shutil.which("protoc"):
    print("skipped: there is no protoc")
    sys.exit(77)

ROWS = 5


def expert(row, layer, slot):
    return (3 * row + 5 * layer + slot) % 16


def generate(proto_dir, out):
    """Generates the message classes with protoc, as any other user would."""
    protos = sorted(str(p) for p in Path(proto_dir, "routing_replay/v1").glob("*.proto"))
    subprocess.run(["protoc", f"-I{proto_dir}", f"--python_out={out}", *protos], check=True)
    sys.path.insert(0, out)


def start_server(program, directory):
    endpoint = Path(directory, "endpoint")
    server = subprocess.Popen([program, "--listen", "127.0.0.1:0", "--endpoint-file", str(endpoint)])
    deadline = time.monotonic() + 20
    while not endpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return server, endpoint.read_text().strip()


def unary(channel, name, request, response):
    call = channel.unary_unary(
        f"/routing_replay.v1.RoutingReplay/{name}",
        request_serializer=lambda m: m.SerializeToString(),
        response_deserializer=response.FromString,
    )
    return call(request, timeout=20)


def main(program, proto_dir):
    with tempfile.TemporaryDirectory() as directory:
        generate(proto_dir, directory)
        from routing_replay.v1 import append_pb2, read_pb2, routing_replay_pb2

        server, endpoint = start_server(program, directory)
        try:
            with grpc.insecure_channel(endpoint, options=[("grpc.enable_http_proxy", 0)]) as channel:
                opened = routing_replay_pb2.OpenRunRequest(run="stock")
                opened.geometry.num_layers = 2
                opened.geometry.moe_layer_ids.extend([0, 1])
                opened.geometry.num_experts.append(16)
                opened.geometry.top_k.append(2)
                opened.options.codec = 1
                unary(channel, "OpenRun", opened, routing_replay_pb2.OpenRunResponse)

                put = append_pb2.AppendRequest(run="stock")
                put.append.sample = "a"
                put.append.rows = ROWS
                put.append.seal_num_tokens = ROWS + 1
                put.append.tensor.encoding = append_pb2.TensorPayload.RAW
                put.append.tensor.dtype = append_pb2.TensorPayload.U8
                put.append.tensor.shape.extend([ROWS, 2, 2])
                put.payload = bytes(expert(r, la, k) for r in range(ROWS) for la in range(2) for k in range(2))
                ack = unary(channel, "Put", put, append_pb2.AppendAck)
                assert ack.committed_rows == ROWS and ack.sealed, ack

                read = read_pb2.ReadRequest(run="stock", layers=[1])
                read.samples.add(sample="a", row_bounds=[1, 4])
                call = channel.unary_stream(
                    "/routing_replay.v1.RoutingReplay/Read",
                    request_serializer=lambda m: m.SerializeToString(),
                    response_deserializer=read_pb2.ReadResponse.FromString,
                )
                messages = list(call(read, timeout=20))
                assert messages[0].records[0].status == read_pb2.SampleRecord.OK, messages
                payload = b"".join(m.payload for m in messages)
                assert payload == bytes(expert(r, 1, k) for r in range(1, 4) for k in range(2)), payload
        finally:
            server.terminate()
            assert server.wait(20) == 0
    print("1 passed, 0 failed")


if __name__ == "__main__":
    main(*sys.argv[1:])
