#include "server/store/spill/spill.h"

#include <random>

#include "server/store/testing/faulty_spill_disk.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

using Bytes = std::vector<uint8_t>;

class SegmentTest : public ::testing::Test {
 protected:
  Bytes RandomBytes(size_t size) {
    Bytes bytes(size);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random_());
    return bytes;
  }
  static void ExpectFrame(const SpillFrame& place, const Bytes& bytes) {
    const auto frame = place.segment->Read(place.offset, static_cast<int64_t>(bytes.size()), place.crc32c);
    ASSERT_OK(frame);
    EXPECT_EQ(frame->span(), absl::MakeConstSpan(bytes));
  }

  std::mt19937 random_{7};
  const std::shared_ptr<FaultySpillDisk> disk_ = std::make_shared<FaultySpillDisk>();
  const std::shared_ptr<SpillArea> area_ = std::make_shared<SpillArea>(disk_, 10'000, 1000);
  SegmentWriter writer_{area_};
};

// Frames are added and released in random order: held frames can be read, and a file is removed with its last frame.
TEST_F(SegmentTest, FramesReadBackAndFilesGoWithTheLastOfTheirs) {
  std::vector<std::pair<SpillFrame, Bytes>> held;
  for (int step = 0; step < 3000; ++step) {
    const Bytes a = RandomBytes(random_() % 150), b = RandomBytes(random_() % 150);
    auto place = writer_.Put({a, b});
    if (place.ok()) {
      Bytes both = a;
      both.insert(both.end(), b.begin(), b.end());
      held.emplace_back(*std::move(place), std::move(both));
    }
    while (!held.empty() && (!place.ok() || random_() % 2 == 0)) {
      const size_t i = random_() % held.size();
      ExpectFrame(held[i].first, held[i].second);
      held.erase(held.begin() + static_cast<int64_t>(i));
      if (!place.ok() && random_() % 2 == 0) break;
    }
    ASSERT_EQ(area_->space.used(), disk_->bytes());
    ASSERT_LE(disk_->bytes(), 10'000);
  }
  held.clear();
  EXPECT_EQ(disk_->files(), 0u);
  EXPECT_EQ(area_->space.used(), 0);
}

TEST_F(SegmentTest, EveryDamagedByteIsFound) {
  const Bytes first = RandomBytes(40), second = RandomBytes(60);
  ASSERT_OK_AND_ASSIGN(const SpillFrame a, writer_.Put({first}));
  ASSERT_OK_AND_ASSIGN(const SpillFrame b, writer_.Put({second}));
  for (int64_t i = 0; i < 60; ++i) {
    disk_->Damage(b.offset + i);
    EXPECT_TRUE(absl::IsDataLoss(b.segment->Read(b.offset, 60, b.crc32c).status())) << i;
    ExpectFrame(a, first);
    disk_->Damage(b.offset + i);
  }
  ExpectFrame(b, second);
  disk_->Truncate();
  EXPECT_TRUE(absl::IsDataLoss(b.segment->Read(b.offset, 60, b.crc32c).status()));
}

TEST_F(SegmentTest, AFrameOfAnotherPlaceIsNoAnswer) {
  const Bytes one(50, 1), other(50, 2);
  ASSERT_OK_AND_ASSIGN(const SpillFrame a, writer_.Put({one}));
  ASSERT_OK_AND_ASSIGN(const SpillFrame b, writer_.Put({other}));
  ASSERT_OK(disk_->Write("0", b.offset, {one}));
  EXPECT_TRUE(absl::IsDataLoss(b.segment->Read(b.offset, 50, b.crc32c).status()));
  EXPECT_TRUE(absl::IsDataLoss(a.segment->Read(a.offset, 49, a.crc32c).status()));
}

TEST_F(SegmentTest, AFailedWriteLeavesNothingBehind) {
  const Bytes bytes = RandomBytes(100);
  disk_->FailWrites(absl::ResourceExhaustedError("full"));
  EXPECT_TRUE(absl::IsResourceExhausted(writer_.Put({bytes}).status()));
  EXPECT_EQ(disk_->files(), 0u);
  EXPECT_EQ(area_->space.used(), 0);
  disk_->FailWrites(absl::OkStatus());
  ASSERT_OK_AND_ASSIGN(const SpillFrame before, writer_.Put({bytes}));
  disk_->FailWrites(absl::UnavailableError("broken"));
  EXPECT_TRUE(absl::IsUnavailable(writer_.Put({bytes}).status()));
  ExpectFrame(before, bytes);
  disk_->FailWrites(absl::OkStatus());
  ASSERT_OK_AND_ASSIGN(const SpillFrame after, writer_.Put({bytes}));
  ExpectFrame(before, bytes);
  ExpectFrame(after, bytes);
  EXPECT_EQ(area_->space.used(), disk_->bytes());
}

}  // namespace
}  // namespace routing_replay::testing
