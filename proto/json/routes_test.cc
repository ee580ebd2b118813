#include "proto/json/routes.h"

#include <sys/mman.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using nlohmann::json;
using testing::Fails;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Bytes followed by an inaccessible page, so that a read past the end crashes.
class GuardedBytes {
 public:
  explicit GuardedBytes(const std::string& bytes) : size_((bytes.size() / kPage + 2) * kPage) {
    memory_ = static_cast<uint8_t*>(mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(memory_ + size_ - kPage, kPage, PROT_NONE);
    uint8_t* begin = memory_ + size_ - kPage - bytes.size();
    std::memcpy(begin, bytes.data(), bytes.size());
    span = {begin, bytes.size()};
  }
  ~GuardedBytes() { munmap(memory_, size_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  absl::Span<const uint8_t> span;

 private:
  static constexpr size_t kPage = 4096;
  size_t size_;
  uint8_t* memory_;
};

std::string PathOf(const RouteText& text) {
  std::string path;
  for (const auto& step : text.path) {
    path += "/" + (step.index() == 0 ? std::get<std::string>(step) : std::to_string(std::get<size_t>(step)));
  }
  return path;
}

// The reference: finds the routes with a complete JSON parser.
void SlowRoutes(const json& value, const std::string& path, std::vector<std::string>& found) {
  if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) SlowRoutes(value[i], path + "/" + std::to_string(i), found);
  }
  if (!value.is_object()) return;
  for (const auto& [key, field] : value.items()) {
    const std::string at = path + "/" + key;
    if (key == "routed_experts" || key == "prompt_routed_experts") {
      if (field.is_string()) found.push_back(at + "=" + field.get<std::string>());
      if (field.is_object() && field.contains("data") && field["data"].is_string()) {
        found.push_back(at + "/data=" + field["data"].get<std::string>());
      }
      for (size_t i = 0; field.is_array() && i < field.size(); ++i) {
        if (field[i].is_string()) found.push_back(at + "/" + std::to_string(i) + "=" + field[i].get<std::string>());
      }
    }
    for (const char* place : {"choices", "meta_info", "sglext", "sgl_ext"}) {
      if (key == place) SlowRoutes(field, at, found);
    }
  }
}

json RandomRoutes(std::mt19937_64& random) {
  const std::string text(random() % 90, static_cast<char>('A' + random() % 26));
  switch (random() % 6) {
    case 0:
      return nullptr;
    case 1:
      return {{"shape", {1, 2, 3}}, {"data", text}, {"dtype", "uint8"}};
    case 2:
      return {"[1, 2, 3]", text};
    case 3:
      return {{{1, 2}, {3, 4}}};
    default:
      return text;
  }
}

json RandomBody(std::mt19937_64& random, int depth) {
  static constexpr const char* kNames[] = {"choices", "meta_info", "sglext",        "sgl_ext", "places",
                                           "usage",   "token_ids", "routed_expert", "text",    "logprobs"};
  json object = json::object();
  for (uint64_t i = random() % 4; i > 0; --i) {
    const char* name = kNames[random() % 10];
    json value = depth == 0 ? json(1.5e3) : RandomBody(random, depth - 1);
    if (random() % 3 == 0) value = json::array({value, depth == 0 ? json("x\"y") : RandomBody(random, depth - 1)});
    object[name] = value;
  }
  if (random() % 2 == 0) object["routed_experts"] = RandomRoutes(random);
  if (random() % 5 == 0) object["prompt_routed_experts"] = RandomRoutes(random);
  return random() % 9 == 0 ? json::array({object, object}) : object;
}

TEST(RoutesInJsonTest, AsAParserThatTakesEverythingApart) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 5000; ++round) {
    const json body = RandomBody(random, 3);
    const std::string text = body.dump(round % 3 == 0 ? 2 : -1);
    const GuardedBytes bytes(text);
    ASSERT_OK_AND_ASSIGN(const auto routes, FindRoutes(bytes.span));
    std::vector<std::string> ours, theirs;
    for (const RouteText& route : routes) ours.push_back(PathOf(route) + "=" + text.substr(route.begin, route.size));
    SlowRoutes(body, "", theirs);
    std::sort(theirs.begin(), theirs.end());
    std::sort(ours.begin(), ours.end());
    ASSERT_EQ(ours, theirs) << text;
  }
}

TEST(RoutesInJsonTest, WhatIsCutOffIsRejectedInBounds) {
  const std::string text =
      R"({"id": "a\"b", "choices": [{"index": 0, "routed_experts": "QUJD", "n": [1, 2.5, true, null]}], "usage": {}})";
  for (size_t size = 0; size < text.size(); ++size) {
    const GuardedBytes bytes(text.substr(0, size));
    EXPECT_THAT(FindRoutes(bytes.span), Fails(kInvalid, Reason::kEncoding)) << size;
  }
  std::mt19937_64 random(2);
  for (int round = 0; round < 20000; ++round) {
    std::string broken = text;
    for (int i = 0; i < 3; ++i) broken[random() % broken.size()] = static_cast<char>(random());
    const GuardedBytes bytes(broken);
    const auto routes = FindRoutes(bytes.span);
    for (size_t i = 0; routes.ok() && i < routes->size(); ++i) {
      ASSERT_LE((*routes)[i].begin + (*routes)[i].size, broken.size());
    }
  }
}

TEST(RoutesInJsonTest, OtherBodies) {
  const auto find = [](const std::string& text) { return FindRoutes(GuardedBytes(text).span); };
  for (const char* text : {"", " ", "1", "\"a\"", "null", "data: {}", "\xff{}"}) {
    EXPECT_THAT(find(text), Fails(kInvalid, Reason::kEncoding)) << text;
  }
  EXPECT_TRUE(find(R"({"routed_experts": "QUJ\/RA=="})")->empty());  // Strings with escapes are skipped.
  EXPECT_EQ(find("{\"routed_experts\"\n :\t\"\" \n}")->front().size, 0u);
  EXPECT_TRUE(find("[]")->empty());
  std::string deep;
  for (int i = 0; i < 1000; ++i) deep += "{\"choices\": [";
  for (int i = 0; i < 1000; ++i) deep += "]}";
  EXPECT_OK(find(deep));
}

}  // namespace
}  // namespace routing_replay
