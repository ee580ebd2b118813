#include "routing_replay/trainer/layers.h"

#include <limits>

#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;
using ::testing::HasSubstr;

// 8 layers, the first dense, in four chunks of two.
class LiveLayersTest : public ::testing::Test {
 protected:
  std::string Difference(int32_t pp_rank, const std::vector<LiveChunk>& chunks,
                         const std::vector<int32_t>& native_layers = {}) {
    const auto difference = LiveDifference(geometry_, table_, pp_rank, chunks, native_layers);
    EXPECT_OK(difference);
    return difference.ok() ? difference->value_or("") : "";
  }

  const Geometry geometry_ =
      *Geometry::Create({.num_layers = 8, .moe_layer_ids = {1, 2, 3, 4, 5, 6, 7}, .num_experts = {8}, .top_k = {2}});
  const LayerTable table_ =
      *LayerTable::Create({.num_layers = 8, .pipeline_size = 2, .virtual_stages = 2, .mtp_num_layers = 1});
};

TEST_F(LiveLayersTest, AgreesWithItsSplit) {
  EXPECT_EQ(Difference(0, {{{2}}, {{5, 6}}}), "");
  EXPECT_EQ(Difference(1, {{{3, 4}}, {{8, 7}}}), "");
}

TEST_F(LiveLayersTest, SaysTheFirstDifference) {
  EXPECT_EQ(Difference(0, {{{2}}, {{3, 4}}}),
            "pipeline rank 0, chunk 1: the model has routers in decoder layers [2, 3], the split gives [4, 5]");
  EXPECT_EQ(Difference(0, {{{2}}, {{5}}}),
            "pipeline rank 0, chunk 1: the model has routers in decoder layers [4], the split gives [4, 5]");
  EXPECT_THAT(Difference(0, {{{2, 3}}, {{5, 6}}}), HasSubstr("[1, 2], the split gives [1]"));
  EXPECT_EQ(Difference(1, {{{3, 4, 7, 8}}}), "pipeline rank 1: the model has 1 chunks, the split gives 2");
}

TEST_F(LiveLayersTest, NativeLayersMayBeThereOrNot) {
  EXPECT_EQ(Difference(0, {{{}}, {{5, 6}}}, {1}), "");
  EXPECT_EQ(Difference(0, {{{2}}, {{5, 6}}}, {1}), "");
  EXPECT_NE(Difference(0, {{{}}, {{5, 6}}}), "");
}

TEST_F(LiveLayersTest, NumbersThatCannotBe) {
  for (const std::vector<int32_t>& numbers :
       {std::vector<int32_t>{0, 2}, {2, 9}, {1, 2}, {2, 2}, {std::numeric_limits<int32_t>::min()}}) {
    EXPECT_NE(Difference(0, {{numbers}, {{5, 6}}}), "");
  }
  EXPECT_THAT(LiveDifference(geometry_, table_, 2, std::vector<LiveChunk>(2)),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
}

}  // namespace
}  // namespace routing_replay::trainer
