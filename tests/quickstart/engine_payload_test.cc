#include "tests/quickstart/engine_payload.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace routing_replay::quickstart {
namespace {

testing::Routes SomeRoutes(int32_t num_experts) {
  testing::Routes routes{6, 3, 2, num_experts, {}};
  for (int64_t i = 0; i < 6 * 3 * 2; ++i) routes.ids.push_back(static_cast<uint16_t>(i * 37 % num_experts));
  return routes;
}

const std::vector<RowRange> kRecorded = {{0, 2}, {3, 6}};

TEST(EnginePayload, JsonBytesAreThoseOfACompactDump) {
  for (const int32_t experts : {8, 128, 1200}) {
    const testing::Routes routes = SomeRoutes(experts);
    nlohmann::json list = nlohmann::json::array();
    for (const RowRange range : kRecorded) {
      for (int64_t row = range.begin; row < range.end; ++row) {
        nlohmann::json layers = nlohmann::json::array();
        for (int32_t layer = 0; layer < 3; ++layer) {
          const auto ids = routes.at(row, layer);
          layers.push_back(std::vector<int>(ids.begin(), ids.end()));
        }
        list.push_back(layers);
      }
    }
    EXPECT_EQ(JsonListBytes(routes, kRecorded), static_cast<int64_t>(list.dump().size())) << experts;
  }
}

TEST(EnginePayload, FormsDifferInSizeAsTheirEncodingsDo) {
  const testing::Routes routes = SomeRoutes(128);
  constexpr size_t kIds = 5 * 3 * 2;
  const auto bytes = [&](PayloadForm form) { return MakeEnginePayload(form, routes, kRecorded).bytes.size(); };
  EXPECT_EQ(bytes(PayloadForm::kRawInt32), kIds * 4);
  EXPECT_EQ(bytes(PayloadForm::kBase64Int32), static_cast<size_t>(Base64Int32Bytes(routes, kRecorded)));
  EXPECT_EQ(bytes(PayloadForm::kNpy), 128 + kIds);
  EXPECT_EQ(bytes(PayloadForm::kBase64Npy), (128 + kIds + 2) / 3 * 4);
}

TEST(EnginePayload, HoldsTheRecordedRowsInOrder) {
  const testing::Routes routes = SomeRoutes(1200);
  const EnginePayload payload = MakeEnginePayload(PayloadForm::kNpy, routes, kRecorded);
  EXPECT_EQ(payload.tensor.shape, (std::vector<int64_t>{5, 3, 2}));
  EXPECT_NE(payload.bytes.find("'<u2'"), std::string::npos);
  const size_t row_3 = 128 + 2 * 3 * 2 * 2;
  EXPECT_EQ(static_cast<uint8_t>(payload.bytes[row_3]), routes.at(3, 0)[0] & 0xFF);
  EXPECT_EQ(static_cast<uint8_t>(payload.bytes[row_3 + 1]), routes.at(3, 0)[0] >> 8);
}

}  // namespace
}  // namespace routing_replay::quickstart
