#include "proto/wire/message/grpc_bytes.h"

#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {
namespace {

// Passes the owner of a slice's bytes to gRPC. gRPC releases the owner on any of its threads when the last reference to
// the slice is gone. gRPC's reference count orders the release after this function, which ThreadSanitizer must be told.
template <typename Owner>
void* Lend(std::unique_ptr<Owner> owner) {
  HandOver(owner.get());
  return owner.release();
}

template <typename Owner>
void TakeBack(void* owner) {
  TakeOver(owner);
  delete static_cast<Owner*>(owner);
}

}  // namespace

absl::StatusOr<ReceivedBytes> ReceivedBytes::From(grpc::ByteBuffer& buffer) {
  ReceivedBytes received;
  const grpc::Status status = buffer.Dump(&received.slices_);
  buffer.Clear();
  if (!status.ok()) return absl::InternalError(status.error_message());
  for (const grpc::Slice& slice : received.slices_) received.chain_.Append({slice.begin(), slice.size()});
  return received;
}

void ByteBufferBuilder::Add(std::string bytes) {
  if (bytes.empty()) return;
  auto owner = std::make_unique<std::string>(std::move(bytes));
  auto* data = owner->data();
  const size_t size = owner->size();
  slices_.emplace_back(data, size, TakeBack<std::string>, Lend(std::move(owner)));
}

void ByteBufferBuilder::Add(absl::Span<const uint8_t> bytes, std::shared_ptr<const void> owner) {
  if (bytes.empty()) return;
  using Owner = std::shared_ptr<const void>;
  slices_.emplace_back(const_cast<uint8_t*>(bytes.data()), bytes.size(), TakeBack<Owner>,
                       Lend(std::make_unique<Owner>(std::move(owner))));
}

grpc::ByteBuffer ByteBufferBuilder::Build() {
  grpc::ByteBuffer buffer(slices_.data(), slices_.size());
  slices_.clear();
  return buffer;
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      EncodeRpcStatus(status));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return DecodeRpcStatus(static_cast<absl::StatusCode>(status.error_code()), status.error_message(),
                         status.error_details());
}

}  // namespace wire
}  // namespace routing_replay
