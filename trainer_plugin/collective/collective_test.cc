#include "routing_replay/trainer/collective.h"

#include <algorithm>
#include <functional>
#include <random>
#include <thread>

#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using ::testing::HasSubstr;
using Ranks = std::vector<std::unique_ptr<Collective>>;

Collective::Deadline Soon() { return std::chrono::steady_clock::now() + std::chrono::milliseconds(20); }
Collective::Deadline Never() { return std::chrono::steady_clock::now() + std::chrono::hours(1); }

// Each rank in a thread of its own.
void OnAll(Ranks& ranks, const std::function<void(Collective&)>& body) {
  std::vector<std::thread> threads;
  for (auto& rank : ranks) threads.emplace_back([&body, &rank] { body(*rank); });
  for (std::thread& thread : threads) thread.join();
}

int64_t Value(int32_t rank, int32_t round, int32_t place) {
  return static_cast<int64_t>(std::mt19937_64(rank * 1000 + round * 10 + place)());
}

void ExpectReducesAndGathers(Ranks ranks) {
  const auto size = static_cast<int32_t>(ranks.size());
  for (int32_t rank = 0; rank < size; ++rank) {
    EXPECT_EQ(ranks[rank]->rank(), rank);
    EXPECT_EQ(ranks[rank]->size(), size);
  }
  OnAll(ranks, [size](Collective& collective) {
    for (int32_t round = 0; round < 20; ++round) {
      std::vector<int64_t> values, expected;
      std::vector<uint8_t> bytes(round), all;
      for (int32_t place = 0; place < round; ++place) {
        values.push_back(Value(collective.rank(), round, place));
        int64_t greatest = values.back();
        for (int32_t rank = 0; rank < size; ++rank) greatest = std::max(greatest, Value(rank, round, place));
        expected.push_back(greatest);
        bytes[place] = static_cast<uint8_t>(collective.rank() + place);
      }
      for (int32_t rank = 0; rank < size; ++rank) {
        for (int32_t place = 0; place < round; ++place) all.push_back(static_cast<uint8_t>(rank + place));
      }
      ASSERT_OK(collective.AllReduceMax(absl::MakeSpan(values), Never()));
      ASSERT_EQ(values, expected);
      ASSERT_OK_AND_ASSIGN(const auto gathered, collective.AllGather(bytes, Never()));
      ASSERT_EQ(gathered, all);
    }
  });
}

TEST(LocalCollective, ReducesAndGathers) {
  for (int32_t size : {1, 2, 7, 16}) ExpectReducesAndGathers(MakeLocalCollectives(size));
}

TEST(LocalCollective, GathersAnySize) {
  Ranks ranks = MakeLocalCollectives(6);
  OnAll(ranks, [](Collective& collective) {
    const std::vector<uint8_t> own(collective.rank() * 3, static_cast<uint8_t>(collective.rank()));
    ASSERT_OK_AND_ASSIGN(const auto all, AllGatherAnySize(collective, own, Never()));
    ASSERT_EQ(all.size(), 6u);
    for (int32_t rank = 0; rank < 6; ++rank) {
      EXPECT_EQ(all[rank], std::vector<uint8_t>(rank * 3, static_cast<uint8_t>(rank)));
    }
  });
}

TEST(LocalCollective, ARankThatNeverComes) {
  {
    Ranks ranks = MakeLocalCollectives(16);
    OnAll(ranks, [](Collective& collective) {
      if (collective.rank() == 11) return;
      std::vector<int64_t> values = {collective.rank()};
      const absl::Status status = collective.AllReduceMax(absl::MakeSpan(values), Soon());
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
      EXPECT_EQ(values[0], collective.rank());
      const absl::Status again = collective.AllGather({}, Never()).status();
      EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition) << again;
      EXPECT_THAT(again.message(), HasSubstr(status.message()));
    });
  }
  Ranks ranks = MakeLocalCollectives(3);
  std::vector<int64_t> values = {1};
  EXPECT_EQ(ranks[1]->AllReduceMax(absl::MakeSpan(values), Soon()).message(),
            "collective: of 3 ranks these did not come: 0, 2");
  // The rank that comes too late.
  EXPECT_EQ(ranks[0]->AllReduceMax(absl::MakeSpan(values), Never()).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(LocalCollective, RanksThatDoNotDoTheSame) {
  for (bool other_call : {false, true}) {
    Ranks ranks = MakeLocalCollectives(4);
    OnAll(ranks, [other_call](Collective& collective) {
      std::vector<int64_t> values(2);
      absl::Status status;
      if (collective.rank() != 2) {
        status = collective.AllReduceMax(absl::MakeSpan(values), Never());
      } else if (other_call) {
        status = collective.AllGather(std::vector<uint8_t>(16), Never()).status();
      } else {
        status = collective.AllReduceMax(absl::MakeSpan(values).first(1), Never());
      }
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    });
  }
}

}  // namespace
}  // namespace routing_replay::trainer
