// Takes random bytes for each message of Append and Read. A parser must either reject them with INVALID_ARGUMENT, or
// return a message that stays the same when it is encoded and parsed again.
//
// The first byte of an input chooses the kind of message, and the size of the pieces in which the parser gets the
// bytes.
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <string>

#include "proto/wire/message/append_message.h"
#include "proto/wire/message/read_message.h"
#include "tests/fuzz/smoke.h"

namespace routing_replay {
namespace {

absl::Span<const uint8_t> AsBytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string ToText(const ByteChain& chain) {
  std::string text(chain.size(), '\0');
  ChainCursor(chain).CopyTo({reinterpret_cast<uint8_t*>(text.data()), text.size()});
  return text;
}

std::string Write(const AppendRequest& request) {
  return EncodeAppendRequest(request, request.payload.size()) + ToText(request.payload);
}
std::string Write(const AppendAck& ack) { return EncodeAppendAck(ack); }
std::string Write(const AppendResponse& response) { return EncodeAppendResponse(response); }
std::string Write(const ReadRequest& request) { return EncodeReadRequest(request); }
std::string Write(const ReadResponse& response) {
  return EncodeReadResponse(response.records, response.pieces, response.payload.size()) + ToText(response.payload);
}

template <typename Parse>
void Check(const ByteChain& bytes, Parse parse) {
  const auto first = parse(bytes);
  if (!first.ok()) {
    return Require(absl::IsInvalidArgument(first.status()), "the code is not INVALID_ARGUMENT");
  }
  const std::string written = Write(*first);
  const auto second = parse(ByteChain(AsBytes(written)));
  Require(second.ok(), "a parsed message is rejected after it is encoded again");
  Require(Write(*second) == written, "a parsed message changes when it is encoded again");
}

void CheckReadRequest(const ByteChain& bytes) {
  int64_t admitted = -1;
  const auto admit = [&](int64_t memory) {
    admitted = memory;
    return absl::OkStatus();
  };
  const auto request = ParseReadRequest(bytes, admit);
  if (!request.ok()) return;
  size_t memory = request->samples.size() * sizeof(SampleRead);
  for (const SampleRead& sample : request->samples) memory += sample.rows.size() * sizeof(RowRange);
  Require(admitted >= static_cast<int64_t>(memory), "a request takes more memory than was admitted");
}

void CheckAll(uint8_t choice, const ByteChain& bytes) {
  switch (choice % 5) {
    case 0:
      Check(bytes, [](const ByteChain& b) { return ParseAppendRequest(b); });
      ParseRejectedAppend(bytes);
      break;
    case 1:
      Check(bytes, [](const ByteChain& b) { return ParseAppendAck(b); });
      break;
    case 2:
      Check(bytes, [](const ByteChain& b) { return ParseAppendResponse(b); });
      break;
    case 3:
      Check(bytes, [](const ByteChain& b) { return ParseReadRequest(b); });
      CheckReadRequest(bytes);
      break;
    default:
      Check(bytes, [](const ByteChain& b) { return ParseReadResponse(b); });
  }
}

}  // namespace
}  // namespace routing_replay

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static const auto silenced = google::protobuf::SetLogHandler(nullptr);  // protobuf logs every invalid string.
  (void)silenced;
  const size_t step = 1 + data[0] / 5;
  routing_replay::ByteChain bytes;
  for (size_t at = 1; at < size; at += step) bytes.Append({data + at, std::min(step, size - at)});
  routing_replay::CheckAll(data[0], bytes);
  return 0;
}
