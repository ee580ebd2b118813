#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/fuzz/smoke.h"

namespace {

std::string Bulk(const std::string& text) { return absl::StrCat("$", text.size(), "\r\n", text, "\r\n"); }

std::string MakeSlots(std::mt19937_64& random) {
  const uint64_t ranges = random() % 4;
  std::string slots = absl::StrCat("*", ranges, "\r\n");
  for (uint64_t i = 0; i < ranges; ++i) {
    const uint64_t last = i * 5000 + random() % 5000;
    absl::StrAppend(&slots, "*4\r\n:", i * 5000, "\r\n:", last, "\r\n");
    for (int node = 0; node < 2; ++node) {
      absl::StrAppend(&slots, "*4\r\n", random() % 4 == 0 ? "$-1\r\n" : Bulk("10.0.0.1"), ":", 7000 + node, "\r\n",
                      Bulk("id"), "*0\r\n");
    }
  }
  return slots;
}

std::string MakeReply(std::mt19937_64& random) {
  static constexpr const char* kReplies[] = {"+OK\r\n",
                                             "-MOVED 3999 127.0.0.1:6381\r\n",
                                             "-ASK 1 fe80::1:6381\r\n",
                                             "-OOM command not allowed\r\n",
                                             ":-17\r\n",
                                             "$-1\r\n",
                                             "*-1\r\n",
                                             "*2\r\n*1\r\n:1\r\n$3\r\nabc\r\n",
                                             "*3\r\n$8\r\nsmessage\r\n$1\r\nc\r\n$1\r\nx\r\n"};
  if (random() % 20 == 0) return Bulk(std::string(4090 + random() % 10, 'x'));
  return random() % 3 == 0 ? MakeSlots(random) : kReplies[random() % std::size(kReplies)];
}

std::string MakeEndpoint(std::mt19937_64& random) {
  static constexpr const char* kEndpoints[] = {"redis://10.0.0.1:7000,[::1]:7001/0?password_file=%2Fp",
                                               "rediss://me@a.example,b?password_file=/p&ca_file=/c"};
  return kEndpoints[random() % 2];
}

}  // namespace

std::vector<uint8_t> MakeSeed(std::mt19937_64& random) {
  std::string text;
  if (random() % 5 == 0) {
    text = MakeEndpoint(random);
  } else {
    for (uint64_t n = 1 + random() % 3; n > 0; --n) text += MakeReply(random);
  }
  return {text.begin(), text.end()};
}
