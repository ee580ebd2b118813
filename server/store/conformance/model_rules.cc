// Applies random operations to the store and to the reference model, and compares them.
#include <map>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/checksum.h"
#include "server/store/conformance/conformance.h"
#include "server/store/conformance/reference_model.h"
#include "server/store/sample_rules.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

constexpr auto kRollout = Producer::kRollout;
const std::vector<std::string> kSamples = {"a", "b", "c"};

// Chooses the next operation: mostly valid ones, and each kind of mistake often enough.
class Chooser {
 public:
  explicit Chooser(uint32_t seed) : random_(seed) {}

  int64_t Below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  bool OneIn(int64_t n) { return Below(n) == 0; }
  const std::string& Sample() { return kSamples[Below(kSamples.size())]; }

  AppendSpec NextAppend(const std::string& name, const ModelSample* sample) {
    AppendSpec spec{.sample = name};
    const int64_t committed = sample == nullptr ? 0 : static_cast<int64_t>(sample->rows.size());
    ChooseLife(spec, sample);
    ChooseRows(spec, spec.restart_nonce != 0 && OneIn(2) ? 0 : committed);
    spec.from = {.tokens = 1u + OneIn(9), .routes = 1u + OneIn(9)};
    spec.token_ids = !OneIn(6);
    spec.token_check_start = spec.rows.begin > 0 && OneIn(2);
    spec.weight_version = Below(3);
    spec.weight_label = OneIn(5) ? "label" : "";
    spec.engine = OneIn(5) ? "engine" : "";
    if (OneIn(6)) spec.group = Below(4);
    if (OneIn(7)) spec.seal_num_tokens = std::max(committed, spec.rows.end) + 1 + OneIn(5);
    spec.codec = OneIn(2) ? Codec::kRaw : Codec::kPacked;
    spec.max_block_rows = 1 + Below(40);
    return spec;
  }

 private:
  void ChooseLife(AppendSpec& spec, const ModelSample* sample) {
    spec.revision = sample == nullptr ? 0 : sample->revision;
    if (OneIn(12)) spec.revision = Below(4);
    if (OneIn(10)) spec.restart_nonce = OneIn(2) ? kAttempt | static_cast<uint64_t>(Below(4)) : 1 + Below(5);
    if (sample != nullptr && sample->nonce != 0 && OneIn(2)) {
      const std::optional<uint32_t> attempt = AttemptOf(sample->nonce);
      spec.restart_nonce = attempt ? kAttempt | *attempt : sample->nonce;
    }
    if (OneIn(sample == nullptr ? 3 : 15)) spec.prefix = PrefixReference{Sample(), Below(80), Below(3)};
    if (spec.prefix && spec.prefix->sample == spec.sample) spec.prefix.reset();
    if (sample != nullptr && sample->prefix && OneIn(3)) spec.prefix = sample->prefix;
  }

  void ChooseRows(AppendSpec& spec, int64_t committed) {
    if (spec.prefix && OneIn(2)) committed = spec.prefix->rows;
    const int64_t back = OneIn(3) ? 1 + Below(OneIn(3) ? committed + 1 : 12) : 0;
    const int64_t ahead = OneIn(12) ? 1 + Below(3) : 0;
    spec.rows.begin = std::max<int64_t>(0, committed - back) + ahead;
    spec.rows.end = spec.rows.begin + Below(OneIn(4) ? 60 : 12);
    for (int64_t row = spec.rows.begin; OneIn(2) && row < spec.rows.end;) {
      row += Below(10);
      const int64_t end = std::min(spec.rows.end, row + 1 + Below(12));
      if (row < end) AppendMerged(spec.unrecorded, {row, end});
      row = end + 1;
    }
  }

  std::mt19937 random_;
};

std::string Describe(const AppendSpec& spec) {
  std::string text =
      absl::StrCat("append ", spec.sample, " ", ToString(spec.rows), " tokens ", spec.from.tokens, " routes ",
                   spec.from.routes, " ids ", spec.token_ids, " start ", spec.token_check_start, " revision ",
                   spec.revision, " nonce ", spec.restart_nonce, " seal ", spec.seal_num_tokens.value_or(-1));
  for (RowRange range : spec.unrecorded) absl::StrAppend(&text, " without ", ToString(range));
  if (spec.prefix) {
    absl::StrAppend(&text, " prefix ", spec.prefix->sample, " ", spec.prefix->rows, " ", spec.prefix->revision);
  }
  return text;
}

uint32_t CheckOf(const Tokens& tokens) {
  std::vector<uint8_t> bytes;
  for (uint32_t token : tokens) {
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<uint8_t>(token >> shift));
  }
  return Crc32c(bytes);
}

// Counts how often each case occurred, so that the test fails if the random operations do not cover one.
using Tally = std::map<std::string, int>;

class ModelTest {
 public:
  ModelTest(Store& store, ByteBudget& budget, RunInfo run, uint32_t seed, Tally& tally)
      : store_(store),
        budget_(budget),
        run_(std::move(run)),
        model_(run_, *run_.geometry),
        choose_(seed),
        tally_(tally) {}

  void Step() {
    const std::string name = choose_.Sample();
    const ModelSample* sample = model_.Find(name);
    const int64_t rows = sample == nullptr ? 0 : static_cast<int64_t>(sample->rows.size());
    const int64_t revision = sample == nullptr ? 0 : sample->revision;
    switch (choose_.Below(20)) {
      case 0:
        Seal(name, rows + 1 + choose_.OneIn(4) - choose_.OneIn(4), revision + choose_.OneIn(6));
        break;
      case 1:
        Truncate(name, std::max<int64_t>(0, rows + 1 - choose_.Below(rows + 2)),
                 choose_.OneIn(2) ? std::optional(revision + choose_.OneIn(4)) : std::nullopt);
        break;
      case 2:
        if (choose_.OneIn(4)) Release(name);
        break;
      default:
        Append(choose_.NextAppend(name, sample));
    }
    for (const std::string& each : kSamples) CheckSample(each);
  }

  void Finish() {
    for (const std::string& name : kSamples) Release(name);
    EXPECT_EQ(budget_.used(), store_.GetTotals().run_bytes);
  }

 private:
  void Append(const AppendSpec& spec) {
    last_ = Describe(spec);
    SCOPED_TRACE(last_);
    const ModelAnswer expected = model_.Append(spec);
    const absl::StatusOr<AppendAck> ack = store_.Append(MakeAppend(run_, spec));
    CheckStatus(ack.status(), expected);
    if (!ack.ok()) return;
    tally_["conflicting"] += expected.conflicting > 0;
    tally_["late"] += expected.late > 0;
    tally_["unverified"] += expected.unverified > 0;
    tally_["restart or fork"] += spec.restart_nonce != 0 || spec.prefix;
    EXPECT_EQ(ack->trimmed_rows, expected.trimmed);
    EXPECT_EQ(ack->conflicting_rows, expected.conflicting);
    EXPECT_EQ(ack->late_rows, expected.late);
    EXPECT_EQ(ack->unrecorded_rows, expected.unrecorded);
    EXPECT_EQ(ack->unverified_rows, expected.unverified);
    const ModelSample* sample = model_.Find(spec.sample);
    ASSERT_NE(sample, nullptr);
    EXPECT_EQ(ack->committed_rows, static_cast<int64_t>(sample->rows.size()));
    EXPECT_EQ(ack->revision, sample->revision);
    EXPECT_EQ(ack->sealed, sample->num_tokens.has_value());
  }

  void Seal(const std::string& name, int64_t num_tokens, int64_t revision) {
    last_ = absl::StrCat("seal ", name, " ", num_tokens, " revision ", revision);
    SCOPED_TRACE(last_);
    CheckStatus(store_.Seal("run", kRollout, name, num_tokens, revision).status(),
                model_.Seal(name, num_tokens, revision));
  }

  void Truncate(const std::string& name, int64_t rows, std::optional<int64_t> revision) {
    last_ = absl::StrCat("truncate ", name, " ", rows, " revision ", revision.value_or(-1));
    SCOPED_TRACE(last_);
    CheckStatus(store_.Truncate("run", kRollout, name, rows, revision).status(), model_.Truncate(name, rows, revision));
  }

  void Release(const std::string& name) {
    last_ = absl::StrCat("release ", name);
    const std::vector<SampleRef> refs{{.sample = name}};
    EXPECT_OK(store_.Release("run", kRollout, refs));
    model_.Release(name);
  }

  void CheckStatus(const absl::Status& status, const ModelAnswer& expected) {
    ++tally_[ReasonName(expected.reason)];
    EXPECT_EQ(status.code(), expected.code) << status;
    const ErrorDetail detail = GetErrorDetail(status).value_or(ErrorDetail{});
    EXPECT_EQ(detail.reason, expected.reason) << status;
    EXPECT_EQ(detail.first_differing_block, expected.first_differing_block) << status;
    if (expected.row) {
      EXPECT_EQ(detail.row, expected.row) << status;
    }
  }

  void CheckSample(const std::string& name) {
    SCOPED_TRACE(absl::StrCat(name, " after ", last_));
    const ModelSample* sample = model_.Find(name);
    const std::vector<RowRange> all{{0, kMaxRows}};
    const auto snapshot = store_.Snapshot("run", kRollout, {.sample = name}, all);
    ASSERT_EQ(snapshot.ok(), sample != nullptr) << snapshot.status();
    if (sample == nullptr) return;
    CheckState(snapshot->state, *sample);
    const auto rows = RowsOf(*run_.geometry, *snapshot);
    ASSERT_OK(rows);
    EXPECT_EQ(*rows, sample->rows);
    if (sample->num_tokens && !sample->prefix) CheckSealedBlocks(*snapshot);
    CheckContentId(name, *sample, snapshot->state.content_id);
  }

  void CheckState(const SampleState& state, const ModelSample& sample) {
    EXPECT_EQ(state.revision, sample.revision);
    EXPECT_EQ(state.group, sample.group);
    EXPECT_EQ(state.num_tokens, sample.num_tokens);
    std::vector<RowRange> unrecorded;
    const int64_t committed = static_cast<int64_t>(sample.rows.size());
    for (int64_t row = 0; row < committed; ++row) {
      if (!sample.rows[row]) AppendMerged(unrecorded, {row, row + 1});
    }
    EXPECT_EQ(state.committed_rows, committed);
    EXPECT_EQ(state.unrecorded, unrecorded);
    CheckOrigins(state, sample);
    EXPECT_EQ(state.token_check.has_value(), sample.history.count(committed) == 1);
    const auto end = sample.history.find(committed);
    if (end != sample.history.end() && state.token_check) {
      EXPECT_EQ(state.token_check->rows, committed);
      EXPECT_EQ(state.token_check->crc32c, CheckOf(end->second));
    }
  }

  void CheckOrigins(const SampleState& state, const ModelSample& sample) {
    int64_t row = 0;
    for (size_t i = 0; i < state.weights.size(); ++i) {
      const WeightSpan& span = state.weights[i];
      ASSERT_EQ(span.rows.begin, row);
      for (; row < span.rows.end && row < state.committed_rows; ++row) {
        EXPECT_EQ(span.version, sample.origins[row].weight_version);
        EXPECT_EQ(span.label, sample.origins[row].weight_label);
      }
      if (i == 0) continue;
      const WeightSpan& before = state.weights[i - 1];
      EXPECT_TRUE(before.version != span.version || before.label != span.label);
    }
    EXPECT_EQ(row, state.committed_rows);
  }

  // Checks that consecutive recorded rows inside a window are one block.
  void CheckSealedBlocks(const SampleSnapshot& snapshot) {
    std::vector<RowRange> expected, blocks;
    for (RowRange recorded : Subtract({0, snapshot.state.committed_rows}, snapshot.state.unrecorded)) {
      for (RowRange window : SplitAtWindows(recorded, run_.options.block_rows)) expected.push_back(window);
    }
    for (const StoredRows& stored : snapshot.rows) blocks.push_back(stored.block->rows());
    EXPECT_EQ(blocks, expected);
  }

  // Checks that equal contents have equal content ids, and different contents different ones.
  void CheckContentId(const std::string& name, const ModelSample& sample, uint64_t content_id) {
    const auto [it, added] = content_ids_.emplace(std::pair(name, sample.content), content_id);
    EXPECT_EQ(it->second, content_id);
    if (added) {
      EXPECT_TRUE(seen_ids_.insert(content_id).second) << "a content id came twice";
    }
  }

  Store& store_;
  ByteBudget& budget_;
  const RunInfo run_;
  ReferenceModel model_;
  Chooser choose_;
  Tally& tally_;
  std::string last_;
  std::map<std::pair<std::string, int64_t>, uint64_t> content_ids_;
  std::set<uint64_t> seen_ids_;
};

TEST_P(StoreConformance, RandomOperationsDoWhatTheModelDoes) {
  Tally tally;
  const auto [first, end] = GetParam().model_seeds;
  const int64_t seeds = end - first;
  for (uint32_t seed = first; seed < end; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    ReopenRun({.strict = seed % 3 == 0, .block_rows = kWindow, .codec = seed % 2 == 0 ? Codec::kRaw : Codec::kPacked});
    ModelTest test(*store_, *budget_, run_, seed, tally);
    for (int step = 0; step < 250 && !HasFailure(); ++step) test.Step();
    test.Finish();
    if (HasFailure()) return;
  }
  for (const char* name : {"FIELD", "ROW_COUNT", "GAP", "OLD_REVISION", "SEALED", "NOT_COMMITTED", "OTHER_TOKENS",
                           "CONFLICTING_ROWS", "NO_SAMPLE", "conflicting", "late", "unverified", "restart or fork"}) {
    EXPECT_GT(tally[name], 20 * seeds / 24) << name;
  }
  EXPECT_GT(tally["REASON_UNSPECIFIED"], 1500 * seeds / 24);
}

}  // namespace
}  // namespace routing_replay::testing
