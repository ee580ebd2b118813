#include "server/store/open_store.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/rocksdb/rocks_store.h"

namespace routing_replay {
namespace {

constexpr absl::string_view kMemory = "memory";
constexpr absl::string_view kRocksPrefix = "rocksdb:";

std::optional<Durability> DurabilityOf(absl::string_view name) {
  if (name == "memory") return Durability::kInMemory;
  if (name == "written") return Durability::kWritten;
  if (name == "synced") return Durability::kSynced;
  return std::nullopt;
}

absl::Status InvalidOption(absl::string_view key, absl::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat("--", key, ": ", what),
                   {.reason = Reason::kField, .field = std::string(key)});
}

}  // namespace

absl::Status CheckStoreName(absl::string_view name) {
  if (name == kMemory) return absl::OkStatus();
  if (!absl::ConsumePrefix(&name, kRocksPrefix)) {
    return InvalidOption("store", absl::StrCat("'", name, "' is none of memory, rocksdb:PATH"));
  }
  return name.empty() ? InvalidOption("store", "rocksdb: needs the path of a directory") : absl::OkStatus();
}

absl::Status CheckDurability(absl::string_view name) {
  if (DurabilityOf(name)) return absl::OkStatus();
  return InvalidOption("durability", absl::StrCat("'", name, "' is none of memory, written, synced"));
}

absl::StatusOr<OpenedStore> OpenStore(absl::string_view name, absl::string_view durability,
                                      MemoryStoreOptions options) {
  if (!absl::ConsumePrefix(&name, kRocksPrefix)) return OpenedStore{NewMemoryStore(std::move(options)), ""};
  RecoveryReport report;
  auto store = OpenRocksStore(
      {.path = std::string(name), .durability = *DurabilityOf(durability), .memory = std::move(options)}, report);
  if (!store.ok()) return store.status();
  return OpenedStore{*std::move(store), absl::StrCat("found ", report.runs, " runs, ", report.samples, " samples, ",
                                                     report.rows, " rows; lost ", report.lost_samples,
                                                     " samples; removed ", report.orphan_blocks, " orphan blocks")};
}

}  // namespace routing_replay
