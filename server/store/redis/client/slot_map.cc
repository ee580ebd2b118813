#include "server/store/redis/client/slot_map.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

using Type = RedisReply::Type;

constexpr std::array<uint16_t, 256> MakeCrcTable() {
  std::array<uint16_t, 256> table{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    unsigned crc = byte << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 0x8000) != 0 ? crc << 1 ^ 0x1021 : crc << 1;
    table[byte] = static_cast<uint16_t>(crc);
  }
  return table;
}
constexpr std::array<uint16_t, 256> kCrcTable = MakeCrcTable();

uint16_t Crc16(absl::string_view text) {
  unsigned crc = 0;
  for (const char c : text) crc = (crc << 8 ^ kCrcTable[(crc >> 8 ^ static_cast<uint8_t>(c)) & 0xff]) & 0xffff;
  return static_cast<uint16_t>(crc);
}

absl::Status Malformed(absl::string_view what) { return absl::DataLossError(absl::StrCat("CLUSTER SLOTS: ", what)); }

bool IsInteger(const RedisReply& reply, int64_t low, int64_t high) {
  return reply.type == Type::kInteger && reply.integer >= low && reply.integer <= high;
}

// [host, port, id, …]
absl::StatusOr<RedisAddress> NodeOf(const RedisReply& reply, absl::string_view asked_host) {
  const auto& parts = reply.elements;
  if (parts.size() < 2 || (parts[0].type != Type::kBulk && !parts[0].is_nil())) return Malformed("a node has no host");
  if (!IsInteger(parts[1], 1, 65535)) return Malformed("a node has no port");
  const bool unknown = parts[0].text.empty() || parts[0].text == "?";
  return RedisAddress{unknown ? std::string(asked_host) : parts[0].text, static_cast<uint16_t>(parts[1].integer)};
}

}  // namespace

int RedisSlotOf(absl::string_view key) {
  const size_t open = key.find('{');
  if (open != absl::string_view::npos) {
    const size_t close = key.find('}', open + 1);
    if (close != absl::string_view::npos && close > open + 1) key = key.substr(open + 1, close - open - 1);
  }
  return Crc16(key) % kRedisSlots;
}

SlotMap SlotMap::Single(RedisAddress address) {
  SlotMap map;
  map.nodes_.push_back(std::move(address));
  map.nodes_of_slots_.fill(0);
  return map;
}

absl::StatusOr<SlotMap> SlotMap::Parse(const RedisReply& reply, absl::string_view asked_host) {
  if (reply.type != Type::kArray) return Malformed("is no array");
  SlotMap map;
  for (const RedisReply& range : reply.elements) {
    const auto& parts = range.elements;
    if (parts.size() < 3) return Malformed("a range is not first slot, last slot, master");
    if (!IsInteger(parts[0], 0, kRedisSlots - 1) || !IsInteger(parts[1], parts[0].integer, kRedisSlots - 1)) {
      return Malformed("a range of slots that do not exist");
    }
    const auto master = NodeOf(parts[2], asked_host);
    if (!master.ok()) return master.status();
    const uint16_t index = map.IndexOf(*master);
    for (int64_t slot = parts[0].integer; slot <= parts[1].integer; ++slot) {
      uint16_t& node = map.nodes_of_slots_[static_cast<size_t>(slot)];
      if (node != kNobody) return Malformed("a slot is given twice");
      node = index;
    }
    for (size_t i = 3; i < parts.size(); ++i) {
      const auto replica = NodeOf(parts[i], asked_host);
      if (!replica.ok()) return replica.status();
      map.IndexOf(*replica);
    }
  }
  return map;
}

uint16_t SlotMap::IndexOf(const RedisAddress& node) {
  const auto index = static_cast<uint16_t>(std::find(nodes_.begin(), nodes_.end(), node) - nodes_.begin());
  if (index == nodes_.size()) nodes_.push_back(node);
  return index;
}

std::optional<RedisAddress> SlotMap::MasterOf(int slot) const {
  const uint16_t node = nodes_of_slots_[static_cast<size_t>(slot)];
  if (node == kNobody) return std::nullopt;
  return nodes_[node];
}

std::vector<RedisAddress> SlotMap::Masters() const {
  std::vector<bool> serves(nodes_.size());
  for (const uint16_t node : nodes_of_slots_) {
    if (node != kNobody) serves[node] = true;
  }
  std::vector<RedisAddress> masters;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (serves[i]) masters.push_back(nodes_[i]);
  }
  std::sort(masters.begin(), masters.end());
  return masters;
}

void SlotMap::Assign(int slot, const RedisAddress& master) {
  nodes_of_slots_[static_cast<size_t>(slot)] = IndexOf(master);
}

int SlotMap::unserved_slots() const {
  return static_cast<int>(std::count(nodes_of_slots_.begin(), nodes_of_slots_.end(), kNobody));
}

}  // namespace routing_replay::server
