#include "server/store/records/framed_record.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {
namespace {

constexpr size_t kCrcBytes = sizeof(uint32_t);

uint32_t CrcOf(absl::string_view bytes) {
  return Crc32c({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

}  // namespace

absl::Status DamagedRecord(absl::string_view what) {
  return MakeError(absl::StatusCode::kDataLoss, absl::StrCat("a stored record is damaged: ", what),
                   {.reason = Reason::kChecksum});
}

std::string FrameRecord(const google::protobuf::MessageLite& message) {
  std::string record = message.SerializeAsString();
  const uint32_t crc = CrcOf(record);
  record.append(reinterpret_cast<const char*>(&crc), kCrcBytes);
  return record;
}

absl::Status UnframeRecord(absl::string_view record, google::protobuf::MessageLite& message) {
  if (record.size() < kCrcBytes) return DamagedRecord("it is cut off");
  uint32_t crc = 0;
  std::memcpy(&crc, record.end() - kCrcBytes, kCrcBytes);
  record.remove_suffix(kCrcBytes);
  if (CrcOf(record) != crc) return DamagedRecord("its checksum does not fit");
  if (!message.ParseFromArray(record.data(), static_cast<int>(record.size()))) {
    return DamagedRecord("it cannot be parsed");
  }
  return absl::OkStatus();
}

}  // namespace routing_replay::server
