#include <chrono>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/channel/direct_path.h"
#include "client/channel/link.h"
#include "routing_replay/client.h"
#include "tests/bench/serve/plan_sender.h"
#include "tests/bench/serve/way.h"

namespace routing_replay::bench {

using namespace client;  // NOLINT(google-build-using-namespace)

namespace {

constexpr std::chrono::seconds kTimeout(60);
constexpr int64_t kSmallRows = 8;

std::string SampleId(const MessageSize& size, int64_t round, int32_t message) {
  return absl::StrCat(size.name, "/", round, "/", message);
}

// Copies each piece to its place in `out`.
class BlockSink final : public ReadSink {
 public:
  BlockSink(const MessageSize& size, absl::Span<uint8_t> out) : bytes_(Transfer::Bytes(size)), out_(out) {}

  absl::Status OnRecord(const SampleRecord& record) override {
    if (record.status == SampleStatus::kOk) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("sample ", record.index, ": ", SampleStatusName(record.status)));
  }
  absl::Status OnPiece(const ReadPiece& piece) override {
    const Geometry& geometry = Transfer::geometry();
    const int64_t offset = piece.sample_index * bytes_ + geometry.block_bytes(piece.rows.begin, piece.codec) +
                           geometry.plane_offset(piece.layer_begin, piece.rows.size(), piece.codec);
    std::copy(piece.bytes.begin(), piece.bytes.end(), out_.begin() + offset);
    return absl::OkStatus();
  }

 private:
  const int64_t bytes_;
  const absl::Span<uint8_t> out_;
};

struct SmallSink final : ReadSink {
  absl::Status OnRecord(const SampleRecord&) override { return absl::OkStatus(); }
  absl::Status OnPiece(const ReadPiece& piece) override {
    rows += piece.rows.size() * piece.layer_count;
    return absl::OkStatus();
  }
  int64_t rows = 0;
};

// The part that both ways into the service share.
class ServiceWay : public Way {
 public:
  ServiceWay(std::unique_ptr<Client> client, std::shared_ptr<Run> run, const Transfer& transfer,
             const TransferData& data)
      : transfer_(transfer), data_(data), client_(std::move(client)), run_(std::move(run)) {}

  // Releases the previous round.
  absl::Status Prepare(const MessageSize&, int64_t round) override { return run_->ReleaseGroups(0, round).status(); }

  absl::Status Get(const MessageSize& size, int64_t round, absl::Span<uint8_t> out) override {
    ReadRequest request;
    for (int32_t i = 0; i < transfer_.Messages(size); ++i)
      request.samples.push_back({.sample = SampleId(size, round, i)});
    request.max_message_bytes = static_cast<int32_t>(size.bytes);
    BlockSink sink(size, out);
    return run_->Read(std::move(request), sink, kTimeout);
  }

 protected:
  const Transfer transfer_;
  const TransferData& data_;
  const std::unique_ptr<Client> client_;
  const std::shared_ptr<Run> run_;
};

class PlannedWay final : public ServiceWay {
 public:
  PlannedWay(std::unique_ptr<Client> client, std::shared_ptr<Run> run, const Transfer& transfer,
             const TransferData& data, std::shared_ptr<Link> link)
      : ServiceWay(std::move(client), std::move(run), transfer, data), sender_(std::move(link), run_->name()) {}

  absl::Status Prepare(const MessageSize& size, int64_t round) override {
    plans_.clear();
    for (int32_t i = 0; i < transfer_.Messages(size); ++i) plans_.push_back(Plan(size, round, i));
    return ServiceWay::Prepare(size, round);
  }

  absl::Status Put(const MessageSize&, int64_t) override { return sender_.Send(std::move(plans_)); }

 private:
  AppendPlan Plan(const MessageSize& size, int64_t round, int32_t message) const {
    AppendPiece piece;
    const int64_t rows = Transfer::Rows(size);
    piece.header = {
        .sample = SampleId(size, round, message), .rows = {0, rows}, .group = round, .seal_num_tokens = rows + 1};
    std::vector<BlockHeader> blocks;
    for (int64_t i = 0; i < size.windows; ++i) {
      const int64_t window = message * size.windows + i;
      blocks.push_back({RowRange::OfSize(i * kDefaultBlockRows, kDefaultBlockRows), Codec::kRaw, data_.crcs(window)});
      piece.payload.push_back(data_.blocks().subspan(window * Transfer::WindowBytes(), Transfer::WindowBytes()));
    }
    piece.header.payload_kind = std::move(blocks);
    piece.payload_bytes = Transfer::Bytes(size);
    AppendPlan plan;
    plan.bytes = piece.payload_bytes;
    plan.pieces.push_back(std::move(piece));
    return plan;
  }

  PlanSender sender_;
  std::vector<AppendPlan> plans_;
};

class AppenderWay final : public ServiceWay {
 public:
  AppenderWay(std::unique_ptr<Client> client, std::shared_ptr<Run> run, const Transfer& transfer,
              const TransferData& data)
      : ServiceWay(std::move(client), std::move(run), transfer, data), appender_(run_->NewAppender()) {}

  absl::Status Put(const MessageSize& size, int64_t round) override {
    const int64_t rows = Transfer::Rows(size), bytes = Transfer::Bytes(size);
    const Geometry& geometry = Transfer::geometry();
    const TensorDescription tensor{.dtype = DType::kU8,
                                   .shape = {rows, geometry.num_moe_layers(), geometry.layer(0).top_k}};
    for (int32_t i = 0; i < transfer_.Messages(size); ++i) {
      absl::Status status =
          appender_->Append({.sample = SampleId(size, round, i), .group = round, .seal_num_tokens = rows + 1}, tensor,
                            data_.rows().subspan(i * bytes, bytes));
      if (!status.ok()) return status;
    }
    return appender_->Flush(kTimeout);
  }

  absl::Status PutSmall(int64_t round) override {
    const Geometry& geometry = Transfer::geometry();
    const TensorDescription tensor{.dtype = DType::kU8,
                                   .shape = {kSmallRows, geometry.num_moe_layers(), geometry.layer(0).top_k}};
    const auto bytes = static_cast<size_t>(kSmallRows * geometry.raw_row_bytes());
    absl::Status status =
        appender_->Append({.sample = absl::StrCat("small/", round), .group = round, .seal_num_tokens = kSmallRows + 1},
                          tensor, data_.rows().first(bytes));
    return status.ok() ? appender_->Flush(kTimeout) : status;
  }

  absl::Status GetSmall(int64_t round) override {
    SmallSink sink;
    ReadRequest request;
    request.samples.push_back({.sample = absl::StrCat("small/", round)});
    absl::Status status = run_->Read(std::move(request), sink, kTimeout);
    if (!status.ok() || sink.rows == kSmallRows * Transfer::geometry().num_moe_layers()) return status;
    return absl::DataLossError(absl::StrCat("read ", sink.rows, " rows of all layers"));
  }

 private:
  const std::unique_ptr<Appender> appender_;
};

struct Connection {
  std::unique_ptr<Client> client;
  std::shared_ptr<Run> run;
};

absl::StatusOr<Connection> OpenRun(const std::string& endpoint, const std::string& name,
                                   const SecuritySettings& security = {}) {
  auto client = Client::Connect({.endpoint = endpoint, .security = security});
  if (!client.ok()) return client.status();
  auto run = (*client)->OpenRun(name, Transfer::geometry());
  if (!run.ok()) return run.status();
  return Connection{*std::move(client), *std::move(run)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Way>> ConnectService(const std::string& endpoint, const std::string& transport,
                                                    const std::string& cacert, const Transfer& transfer,
                                                    const TransferData& data) {
  setenv(kTransportVariable, transport.c_str(), 1);
  const SecuritySettings security{.cacert = cacert};
  auto connection = OpenRun(endpoint, absl::StrCat("planned-", transport), security);
  if (!connection.ok()) return connection.status();
  auto link = Link::Open(endpoint, security, kTimeout);
  if (!link.ok()) return link.status();
  return std::make_unique<PlannedWay>(std::move(connection->client), std::move(connection->run), transfer, data,
                                      *std::move(link));
}

absl::StatusOr<std::unique_ptr<Way>> ConnectAppender(const std::string& endpoint, const Transfer& transfer,
                                                     const TransferData& data) {
  setenv(kTransportVariable, "direct", 1);
  auto connection = OpenRun(endpoint, "appended");
  if (!connection.ok()) return connection.status();
  return std::make_unique<AppenderWay>(std::move(connection->client), std::move(connection->run), transfer, data);
}

}  // namespace routing_replay::bench
