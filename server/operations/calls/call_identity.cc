#include "server/operations/calls/call_identity.h"

#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "routing_replay/wire/sample_id.h"

namespace routing_replay::server {
namespace {

bool IsLowerHex(absl::string_view text) { return text.find_first_not_of("0123456789abcdef") == text.npos; }
bool IsZero(absl::string_view text) { return text.find_first_not_of('0') == text.npos; }

std::string NewId() {
  thread_local std::mt19937_64 random{std::random_device()()};
  return absl::StrCat(absl::Hex(random(), absl::kZeroPad16));
}

}  // namespace

std::string RequestId(absl::string_view given) {
  return CheckId(given, kRequestIdKey).ok() ? std::string(given) : NewId();
}

std::string TraceParent(absl::string_view given) {
  constexpr size_t kSize = 55;  // 00-(32 digits: trace)-(16 digits: parent)-(2 digits: flags)
  if (given.size() != kSize || given.substr(0, 3) != "00-" || given[35] != '-' || given[52] != '-') return "";
  const absl::string_view trace = given.substr(3, 32), parent = given.substr(36, 16), flags = given.substr(53, 2);
  if (!IsLowerHex(trace) || !IsLowerHex(parent) || !IsLowerHex(flags) || IsZero(trace) || IsZero(parent)) return "";
  return std::string(given);
}

}  // namespace routing_replay::server
