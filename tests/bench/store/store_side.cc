#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/bench/store/side.h"

namespace routing_replay::bench {
namespace {

constexpr char kRun[] = "bench";

class StoreSide final : public Side {
 public:
  StoreSide(const Workload& workload, StoreSideOptions options, MakeStore make, ByteBudget& budget)
      : workload_(workload), options_(std::move(options)), make_(std::move(make)), budget_(budget) {
    if (options_.in_memory) outs_.resize(kStoreCallers);
    for (Buffer& out : outs_) out = Buffer(workload.block_bytes());
  }

  absl::Status Begin(int32_t blocks_per_append) override {
    absl::StatusOr<std::unique_ptr<Store>> store = make_();
    if (!store.ok()) return store.status();
    store_ = *std::move(store);
    const absl::StatusOr<RunInfo> run =
        store_->OpenRun(kRun, workload_.geometry().get(), RunOptions{.durability = options_.durability});
    if (!run.ok()) return run.status();
    commands_.clear();
    commands_.resize(workload_.samples());
    if (options_.in_memory) return absl::OkStatus();
    return workload_.ForEachSample([&](int, int32_t sample) {
      for (int32_t block = 0; block < workload_.blocks_per_sample(); block += blocks_per_append) {
        absl::StatusOr<AppendCommand> command = MakeAppend(sample, block, blocks_per_append);
        if (!command.ok()) return command.status();
        commands_[sample].push_back(*std::move(command));
      }
      return absl::OkStatus();
    });
  }

  absl::Status Append(int32_t blocks_per_append) override {
    return workload_.ForEachSample([&](int, int32_t sample) {
      for (int32_t block = 0; block < workload_.blocks_per_sample(); block += blocks_per_append) {
        absl::StatusOr<AppendCommand> command = options_.in_memory
                                                    ? MakeAppend(sample, block, blocks_per_append)
                                                    : std::move(commands_[sample][block / blocks_per_append]);
        if (!command.ok()) return command.status();
        if (const auto ack = store_->Append(*std::move(command)); !ack.ok()) return ack.status();
      }
      return absl::OkStatus();
    });
  }

  absl::Status Read() override {
    return ReadBlocks([this](int caller, int32_t, int32_t, absl::Span<const uint8_t> bytes) {
      if (options_.in_memory) std::memcpy(outs_[caller].data(), bytes.data(), bytes.size());
      return absl::OkStatus();
    });
  }

  absl::Status Check() override {
    return ReadBlocks([this](int, int32_t sample, int32_t block, absl::Span<const uint8_t> bytes) {
      return bytes == workload_.Bytes(sample, block) ? absl::OkStatus() : Differs(options_.name, sample, block);
    });
  }

  absl::Status End() override {
    store_.reset();
    return absl::OkStatus();
  }

 private:
  static std::string NameOf(int32_t sample) { return absl::StrCat("rollout-", sample); }

  absl::StatusOr<AppendCommand> MakeAppend(int32_t sample, int32_t first, int32_t count) {
    AppendCommand command{.run = kRun, .geometry = workload_.geometry()};
    command.header.sample = NameOf(sample);
    command.header.rows = {Workload::RowsOf(first).begin, Workload::RowsOf(first + count - 1).end};
    command.header.group = 1;
    command.header.weight_version = 1;
    command.header.token_ids.assign(command.header.rows.size() * sizeof(uint32_t), '\1');
    if (first + count == workload_.blocks_per_sample()) command.header.seal_num_tokens = command.header.rows.end + 1;
    absl::StatusOr<ByteReservation> reservation = budget_.Reserve(count * workload_.block_bytes());
    if (!reservation.ok()) return reservation.status();
    command.reservation = *std::move(reservation);
    for (int32_t i = first; i < first + count; ++i) {
      const absl::Span<const uint8_t> bytes = workload_.Bytes(sample, i);
      Block& block = command.blocks.emplace_back(
          Block{.rows = Workload::RowsOf(i), .plane_crc32c = workload_.Crcs(sample, i), .bytes = Buffer(bytes.size())});
      std::memcpy(block.bytes.data(), bytes.data(), bytes.size());
    }
    return command;
  }

  template <typename Take>
  absl::Status ReadBlocks(const Take& take) {
    return workload_.ForEachSample([&](int caller, int32_t sample) {
      const RowRange all{0, workload_.blocks_per_sample() * int64_t{kDefaultBlockRows}};
      const auto snapshot = store_->Snapshot(kRun, Producer::kRollout, {.sample = NameOf(sample)}, {&all, 1});
      if (!snapshot.ok()) return snapshot.status();
      if (snapshot->rows.size() != static_cast<size_t>(workload_.blocks_per_sample())) {
        return Differs(options_.name, sample, 0);
      }
      for (size_t i = 0; i < snapshot->rows.size(); ++i) {
        const absl::StatusOr<LoadedBlock> block = Load(snapshot->rows[i].block);
        if (!block.ok()) return block.status();
        absl::Status taken = take(caller, sample, static_cast<int32_t>(i), block->view.bytes);
        if (!taken.ok()) return taken;
      }
      return absl::OkStatus();
    });
  }

  const Workload& workload_;
  const StoreSideOptions options_;
  const MakeStore make_;
  ByteBudget& budget_;
  std::unique_ptr<Store> store_;
  std::vector<std::vector<AppendCommand>> commands_;  // By sample; empty if appends are made while they are sent.
  std::vector<Buffer> outs_;                          // By caller.
};

}  // namespace

absl::Status Differs(absl::string_view side, int32_t sample, int32_t block) {
  return absl::DataLossError(
      absl::StrCat(side, ": block ", block, " of sample ", sample, " differs from the appended block"));
}

std::unique_ptr<Side> NewStoreSide(const Workload& workload, StoreSideOptions options, MakeStore make,
                                   ByteBudget& budget) {
  return std::make_unique<StoreSide>(workload, std::move(options), std::move(make), budget);
}

}  // namespace routing_replay::bench
