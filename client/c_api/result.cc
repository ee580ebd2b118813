#include "client/c_api/result.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace routing_replay::c_api {

namespace {

constexpr size_t kAlignment = alignof(std::max_align_t);
constexpr size_t kFirstChunk = 512;
constexpr size_t kLargestChunk = size_t{1} << 20;

size_t RoundUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

void* AllocateOrThrow(size_t bytes) {
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

struct alignas(std::max_align_t) Arena::Chunk {
  Chunk* next;
};

struct Arena::Kept {
  Buffer buffer;
  Kept* next;
};

// Lies before the object.
struct alignas(std::max_align_t) Arena::Head {
  Chunk* chunks = nullptr;
  Kept* kept = nullptr;
  char* free = nullptr;  // So many bytes of the newest chunk are not used yet.
  size_t left = 0;
  size_t next_chunk = kFirstChunk;
};

Arena::Arena(size_t object) {
  const size_t size = sizeof(Head) + RoundUp(object);
  const size_t whole = std::max(size, kFirstChunk);
  head_ = new (AllocateOrThrow(whole)) Head;
  std::memset(static_cast<void*>(head_ + 1), 0, whole - sizeof(Head));
  head_->free = reinterpret_cast<char*>(head_) + size;
  head_->left = whole - size;
}

Arena::~Arena() {
  if (head_ != nullptr) Free(head_ + 1);
}

void* Arena::object() const { return head_ + 1; }

void* Arena::Allocate(size_t bytes) {
  if (bytes > SIZE_MAX / 2) throw std::bad_alloc();
  bytes = RoundUp(bytes);
  if (bytes > head_->left) {
    head_->next_chunk = std::min(2 * head_->next_chunk, kLargestChunk);
    const size_t size = std::max(bytes, head_->next_chunk);
    auto* chunk = new (AllocateOrThrow(sizeof(Chunk) + size)) Chunk{head_->chunks};
    head_->chunks = chunk;
    head_->free = reinterpret_cast<char*>(chunk + 1);
    head_->left = size;
    std::memset(head_->free, 0, size);
  }
  head_->left -= bytes;
  return std::exchange(head_->free, head_->free + bytes);
}

void Arena::Keep(Buffer buffer) { head_->kept = new Kept{std::move(buffer), head_->kept}; }

void* Arena::Release() { return std::exchange(head_, nullptr) + 1; }

void Arena::Free(const void* object) {
  if (object == nullptr) return;
  Head* head = static_cast<Head*>(const_cast<void*>(object)) - 1;
  while (head->kept != nullptr) delete std::exchange(head->kept, head->kept->next);
  while (head->chunks != nullptr) std::free(std::exchange(head->chunks, head->chunks->next));
  std::free(head);
}

}  // namespace routing_replay::c_api
