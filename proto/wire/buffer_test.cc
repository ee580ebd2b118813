#include "proto/wire/buffer.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <thread>
#include <vector>

namespace routing_replay {
namespace {

constexpr size_t kBytes = 96 << 10;

TEST(BufferTest, LiesOnABoundaryAndMoves) {
  for (const size_t size : {size_t{1}, size_t{63}, size_t{64}, kBytes}) {
    Buffer buffer(size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    buffer.span()[size - 1] = 7;
    const Buffer moved(std::move(buffer));
    EXPECT_EQ(moved.span()[size - 1], 7);
    EXPECT_TRUE(buffer.empty() && buffer.data() == nullptr);  // NOLINT(bugprone-use-after-move)
  }
  EXPECT_EQ(Buffer(0).data(), nullptr);
}

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(RR_THREAD_SANITIZER)
TEST(BufferTest, OneThatIsFreedMakesRoomForAnother) {
  std::vector<Buffer> buffers;
  for (int i = 0; i < 512; ++i) buffers.emplace_back(kBytes);
  for (size_t i = 0; i < buffers.size(); i += 2) buffers[i] = Buffer();
  const size_t before = mallinfo2().arena;
  for (size_t i = 0; i < buffers.size(); i += 2) buffers[i] = Buffer(kBytes);
  EXPECT_LT(mallinfo2().arena, before + (1 << 20));
}
#endif

#ifndef __SANITIZE_ADDRESS__
TEST(BufferTest, KeptMemoryServesABufferOfAboutThatSize) {
  constexpr size_t kSize = 300000;
  const auto freed = [](size_t size) {
    const Buffer buffer(size);
    return reinterpret_cast<uintptr_t>(buffer.data());
  };
  const uintptr_t first = freed(kSize);
  const Buffer larger(kSize + kSize / 16);
  EXPECT_NE(reinterpret_cast<uintptr_t>(larger.data()), first);
  const Buffer smaller(kSize - kSize / 16);
  EXPECT_NE(reinterpret_cast<uintptr_t>(smaller.data()), first);
  const Buffer alike(kSize - kSize / 64);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(alike.data()), first);
}

TEST(BufferTest, AtMost16MebibytesAreKept) {
  std::vector<Buffer> buffers;
  for (int i = 0; i < 64; ++i) buffers.emplace_back(1 << 20);
  std::set<uintptr_t> before;
  for (const Buffer& buffer : buffers) before.insert(reinterpret_cast<uintptr_t>(buffer.data()));
  buffers.clear();
  // Buffers that are not kept are unmapped, and later allocations may get their addresses. `between` occupies these
  // addresses, so that a new buffer at an old address must be one that was kept.
  const std::vector<void*> between = [] {
    std::vector<void*> taken;
    for (int i = 0; i < 64; ++i) taken.push_back(std::malloc(1 << 20));
    return taken;
  }();
  for (int i = 0; i < 64; ++i) buffers.emplace_back(1 << 20);
  EXPECT_LE(
      std::count_if(buffers.begin(), buffers.end(),
                    [&](const Buffer& buffer) { return before.contains(reinterpret_cast<uintptr_t>(buffer.data())); }),
      16);
  for (void* memory : between) std::free(memory);
}
#endif

TEST(BufferTest, ThreadsShareWhatIsKept) {
  std::vector<std::thread> threads;
  for (uint8_t own = 1; own <= 4; ++own) {
    threads.emplace_back([own] {
      for (int i = 0; i < 2000; ++i) {
        Buffer buffer(kBytes), other(kBytes);
        buffer.data()[0] = own;
        other.data()[0] = 0;
        EXPECT_EQ(buffer.data()[0], own);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace routing_replay
