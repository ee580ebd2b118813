#include "server/store/redis/client/redis_protocol.h"

#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

std::string Text(const RedisCommand& command) {
  std::string text = absl::StrCat("*", command.size(), "\r\n");
  for (size_t i = 0; i < command.size(); ++i) {
    const RedisCommand::Pieces pieces = command.pieces(i);
    absl::StrAppend(&text, "$", pieces[0].size() + pieces[1].size(), "\r\n", pieces[0], pieces[1], "\r\n");
  }
  return text;
}

TEST(RedisCommandTest, AnArgumentInTwoPieces) {
  const std::string first = "a\r\n", second(5000, 'b');
  RedisCommand command({"SET", "key"});
  command.AddBorrowed(first, second);
  EXPECT_EQ(command.size(), 3u);
  EXPECT_EQ(Text(command), absl::StrCat("*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5003\r\na\r\n", second, "\r\n"));
}

TEST(RedisCommandTest, ArgumentsAreAnyBytes) {
  const std::string value("a\0\r\n$", 5);
  RedisCommand command({"SET", "key"});
  command.AddBorrowed(value).Add("PX").Add(int64_t{-5});
  EXPECT_EQ(Text(command),
            absl::StrCat("*5\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\n", value, "\r\n$2\r\nPX\r\n$2\r\n-5\r\n"));
  EXPECT_EQ(command.name(), "SET");
  EXPECT_EQ(command.argument(2).data(), value.data());
}

TEST(RedisCommandQueueTest, WhatIsWrittenInPiecesIsWhatWasPushed) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<std::string> values;
    for (int i = 0; i < 20; ++i) values.emplace_back(random() % 3 == 0 ? 4000 + random() % 5000 : random() % 9, 'v');
    std::vector<RedisCommand> commands(6);
    for (RedisCommand& command : commands) {
      for (uint64_t n = 1 + random() % 5; n > 0; --n) {
        const std::string& value = values[random() % values.size()];
        switch (random() % 3) {
          case 0:
            command.Add(value);
            break;
          case 1:
            command.AddBorrowed(value);
            break;
          default:
            command.AddBorrowed(value, values[random() % values.size()]);
        }
      }
    }
    RedisCommandQueue queue;
    std::string wanted, written;
    size_t pushed = 0;
    while (pushed < commands.size() || !queue.empty()) {
      if (pushed < commands.size() && (queue.empty() || random() % 3 == 0)) {
        wanted += Text(commands[pushed]);
        queue.Push(commands[pushed++]);
      }
      size_t budget = random() % 6000;
      size_t taken = 0;
      for (const iovec& piece : queue.Pending(1 + random() % 4)) {
        const size_t size = std::min(budget, piece.iov_len);
        written.append(static_cast<const char*>(piece.iov_base), size);
        budget -= size;
        taken += size;
      }
      queue.Advance(taken);
      ASSERT_EQ(queue.empty(), written.size() == wanted.size());
    }
    ASSERT_EQ(written, wanted);
  }
}

}  // namespace
}  // namespace routing_replay::server
