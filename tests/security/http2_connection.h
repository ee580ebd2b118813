// As much of HTTP/2 as an attacker needs: a client's library keeps the rules of the protocol, this one keeps those it
// is told to.
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

// A frame; `length` is what it says of its payload, of which `payload` may be a part.
std::string Http2Frame(char type, char flags, uint32_t stream, absl::string_view payload, size_t length);
// As gRPC frames a message that is not compressed.
std::string GrpcMessage(const google::protobuf::MessageLite& message);

// Not thread-safe.
class Http2Connection {
 public:
  // As RawSocket. The server may send `stream_window` bytes to each stream.
  explicit Http2Connection(const std::string& address, uint32_t stream_window = 65535);

  // A call of the service whose headers go and nothing else; its stream.
  uint32_t StartCall(const std::string& method, const std::string& token);
  // Sends as much as the server's windows and the socket take now; how much that is.
  size_t Offer(uint32_t stream, absl::string_view bytes);
  // Offers again and again, until all is sent or `patience` is over: whether it is.
  bool Send(uint32_t stream, absl::string_view bytes, std::chrono::milliseconds patience);
  // Lets the server send so much more to the stream.
  void Allow(uint32_t stream, uint32_t bytes);
  // Takes what comes in this time; answers settings and pings.
  void Listen(std::chrono::milliseconds patience);

  bool closed() const { return socket_.closed(); }
  // Whether the server has ended the stream, by trailers or a reset, or the connection.
  bool Ended(uint32_t stream);
  // Of data, to the stream.
  int64_t received(uint32_t stream) { return streams_[stream].received; }

 private:
  struct Stream {
    int64_t window = 0;  // What the server takes yet.
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
  int64_t window_ = 65535;          // Of the connection, and …
  int64_t initial_window_ = 65535;  // … of new streams: what the server takes.
  std::map<uint32_t, Stream> streams_;
};

}  // namespace routing_replay::testing

#endif  // TESTS_SECURITY_HTTP2_CONNECTION_H_
