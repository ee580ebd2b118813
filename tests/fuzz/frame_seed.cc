#include <algorithm>
#include <string>

#include "proto/wire/message/append_message.h"
#include "proto/wire/message/frame.h"
#include "tests/fuzz/smoke.h"

// A few valid frames, sometimes with one wrong byte.
std::vector<uint8_t> MakeSeed(std::mt19937_64& random) {
  using namespace routing_replay;  // NOLINT(google-build-using-namespace)
  std::string bytes(1, static_cast<char>(random()));
  for (int frames = static_cast<int>(random() % 4); frames >= 0; --frames) {
    std::vector<uint32_t> parts(random() % 4);
    size_t payload = parts.empty() ? random() % 100 : 0;
    for (uint32_t& part : parts) payload += part = static_cast<uint32_t>(random() % 50 + 1);
    const std::string header =
        EncodeAppendRequest({.run = "run", .append = AppendHeader{.append_id = 1, .sample = "s"}}, payload);
    bytes += EncodeFrame(static_cast<FrameType>(random() % 3 + 1), header.size(), payload, parts);
    bytes += header + std::string(payload, 'x');
  }
  if (random() % 2 == 0) bytes[random() % bytes.size()] = static_cast<char>(random());
  return {bytes.begin(), bytes.end()};
}
