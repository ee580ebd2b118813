#include "server/store/redis/redis_manifest.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/records/framed_record.h"

namespace routing_replay::server {
namespace {

absl::Status NoManifest() { return absl::DataLossError("redis: the answer is no manifest"); }

// A sample whose version cannot be read exists all the same.
absl::Status DamagedStamp(RedisStamp& stamp) {
  if (stamp.version <= 0) stamp.version = kUnreadableVersion;
  return WithSample(MakeError(absl::StatusCode::kDataLoss, "redis: a sample's manifest has a field that is no number",
                              {.reason = Reason::kChecksum}),
                    stamp.sample);
}

bool TakeNumber(absl::string_view text, int64_t& number) { return absl::SimpleAtoi(text, &number); }

// False if the value is not what such a field holds.
bool SetField(absl::string_view field, const std::string& value, RedisStamp& stamp) {
  if (field == "v") return TakeNumber(value, stamp.version);
  if (field == "b") return TakeNumber(value, stamp.birth);
  if (field == "u") return TakeNumber(value, stamp.last_used_ms);
  if (field == "x") return TakeNumber(value, stamp.kept_until_ms);
  if (field == "id") stamp.sample = value;
  return true;
}

}  // namespace

constexpr absl::string_view kStampFields[] = {"v", "b", "u", "x", "id"};

RedisCommand GetStampCommand(const std::string& manifest_key) {
  RedisCommand command({"HMGET", manifest_key});
  for (const absl::string_view field : kStampFields) command.Add(field);
  return command;
}

absl::StatusOr<RedisStamp> ParseStamp(const RedisReply& reply) {
  RedisStamp stamp;
  if (reply.elements.size() != std::size(kStampFields)) return NoManifest();
  if (reply.elements[0].is_nil()) return stamp;
  for (size_t i = 0; i < reply.elements.size(); ++i) {
    if (!SetField(kStampFields[i], reply.elements[i].text, stamp)) return NoManifest();
  }
  return stamp;
}

ParsedManifest ParseManifest(RedisReply reply, int32_t block_rows, const RedisHome& home) {
  ParsedManifest parsed;
  std::string head;
  std::map<int64_t, std::string> windows;
  bool whole = true;
  for (size_t i = 0; i + 1 < reply.elements.size(); i += 2) {
    absl::string_view field = reply.elements[i].text;
    std::string& value = reply.elements[i + 1].text;
    int64_t window = 0;
    whole &= SetField(field, value, parsed.stamp);
    if (field == "head") {
      head = std::move(value);
    } else if (absl::ConsumePrefix(&field, "w") && TakeNumber(field, window)) {
      windows[window] = std::move(value);
    }
  }
  if (!whole || (parsed.stamp.version == 0 && !reply.elements.empty())) {
    parsed.content = DamagedStamp(parsed.stamp);
    return parsed;
  }
  if (parsed.stamp.version == 0) return parsed;
  std::vector<std::string> records;
  records.reserve(windows.size());
  for (auto& [window, record] : windows) records.push_back(std::move(record));
  absl::StatusOr<SampleContent> content =
      DecodeContent(head, records, block_rows, [&](const BlockPlace& at) { return home.Found(at); });
  if (content.ok()) {
    parsed.content = std::make_shared<const SampleContent>(*std::move(content));
  } else {
    parsed.content = WithSample(content.status(), parsed.stamp.sample);
  }
  return parsed;
}

std::string WindowField(int64_t window) { return absl::StrCat("w", window); }

}  // namespace routing_replay::server
