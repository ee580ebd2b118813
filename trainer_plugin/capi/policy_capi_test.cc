// Weight versions, fallback and masks as a C program sees them.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "routing_replay/trainer/capi.h"

namespace {

using nlohmann::json;

// The error, which is freed; null where there is none.
json ErrorOf(rrt_error* error) {
  if (error == nullptr) return nullptr;
  json said = json::parse(rrt_error_json(error));
  rrt_error_free(error);
  return said;
}

json Summary(const std::string& text) {
  rrt_bytes* out = nullptr;
  EXPECT_EQ(ErrorOf(rrt_weights_summary(text.data(), text.size(), &out)), nullptr) << text;
  json said = json::parse(std::string(static_cast<const char*>(rrt_bytes_data(out)), rrt_bytes_size(out)));
  rrt_bytes_free(out);
  return said;
}

TEST(PolicyCapiTest, Weights) {
  EXPECT_EQ(Summary(R"({"current": 17, "samples": [[], [[0, 9, 16, ""]], [[0, 4, -1, "a"], [4, 9, -1, "b"]]]})"),
            json::parse(R"({"samples": 2, "mixed": 1, "first_mixed": 2, "oldest": 16, "lag": 1})"));
  EXPECT_EQ(Summary(R"({"current": -1, "samples": [[[0, 9, 16, ""]]]})"),
            json::parse(R"({"samples": 1, "mixed": 0, "oldest": 16})"));
  EXPECT_EQ(Summary(R"({"samples": []})"), json::parse(R"({"samples": 0, "mixed": 0})"));
}

TEST(PolicyCapiTest, WhatIsNoDescriptionIsRefused) {
  for (const std::string text :
       {"", "[]", "{}", R"({"samples": 3})", R"({"samples": [3]})", R"({"samples": [[[0, 9, 16]]]})",
        R"({"samples": [[[0, 9, 16, 4]]]})", R"({"samples": [[[0, 9, 1.5, ""]]]})",
        R"({"samples": [[[0, 9, -2, ""]]]})", R"({"samples": [[[0, 9, 18446744073709551615, ""]]]})",
        R"({"current": -2, "samples": []})", R"({"current": "17", "samples": []})", R"({"samples": [], "more": 1})"}) {
    rrt_bytes* out = nullptr;
    const json said = ErrorOf(rrt_weights_summary(text.data(), text.size(), &out));
    EXPECT_EQ(said.value("code_name", ""), "INVALID_ARGUMENT") << text;
    EXPECT_EQ(out, nullptr);
  }
}

TEST(PolicyCapiTest, FallbackLimit) {
  EXPECT_EQ(rrt_exceeds_fallback_limit(0.29, 100, 29), 0);
  EXPECT_EQ(rrt_exceeds_fallback_limit(0.29, 100, 30), 1);
}

TEST(PolicyCapiTest, Masks) {
  const std::vector<uint8_t> mask = {0, 1, 1, 1, 0, 0, 0, 0, 0};
  std::array<int64_t, 3> tokens = {}, first = {};
  EXPECT_EQ(ErrorOf(rrt_mask_sequences(mask.data(), mask.size(), 3, tokens.data(), first.data(), 3)), nullptr);
  EXPECT_EQ(tokens, (std::array<int64_t, 3>{2, 1, 0}));
  EXPECT_EQ(first, (std::array<int64_t, 3>{1, 0, 0}));
  EXPECT_EQ(ErrorOf(rrt_mask_sequences(mask.data(), 9, 3, tokens.data(), first.data(), 2)).value("field", ""), "count");
  const std::vector<uint8_t> hole = {1, 1, 1, 1, 0, 1};
  const json said = ErrorOf(rrt_mask_sequences(hole.data(), hole.size(), 3, tokens.data(), first.data(), 2));
  EXPECT_EQ(said.value("field", ""), "attention_mask[1]");
  EXPECT_EQ(said.value("reason", ""), "SHAPE");
  EXPECT_EQ(tokens[0], 2);
}

}  // namespace
