// Pins the scenario: lengths and digests must be those that the Python generator of the same scenario prints.
#include "tests/bench/handoff/scenario.h"

#include <gmock/gmock.h>

#include "tests/bench/handoff/digest.h"

namespace routing_replay::bench {
namespace {

using ::testing::ElementsAre;

TEST(HandoffScenarioTest, LengthsAndMicroBatchesArePinned) {
  const HandoffScenario scenario;
  std::vector<int64_t> tokens;
  for (int32_t i = 0; i < scenario.samples(); ++i) tokens.push_back(scenario.tokens(i));
  EXPECT_THAT(tokens, ElementsAre(2509, 12688, 3732, 3426, 13328, 4311, 5673, 5676, 1745, 1796, 1426, 2151, 2661, 2666,
                                  10354, 1832, 16384, 3180, 2428, 4129, 5574, 2814, 1509, 2404, 4323, 3703, 2423, 8401,
                                  1308, 7016, 4478, 2284));
  EXPECT_EQ(scenario.ids(), 56'947'200);
  EXPECT_THAT(scenario.micro_batches(), ElementsAre(RowRange{0, 4}, RowRange{4, 10}, RowRange{10, 16}, RowRange{16, 21},
                                                    RowRange{21, 29}, RowRange{29, 32}));
}

TEST(HandoffScenarioTest, DigestsOfTheRanksArePinned) {
  const HandoffScenario scenario;
  std::vector<std::vector<uint8_t>> samples;
  for (int32_t i = 0; i < scenario.samples(); ++i) samples.push_back(scenario.MakeSample(i));
  std::vector<std::string> digests;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    Sha256 digest;
    digest.Add(scenario.ExpectedArray(PlaceOf(rank), samples));
    digests.push_back(digest.Finish());
  }
  EXPECT_THAT(digests, ElementsAre("224b1e7633527cc41273df34fa1544821317a12483f04e6f62dfa2bf9e92866e",
                                   "b031e573c56f20640ea0731d04fa660a7914c1f37ab92adbf39c0c5bf730b829",
                                   "a894d378a0065351bd4b8ec256e0338124e3883bea04e723430bf1df493679d7",
                                   "e0cbbcc5f2c693f445789978b6a14b563d26cec62fc8ef0b291c5e4dde3dfc62",
                                   "1d33aa4f0e14ead51a47584d2456eab5d4df99935830ab8cf4bdf90fb8bff23b",
                                   "ef16f03d891787235e4e0b2988bdae60461c1c6d8598f5fae422ad0e60215f46",
                                   "f18a645fc3c932330d0c98d04058639042f90a3e60d01f29b7db5c5f905d64d7",
                                   "da3838e3914b6f0261d64525488d54f8fef73be3bb1f94261eed075259116a5b"));
}

}  // namespace
}  // namespace routing_replay::bench
