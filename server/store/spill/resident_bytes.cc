#include "server/store/spill/resident_bytes.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include "server/store/sample/stored_block.h"

namespace routing_replay::server {

struct ResidentBytes::Held {
  explicit Held(bool is_small) : small(is_small) {}

  // Behind it, of a small block.
  uint32_t* crcs() { return reinterpret_cast<uint32_t*>(this + 1); }

  std::atomic<uint32_t> holders{1};
  const bool small;
};

struct ResidentBytes::Large : Held {
  explicit Large(Block of) : Held(false), block(std::move(of)) {}

  const Block block;
};

ResidentBytes::ResidentBytes(Block block)
    : held_(block.bytes.size() <= MemoryHome::kSmallBytes ? CopyOf(block) : new Large(std::move(block))) {}

ResidentBytes::ResidentBytes(const ResidentBytes& other) : held_(other.held_) {
  if (held_ != nullptr) held_->holders.fetch_add(1, std::memory_order_relaxed);
}

ResidentBytes::~ResidentBytes() {
  if (held_ == nullptr || held_->holders.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  if (!held_->small) {
    delete static_cast<Large*>(held_);
    return;
  }
  held_->~Held();
  ::operator delete(static_cast<void*>(held_));
}

ResidentBytes::Held* ResidentBytes::CopyOf(const Block& block) {
  const size_t crc_bytes = block.plane_crc32c.size() * sizeof(uint32_t);
  Held* const held = new (::operator new(sizeof(Held) + crc_bytes + block.bytes.size())) Held(true);
  if (crc_bytes > 0) std::memcpy(held->crcs(), block.plane_crc32c.data(), crc_bytes);
  if (!block.bytes.empty())
    std::memcpy(held->crcs() + block.plane_crc32c.size(), block.bytes.data(), block.bytes.size());
  return held;
}

BlockView ResidentBytes::view(const Geometry& geometry, RowRange rows, Codec codec) const {
  if (!held_->small) return static_cast<const Large*>(held_)->block.view();
  const auto planes = static_cast<size_t>(geometry.num_moe_layers());
  const uint32_t* const crcs = held_->crcs();
  const auto bytes = static_cast<size_t>(geometry.block_bytes(rows.size(), codec));
  return {rows, codec, {crcs, planes}, {reinterpret_cast<const uint8_t*>(crcs + planes), bytes}};
}

}  // namespace routing_replay::server
