#include <string>

#include "proto/wire/message/append_message.h"
#include "proto/wire/message/read_message.h"
#include "tests/fuzz/smoke.h"

namespace routing_replay {
namespace {

using Random = std::mt19937_64;

AppendHeader MakeHeader(Random& random) {
  AppendHeader header{.append_id = random() % 1000, .sample = "step1/3", .rows = RowRange::OfSize(random() % 300, 40)};
  if (random() % 2 == 0) header.group = random() % 9;
  if (random() % 2 == 0) header.unrecorded = {RowRange::OfSize(header.rows.begin + 2, 3)};
  if (random() % 2 == 0) header.token_ids = std::string(4 * 40, '\1');
  if (random() % 2 == 0) header.seal_num_tokens = header.rows.end + 1;
  if (random() % 4 == 0) header.prefix = PrefixReference{.sample = "step1/2", .rows = 64, .revision = 1};
  if (random() % 2 == 0) {
    header.payload_kind = TensorDescription{.dtype = DType::kI32, .shape = {37, 2, 4}};
  } else {
    BlockHeader block{.rows = RowRange::OfSize(header.rows.begin, 2), .plane_crc32c = {1, 2}};
    header.payload_kind = std::vector<BlockHeader>{block, block};
  }
  return header;
}

std::string MakeAppend(Random& random) {
  const std::string payload(random() % 60, 'x');
  AppendRequest request{.run = "run", .want_bytes = random() % 100};
  if (random() % 8 != 0) request.append = MakeHeader(random);
  return EncodeAppendRequest(request, payload.size()) + payload;
}

AppendAck MakeAck(Random& random) {
  AppendAck ack{.append_id = random() % 99, .sample = "s", .committed_rows = 40, .revision = 2, .sealed = true};
  if (random() % 3 == 0) ack.error = absl::ResourceExhaustedError("full");
  return ack;
}

std::string MakeRequest(Random& random) {
  ReadRequest request{.run = "run", .layers = {1, 3}, .wait = random() % 2 == 0};
  for (uint64_t n = random() % 4; n > 0; --n) {
    request.samples.push_back({.sample = "s", .rows = {{0, 40}, {64, 70}}, .num_tokens = 71});
  }
  return EncodeReadRequest(request);
}

std::string MakeAnswer(Random& random) {
  const int64_t bytes = static_cast<int64_t>(random() % 30 + 1);
  const SampleRecord record{.index = 0, .status = SampleStatus::kOk, .committed_rows = 40, .num_tokens = 41};
  const Piece piece{.layer_count = 2, .rows = {0, 4}, .bytes = bytes, .cut_crc32c = {1, 2}};
  return EncodeReadResponse({record}, {piece}, bytes) + std::string(bytes, 'x');
}

std::string Make(uint8_t choice, Random& random) {
  switch (choice % 5) {
    case 0:
      return MakeAppend(random);
    case 1:
      return EncodeAppendAck(MakeAck(random));
    case 2:
      return EncodeAppendResponse({.credit = Credit{.granted_bytes = 7}, .ack = MakeAck(random)});
    case 3:
      return MakeRequest(random);
    default:
      return MakeAnswer(random);
  }
}

}  // namespace
}  // namespace routing_replay

std::vector<uint8_t> MakeSeed(std::mt19937_64& random) {
  const auto choice = static_cast<uint8_t>(random());
  const std::string message = routing_replay::Make(choice, random);
  std::string seed(1, static_cast<char>(choice));
  seed += message;
  return {seed.begin(), seed.end()};
}
