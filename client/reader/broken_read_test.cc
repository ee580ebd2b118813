// Reads whose server fails.
#include <random>

#include "absl/strings/str_cat.h"
#include "client/reader/decoded_rows.h"
#include "client/reader/read_checker.h"
#include "client/testing/served_read.h"

namespace routing_replay::client {
namespace {

using testing::Fails;
using testing::Messages;
using testing::RandomRanges;

class BrokenReadTest : public testing::ServedReadTest {
 protected:
  ReadRequest RandomRequest() {
    ReadRequest request;
    for (const LayerRouting& layer : geometry_.layers()) {
      if (random_() % 2) request.layers.push_back(layer.layer_id);
    }
    for (uint64_t n = 1 + random_() % 4; n > 0; --n) {
      request.samples.push_back({.sample = absl::StrCat("s", n)});
      if (random_() % 3) request.samples.back().rows = RandomRanges(random_, kRows);
    }
    return request;
  }
  Messages Serve(const ReadRequest& request) {
    return ServedReadTest::Serve(request, random_() % 2 ? Codec::kRaw : Codec::kPacked, 1 + random_() % 9);
  }
  // Passes the first `count` messages to `read`, and then reports that the server failed.
  static absl::Status TakeSome(ReadChecker& read, const Messages& served, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (absl::Status status = read.OnMessage(served.messages[i]); !status.ok()) return status;
    }
    read.OnBreak();
    return absl::OkStatus();
  }
  static absl::Status TakeAll(ReadChecker& read, const Messages& served) {
    for (const ReadResponse& message : served.messages) {
      if (absl::Status status = read.OnMessage(message); !status.ok()) return status;
    }
    return read.OnEnd();
  }

  std::mt19937_64 random_{3};
};

// However often servers fail in the middle of a read, the sink gets the same samples as from one read without failures.
// Each server uses a random codec and message size.
TEST_F(BrokenReadTest, BreaksAreNotSeen) {
  int64_t breaks = 0;
  for (int round = 0; round < 400; ++round) {
    const ReadRequest request = RandomRequest();
    const std::vector<int32_t> ordinals = *LayerOrdinals(geometry_, request.layers);
    PlaneCollector rows(geometry_, request, ordinals);
    ASSERT_OK_AND_ASSIGN(const auto read, ReadChecker::Create(geometry_, request, rows));
    while (read->part() != nullptr) {
      const Messages served = Serve(*read->part());
      if (random_() % 3 == 0) {
        ASSERT_OK(TakeAll(*read, served));
      } else {
        ASSERT_OK(TakeSome(*read, served, random_() % (served.messages.size() + 1)));
        ++breaks;
      }
    }
    PlaneCollector whole(geometry_, request, ordinals);
    ASSERT_OK_AND_ASSIGN(const auto undisturbed, ReadChecker::Create(geometry_, request, whole));
    ASSERT_OK(TakeAll(*undisturbed, Serve(*undisturbed->part())));
    const std::vector<SampleRows> got = rows.ToRows(), expected = whole.ToRows();
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].record.index, static_cast<int32_t>(i));
      ASSERT_EQ(got[i].rows, expected[i].rows);
      ASSERT_EQ(got[i].layers, expected[i].layers);
    }
  }
  EXPECT_GT(breaks, 400);
}

// Samples that have arrived completely are not requested again.
TEST_F(BrokenReadTest, NoSampleComesTwice) {
  const ReadRequest request{.samples = {{.sample = "a"}, {.sample = "b"}}};
  const Messages served = ServedReadTest::Serve(request, Codec::kRaw, 1);
  const size_t of_one = served.messages.size() / 2;
  for (size_t count = 0; count <= served.messages.size(); ++count) {
    PlaneCollector rows(geometry_, request, *LayerOrdinals(geometry_, {}));
    ASSERT_OK_AND_ASSIGN(const auto read, ReadChecker::Create(geometry_, request, rows));
    ASSERT_OK(TakeSome(*read, served, count));
    size_t rest = 0;
    while (read->part() != nullptr) {
      const Messages more = ServedReadTest::Serve(*read->part(), Codec::kRaw, 1);
      rest += more.messages.size();
      ASSERT_OK(TakeAll(*read, more));
    }
    EXPECT_EQ(rest, count < of_one ? 2 * of_one : count < 2 * of_one ? of_one : 0);
    EXPECT_EQ(rows.samples().size(), 2u);
  }
}

// If a sample changes between two servers' answers, the record of the later server replaces the earlier one.
TEST_F(BrokenReadTest, AChangedSampleIsReadAsItIsNow) {
  const ReadRequest request{.samples = {{.sample = "a"}, {.sample = "b"}}};
  PlaneCollector rows(geometry_, request, *LayerOrdinals(geometry_, {}));
  ASSERT_OK_AND_ASSIGN(const auto read, ReadChecker::Create(geometry_, request, rows));
  ASSERT_OK(TakeSome(*read, ServedReadTest::Serve(request, Codec::kRaw, 1), 3));
  record_.revision = 1;
  record_.unrecorded = {{0, 250}};
  ASSERT_OK(TakeAll(*read, ServedReadTest::Serve(*read->part(), Codec::kRaw, 1)));
  ASSERT_EQ(rows.samples().size(), 2u);
  EXPECT_EQ(rows.samples()[0].record.revision, 1);
  EXPECT_EQ(rows.ToRows()[0].layers[1], routes_.Slice(1, {{250, kRows}}));
}

// If a later server has lost a sample, it is withdrawn, as if the first server had reported it as lost.
TEST_F(BrokenReadTest, ALostSampleIsTakenBack) {
  const ReadRequest request{.samples = {{.sample = "a"}, {.sample = "b"}}};
  const Messages served = ServedReadTest::Serve(request, Codec::kRaw, 1);
  const SampleRecord good = record_;
  for (const size_t count : {1, 3, 4, 5}) {
    PlaneCollector planes(geometry_, request, *LayerOrdinals(geometry_, {}));
    ASSERT_OK_AND_ASSIGN(const auto read, ReadChecker::Create(geometry_, request, planes));
    ASSERT_OK(TakeSome(*read, served, count));
    ReadResponse lost;
    lost.records.push_back({.status = SampleStatus::kLost});
    ASSERT_OK(read->OnMessage(lost));
    read->OnBreak();
    ASSERT_NE(read->part(), nullptr);
    ASSERT_EQ(read->part()->samples.size(), 1u);
    ASSERT_EQ(read->part()->samples[0].sample, "b");
    ASSERT_OK(TakeAll(*read, ServedReadTest::Serve(*read->part(), Codec::kRaw, 1)));
    ASSERT_EQ(read->part(), nullptr);
    ASSERT_EQ(planes.samples().size(), 2u);
    EXPECT_EQ(planes.samples()[0].record.status, SampleStatus::kLost);
    EXPECT_EQ(planes.samples()[1].record.status, SampleStatus::kOk);
  }
}

TEST_F(BrokenReadTest, ErrorsOfTheCheckerStay) {
  const ReadRequest request{.samples = {{.sample = "a"}}};
  PlaneCollector rows(geometry_, request, *LayerOrdinals(geometry_, {}));
  EXPECT_EQ(ReadChecker::Create(geometry_, {.layers = {0}}, rows).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_OK_AND_ASSIGN(const auto read, ReadChecker::Create(geometry_, request, rows));
  const Messages served = ServedReadTest::Serve(request, Codec::kRaw, 1);
  ASSERT_OK(read->OnMessage(served.messages[0]));
  EXPECT_EQ(read->OnEnd().code(), absl::StatusCode::kDataLoss);
  (*served.bytes[1])[0] ^= 1;
  EXPECT_THAT(read->OnMessage(served.messages[1]), Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
}

}  // namespace
}  // namespace routing_replay::client
