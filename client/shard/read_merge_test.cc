#include "client/shard/read_merge.h"

#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "client/reader/read_checker.h"
#include "client/reader/read_rows.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::client {
namespace {

// One layer, E = 256, K = 1: a row is a byte.
Geometry OneByteRows() { return Geometry::Uniform(1, 256, 1); }

using Ids = std::vector<uint8_t>;

// What happens to a member while it is read from.
struct Fate {
  bool has_no_run = false;
  bool is_dead = false;                // From the first call on.
  std::optional<size_t> breaks_after;  // Messages of the first read.
  bool answers_stat = true;
};

// Servers as they look through their messages. A sample may be with any of them.
class Cluster {
 public:
  std::vector<Fate> fates;  // By member.

  Cluster(const ShardMembers& members, std::mt19937_64& random)
      : fates(members.size()), members_(members), random_(random) {}

  void Add(const std::string& sample, size_t member, Ids ids) {
    held_[SampleHandle(sample)] = {member, std::move(ids)};
  }
  const Ids* Find(int64_t handle) const {
    const auto at = held_.find(handle);
    return at == held_.end() ? nullptr : &at->second.second;
  }
  size_t MemberOf(int64_t handle) const { return held_.at(handle).first; }

  // The messages of a read at a member, of a few rows each, and how it ends.
  std::pair<std::deque<std::string>, absl::Status> Read(size_t member, const std::string& bytes) {
    Fate& fate = fates[member];
    const absl::Status gone = absl::UnavailableError("gone");
    if (fate.is_dead) return {{}, gone};
    if (fate.has_no_run) return {{}, MakeError(absl::StatusCode::kNotFound, "no run", {.reason = Reason::kNoRun})};
    const auto request = ParseReadRequest(ByteChain(AsBytes(bytes)));
    EXPECT_OK(request);
    if (request->wait && !request->only_begun) {
      for (const SampleRead& sample : request->samples) Begin(sample, member);
    }
    std::deque<std::string> messages = Messages(member, *request);
    if (!fate.breaks_after) return {std::move(messages), absl::OkStatus()};
    messages.resize(std::min(messages.size(), *fate.breaks_after));
    fate = {.is_dead = !fate.answers_stat};
    return {std::move(messages), gone};
  }

  std::vector<std::optional<std::vector<int64_t>>> Locate(const std::vector<int64_t>& handles) const {
    std::vector<std::optional<std::vector<int64_t>>> found(members_.size());
    for (size_t member = 0; member < members_.size(); ++member) {
      if (fates[member].is_dead) continue;
      found[member].emplace();
      for (const int64_t handle : handles) {
        const bool here = !fates[member].has_no_run && Find(handle) != nullptr && MemberOf(handle) == member;
        if (here) found[member]->push_back(handle);
      }
    }
    return found;
  }

  static absl::Span<const uint8_t> AsBytes(const std::string& text) {
    return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
  }

 private:
  // Who waits for a sample gets it.
  void Begin(const SampleRead& sample, size_t member) {
    const int64_t handle = sample.sample.empty() ? sample.handle : SampleHandle(sample.sample);
    held_.try_emplace(handle, member, Ids{1, 2, 3});
  }
  std::deque<std::string> Messages(size_t member, const ReadRequest& request) {
    std::deque<std::string> messages;
    std::vector<SampleRecord> records;
    std::vector<Piece> pieces;
    std::string payload;
    const auto flush = [&] {
      if (records.empty() && pieces.empty()) return;
      messages.push_back(EncodeReadResponse(records, pieces, payload.size()) + payload);
      records.clear();
      pieces.clear();
      payload.clear();
    };
    for (size_t i = 0; i < request.samples.size(); ++i) {
      const SampleRead& asked = request.samples[i];
      const int64_t handle = asked.sample.empty() ? asked.handle : SampleHandle(asked.sample);
      const Ids* ids = Find(handle);
      const auto index = static_cast<int32_t>(i);
      if (ids == nullptr || MemberOf(handle) != member) {
        records.push_back({.index = index, .status = SampleStatus::kNotFound});
        continue;
      }
      const auto rows = static_cast<int64_t>(ids->size());
      records.push_back({.index = index, .status = SampleStatus::kOk, .committed_rows = rows, .num_tokens = rows + 1});
      for (int64_t begin = 0; begin < rows;) {
        const int64_t end = std::min<int64_t>(rows, begin + 1 + static_cast<int64_t>(random_() % 50));
        const auto cut = absl::MakeConstSpan(*ids).subspan(begin, end - begin);
        pieces.push_back({.sample_index = index,
                          .layer_count = 1,
                          .rows = {begin, end},
                          .bytes = end - begin,
                          .cut_crc32c = {Crc32c(cut)}});
        payload.append(cut.begin(), cut.end());
        begin = end;
        if (random_() % 3 == 0) flush();
      }
      if (random_() % 50 == 0) {
        flush();
        records.push_back({.index = index, .status = SampleStatus::kLost});
      }
    }
    flush();
    return messages;
  }

  const ShardMembers& members_;
  std::mt19937_64& random_;
  std::map<int64_t, std::pair<size_t, Ids>> held_;
};

struct Outcome {
  absl::Status status;
  std::vector<SampleRows> samples;
  int searches = 0;
};

// Does what a merge asks for, and hands what it delivers through the checks of every read.
Outcome ReadAll(Cluster& cluster, Places& places, const ReadRequest& request) {
  struct Open {
    std::deque<std::string> messages;
    absl::Status end;
    std::string present;
  };
  const Geometry geometry = OneByteRows();
  RowCollector rows(geometry, {0});
  auto checker = *ReadChecker::Create(geometry, request, rows);
  ReadMerge merge(request, 1, places);
  std::vector<std::unique_ptr<Open>> streams;
  Outcome outcome;
  while (outcome.status.ok()) {
    ReadMerge::Step step = merge.Next();
    if (step.kind == ReadMerge::Kind::kStart) {
      auto [messages, end] = cluster.Read(step.member, step.request);
      streams.push_back(std::make_unique<Open>(Open{std::move(messages), end, ""}));
      EXPECT_EQ(streams.size(), step.stream + 1);
    } else if (step.kind == ReadMerge::Kind::kReceive) {
      Open& stream = *streams[step.stream];
      if (stream.messages.empty()) {
        merge.OnEnd(step.stream, stream.end);
        continue;
      }
      stream.present = std::move(stream.messages.front());
      stream.messages.pop_front();
      merge.OnMessage(step.stream, ByteChain(Cluster::AsBytes(stream.present)));
    } else if (step.kind == ReadMerge::Kind::kLocate) {
      ++outcome.searches;
      merge.OnLocated(cluster.Locate(step.handles));
    } else if (step.kind == ReadMerge::Kind::kDeliver) {
      outcome.status = checker->OnMessage(step.message);
    } else {
      outcome.status = step.status.ok() ? checker->OnEnd() : step.status;
      break;
    }
  }
  outcome.samples = rows.Take();
  return outcome;
}

class ReadMergeTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  ReadRequest AnyRequest(int names) {
    ReadRequest request{.run = "run"};
    for (uint64_t i = 1 + random_() % 60; i > 0; --i) {
      const std::string name = absl::StrCat("s", random_() % names);
      SampleRead& read = request.samples.emplace_back();
      if (random_() % 2 == 0) {
        read.sample = name;
      } else {
        read.handle = SampleHandle(name);
      }
    }
    return request;
  }

  // One name in twenty is of nobody; one in five is not with its natural owner.
  void Fill(Cluster& cluster, int names) {
    for (int i = 0; i < names; ++i) {
      if (random_() % 20 == 0) continue;
      const std::string name = absl::StrCat("s", i);
      Ids ids(random_() % 200);
      for (uint8_t& id : ids) id = static_cast<uint8_t>(random_());
      const size_t natural = members_.NaturalOwner(SampleHandle(name));
      cluster.Add(name, random_() % 5 == 0 ? random_() % members_.size() : natural, std::move(ids));
    }
  }

  void Expect(const Cluster& cluster, const ReadRequest& request, const Outcome& outcome, const std::set<size_t>& ill) {
    ASSERT_OK(outcome.status);
    ASSERT_EQ(outcome.samples.size(), request.samples.size());
    for (size_t i = 0; i < request.samples.size(); ++i) {
      const SampleRows& got = outcome.samples[i];
      const SampleRead& asked = request.samples[i];
      const int64_t handle = asked.sample.empty() ? asked.handle : SampleHandle(asked.sample);
      const Ids* ids = cluster.Find(handle);
      if (got.record.status == SampleStatus::kLost) continue;
      if (ids == nullptr) {
        EXPECT_TRUE(got.record.status == SampleStatus::kNotFound ||
                    (!ill.empty() && got.record.status == SampleStatus::kUnavailable));
      } else if (got.record.status != SampleStatus::kOk) {
        EXPECT_TRUE(ill.contains(cluster.MemberOf(handle))) << i;
        EXPECT_TRUE(got.record.status == SampleStatus::kUnavailable || got.record.status == SampleStatus::kNotFound);
      } else {
        EXPECT_EQ(got.layers[0], std::vector<uint16_t>(ids->begin(), ids->end())) << i;
      }
    }
  }

  std::mt19937_64 random_{GetParam()};
  const ShardMembers members_ = *ShardMembers::Parse("shard:a:1,b:1,c:1,d:1,e:1");
};

TEST_P(ReadMergeTest, SamplesThatNobodyHasBegunAreWaitedForWhereTheyWillBe) {
  Cluster cluster(members_, random_);
  Fill(cluster, 40);
  Places places(members_);
  ReadRequest request = AnyRequest(60);
  request.wait = request.only_begun = true;
  Expect(cluster, request, ReadAll(cluster, places, request), {});
  request.only_begun = false;
  const Outcome outcome = ReadAll(cluster, places, request);
  Expect(cluster, request, outcome, {});
  for (const SampleRows& sample : outcome.samples) EXPECT_NE(sample.record.status, SampleStatus::kNotFound);
  for (int i = 40; i < 60; ++i) {
    const int64_t handle = SampleHandle(absl::StrCat("s", i));
    if (cluster.Find(handle) == nullptr) continue;
    EXPECT_EQ(cluster.MemberOf(handle), members_.NaturalOwner(handle));
  }
}

TEST_P(ReadMergeTest, GivesWhatOneServerWould) {
  for (int round = 0; round < 200; ++round) {
    Cluster cluster(members_, random_);
    Fill(cluster, 40);
    Places places(members_);
    const ReadRequest request = AnyRequest(40);
    Expect(cluster, request, ReadAll(cluster, places, request), {});
    const Outcome again = ReadAll(cluster, places, request);
    Expect(cluster, request, again, {});
    // What was found stays known; only what is nowhere is searched for again.
    const bool all_there = std::all_of(again.samples.begin(), again.samples.end(), [](const SampleRows& sample) {
      return sample.record.status != SampleStatus::kNotFound;
    });
    EXPECT_TRUE(!all_there || again.searches == 0);
    if (HasFailure()) return;
  }
}

TEST_P(ReadMergeTest, MembersFailAndTheOthersSamplesAreExact) {
  for (int round = 0; round < 300; ++round) {
    Cluster cluster(members_, random_);
    Fill(cluster, 40);
    std::set<size_t> ill;
    for (size_t member = 0; member < members_.size(); ++member) {
      Fate& fate = cluster.fates[member];
      const uint64_t kind = random_() % 8;
      if (kind == 0) fate.is_dead = true;
      if (kind == 1) fate.has_no_run = true;
      if (kind == 2) fate.breaks_after = random_() % 4;
      if (kind == 2) fate.answers_stat = random_() % 2 == 0;
      if (kind <= 2) ill.insert(member);
    }
    Places places(members_);
    const ReadRequest request = AnyRequest(40);
    Expect(cluster, request, ReadAll(cluster, places, request), ill);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ReadMergeTest, ::testing::Values(1, 2, 3, 4));

TEST(ReadMergeEndTest, ARefusalOfOneIsThatOfTheRead) {
  const ShardMembers members = *ShardMembers::Parse("shard:a:1,b:1");
  Places places(members);
  ReadMerge merge({.run = "run", .samples = {{.sample = "s"}}}, 1, places);
  const size_t stream = merge.Next().stream;
  ASSERT_EQ(merge.Next().kind, ReadMerge::Kind::kReceive);
  merge.OnEnd(stream, absl::DeadlineExceededError("late"));
  for (int i = 0; i < 2; ++i) {
    const ReadMerge::Step step = merge.Next();
    EXPECT_EQ(step.kind, ReadMerge::Kind::kDone);
    EXPECT_EQ(step.status.code(), absl::StatusCode::kDeadlineExceeded);
  }
}

TEST(ReadMergeEndTest, MessagesThatCannotBeReadAreTheServersFault) {
  const ShardMembers members = *ShardMembers::Parse("shard:a:1,b:1");
  const std::string bytes = "\x0a\xff";
  for (const bool ends : {false, true}) {
    Places places(members);
    ReadMerge merge({.run = "run", .samples = {{.sample = "s"}}}, 1, places);
    const size_t stream = merge.Next().stream;
    ASSERT_EQ(merge.Next().kind, ReadMerge::Kind::kReceive);
    if (ends) {
      merge.OnEnd(stream, absl::OkStatus());
    } else {
      merge.OnMessage(stream, ByteChain(Cluster::AsBytes(bytes)));
    }
    const absl::StatusCode code = ends ? absl::StatusCode::kDataLoss : absl::StatusCode::kInternal;
    EXPECT_EQ(merge.Next().status.code(), code);
  }
}

}  // namespace
}  // namespace routing_replay::client
