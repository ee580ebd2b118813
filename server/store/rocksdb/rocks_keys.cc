#include "server/store/rocksdb/rocks_keys.h"

#include "absl/strings/str_cat.h"

namespace routing_replay::server::rocks {
namespace {

std::string BigEndian(uint64_t number) {
  std::string bytes(sizeof(number), '\0');
  for (size_t i = bytes.size(); i-- > 0; number >>= 8) bytes[i] = static_cast<char>(number & 0xff);
  return bytes;
}

uint64_t FromBigEndian(absl::string_view bytes) {
  uint64_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<uint8_t>(byte);
  return number;
}

std::string SampleKey(char prefix, Producer producer, absl::string_view sample) {
  return absl::StrCat(std::string(1, prefix), std::string(1, static_cast<char>(producer)), sample);
}

}  // namespace

std::string RunFamily(absl::string_view run) { return absl::StrCat("run:", run); }

std::string RunKey(absl::string_view run) { return absl::StrCat(std::string(1, kRunPrefix), run); }

std::string HeadKey(Producer producer, absl::string_view sample) { return SampleKey(kHeadPrefix, producer, sample); }

std::string WindowKey(Producer producer, absl::string_view sample, int64_t window) {
  return absl::StrCat(SampleKey(kWindowPrefix, producer, sample), std::string(1, '\0'),
                      BigEndian(static_cast<uint64_t>(window)));
}

std::string UseKey(Producer producer, absl::string_view sample) { return SampleKey(kUsePrefix, producer, sample); }

std::string BlockKey(uint64_t block) { return absl::StrCat(std::string(1, kBlockPrefix), BigEndian(block)); }

std::string BlockIdKey(uint64_t block) { return absl::StrCat(std::string(1, kBlockIdPrefix), BigEndian(block)); }

Producer ProducerOf(absl::string_view head_key) { return static_cast<Producer>(head_key[1]); }

absl::string_view SampleOf(absl::string_view head_key) { return head_key.substr(2); }

int64_t WindowOf(absl::string_view window_key) {
  return static_cast<int64_t>(FromBigEndian(window_key.substr(window_key.size() - sizeof(uint64_t))));
}

absl::string_view RunOf(absl::string_view run_key) { return run_key.substr(1); }

uint64_t BlockOf(absl::string_view block_id_key) { return FromBigEndian(block_id_key.substr(1)); }

std::string EncodeTime(int64_t ms) { return BigEndian(static_cast<uint64_t>(ms)); }

int64_t DecodeTime(absl::string_view value) {
  return value.size() == sizeof(uint64_t) ? static_cast<int64_t>(FromBigEndian(value)) : 0;
}

}  // namespace routing_replay::server::rocks
