#include "tests/security/http2_connection.h"

#include <poll.h>

#include <algorithm>

namespace routing_replay::testing {
namespace {

using std::chrono::steady_clock;

enum FrameType : char {
  kData = 0,
  kHeaders = 1,
  kReset = 3,
  kSettings = 4,
  kPing = 6,
  kWindowUpdate = 8,
};
constexpr char kAck = 1;
constexpr char kEndStream = 1;
constexpr char kEndHeaders = 4;
constexpr int kInitialWindowSize = 4;
constexpr size_t kFrameHeader = 9;
constexpr size_t kLongestFrame = 16 << 10;  // Every peer accepts frames of this size.
constexpr std::chrono::milliseconds kStep(10);

std::string BigEndian(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

uint32_t FromBigEndian(absl::string_view bytes) {
  uint32_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<unsigned char>(byte);
  return value;
}

// A header that is not indexed and not compressed; shorter than 127 bytes.
std::string Header(const std::string& name, const std::string& value) {
  return absl::StrCat(std::string(1, '\0'), std::string(1, static_cast<char>(name.size())), name,
                      std::string(1, static_cast<char>(value.size())), value);
}

}  // namespace

std::string Http2Frame(char type, char flags, uint32_t stream, absl::string_view payload, size_t length) {
  return absl::StrCat(BigEndian(static_cast<uint32_t>(length)).substr(1), std::string{type, flags}, BigEndian(stream),
                      payload);
}

std::string GrpcMessage(const google::protobuf::MessageLite& message) {
  const std::string bytes = message.SerializeAsString();
  return absl::StrCat(std::string(1, '\0'), BigEndian(static_cast<uint32_t>(bytes.size())), bytes);
}

Http2Connection::Http2Connection(const std::string& address, uint32_t stream_window) : socket_(address) {
  unsent_ = kHttp2Preface;
  SendFrame(kSettings, 0, 0, absl::StrCat(std::string{0, kInitialWindowSize}, BigEndian(stream_window)));
}

uint32_t Http2Connection::StartCall(const std::string& method, const std::string& token) {
  const auto stream = static_cast<uint32_t>(2 * streams_.size() + 1);
  streams_[stream].window = initial_window_;
  std::string headers = Header(":method", "POST") + Header(":scheme", "http") + Header(":authority", "test") +
                        Header(":path", "/routing_replay.v1.RoutingReplay/" + method) + Header("te", "trailers") +
                        Header("content-type", "application/grpc");
  if (!token.empty()) headers += Header("authorization", "Bearer " + token);
  SendFrame(kHeaders, kEndHeaders, stream, headers);
  return stream;
}

size_t Http2Connection::Offer(uint32_t stream, absl::string_view bytes) {
  Listen(std::chrono::milliseconds(0));
  size_t sent = 0;
  while (sent < bytes.size() && unsent_.empty() && !Ended(stream)) {
    const int64_t room = std::min(window_, streams_[stream].window);
    const auto size = static_cast<size_t>(
        std::clamp<int64_t>(room, 0, static_cast<int64_t>(std::min(kLongestFrame, bytes.size() - sent))));
    if (size == 0) break;
    SendFrame(kData, 0, stream, bytes.substr(sent, size));
    window_ -= static_cast<int64_t>(size);
    streams_[stream].window -= static_cast<int64_t>(size);
    sent += size;
  }
  return sent;
}

bool Http2Connection::Send(uint32_t stream, absl::string_view bytes, std::chrono::milliseconds patience) {
  const auto deadline = steady_clock::now() + patience;
  while (!bytes.empty() && !Ended(stream) && steady_clock::now() < deadline) {
    bytes.remove_prefix(Offer(stream, bytes));
    if (!bytes.empty()) Listen(kStep);
  }
  return bytes.empty();
}

void Http2Connection::Allow(uint32_t stream, uint32_t bytes) { SendFrame(kWindowUpdate, 0, stream, BigEndian(bytes)); }

void Http2Connection::Listen(std::chrono::milliseconds patience) {
  const auto deadline = steady_clock::now() + patience;
  do {
    Flush();
    pollfd waiting{.fd = socket_.fd(), .events = POLLIN, .revents = 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - steady_clock::now());
    poll(&waiting, 1, static_cast<int>(std::clamp(left, std::chrono::milliseconds(0), kStep).count()));
    unread_ += socket_.Receive();
    absl::string_view unread = unread_;
    while (unread.size() >= kFrameHeader) {
      const size_t length = FromBigEndian(unread.substr(0, 3));
      if (unread.size() < kFrameHeader + length) break;
      OnFrame(unread[3], unread[4], FromBigEndian(unread.substr(5, 4)), unread.substr(kFrameHeader, length));
      unread.remove_prefix(kFrameHeader + length);
    }
    unread_.erase(0, unread_.size() - unread.size());
  } while (!closed() && steady_clock::now() < deadline);
}

bool Http2Connection::Ended(uint32_t stream) { return streams_[stream].ended || closed(); }

void Http2Connection::SendFrame(char type, char flags, uint32_t stream, absl::string_view payload) {
  unsent_ += Http2Frame(type, flags, stream, payload, payload.size());
  Flush();
}

void Http2Connection::Flush() {
  if (!unsent_.empty()) unsent_.erase(0, socket_.Send(unsent_));
}

void Http2Connection::OnFrame(char type, char flags, uint32_t stream, absl::string_view payload) {
  if (type == kSettings && (flags & kAck) == 0) OnSettings(payload);
  if (type == kPing && (flags & kAck) == 0) SendFrame(kPing, kAck, 0, payload);
  if (type == kWindowUpdate) (stream == 0 ? window_ : streams_[stream].window) += FromBigEndian(payload);
  if (type == kData) {
    streams_[stream].received += static_cast<int64_t>(payload.size());
    if (!payload.empty()) Allow(0, static_cast<uint32_t>(payload.size()));
  }
  const bool last = (type == kData || type == kHeaders) && (flags & kEndStream) != 0;
  if (type == kReset || last) streams_[stream].ended = true;
}

void Http2Connection::OnSettings(absl::string_view settings) {
  for (; settings.size() >= 6; settings.remove_prefix(6)) {
    if (FromBigEndian(settings.substr(0, 2)) != kInitialWindowSize) continue;
    const int64_t window = FromBigEndian(settings.substr(2, 4));
    for (auto& [number, stream] : streams_) stream.window += window - initial_window_;
    initial_window_ = window;
  }
  SendFrame(kSettings, kAck, 0, "");
}

}  // namespace routing_replay::testing
