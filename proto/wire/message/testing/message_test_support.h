// Helpers of the message tests: bytes spread over spans, damaged bytes, and unknown fields.
#ifndef PROTO_WIRE_MESSAGE_TESTING_MESSAGE_TEST_SUPPORT_H_
#define PROTO_WIRE_MESSAGE_TESTING_MESSAGE_TEST_SUPPORT_H_

#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>

#include <random>
#include <string>
#include <vector>

#include "proto/wire/message/byte_chain.h"

namespace routing_replay::testing {

using Random = std::mt19937_64;

// Uniform in [0, below).
inline uint64_t Below(Random& random, uint64_t below) { return random() % below; }

// `bytes` cut into spans at random places.
inline ByteChain RandomChain(Random& random, const std::string& bytes) {
  ByteChain chain;
  for (size_t at = 0; at < bytes.size();) {
    const size_t size = std::min<size_t>(bytes.size() - at, 1 + Below(random, 40));
    chain.Append({reinterpret_cast<const uint8_t*>(bytes.data()) + at, size});
    at += size;
  }
  return chain;
}

inline std::string ToBytes(const ByteChain& chain) {
  std::string out(chain.size(), '\0');
  ChainCursor(chain).CopyTo({reinterpret_cast<uint8_t*>(out.data()), out.size()});
  return out;
}

inline std::string RandomBytes(Random& random, size_t size) {
  std::string out(size, '\0');
  for (char& c : out) c = static_cast<char>(random());
  return out;
}

// Fields that a later version may add, of every wire type.
inline void AddUnknownFields(google::protobuf::Message& message) {
  auto* fields = message.GetReflection()->MutableUnknownFields(&message);
  fields->AddVarint(1001, 12345678901234ull);
  fields->AddFixed32(1002, 7);
  fields->AddFixed64(1003, 8);
  fields->AddLengthDelimited(1004, "future");
}

// Calls `parse` with every truncation of `bytes` and with many copies of it that have flipped bits. Results may be
// anything, but the sanitizers must report nothing.
template <typename Parse>
void ParseDamaged(Random& random, const std::string& bytes, int flips, Parse parse) {
  for (size_t size = 0; size < bytes.size(); ++size) parse(RandomChain(random, bytes.substr(0, size)));
  for (int i = 0; i < flips && !bytes.empty(); ++i) {
    std::string damaged = bytes;
    for (uint64_t n = 1 + Below(random, 3); n > 0; --n) {
      damaged[Below(random, damaged.size())] ^= static_cast<char>(1 << Below(random, 8));
    }
    parse(RandomChain(random, damaged));
  }
}

}  // namespace routing_replay::testing

#endif  // PROTO_WIRE_MESSAGE_TESTING_MESSAGE_TEST_SUPPORT_H_
