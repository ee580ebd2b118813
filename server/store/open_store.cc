#include "server/store/open_store.h"

#include <algorithm>
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
constexpr int64_t kMostCacheBytes = int64_t{4} << 30;

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
  if (DurabilityFromName(name)) return absl::OkStatus();
  return InvalidOption("durability", absl::StrCat("'", name, "' is none of memory, written, synced"));
}

int64_t CacheBytes(absl::string_view name, int64_t memory_bytes) {
  return name == kMemory ? 0 : std::min(memory_bytes / 4, kMostCacheBytes);
}

absl::StatusOr<OpenedStore> OpenStore(absl::string_view name, absl::string_view durability, int64_t cache_bytes,
                                      MemoryStoreOptions options) {
  if (!absl::ConsumePrefix(&name, kRocksPrefix)) return OpenedStore{NewMemoryStore(std::move(options)), ""};
  RecoveryReport report;
  auto store = OpenRocksStore({.path = std::string(name),
                               .durability = *DurabilityFromName(durability),
                               .cache_bytes = cache_bytes,
                               .memory = std::move(options)},
                              report);
  if (!store.ok()) return store.status();
  return OpenedStore{*std::move(store),
                     absl::StrCat("found ", report.runs, " runs, ", report.samples, " samples, ", report.rows,
                                  " rows; lost ", report.lost_samples, " samples and ", report.lost_rows,
                                  " rows of others; removed ", report.orphan_blocks, " orphan blocks")};
}

}  // namespace routing_replay
