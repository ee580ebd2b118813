#include "proto/json/json.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using nlohmann::json;
using testing::Fails;

TEST(GeometryJsonTest, BothWays) {
  for (const char* text : {R"({"num_layers": 4, "num_experts": 8, "top_k": 2})",
                           R"({"num_layers": 4, "moe_layers": [1, 3], "num_experts": [8, 300], "top_k": [2, 4]})"}) {
    ASSERT_OK_AND_ASSIGN(const json parsed, ParseJson(text, "geometry"));
    ASSERT_OK_AND_ASSIGN(const auto options, GeometryOptionsFromJson(parsed, ""));
    ASSERT_OK_AND_ASSIGN(const Geometry geometry, Geometry::Create(options));
    ASSERT_OK_AND_ASSIGN(const auto again, GeometryOptionsFromJson(GeometryToJson(geometry), ""));
    EXPECT_EQ(*Geometry::Create(again), geometry) << text;
  }
}

TEST(GeometryJsonTest, WrongFieldsAreNamed) {
  for (const char* text :
       {"[]", "{}", R"({"num_layers": 4, "num_experts": 8})", R"({"num_layers": "4", "num_experts": 8, "top_k": 2})",
        R"({"num_layers": 4, "num_experts": 8, "top_k": 2, "extra": 1})",
        R"({"num_layers": 4, "num_experts": 8, "top_k": 2, "moe_layers": 1})"}) {
    EXPECT_THAT(GeometryOptionsFromJson(*ParseJson(text, ""), "geometry"),
                Fails(absl::StatusCode::kInvalidArgument, Reason::kField))
        << text;
  }
  EXPECT_THAT(ParseJson("{", "geometry"), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  EXPECT_EQ(ParseJson("{\"a\": 1,, 2}", "plan").status().message(), "plan: is not valid JSON: error at byte 9 of 12");
  EXPECT_FALSE(ParseJson("1e999", "plan").ok());
}

TEST(JsonObjectTest, Unsigned64) {
  const json object = {{"big", ~uint64_t{0}}, {"negative", -1}};
  uint64_t value = 0;
  JsonObject big(object, "");
  big.Read("big", value);
  EXPECT_EQ(value, ~uint64_t{0});
  big.Read("negative", value);
  EXPECT_THAT(big.status(), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  EXPECT_EQ(value, ~uint64_t{0});
}

}  // namespace
}  // namespace routing_replay
