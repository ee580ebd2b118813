#include "proto/wire/buffer.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdint>
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

}  // namespace
}  // namespace routing_replay
