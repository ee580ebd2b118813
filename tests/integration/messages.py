"""Builds the message classes of one version of the protocol from a file of descriptors, without generated code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "routing_replay.v1"
SERVICE = f"/{PACKAGE}.RoutingReplay/"


def _status() -> descriptor_pb2.FileDescriptorProto:
    """Returns the definition of google.rpc.Status, which carries the details of failed calls. It is made here so that
    the tests do not need the package googleapis-common-protos."""
    file = descriptor_pb2.FileDescriptorProto(name="google/rpc/status.proto", package="google.rpc", syntax="proto3")
    file.dependency.append("google/protobuf/any.proto")
    kinds = descriptor_pb2.FieldDescriptorProto
    status = file.message_type.add(name="Status")
    status.field.add(name="code", number=1, type=kinds.TYPE_INT32, label=kinds.LABEL_OPTIONAL)
    status.field.add(name="message", number=2, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    status.field.add(
        name="details",
        number=3,
        type=kinds.TYPE_MESSAGE,
        label=kinds.LABEL_REPEATED,
        type_name=".google.protobuf.Any",
    )
    return file


class Messages:
    """The message classes of the protocol. messages.SampleState is the class of this name; messages.answer("Stat") is
    the class of the answers of this method."""

    def __init__(self, descriptors: bytes) -> None:
        self.files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
        self._pool = descriptor_pool.DescriptorPool()
        any_file = descriptor_pb2.FileDescriptorProto()
        any_pb2.DESCRIPTOR.CopyToProto(any_file)
        for file in (*self.files.file, any_file, _status()):
            self._pool.AddSerializedFile(file.SerializeToString())

    @classmethod
    def read(cls, path: Path) -> Messages:
        return cls(path.read_bytes())

    def __getattr__(self, name: str) -> Any:
        return self._class(f"{PACKAGE}.{name}")

    def methods(self) -> dict[str, Any]:
        return dict(self._pool.FindServiceByName(f"{PACKAGE}.RoutingReplay").methods_by_name)

    def request(self, method: str) -> Any:
        return self._class(self.methods()[method].input_type.full_name)

    def answer(self, method: str) -> Any:
        return self._class(self.methods()[method].output_type.full_name)

    def error_detail(self, details: bytes) -> Any:
        """Returns the ErrorDetail in `details`, which is the value of grpc-status-details-bin of a failed call; an
        empty one if there is none."""
        status = self._class("google.rpc.Status").FromString(details)
        return self.ErrorDetail.FromString(status.details[0].value if status.details else b"")

    def _class(self, name: str) -> Any:
        descriptor = self._pool.FindMessageTypeByName(name)
        factory: Any = message_factory
        if hasattr(factory, "GetMessageClass"):
            return factory.GetMessageClass(descriptor)
        return factory.MessageFactory(self._pool).GetPrototype(descriptor)
