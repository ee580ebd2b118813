#include "proto/json/engine_forms.h"

#include <sys/mman.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "proto/json/engine_forms.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using nlohmann::json;
using testing::Fails;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

absl::Span<const uint8_t> AsBytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

TEST(Nrlre1Test, HeadAndData) {
  const std::string text = "nrlre1:int16:3x2x4:CAAX:AA0";
  ASSERT_OK_AND_ASSIGN(const TextForm form, OpenNrlre1(AsBytes(text)));
  EXPECT_EQ(form.tensor.encoding, Encoding::kBase64);
  EXPECT_EQ(form.tensor.dtype, DType::kI16);
  EXPECT_EQ(form.tensor.shape, (std::vector<int64_t>{3, 2, 4}));
  EXPECT_EQ(form.data, AsBytes(text).subspan(19));
  EXPECT_TRUE(OpenNrlre1(AsBytes("nrlre1:int8:0x2x2:"))->data.empty());
}

TEST(Nrlre1Test, OtherTexts) {
  const std::string long_head = "nrlre1:int8:" + std::string(200, '0') + "1x1x1:AA==";
  for (const std::string& text : {std::string(), std::string("nrlre1"), std::string("nrlre1:int8:1x1x1"), long_head,
                                  std::string("NRLRE1:int8:1x1x1:AA=="), std::string("nrlre2:int8:1x1x1:AA==")}) {
    EXPECT_THAT(OpenNrlre1(AsBytes(text)), Fails(kInvalid, Reason::kEncoding)) << text;
  }
  for (const char* dtype : {"uint8", "int64", "float32", "", "int8 "}) {
    EXPECT_THAT(OpenNrlre1(AsBytes(std::string("nrlre1:") + dtype + ":1x1x1:AA==")), Fails(kInvalid, Reason::kDType));
  }
  for (const char* shape : {"1x1", "1x1x1x1", "", "-1x1x1", "+1x1x1", " 1x1x1", "1xx1", "1x1x1 ",
                            "0x1x99999999999999999999", "1X1x1", "0x10x"}) {
    EXPECT_THAT(OpenNrlre1(AsBytes(std::string("nrlre1:int8:") + shape + ":AA==")), Fails(kInvalid, Reason::kShape));
  }
}

TEST(ObjectFormTest, Dialects) {
  const auto open = [](ObjectDialect dialect, const char* text) { return ObjectFormFromJson(dialect, text); };
  const auto prime = open(ObjectDialect::kPrimeRl, R"({"shape": [5, 4, 8], "start": 3})");
  ASSERT_OK(prime);
  EXPECT_EQ(prime->start, 3);
  EXPECT_EQ(prime->tensor.dtype, DType::kU8);
  EXPECT_EQ(prime->tensor.shape, (std::vector<int64_t>{5, 4, 8}));
  EXPECT_EQ(open(ObjectDialect::kPrimeRl, "[5, 4, 8]")->tensor.shape, (std::vector<int64_t>{5, 4, 8}));
  EXPECT_THAT(open(ObjectDialect::kAny, R"({"shape": [5, 4, 8]})"), Fails(kInvalid, Reason::kDType));
  EXPECT_THAT(open(ObjectDialect::kAny, "[5, 4, 8]"), Fails(kInvalid, Reason::kDType));
  EXPECT_EQ(open(ObjectDialect::kAny, R"({"shape": [5, 4, 8], "dtype": "int64", "more": 1})")->tensor.dtype,
            DType::kI64);
  EXPECT_THAT(open(ObjectDialect::kSkyRl, R"({"shape": [5, 4, 8], "dtype": "uint16"})"),
              Fails(kInvalid, Reason::kDType));
  EXPECT_OK(open(ObjectDialect::kSkyRl, R"({"shape": [5, 4, 8], "dtype": "int16"})"));
  EXPECT_THAT(open(ObjectDialect::kMsSwift, R"({"shape": [5, 4, 8], "dtype": "uint8"})"),
              Fails(kInvalid, Reason::kField));
  EXPECT_OK(open(ObjectDialect::kMsSwift, R"({"shape": [5, 4, 8], "dtype": "uint16", "__ndarray__": true})"));
  for (const char* shape :
       {"[5, 4]", "[5, true, 4]", "[5.0, 2, 2]", "[-1, 2, 2]", "\"5x4x8\"", "null", "[4194305, 1, 1]"}) {
    const std::string text = std::string(R"({"dtype": "uint8", "shape": )") + shape + "}";
    EXPECT_THAT(open(ObjectDialect::kAny, text.c_str()), Fails(kInvalid, Reason::kShape)) << shape;
  }
  for (const char* start : {"-1", "\"3\"", "1.5", "true", "4194305"}) {
    const std::string text = std::string(R"({"dtype": "uint8", "shape": [1, 1, 1], "start": )") + start + "}";
    EXPECT_THAT(open(ObjectDialect::kAny, text.c_str()), Fails(kInvalid, Reason::kField)) << start;
  }
  for (const char* text : {"", "3", "null", "\"a\"", "{"}) {
    EXPECT_THAT(open(ObjectDialect::kPrimeRl, text), Fails(kInvalid, Reason::kField)) << text;
  }
}

TEST(NarrowestDTypeTest, FollowsTheLargestId) {
  const auto check = [](DType dtype, const std::vector<int32_t>& ids) {
    std::string bytes;
    const int size = dtype == DType::kU8 ? 1 : dtype == DType::kI16 ? 2 : 4;
    for (const int32_t id : ids) bytes.append(reinterpret_cast<const char*>(&id), size);
    return CheckNarrowestDType({.dtype = dtype,
                                .rows = 1,
                                .layers = 1,
                                .top_k = static_cast<int64_t>(ids.size()),
                                .elements = AsBytes(bytes)});
  };
  EXPECT_OK(check(DType::kU8, {0, 255}));
  EXPECT_OK(check(DType::kU8, {}));
  EXPECT_OK(check(DType::kI16, {0, 256}));
  EXPECT_OK(check(DType::kI32, {32768}));
  EXPECT_THAT(check(DType::kI16, {255}), Fails(kInvalid, Reason::kDType));
  EXPECT_THAT(check(DType::kI32, {32767}), Fails(kInvalid, Reason::kDType));
  EXPECT_THAT(check(DType::kI16, {300, -1}), Fails(kInvalid, Reason::kIdRange));
}

// Bytes that end where memory ends.
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

// The same by a parser that takes everything apart.
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
  static constexpr const char* kNames[] = {"choices", "meta_info", "sglext",        "sgl_ext", "nvext",
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

TEST(RoutesInJsonTest, WhatIsCutOffIsRefusedInBounds) {
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
  EXPECT_TRUE(find(R"({"routed_experts": "QUJ\/RA=="})")->empty());  // Escaped: not as it stands.
  EXPECT_EQ(find("{\"routed_experts\"\n :\t\"\" \n}")->front().size, 0u);
  EXPECT_TRUE(find("[]")->empty());
  std::string deep;
  for (int i = 0; i < 1000; ++i) deep += "{\"choices\": [";
  for (int i = 0; i < 1000; ++i) deep += "]}";
  EXPECT_OK(find(deep));
}

}  // namespace
}  // namespace routing_replay
