#include "routing_replay/wire/sample.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
namespace {

constexpr size_t kMaxIdBytes = 128;

bool IsIdByte(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == ':' || c == '/' || c == '-';
}

}  // namespace

const char* ProducerName(Producer producer) { return producer == Producer::kTrainer ? "trainer" : "rollout"; }

absl::Status CheckId(absl::string_view id, absl::string_view field) {
  const auto bad = std::find_if_not(id.begin(), id.end(), IsIdByte);
  const bool size_is_good = !id.empty() && id.size() <= kMaxIdBytes;
  if (size_is_good && bad == id.end()) return absl::OkStatus();
  const std::string got = size_is_good ? absl::StrCat("'", absl::CHexEscape(absl::string_view(&*bad, 1)), "' at byte ",
                                                      bad - id.begin() + 1)
                                       : absl::StrCat(id.size(), " bytes");
  return Invalid(field, absl::StrCat("an id is 1 to ", kMaxIdBytes, " bytes of [A-Za-z0-9._:/-], got ", got));
}

int64_t SampleHandle(absl::string_view sample_id) {
  return BareHandle(static_cast<int64_t>(XXH64(sample_id.data(), sample_id.size(), 0)));
}

std::string DescribeSample(absl::string_view sample, int64_t handle) {
  return sample.empty() ? absl::StrCat("with handle ", handle) : std::string(sample);
}

const char* DurabilityName(Durability durability) {
  static constexpr const char* kNames[] = {"unknown", "memory", "written", "synced"};
  const auto number = static_cast<size_t>(durability);
  return kNames[number < std::size(kNames) ? number : 0];
}

std::optional<Durability> DurabilityFromName(absl::string_view name) {
  for (const Durability durability : {Durability::kMemory, Durability::kWritten, Durability::kSynced}) {
    if (name == DurabilityName(durability)) return durability;
  }
  return std::nullopt;
}

const char* SampleStatusName(SampleStatus status) {
  static constexpr const char* kNames[] = {"UNSPECIFIED",     "OK",           "NOT_FOUND",        "NOT_RECORDED",
                                           "NOT_READY",       "LOST",         "VERSION_REJECTED", "LENGTH_MISMATCH",
                                           "TOKENS_MISMATCH", "OUT_OF_RANGE", "UNAVAILABLE",      "TOKENS_NOT_KNOWN"};
  const auto number = static_cast<size_t>(status);
  return number < std::size(kNames) ? kNames[number] : "UNKNOWN";
}

}  // namespace routing_replay
