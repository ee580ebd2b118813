// Memory is bounded in bytes: 2 GiB pass through a budget of 256 MiB while readers are slower than writers.
#include <atomic>
#include <map>
#include <thread>

#include "tests/integration/fixture.h"
#include "tests/support/server_process.h"

namespace routing_replay::testing {
namespace {

constexpr int64_t kBudget = 256 << 20;
constexpr int64_t kTotal = int64_t{2} << 30;
constexpr int64_t kSampleRows = 4096;
constexpr int kWriters = 2;

// Rows of every sample, as u8 [rows][48][8]; a sample's number is added to each id, mod E.
std::vector<uint8_t> SampleTensor(const Geometry& geometry, int64_t sample) {
  std::vector<uint8_t> tensor(kSampleRows * geometry.raw_row_bytes());
  for (size_t i = 0; i < tensor.size(); ++i) {
    tensor[i] = static_cast<uint8_t>((i / 8 * 37 + i % 8 * 5 + static_cast<size_t>(sample)) % 128);
  }
  return tensor;
}

// Compares a whole sample with what was written, plane by plane.
class CheckingSink final : public ReadSink {
 public:
  CheckingSink(const Geometry& geometry, int64_t sample)
      : geometry_(geometry), expected_(SampleTensor(geometry, sample)) {}
  absl::Status OnRecord(const SampleRecord& record) override {
    if (record.status == SampleStatus::kOk) return absl::OkStatus();
    return absl::DataLossError(record.message);
  }
  absl::Status OnPiece(const ReadPiece& piece) override {
    const uint8_t* bytes = piece.bytes.data();
    for (int32_t layer = piece.layer_begin; layer < piece.layer_begin + piece.layer_count; ++layer) {
      for (int64_t row = piece.rows.begin; row < piece.rows.end; ++row, bytes += 8) {
        if (!std::equal(bytes, bytes + 8, expected_.data() + (row * 48 + layer) * 8))
          return absl::DataLossError("other ids");
      }
    }
    rows_ += piece.rows.size() * piece.layer_count;
    return absl::OkStatus();
  }
  bool complete() const { return rows_ == kSampleRows * geometry_.num_moe_layers(); }

 private:
  const Geometry& geometry_;
  const std::vector<uint8_t> expected_;
  int64_t rows_ = 0;
};

TEST(BudgetTest, WritersFasterThanReaders) {
  const Geometry geometry = Geometry::Uniform(48, 128, 8);
  const int64_t samples = kTotal / (kSampleRows * geometry.raw_row_bytes()) + 1;
  ASSERT_OK_AND_ASSIGN(const ServerProcess server,
                       StartServerProcess(RR_SERVER, {"--memory-budget", absl::StrCat(kBudget)}));
  ASSERT_OK_AND_ASSIGN(const auto client, Client::Connect({.endpoint = server.endpoint}));
  ASSERT_OK_AND_ASSIGN(const auto run, client->OpenRun("budget", geometry, {.codec = Codec::kRaw}));

  std::atomic<int64_t> acknowledged{0}, refused{0}, other_failures{0}, credit_refusals{0};
  std::vector<std::thread> writers;
  for (int writer = 0; writer < kWriters; ++writer) {
    writers.emplace_back([&, writer] {
      const auto count = [&](const AppendOutcome& outcome) {
        if (outcome.status.ok()) {
          ++acknowledged;
        } else {
          ++(outcome.status.code() == absl::StatusCode::kResourceExhausted ? refused : other_failures);
        }
      };
      const auto appender = run->NewAppender({.max_queued_bytes = 16 << 20, .on_outcome = count});
      const TensorDescription tensor{.dtype = DType::kU8, .shape = {kSampleRows, 48, 8}};
      for (int64_t i = writer; i < samples; i += kWriters) {
        const AppendOptions options{.sample = absl::StrCat("s", i), .seal_num_tokens = kSampleRows + 1};
        if (!appender->Append(options, tensor, SampleTensor(geometry, i)).ok()) ++other_failures;
      }
      if (!appender->Flush(std::chrono::seconds(120)).ok()) ++other_failures;
      credit_refusals += appender->metrics().credit_refusals;
    });
  }

  // The one reader checks and releases each sample in turn; it starts late, so that the budget fills up first.
  int64_t peak = 0;
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  for (int64_t i = 0; i < samples; ++i) {
    const std::string id = absl::StrCat("s", i);
    CheckingSink sink(geometry, i);
    absl::Status status;
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    do {
      status = run->Read({.samples = {{.sample = id}}, .wait = true}, sink, std::chrono::seconds(60));
    } while (!status.ok() && run->Stat(id).status().code() == absl::StatusCode::kNotFound &&
             std::chrono::steady_clock::now() < give_up);
    ASSERT_OK(status) << id;
    ASSERT_TRUE(sink.complete()) << id;
    ASSERT_OK(run->Release({id}));
    if (i % 50 == 0) {
      ASSERT_OK_AND_ASSIGN(const int64_t rss, ProcessMemory(server.process->pid(), "VmRSS"));
      peak = std::max(peak, rss);
    }
  }
  for (std::thread& writer : writers) writer.join();
  ASSERT_OK_AND_ASSIGN(const int64_t high_water, ProcessMemory(server.process->pid(), "VmHWM"));
  std::cout << "server's peak memory " << (high_water >> 20) << " MiB, credit refused " << credit_refusals
            << " times\n";
  EXPECT_EQ(acknowledged, samples);
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(other_failures, 0);
  EXPECT_GT(credit_refusals, 0) << "the budget never filled up: the test proves nothing";
  EXPECT_LT(high_water, kBudget * 13 / 10 + (100 << 20));
}

}  // namespace
}  // namespace routing_replay::testing
