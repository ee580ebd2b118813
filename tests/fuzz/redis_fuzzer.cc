// Takes random bytes for what a Redis server sends. The parser must reject them, or return the same replies into
// whatever pieces the stream is cut. The code that reads replies must not crash on any of them. The same bytes are also
// parsed as the address of a store (redis://…).
#include <algorithm>
#include <string>
#include <vector>

#include "server/store/redis/client/redis_cluster.h"
#include "server/store/redis/client/redis_protocol.h"
#include "tests/fuzz/smoke.h"

namespace routing_replay {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

constexpr size_t kMaxReply = 1 << 16;

struct Parsed {
  std::vector<RedisReply> replies;
  bool broken = false;
};

Parsed Parse(absl::string_view stream, size_t piece) {
  RedisReplyParser parser(kMaxReply);
  Parsed parsed;
  while (!stream.empty() && !parsed.broken) {
    parsed.broken = !parser.Feed(stream.substr(0, piece)).ok();
    stream.remove_prefix(std::min(piece, stream.size()));
    while (!parsed.broken) {
      auto reply = parser.Next();
      parsed.broken = !reply.ok();
      if (parsed.broken || !reply->has_value()) break;
      parsed.replies.push_back(**std::move(reply));
    }
  }
  return parsed;
}

void CheckMap(const RedisReply& reply) {
  const auto map = SlotMap::Parse(reply, "asked");
  if (!map.ok()) return;
  for (int slot = 0; slot < kRedisSlots; ++slot) {
    const auto master = map->MasterOf(slot);
    Require(!master || (!master->host.empty() && master->port > 0), "a master has no address");
  }
}

void CheckError(const std::string& text) {
  const RedisError error = ParseRedisError(text);
  const bool redirects = error.kind == RedisError::Kind::kMoved || error.kind == RedisError::Kind::kAsk;
  Require(redirects == (error.address.port > 0), "only a redirection must have an address");
  Require(!StatusOfRedisError("GET", text).ok(), "an error reply became an OK status");
}

void CheckStream(absl::string_view stream) {
  const Parsed whole = Parse(stream, stream.size());
  for (const size_t piece : {size_t{1}, size_t{1000}}) {
    const Parsed pieces = Parse(stream, piece);
    Require(whole.replies == pieces.replies && whole.broken == pieces.broken, "the cuts change the replies");
  }
  for (const RedisReply& reply : whole.replies) {
    CheckMap(reply);
    if (reply.is_error()) CheckError(reply.text);
  }
}

void CheckEndpoint(absl::string_view text) {
  const auto endpoint = ParseRedisEndpoint(text);
  if (!endpoint.ok()) return;
  Require(!endpoint->seeds.empty(), "no seeds");
  for (const RedisAddress& seed : endpoint->seeds) {
    const auto again = ParseRedisEndpoint("redis://" + seed.ToString());
    Require(again.ok() && again->seeds.front() == seed, "an address changes when it is printed and parsed again");
  }
}

}  // namespace
}  // namespace routing_replay

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  if (!text.empty()) routing_replay::CheckStream(text);
  routing_replay::CheckEndpoint(text);
  return 0;
}
