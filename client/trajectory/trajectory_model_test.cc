// Runs random trajectories, and compares them with the reference and with the content of the memory store. Covers
// turns, aborts, retokenised histories, forks, weight updates, retries, lost acknowledgements, dropped appends,
// restarted writers. The environment variable RR_TRAJECTORY_SEEDS sets the number of trajectories.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/testing/reference_trajectory.h"
#include "client/trajectory/trajectory.h"
#include "client/trajectory/turn_plan.h"
#include "server/store/conformance/trajectory.h"
#include "server/store/memory/memory_store.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace client;  // NOLINT(google-build-using-namespace)
using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

using Subject = client::Trajectory;  // The store's tests have a class of that name, too.
using Step = TurnDecision::Step;
constexpr int32_t kWindow = 32;
constexpr int64_t kTopK = 2;

// Two MoE layers of different widths around a dense one.
const Geometry& TestedGeometry() {
  static const Geometry& geometry = *new Geometry(
      *Geometry::Create({.num_layers = 3, .moe_layer_ids = {0, 2}, .num_experts = {64, 300}, .top_k = {kTopK, kTopK}}));
  return geometry;
}

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15 + b * 0xd1b54a32d192ed03 + 1;
  x = (x ^ x >> 31) * 0x94d049bb133111eb;
  return x ^ x >> 29;
}

RowIds IdsOf(uint64_t label) {
  RowIds ids;
  for (int32_t ordinal = 0; ordinal < TestedGeometry().num_moe_layers(); ++ordinal) {
    const auto experts = static_cast<uint64_t>(TestedGeometry().layer(ordinal).num_experts);
    const uint64_t first = Mix(label, ordinal) % experts;
    ids.push_back(static_cast<uint16_t>(first));
    ids.push_back(static_cast<uint16_t>((first + 1 + Mix(label, 9 + ordinal) % (experts - 1)) % experts));
  }
  return ids;
}

// Returns the labels' routes as an engine delivers them: int32 [slots][3 layers][K], where a row without a label is −1.
std::vector<int32_t> Tensor(const std::vector<Label>& labels) {
  std::vector<int32_t> out;
  for (const Label& label : labels) {
    std::vector<int32_t> row(3 * kTopK, -1);
    if (label) {
      const RowIds ids = IdsOf(*label);
      row = {ids[0], ids[1], 0, 0, ids[2], ids[3]};
    }
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

// A trajectory and its reference, and what the store must have of the sample that they write.
struct Writer {
  std::string name;
  Subject trajectory;
  ReferenceTrajectory model;
  bool in_doubt = false;
  bool replacing = false;

  bool exists = false;
  int64_t revision = 0;
  std::vector<ReferenceRow> stored;
  Tokens written;  // The tokens that the rows belong to.
  std::optional<int64_t> sealed;
  int64_t acknowledged = 0;  // As acknowledged to the trajectory.
};

struct Queued {
  size_t writer = 0;
  client::AppendPlan plan;
  std::vector<ReferenceRow> rows;
};

// Counts each kind of event, so that the test fails if the random turns never reach one.
using Tally = std::map<std::string, int64_t>;

class World {
 public:
  World(uint64_t seed, Tally& tally) : random_(seed), tally_(tally), budget_(1 << 26) {
    store_ = NewMemoryStore({.budget = &budget_});
    run_ = *store_->OpenRun("run", &TestedGeometry(),
                            RunOptions{.block_rows = kWindow, .codec = OneIn(2) ? Codec::kRaw : Codec::kPacked});
    blocks_ = {kWindow, run_.options.codec, OneIn(2) ? 400 : 1 << 20, 1 << 20};
    AddWriter("s0", {});
  }

  void Go(int steps) {
    for (int step = 0; step < steps && !::testing::Test::HasFailure(); ++step) {
      Act(writers_[Below(writers_.size())]);
      if (OneIn(3)) Deliver();
      if (OneIn(20)) ++weights_;
    }
    Settle();
    for (Writer& writer : writers_) CheckStored(writer);
  }

 private:
  int64_t Below(size_t n) { return static_cast<int64_t>(random_() % n); }
  bool OneIn(size_t n) { return Below(n) == 0; }

  void AddWriter(const std::string& name, std::optional<size_t> parent) {
    const bool strict = OneIn(6);
    Writer writer{.name = name, .trajectory = Subject({.sample = name, .strict = strict})};
    writer.model.strict = strict;
    if (parent) {
      const Writer& from = writers_[*parent];
      writer.trajectory = from.trajectory.Fork(name);
      writer.model.strict = from.model.strict;
      writer.model.parent = from.model.parent;
      if (!writer.model.parent) {
        const auto rows = std::min<int64_t>(from.acknowledged, from.model.tokens.size());
        writer.model.parent = {{from.model.tokens.begin(), from.model.tokens.begin() + rows},
                               {from.model.rows.begin(), from.model.rows.begin() + rows}};
      }
    }
    writers_.push_back(std::move(writer));
  }

  void Act(Writer& writer) {
    if (OneIn(30) && writers_.size() < 5) {
      ++tally_["fork"];
      return AddWriter(absl::StrCat("s", writers_.size()), &writer - writers_.data());
    }
    if (OneIn(40)) return Restart(writer, OneIn(2));
    ReferenceTurn turn = OneIn(12) && last_.contains(writer.name) ? last_[writer.name] : NextTurn(writer);
    last_[writer.name] = turn;
    Do(writer, turn);
  }

  // Turns.

  // Fills in the engine's answer for this history. Row i depends on the tokens 0 … i and on the weights.
  void Answer(const Writer& writer, const Tokens& history, ReferenceTurn& turn) {
    const bool cached = !OneIn(4);
    const bool marks = OneIn(8);
    uint64_t hash = 0;
    const int64_t last = std::max<int64_t>(0, static_cast<int64_t>(history.size()) - 1);
    std::vector<Label> labels;
    for (int64_t row = 0; row <= last; ++row) {
      hash = Mix(hash, history.empty() ? 0 : history[row]);
      labels.emplace_back(Mix(hash, cached ? 0 : weights_));
      if (OneIn(150)) labels.back() = random_();
      if (marks && OneIn(5)) labels.back().reset();
    }
    int64_t begin = 0;
    const auto held = std::min<int64_t>(writer.model.rows.size(), last);
    if (!OneIn(3)) begin = std::min(writer.trajectory.NextRow(history), last);
    if (OneIn(6)) begin = Below(held + 1);
    if (OneIn(25)) begin = std::min(last, begin + 1 + Below(3));
    if (OneIn(12)) std::fill_n(labels.begin(), std::min<int64_t>(begin + Below(4), last), Label());
    int64_t end = last;
    if (OneIn(10) && last > begin) end = last + 1;
    if (turn.outcome != TurnOutcome::kFinished || OneIn(40)) end = begin + Below(last - begin + 1);
    if (OneIn(60)) end = last + 2;
    turn.row_start = begin;
    for (int64_t row = begin; row < end; ++row) {
      turn.labels.push_back(row <= last ? labels[row] : Label(random_()));
    }
    turn.versions.resize(turn.labels.size(), weights_);
    if (OneIn(3)) std::fill_n(turn.versions.begin(), Below(turn.versions.size() + 1), weights_ - 1);
  }

  ReferenceTurn NextTurn(const Writer& writer) {
    ReferenceTurn turn;
    const Tokens& told = writer.model.tokens;
    const auto size = static_cast<int64_t>(told.size());
    if (OneIn(5)) turn.outcome = OneIn(2) ? TurnOutcome::kAborted : TurnOutcome::kPreempted;
    turn.missing_is_unrecorded = OneIn(6);
    turn.seal = OneIn(25);
    if (turn.outcome != TurnOutcome::kFinished && OneIn(4)) return turn;
    if (OneIn(14)) {
      turn.seal = true;
      return turn;
    }
    if (size > 0 && OneIn(writer.model.sealed ? 3 : 14)) {
      turn.cut = true;
      turn.outcome = TurnOutcome::kFinished;
      turn.tokens_start = 1 + Below(size);
      turn.tokens.emplace();
      turn.seal = OneIn(3);
      return turn;
    }
    turn.tokens_start = OneIn(2) ? 0 : size;
    if (OneIn(30)) turn.tokens_start = Below(size + 2);
    Tokens history = told;
    if (size == 0 && writer.model.parent && OneIn(2)) history = writer.model.parent->tokens;
    if (size == 0 && writer.model.resumed && !OneIn(4)) history = *writer.model.resumed;
    if (!history.empty() && OneIn(10)) history[Below(history.size())] = 100 + Below(10);
    if (OneIn(20)) history.resize(Below(history.size() + 1));
    if (!OneIn(15) || history.empty()) {
      for (int64_t n = 1 + Below(OneIn(6) ? 50 : 9); n > 0; --n) history.push_back(Below(5));
    }
    const auto start = std::min<int64_t>(turn.tokens_start, history.size());
    turn.tokens.emplace(history.begin() + start, history.end());
    if (turn.tokens_start <= size) {
      std::copy_n(told.begin(), std::min<int64_t>(turn.tokens_start, start), history.begin());
    }
    if (!OneIn(10)) Answer(writer, history, turn);
    return turn;
  }

  // The loop of a client that handles one turn.
  void Do(Writer& writer, const ReferenceTurn& turn) {
    SCOPED_TRACE(absl::StrCat(writer.name, " turn of ", turn.tokens ? turn.tokens->size() : 0, " tokens from ",
                              turn.tokens_start, " and ", turn.labels.size(), " rows from ",
                              turn.row_start.value_or(-1), " seal ", turn.seal, " cut ", turn.cut));
    while (!::testing::Test::HasFailure()) {
      const absl::StatusOr<TurnPlan> plan = Plan(writer, turn);
      if (!plan.ok()) return CheckRejection(writer, turn, plan.status());
      if (plan->decision.step == Step::kAsk) {
        ASSERT_TRUE(writer.in_doubt);
        Ask(writer);
      } else if (plan->decision.step == Step::kTruncate) {
        TakeBack(writer, turn, plan->decision);
      } else {
        ASSERT_FALSE(writer.in_doubt);
        return Send(writer, turn, *plan);
      }
    }
  }

  absl::StatusOr<TurnPlan> Plan(Writer& writer, const ReferenceTurn& reference) {
    Turn turn{.tokens_start = reference.tokens_start,
              .outcome = reference.outcome,
              .missing_is_unrecorded = reference.missing_is_unrecorded,
              .seal = reference.seal,
              .cut = reference.cut};
    if (reference.tokens) turn.tokens = absl::MakeConstSpan(*reference.tokens);
    for (size_t i = 0; i < reference.versions.size(); ++i) {
      const RowRange row = RowRange::OfSize(*reference.row_start + static_cast<int64_t>(i), 1);
      turn.weights.push_back({row, reference.versions[i], ""});
    }
    if (!reference.row_start) return PlanTurn(turn, nullptr, common_, TestedGeometry(), blocks_, writer.trajectory);
    const int64_t before = Below(3), after = Below(3);
    const auto given = std::find_if(reference.labels.begin(), reference.labels.end(), [](auto l) { return l; });
    const int64_t missing = OneIn(2) ? given - reference.labels.begin() : 0;
    std::vector<Label> slots(before, Label(7));
    slots.insert(slots.end(), reference.labels.begin() + missing, reference.labels.end());
    slots.insert(slots.end(), after, Label(8));
    const std::vector<int32_t> tensor = Tensor(slots);
    TurnRows rows{.tensor = {.dtype = DType::kI32, .shape = {static_cast<int64_t>(slots.size()), 3, kTopK}},
                  .payload = {reinterpret_cast<const uint8_t*>(tensor.data()), 4 * tensor.size()},
                  .take = RowRange{before, static_cast<int64_t>(slots.size()) - after},
                  .row_start = *reference.row_start,
                  .missing_rows = missing};
    return PlanTurn(turn, &rows, common_, TestedGeometry(), blocks_, writer.trajectory);
  }

  void CheckRejection(Writer& writer, const ReferenceTurn& turn, const absl::Status& status) {
    int64_t keep = 0, shared = 0;
    ReferenceTrajectory copy = writer.model;
    ReferenceAnswer expected = writer.model.Keep(turn, keep);
    if (expected.code == absl::StatusCode::kOk) expected = copy.Add(turn, shared);
    EXPECT_EQ(status.code(), expected.code) << status;
    const ErrorDetail detail = GetErrorDetail(status).value_or(ErrorDetail{});
    EXPECT_EQ(detail.reason, expected.reason) << status;
    EXPECT_EQ(detail.sample, writer.name);
    ++tally_[ReasonName(detail.reason)];
    CheckWriter(writer);
    if (detail.reason == Reason::kOtherTokens) Restart(writer, true);
  }

  void Ask(Writer& writer) {
    Settle();
    const auto state = store_->Stat("run", Producer::kRollout, {.sample = writer.name});
    ASSERT_EQ(state.ok(), writer.exists);
    ASSERT_OK(writer.trajectory.OnState(state.ok() ? std::optional(*state) : std::nullopt));
    writer.model.Lose(static_cast<int64_t>(writer.stored.size()));
    writer.model.sealed = writer.sealed;
    writer.acknowledged = static_cast<int64_t>(writer.stored.size());
    writer.in_doubt = false;
    writer.replacing = writer.replacing && (!writer.stored.empty() || writer.sealed);
    if (writer.model.tokens.empty()) NoteTokens(writer, state);
    ++tally_["ask"];
  }

  void TakeBack(Writer& writer, const ReferenceTurn& turn, const TurnDecision& decision) {
    int64_t keep = 0;
    if (!writer.replacing) {
      EXPECT_EQ(writer.model.Keep(turn, keep).code, absl::StatusCode::kOk);
    }
    ASSERT_EQ(decision.truncate_rows, keep);
    ASSERT_TRUE(keep < static_cast<int64_t>(writer.model.rows.size()) || writer.replacing);
    Settle();
    if (writer.in_doubt) return;
    ASSERT_EQ(decision.expected_revision, writer.revision);
    ++tally_["truncate"];
    const bool arrives = !OneIn(5);
    if (arrives) {
      ASSERT_OK_AND_ASSIGN(const SampleState state,
                           store_->Truncate("run", Producer::kRollout, writer.name, keep, decision.expected_revision));
      writer.stored.resize(keep);
      writer.sealed.reset();
      ++writer.revision;
      if (!OneIn(5)) {
        writer.trajectory.OnTruncated(state);
        writer.model.Truncate(keep);
        writer.replacing = false;
        writer.acknowledged = keep;
        return;
      }
    }
    ++tally_["truncate without an answer"];
    writer.trajectory.OnTruncateFailed();
    writer.in_doubt = true;
  }

  void Send(Writer& writer, const ReferenceTurn& turn, const TurnPlan& plan) {
    int64_t keep = 0, shared = 0;
    ASSERT_EQ(writer.model.Keep(turn, keep).code, absl::StatusCode::kOk);
    ASSERT_EQ(keep, static_cast<int64_t>(writer.model.rows.size()));
    const ReferenceCounters before = writer.model.counters;
    ASSERT_EQ(writer.model.Add(turn, shared).code, absl::StatusCode::kOk);
    CheckCounts(plan.decision, before, writer.model.counters);
    ASSERT_EQ(plan.decision.prefix ? plan.decision.prefix->rows : 0, shared);
    int64_t next = std::max(keep, shared);
    for (const client::AppendPlan& append : plan.appends) {
      const RowRange rows{append.pieces.front().header.rows.begin, append.pieces.back().header.rows.end};
      ASSERT_EQ(rows.begin, next);
      next = rows.end;
      Queue(writer, append, rows);
    }
    ASSERT_EQ(next, static_cast<int64_t>(writer.model.rows.size()));
    writer.written = writer.model.tokens;
    tally_["shared rows"] += shared;
    CheckWriter(writer);
  }

  void Queue(Writer& writer, const client::AppendPlan& append, RowRange rows) {
    client::AppendPlan queued = append;
    if (!rows.empty() && OneIn(25)) {
      ++tally_["dropped"];
      queued = DropPayload(append);
      writer.trajectory.OnDropped(rows);
      writer.model.Drop(rows);
    }
    const auto first = writer.model.rows.begin();
    queue_.push_back(
        {static_cast<size_t>(&writer - writers_.data()), std::move(queued), {first + rows.begin, first + rows.end}});
  }

  // Replaces the trajectory by a new one that takes over the sample, as if the writer had died.
  void Restart(Writer& writer, bool replace) {
    Settle();
    ++tally_["restart"];
    const auto state = store_->Stat("run", Producer::kRollout, {.sample = writer.name});
    const bool strict = writer.model.strict;
    using Existing = Subject::Existing;
    writer.trajectory = Subject(
        {.sample = writer.name, .strict = strict, .existing = replace ? Existing::kReplace : Existing::kResume});
    writer.model = {};
    writer.model.strict = strict;
    writer.model.rows = writer.stored;
    for (ReferenceRow& row : writer.model.rows) row.foreign = true;
    writer.replacing = replace && (!writer.stored.empty() || writer.sealed);
    NoteTokens(writer, state);
    writer.in_doubt = true;
    last_.erase(writer.name);
  }

  // Tells the reference the tokens of the rows that were found on the server, if the server has a token check of them.
  static void NoteTokens(Writer& writer, const absl::StatusOr<SampleState>& state) {
    writer.model.resumed.reset();
    if (writer.replacing || writer.stored.empty() || !state->token_check) return;
    writer.model.resumed = Tokens(writer.written.begin(), writer.written.begin() + writer.stored.size());
  }

  // Appends in flight.

  void Settle() {
    while (!queue_.empty() && !::testing::Test::HasFailure()) Deliver();
  }

  void Deliver() {
    if (queue_.empty()) return;
    const Queued queued = std::move(queue_.front());
    queue_.pop_front();
    Writer& writer = writers_[queued.writer];
    const int64_t mishap = Below(20);
    AppendOutcome outcome{.sample = writer.name};
    size_t arriving = queued.plan.pieces.size();
    if (mishap == 0) arriving = Below(arriving + 1);
    for (int attempt = 0; attempt < (mishap < 3 ? 2 : 1); ++attempt) {
      outcome = {.sample = writer.name};
      for (size_t i = 0; i < arriving && outcome.status.ok(); ++i) Arrive(writer, queued, i, outcome);
    }
    if (mishap <= 1 && outcome.status.ok()) outcome.status = absl::UnavailableError("no answer");
    ++tally_[outcome.status.ok() ? "acknowledged" : "failed"];
    if (outcome.status.ok()) {
      const auto rows = static_cast<int64_t>(writer.model.rows.size());
      writer.acknowledged = std::max(writer.acknowledged, std::min<int64_t>(outcome.committed_rows, rows));
    } else {
      writer.in_doubt = true;
    }
    writer.trajectory.OnOutcome(outcome);
    CheckWriter(writer);
  }

  // Sends one piece to the store, and checks the store's answer.
  void Arrive(Writer& writer, const Queued& queued, size_t index, AppendOutcome& outcome) {
    const AppendPiece& piece = queued.plan.pieces[index];
    const AppendHeader& header = piece.header;
    const bool taken = Model(writer, queued, header);
    const absl::StatusOr<AppendAck> ack = store_->Append(Command(piece));
    ASSERT_EQ(ack.ok(), taken) << ack.status();
    outcome.status = ack.status();
    if (!ack.ok()) return;
    AddAck(*ack, outcome);
    EXPECT_EQ(ack->conflicting_rows, 0);
    EXPECT_EQ(ack->committed_rows, static_cast<int64_t>(writer.stored.size()));
    EXPECT_EQ(ack->revision, writer.revision);
  }

  bool Model(Writer& writer, const Queued& queued, const AppendHeader& header) {
    if (header.revision != writer.revision) return false;
    std::vector<ReferenceRow> rows = writer.stored;
    if (!writer.exists && header.prefix) {
      const Writer& parent = *std::find_if(writers_.begin(), writers_.end(),
                                           [&](const Writer& w) { return w.name == header.prefix->sample; });
      if (!parent.exists || parent.revision != header.prefix->revision) return false;
      if (static_cast<int64_t>(parent.stored.size()) < header.prefix->rows) return false;
      rows.assign(parent.stored.begin(), parent.stored.begin() + header.prefix->rows);
    }
    const auto size = static_cast<int64_t>(rows.size());
    if (header.rows.begin > size || (writer.sealed && header.rows.end > size)) return false;
    const int64_t first = queued.plan.pieces.front().header.rows.begin;
    for (int64_t row = size; row < header.rows.end; ++row) rows.push_back(queued.rows[row - first]);
    if (header.seal_num_tokens && *header.seal_num_tokens != static_cast<int64_t>(rows.size()) + 1) return false;
    if (header.seal_num_tokens) writer.sealed = header.seal_num_tokens;
    writer.stored = rows;
    writer.exists = true;
    return true;
  }

  AppendCommand Command(const AppendPiece& piece) {
    AppendCommand command{.run = "run", .geometry = run_.geometry, .header = piece.header};
    size_t next = 0;
    if (const auto* headers = std::get_if<std::vector<BlockHeader>>(&piece.header.payload_kind)) {
      for (const BlockHeader& header : *headers) {
        Block& block = command.blocks.emplace_back();
        block.rows = header.rows;
        block.codec = header.codec;
        block.plane_crc32c = header.plane_crc32c;
        const absl::Span<const uint8_t> bytes = piece.payload[next++];
        block.bytes = Buffer(bytes.size());
        std::copy(bytes.begin(), bytes.end(), block.bytes.data());
      }
    }
    return command;
  }

  // Comparisons.

  void CheckWriter(const Writer& writer) {
    const Subject& trajectory = writer.trajectory;
    const ReferenceTrajectory& model = writer.model;
    if (writer.in_doubt) return;
    EXPECT_EQ(trajectory.rows(), static_cast<int64_t>(model.rows.size()));
    EXPECT_EQ(Tokens(trajectory.tokens().begin(), trajectory.tokens().end()), model.tokens);
    EXPECT_EQ(trajectory.sealed(), model.sealed.has_value());
    EXPECT_EQ(trajectory.acknowledged_rows(), writer.acknowledged);
    EXPECT_EQ(trajectory.revision(), writer.revision);
  }

  // `before` and `after`: the reference's counts around the turn.
  static void CheckCounts(const TurnDecision& turn, const ReferenceCounters& before, const ReferenceCounters& after) {
    EXPECT_EQ(turn.repeated_rows(), after.repeated_rows - before.repeated_rows);
    EXPECT_EQ(turn.surplus_rows, after.surplus_rows - before.surplus_rows);
    EXPECT_EQ(turn.conflicting_rows, after.conflicting_rows - before.conflicting_rows);
    EXPECT_EQ(turn.late_rows, after.late_rows - before.late_rows);
    EXPECT_EQ(turn.uncompared_rows, after.uncompared_rows - before.uncompared_rows);
  }

  // Compares the store's rows and versions one by one.
  void CheckStored(const Writer& writer) {
    SCOPED_TRACE(absl::StrCat("the rows of ", writer.name));
    const std::vector<RowRange> all{{0, kMaxRows}};
    const auto snapshot = store_->Snapshot("run", Producer::kRollout, {.sample = writer.name}, all);
    ASSERT_EQ(snapshot.ok(), writer.exists) << snapshot.status();
    if (!writer.exists) return;
    std::vector<WeightSpan> weights;
    Rows expected;
    for (const ReferenceRow& row : writer.stored) {
      const auto at = static_cast<int64_t>(expected.size());
      expected.push_back(row.label ? std::optional(IdsOf(*row.label)) : std::nullopt);
      if (!weights.empty() && weights.back().version == row.version) {
        weights.back().rows.end = at + 1;
      } else {
        weights.push_back({{at, at + 1}, row.version, ""});
      }
    }
    ASSERT_OK_AND_ASSIGN(const Rows rows, RowsOf(TestedGeometry(), *snapshot));
    EXPECT_EQ(rows, expected);
    EXPECT_EQ(snapshot->state.weights, weights);
    EXPECT_EQ(snapshot->state.num_tokens, writer.sealed);
    EXPECT_EQ(snapshot->state.revision, writer.revision);
    for (const RowRange range : snapshot->state.unrecorded) tally_["unrecorded rows"] += range.size();
    tally_["rows"] += static_cast<int64_t>(rows.size());
    tally_["conflicting"] += writer.model.counters.conflicting_rows;
    tally_["late"] += writer.model.counters.late_rows;
    tally_["uncompared"] += writer.model.counters.uncompared_rows;
    tally_["surplus"] += writer.model.counters.surplus_rows;
    tally_["lost"] += writer.model.counters.lost_rows;
    tally_["sealed"] += writer.sealed.has_value();
  }

  std::mt19937_64 random_;
  Tally& tally_;
  ByteBudget budget_;
  std::unique_ptr<Store> store_;
  RunInfo run_;
  BlockOptions blocks_;
  AppendOptions common_;
  int64_t weights_ = 1;
  std::vector<Writer> writers_;
  std::deque<Queued> queue_;
  std::map<std::string, ReferenceTurn> last_;
};

uint64_t Seeds() {
  const char* const said = std::getenv("RR_TRAJECTORY_SEEDS");
  uint64_t seeds = 1000;
  if (said != nullptr && !absl::SimpleAtoi(said, &seeds)) ADD_FAILURE() << "RR_TRAJECTORY_SEEDS: " << said;
  return seeds;
}

TEST(TurnPlanTest, WeightsOfRowsThatAreNotGivenAreRejected) {
  const std::vector<int32_t> tensor = Tensor({Label(1), Label(2), Label(3)});
  const std::vector<uint32_t> tokens = {7, 8, 9, 10, 11, 12};
  const TurnRows rows{.tensor = {.dtype = DType::kI32, .shape = {3, 3, kTopK}},
                      .payload = {reinterpret_cast<const uint8_t*>(tensor.data()), 4 * tensor.size()},
                      .row_start = 1,
                      .missing_rows = 1};
  const BlockOptions blocks{.block_rows = kWindow, .max_message_bytes = 4 << 20, .max_payload_bytes = 64 << 20};
  const auto plan = [&](const TurnRows* given, std::vector<WeightSpan> weights) {
    Subject trajectory({.sample = "s"});
    const Turn turn{.tokens = tokens, .weights = std::move(weights), .missing_is_unrecorded = true};
    return PlanTurn(turn, given, {}, TestedGeometry(), blocks, trajectory).status();
  };
  EXPECT_OK(plan(&rows, {{{1, 3}, 4}, {{3, 5}, 5}}));
  for (const RowRange outside : {RowRange{0, 2}, RowRange{4, 6}, RowRange{5, 6}, RowRange{90, 95}}) {
    EXPECT_THAT(plan(&rows, {{outside, 4}}), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
    EXPECT_THAT(plan(nullptr, {{outside, 4}}), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  }
}

TEST(TrajectoryModelTest, RandomTrajectoriesDoWhatTheReferenceDoes) {
  Tally tally;
  const uint64_t seeds = Seeds();
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    World(seed, tally).Go(40);
    if (HasFailure()) return;
  }
  for (const char* name : {"FIELD",
                           "ROW_COUNT",
                           "GAP",
                           "SEALED",
                           "NOT_COMMITTED",
                           "OTHER_TOKENS",
                           "CONFLICTING_ROWS",
                           "fork",
                           "ask",
                           "truncate",
                           "truncate without an answer",
                           "dropped",
                           "restart",
                           "shared rows",
                           "acknowledged",
                           "failed",
                           "unrecorded rows",
                           "conflicting",
                           "late",
                           "uncompared",
                           "surplus",
                           "lost",
                           "sealed"}) {
    EXPECT_GT(tally[name], static_cast<int64_t>(seeds / 50)) << name;
  }
  EXPECT_GT(tally["rows"], static_cast<int64_t>(20 * seeds));
  for (const auto& [name, count] : tally) RecordProperty(name.empty() ? "unspecified" : name, absl::StrCat(count));
}

}  // namespace
}  // namespace routing_replay::testing
