"""The messages of the calls without a payload, made at run time from descriptors in a pool of our own.

No generated code: the host process may have any protobuf from 3.20 on, and its own idea of the default pool.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from routing_replay import _library

_PACKAGE = "routing_replay.v1"


def _load() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(_library.find_file("routing_replay.binpb").read_bytes())
    for file in files.file:  # Imports come first.
        pool.AddSerializedFile(file.SerializeToString())
    return pool


_pool = _load()


def message_class(name: str) -> Any:
    """The class of a message of the package, for example "SealRequest"."""
    descriptor = _pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")
    factory: Any = message_factory
    if hasattr(factory, "GetMessageClass"):
        return factory.GetMessageClass(descriptor)
    return factory.MessageFactory(_pool).GetPrototype(descriptor)


OpenRunRequest = message_class("OpenRunRequest")
OpenRunResponse = message_class("OpenRunResponse")
SealRequest = message_class("SealRequest")
TruncateRequest = message_class("TruncateRequest")
StatRequest = message_class("StatRequest")
StatResponse = message_class("StatResponse")
ListRequest = message_class("ListRequest")
ListResponse = message_class("ListResponse")
ListRunsRequest = message_class("ListRunsRequest")
ListRunsResponse = message_class("ListRunsResponse")
ReleaseRequest = message_class("ReleaseRequest")
ReleaseResponse = message_class("ReleaseResponse")
DropRunRequest = message_class("DropRunRequest")
DropRunResponse = message_class("DropRunResponse")
GetServerInfoRequest = message_class("GetServerInfoRequest")
ServerInfo = message_class("ServerInfo")
SampleState = message_class("SampleState")
