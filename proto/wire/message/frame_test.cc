#include "proto/wire/message/frame.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using testing::Fails;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

absl::Status AdmitAll(const Frame&) { return absl::OkStatus(); }

// Feeds the reader at most `step` bytes at a time, until a frame is complete or no bytes are left.
absl::Status Feed(FrameReader& reader, absl::string_view& bytes, size_t step) {
  while (!bytes.empty() && !reader.done()) {
    const absl::Span<const iovec> space = reader.Space();
    size_t given = 0;
    for (const iovec& part : space) {
      const size_t size = std::min({part.iov_len, bytes.size() - given, step - given});
      std::memcpy(part.iov_base, bytes.data() + given, size);
      given += size;
      if (given == step || given == bytes.size()) break;
    }
    bytes.remove_prefix(given);
    if (absl::Status status = reader.Advance(given); !status.ok()) return status;
  }
  return absl::OkStatus();
}

std::string Text(const ByteChain& chain) {
  std::string text(chain.size(), '\0');
  ChainCursor(chain).CopyTo({reinterpret_cast<uint8_t*>(text.data()), text.size()});
  return text;
}

TEST(FrameTest, FramesComeOutAsTheyWentIn) {
  const std::vector<uint32_t> parts = {3, 1, 5};
  const std::string sent = EncodeFrame(FrameType::kCall, 4, 0) + "call" +
                           EncodeFrame(FrameType::kMessage, 6, 9, parts) + "headerabcdefghi" +
                           EncodeFrame(FrameType::kMessage, 0, 2) + "xy" + EncodeFrame(FrameType::kEnd, 0, 0);
  for (const size_t step : {1, 2, 7, 16, 1000}) {
    FrameReader reader(AdmitAll);
    absl::string_view bytes = sent;
    const auto next = [&] {
      EXPECT_OK(Feed(reader, bytes, step));
      EXPECT_TRUE(reader.done());
      return reader.Take();
    };
    EXPECT_TRUE(reader.at_start());
    const ReceivedFrame call = next();
    EXPECT_EQ(call.type(), FrameType::kCall);
    EXPECT_EQ(call.header(), "call");
    const ReceivedFrame message = next();
    EXPECT_EQ(message.type(), FrameType::kMessage);
    EXPECT_EQ(message.header(), "header");
    ASSERT_EQ(message.parts.size(), 3u);
    EXPECT_EQ(message.parts[2].size(), 5u);
    EXPECT_EQ(Text(message.chain()), "headerabcdefghi");
    EXPECT_EQ(Text(next().chain()), "xy");
    EXPECT_EQ(next().type(), FrameType::kEnd);
    EXPECT_TRUE(bytes.empty());
  }
}

TEST(FrameTest, MemoryIsUsedAgainForWhatIsNoLonger) {
  FrameReader reader(AdmitAll);
  const std::string sent = EncodeFrame(FrameType::kMessage, 0, 4) + "long" + EncodeFrame(FrameType::kMessage, 1, 2) +
                           "hxy" + EncodeFrame(FrameType::kMessage, 0, 5) + "longer";
  absl::string_view bytes = sent;
  const uint8_t* memory = nullptr;
  for (const absl::string_view expected : {"long", "hxy", "longe"}) {
    ASSERT_OK(Feed(reader, bytes, 1000));
    ReceivedFrame frame = reader.Take();
    EXPECT_EQ(Text(frame.chain()), expected);
    if (expected == "hxy") {
      EXPECT_EQ(frame.parts[0].data(), memory);
    }
    memory = frame.parts[0].data();
    reader.Recycle(std::move(frame));
  }
}

TEST(FrameTest, FramesThatLieAreNone) {
  const std::string good = EncodeFrame(FrameType::kMessage, 0, 2);
  const auto with = [&](size_t at, char byte) {
    std::string bytes = good;
    bytes[at] = byte;
    return bytes;
  };
  const std::string bad[] = {
      with(0, 0),
      with(0, 4),
      with(1, 0),                                                           // An unknown frame type.
      with(2, 3),                                                           // More parts than bytes.
      EncodeFrame(FrameType::kMessage, 0, 5, std::vector<uint32_t>{2, 2}),  // Parts that are too short, …
      EncodeFrame(FrameType::kMessage, 0, 5, std::vector<uint32_t>{2, 4}),  // … too long, …
      EncodeFrame(FrameType::kMessage, 0, 5, std::vector<uint32_t>{0, 5}),  // … and empty.
      EncodeFrame(FrameType::kMessage, 0, 1 << 20, std::vector<uint32_t>(kMaxFrameParts + 1, 1)),
  };
  for (const std::string& sent : bad) {
    FrameReader reader(AdmitAll);
    absl::string_view bytes = sent;
    EXPECT_THAT(Feed(reader, bytes, 1000), Fails(kInvalid, Reason::kEncoding));
  }
}

TEST(FrameTest, NothingIsTakenOfAFrameThatIsNotAdmitted) {
  FrameReader reader([](const Frame& frame) -> absl::Status {
    EXPECT_EQ(frame.payload_bytes, uint64_t{1} << 62);
    EXPECT_EQ(frame.header_bytes, 0xFFFFFFFFu);
    return absl::ResourceExhaustedError("too long");
  });
  const std::string sent = EncodeFrame(FrameType::kMessage, 0xFFFFFFFF, size_t{1} << 62);
  absl::string_view bytes = sent;
  EXPECT_TRUE(absl::IsResourceExhausted(Feed(reader, bytes, 1000)));
}

// Sending a frame over a non-blocking socket takes many calls.
TEST(FrameTest, AWriterSendsItsFramesAsTheSocketTakesThem) {
  std::array<int, 2> ends;
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  SocketStream stream(ends[0]);
  const std::vector<uint8_t> bytes(3 << 20, 7);
  const absl::Span<const uint8_t> all = bytes;
  const absl::Span<const uint8_t> pieces[] = {all.first(5), {}, all.subspan(5)};
  FrameWriter writer;
  for (const bool in_parts : {true, false}) {
    EXPECT_TRUE(writer.done());
    writer.Put(FrameType::kMessage, "header", pieces, in_parts);
    FrameReader reader(AdmitAll);
    int times = 0;
    for (; !reader.done(); ++times) {
      ASSERT_OK(writer.SendTo(stream));
      const iovec space = reader.Space().front();
      const ssize_t came = recv(ends[1], space.iov_base, space.iov_len, 0);
      ASSERT_GT(came, 0);
      ASSERT_OK(reader.Advance(static_cast<size_t>(came)));
    }
    EXPECT_GT(times, 4);
    const ReceivedFrame frame = reader.Take();
    EXPECT_EQ(frame.parts.size(), in_parts ? 2 : 1);
    EXPECT_EQ(Text(frame.chain()).substr(0, 6), "header");
    EXPECT_EQ(frame.chain().size(), 6 + bytes.size());
  }
  close(ends[1]);
  writer.Put(FrameType::kEnd, "", {}, /*in_parts=*/false);
  EXPECT_EQ(writer.SendTo(stream), absl::UnavailableError("Broken pipe"));
}

TEST(FrameTest, AFrameThatIsNotSentYetGoesWithTheNextOne) {
  std::array<int, 2> ends;
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends.data()), 0);  // Each packet is one call of send.
  SocketStream stream(ends[0]);
  const std::vector<uint8_t> payload = {1, 2, 3};
  const absl::Span<const uint8_t> pieces[] = {payload};
  FrameWriter writer;
  writer.Put(FrameType::kCall, "call", {}, /*in_parts=*/true);
  writer.Put(FrameType::kMessage, "first", pieces, /*in_parts=*/true);
  ASSERT_OK(writer.SendTo(stream));
  ASSERT_TRUE(writer.done());
  std::array<char, 100> packet;
  const ssize_t size = recv(ends[1], packet.data(), packet.size(), 0);
  FrameReader reader(AdmitAll);
  absl::string_view bytes(packet.data(), static_cast<size_t>(size));
  ASSERT_OK(Feed(reader, bytes, 100));
  EXPECT_EQ(reader.Take().header(), "call");
  ASSERT_OK(Feed(reader, bytes, 100));
  const ReceivedFrame frame = reader.Take();
  EXPECT_EQ(frame.header(), "first");
  EXPECT_EQ(Text(frame.chain()), std::string("first\1\2\3"));
  EXPECT_TRUE(bytes.empty());
  close(ends[1]);
}

// A profiler's timer interrupts poll every few milliseconds.
TEST(ByteStreamTest, ASignalDoesNotEndAWait) {
  std::array<int, 2> ends;
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  SocketStream from(ends[0]), to(ends[1]);
  const auto before = std::signal(SIGALRM, [](int) {});
  const itimerval often{.it_interval = {0, 2000}, .it_value = {0, 2000}}, never{};
  setitimer(ITIMER_REAL, &often, nullptr);
  std::thread writer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(write(ends[0], "x", 1), 1);
  });
  to.Wait(POLLIN, Clock::Real().Now() + std::chrono::seconds(30));
  char byte = 0;
  EXPECT_EQ(recv(ends[1], &byte, 1, MSG_DONTWAIT), 1);
  writer.join();
  setitimer(ITIMER_REAL, &never, nullptr);
  std::signal(SIGALRM, before);
}

// Bytes that were read ahead are delivered before the socket is polled again.
TEST(FrameTest, SmallFramesThatComeTogetherAreReadTogether) {
  std::array<int, 2> ends;
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  SocketStream from(ends[0]), to(ends[1]);
  std::vector<uint8_t> longer(100'000);
  for (size_t i = 0; i < longer.size(); ++i) longer[i] = static_cast<uint8_t>(i % 251);
  FrameWriter writer;
  const auto send = [&](const std::string& header, size_t bytes) {
    const absl::Span<const uint8_t> payload = absl::MakeConstSpan(longer).first(bytes);
    writer.Put(FrameType::kMessage, header, {&payload, 1}, /*in_parts=*/true);
    ASSERT_OK(writer.SendTo(from));
    ASSERT_TRUE(writer.done());
  };
  const std::vector<size_t> sizes = {0, 3, 20'000, 1, 70'000, 5, 0};
  for (size_t i = 0; i < sizes.size(); ++i) send(absl::StrCat("header ", i), sizes[i]);
  FrameReader reader(AdmitAll);
  for (size_t i = 0; i < sizes.size(); ++i) {
    while (!reader.done()) {
      ASSERT_OK_AND_ASSIGN(const size_t came,
                           i % 2 == 0 ? to.Read(reader.Space())
                                      : to.ReadBy(reader.Space(), Clock::Real().Now() + std::chrono::seconds(5)));
      ASSERT_GT(came, 0);
      ASSERT_OK(reader.Advance(came));
    }
    EXPECT_EQ(to.HasBytes(), i != 4 && i != 6) << i;  // Long reads do not read ahead.
    const ReceivedFrame frame = reader.Take();
    EXPECT_EQ(frame.header(), absl::StrCat("header ", i));
    const std::string payload(longer.begin(), longer.begin() + static_cast<ptrdiff_t>(sizes[i]));
    EXPECT_EQ(Text(frame.chain()), absl::StrCat("header ", i, payload));
  }
  ASSERT_OK_AND_ASSIGN(const size_t nothing, to.Read(reader.Space()));
  EXPECT_EQ(nothing, 0);
}

}  // namespace
}  // namespace routing_replay
