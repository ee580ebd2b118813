#include "tests/bench/wire/overhead.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/appender/append_plan.h"
#include "server/admission/byte_budget.h"
#include "server/service/append_processor.h"
#include "server/service/read_session.h"
#include "server/store/memory/memory_store.h"
#include "tests/bench/handoff/rank_plan.h"
#include "tests/bench/handoff/scenario.h"
#include "trainer_plugin/fetch/staging_sink.h"

namespace routing_replay::bench {

using namespace client;  // NOLINT(google-build-using-namespace)
using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

constexpr char kRun[] = "overhead";
constexpr int64_t kRound = 1;
constexpr int64_t kBudget = int64_t{1} << 30;
// The server's value.
constexpr int64_t kMaxMessageBytes = int64_t{64} << 20, kMaxPayloadBytes = int64_t{256} << 20;
constexpr int64_t kReadMessageBytes = int64_t{2} << 20;
constexpr int64_t kTypicalTokens = 4096;

// Bytes before a message in its gRPC stream, and before an HTTP/2 frame.
constexpr int64_t kGrpcPrefix = 5, kHttp2Header = 9, kHttp2Frame = 16384;

// Bytes sent.
struct Sent {
  int64_t payload = 0;
  int64_t beside = 0;
  int64_t tokens = 0;  // Bytes of token ids within `beside`.

  void AddMessage(int64_t header_bytes, int64_t payload_bytes) {
    const int64_t message = kGrpcPrefix + header_bytes + payload_bytes;
    payload += payload_bytes;
    beside += kGrpcPrefix + header_bytes + (message + kHttp2Frame - 1) / kHttp2Frame * kHttp2Header;
  }
};

// The server's handlers without a network.
class Loopback {
 public:
  explicit Loopback(const Geometry& geometry) : geometry_(geometry) {}

  absl::Status Open() { return store_->OpenRun(kRun, &geometry_, std::nullopt).status(); }

  absl::Status Append(const std::string& sample, absl::Span<const uint8_t> rows, int64_t tokens, Sent& sent) {
    const std::vector<uint32_t> token_ids(tokens - 1);
    auto plan =
        PlanRows({.sample = sample, .group = kRound, .token_ids = token_ids, .seal_num_tokens = tokens},
                 {.dtype = DType::kU8, .shape = {tokens - 1, geometry_.num_moe_layers(), geometry_.layer(0).top_k}},
                 rows, geometry_, {.max_message_bytes = kMaxMessageBytes, .max_payload_bytes = kMaxPayloadBytes});
    if (!plan.ok()) return plan.status();
    for (AppendPiece& piece : plan->pieces) {
      if (absl::Status status = Take(piece, sent); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Read(ReadRequest request, Sent& sent) {
    request.run = kRun;
    sent.AddMessage(static_cast<int64_t>(EncodeReadRequest(request).size()), 0);
    auto session = ReadSession::Create(*store_, memory_, std::move(request), kReadMessageBytes);
    if (!session.ok()) return session.status();
    for (ReadStep step = (*session)->Next(true); step.kind == ReadStep::Kind::kMessage; step = (*session)->Next(true)) {
      sent.AddMessage(static_cast<int64_t>(step.header.size()), step.payload_bytes);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Take(const AppendPiece& piece, Sent& sent) {
    AppendRequest request{.append = piece.header};
    sent.AddMessage(static_cast<int64_t>(EncodeAppendRequest(request, piece.payload_bytes).size()),
                    piece.payload_bytes);
    sent.tokens += static_cast<int64_t>(piece.header.token_ids.size());
    for (const absl::Span<const uint8_t> part : piece.payload) request.payload.Append(part);
    auto credit = budget_.Reserve(piece.payload_bytes);
    if (!credit.ok()) return credit.status();
    return processor_.Process(kRun, std::move(request), *std::move(credit)).error;
  }

  const Geometry geometry_;
  ByteBudget budget_{kBudget};
  ByteBudget memory_{kBudget};  // For reads.
  std::unique_ptr<Store> store_ = NewMemoryStore({.budget = &budget_});
  const AppendProcessor processor_{*store_, budget_, kMaxPayloadBytes};
};

Figure Share(const std::string& name, int64_t bytes, int64_t payload) {
  return MakeFigure(absl::StrCat("wire.overhead.", name), "%",
                    {100.0 * static_cast<double>(bytes) / static_cast<double>(payload)});
}

std::vector<Figure> Shares(const std::string& what, const Sent& ingest, const Sent& read) {
  return {Share(absl::StrCat(what, ".ingest"), ingest.beside - ingest.tokens, ingest.payload),
          Share(absl::StrCat(what, ".ingest-tokens"), ingest.tokens, ingest.payload),
          Share(absl::StrCat(what, ".read"), read.beside, read.payload)};
}

absl::StatusOr<std::vector<Figure>> TypicalSample() {
  const HandoffScenario scenario(1);
  Loopback server(scenario.geometry());
  Sent ingest, read;
  const std::vector<uint8_t> given = scenario.MakeSample(0);
  std::vector<uint8_t> rows((kTypicalTokens - 1) * scenario.geometry().raw_row_bytes());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = given[i % given.size()];
  absl::Status status = server.Open();
  status.Update(server.Append(SampleId(kRound, 0), rows, kTypicalTokens, ingest));
  status.Update(server.Read({.samples = {{.sample = SampleId(kRound, 0), .num_tokens = kTypicalTokens}}}, read));
  if (!status.ok()) return status;
  return Shares("4096-tokens", ingest, read);
}

absl::Status ReadAsRank(const HandoffScenario& scenario, int32_t rank, Loopback& server, Sent& read) {
  for (const RowRange samples : scenario.micro_batches()) {
    const auto plan = PlanMicroBatch(scenario, samples, PlaceOf(rank));
    if (!plan.ok()) return plan.status();
    const auto sequences = FetchSequences(scenario, samples, kRound);
    absl::Status status =
        server.Read(trainer::MakeReadRequest(*plan, trainer::SlicesToRead(*plan, sequences), sequences, {}), read);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Figure>> StandardHandoff(int32_t samples) {
  const HandoffScenario scenario(samples);
  Loopback server(scenario.geometry());
  Sent ingest, read;
  absl::Status status = server.Open();
  for (int32_t i = 0; i < scenario.samples(); ++i) {
    status.Update(server.Append(SampleId(kRound, i), scenario.MakeSample(i), scenario.tokens(i), ingest));
  }
  for (int32_t rank = 0; rank < kRanks; ++rank) status.Update(ReadAsRank(scenario, rank, server, read));
  if (!status.ok()) return status;
  if (read.payload == scenario.ids()) return Shares("handoff", ingest, read);
  return absl::DataLossError(absl::StrCat("the ranks read ", read.payload, " bytes of ", scenario.ids()));
}

}  // namespace

absl::StatusOr<std::vector<Figure>> OverheadFigures(bool quick) {
  absl::StatusOr<std::vector<Figure>> figures = TypicalSample();
  if (!figures.ok()) return figures;
  const auto handoff = StandardHandoff(quick ? 4 : kStandardSamples);
  if (!handoff.ok()) return handoff.status();
  figures->insert(figures->end(), handoff->begin(), handoff->end());
  return figures;
}

}  // namespace routing_replay::bench
