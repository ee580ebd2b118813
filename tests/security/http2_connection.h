// The part of HTTP/2 that an attacker needs. Unlike a client library, it can violate the protocol.
#ifndef TESTS_SECURITY_HTTP2_CONNECTION_H_
#define TESTS_SECURITY_HTTP2_CONNECTION_H_

#include <google/protobuf/message_lite.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "tests/security/raw_socket.h"

namespace routing_replay::testing {

inline constexpr char kHttp2Preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// A frame. `length` is the stated length of the payload, of which `payload` may be only a part.
std::string Http2Frame(char type, char flags, uint32_t stream, absl::string_view payload, size_t length);
// The gRPC frame of an uncompressed message.
std::string GrpcMessage(const google::protobuf::MessageLite& message);

// Not thread-safe.
class Http2Connection {
 public:
  // Connects like RawSocket. The server may send `stream_window` bytes on each stream.
  explicit Http2Connection(const std::string& address, uint32_t stream_window = 65535);

  // Starts a call of the service that sends only its headers; returns its stream.
  uint32_t StartCall(const std::string& method, const std::string& token);
  // Sends as much as the server's windows and the socket accept now; returns the number of bytes.
  size_t Offer(uint32_t stream, absl::string_view bytes);
  // Sends until everything is sent or `patience` is over; returns whether everything was sent.
  bool Send(uint32_t stream, absl::string_view bytes, std::chrono::milliseconds patience);
  // Allows the server to send `bytes` more on the stream.
  void Allow(uint32_t stream, uint32_t bytes);
  // Receives for this time; answers settings and pings.
  void Listen(std::chrono::milliseconds patience);

  bool closed() const { return socket_.closed(); }
  // Whether the server has ended the stream (by trailers or a reset) or closed the connection.
  bool Ended(uint32_t stream);
  // Bytes of data received on the stream.
  int64_t received(uint32_t stream) { return streams_[stream].received; }

 private:
  struct Stream {
    int64_t window = 0;  // Bytes that the server still accepts on the stream.
    int64_t received = 0;
    bool ended = false;
  };

  void SendFrame(char type, char flags, uint32_t stream, absl::string_view payload);
  void Flush();
  void OnFrame(char type, char flags, uint32_t stream, absl::string_view payload);
  void OnSettings(absl::string_view settings);

  RawSocket socket_;
  std::string unsent_;
  std::string unread_;
  int64_t window_ = 65535;          // Send window of the connection.
  int64_t initial_window_ = 65535;  // Initial send window of a stream.
  std::map<uint32_t, Stream> streams_;
};

}  // namespace routing_replay::testing

#endif  // TESTS_SECURITY_HTTP2_CONNECTION_H_
