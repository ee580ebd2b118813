// The URL of a Redis deployment, and Redis's protocol (RESP2): commands and their encoding, replies and their parser,
// and the meaning of error replies.
#ifndef SERVER_STORE_REDIS_CLIENT_REDIS_PROTOCOL_H_
#define SERVER_STORE_REDIS_CLIENT_REDIS_PROTOCOL_H_

#include <sys/uio.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace routing_replay::server {

constexpr int kRedisSlots = 16384;
constexpr size_t kMaxRedisReply = size_t{256} << 20;  // Limit for the reply to one command.

struct RedisAddress {
  std::string host;  // A name, an IPv4 or an IPv6 address without brackets.
  uint16_t port = 0;

  std::string ToString() const;  // host:port or [v6]:port.
  friend auto operator<=>(const RedisAddress&, const RedisAddress&) = default;
};

// Where a Redis or Valkey deployment is and how to log in.
//
//   redis://[user@]host:port[,host:port…][/0][?option=value&…]     plain TCP
//   rediss://…                                                     TLS
//
// Options: prefix (of all keys of this deployment; same characters as ids); password_file; with rediss also ca_file
// (default: the system's authorities), cert_file and key_file (a client certificate). A port defaults to 6379; IPv6
// addresses are in brackets. The hosts are those of one cluster, any of which may be down, or a single server. A
// password in the URL is rejected: every user of the machine can see command lines.
struct RedisEndpoint {
  std::vector<RedisAddress> seeds;  // Not empty.
  bool tls = false;
  std::string prefix;         // Empty: the store's default.
  std::string user;           // ACL user; empty: "default".
  std::string password_file;  // Empty: no password.
  std::string ca_file;
  std::string cert_file;
  std::string key_file;
};

// Returns INVALID_ARGUMENT (kField) with the message "redis store: FIELD: WHAT".
absl::Status InvalidEndpoint(absl::string_view field, absl::string_view what);

// INVALID_ARGUMENT (kField: scheme, host, port, user, password, database, the name of a known option, or "option" for
// an unknown one). Messages never repeat the text before an @. Reads no file.
absl::StatusOr<RedisEndpoint> ParseRedisEndpoint(absl::string_view url);

// The password, read again at each call so that a rotated one is found; one line break at its end is dropped. Empty if
// the endpoint has no password_file. PERMISSION_DENIED (kField: password_file) if the file cannot be read, is empty or
// above 4 KiB.
absl::StatusOr<std::string> ReadRedisPassword(const RedisEndpoint& endpoint);

// A command and its arguments, each of any bytes. Borrowed values of 4 KiB or more go to the socket without a copy.
//
//   RedisCommand({"SET", key}).AddBorrowed(chunk).Add("PX").Add(60000)
class RedisCommand {
 public:
  RedisCommand() = default;
  RedisCommand(std::initializer_list<absl::string_view> arguments);

  RedisCommand& Add(absl::string_view argument);  // Copies.
  RedisCommand& Add(int64_t argument);            // In decimal.
  // Adds one argument, which may consist of two pieces. Keeps references: the bytes must stay unchanged until the last
  // call with this command or a copy of it has returned.
  RedisCommand& AddBorrowed(absl::string_view first, absl::string_view second = "");

  size_t size() const { return arguments_.size(); }
  // The one or two pieces of an argument. If there is only one, the second is empty.
  using Pieces = std::array<absl::string_view, 2>;
  Pieces pieces(size_t index) const;
  // Requires that the argument has only one piece.
  absl::string_view argument(size_t index) const { return pieces(index)[0]; }
  // The first word, for messages; never a key or a value.
  std::string name() const { return arguments_.empty() ? "" : std::string(argument(0)); }

 private:
  std::vector<std::variant<std::string, Pieces>> arguments_;
};

// Commands waiting to be written to a socket: headers and small arguments as text, large arguments by reference. Not
// thread-safe.
class RedisCommandQueue {
 public:
  // `command` must live until its bytes are written.
  void Push(const RedisCommand& command);
  // The bytes to write next, at most `limit` pieces, in order; valid until the next call of another function.
  std::vector<iovec> Pending(size_t limit) const;
  // The first `bytes` bytes of Pending() were written.
  void Advance(size_t bytes);
  bool empty() const { return pieces_.empty(); }

 private:
  std::deque<absl::string_view> pieces_;  // Bytes that are not written yet.
  std::deque<std::string> texts_;         // Pieces that are not borrowed.
};

// A server's reply as an owned value.
struct RedisReply {
  enum class Type { kNil, kInteger, kBulk, kStatus, kError, kArray };

  Type type = Type::kNil;
  int64_t integer = 0;               // kInteger.
  std::string text;                  // kBulk (any bytes), kStatus and kError ("MOVED 3999 host:port"); else empty.
  std::vector<RedisReply> elements;  // kArray.

  bool is_nil() const { return type == Type::kNil; }
  bool is_error() const { return type == Type::kError; }
  friend bool operator==(const RedisReply&, const RedisReply&) = default;
};

// Parses the bytes of a connection into replies. Not thread-safe. Memory grows with the bytes received, never with a
// count that was only announced.
class RedisReplyParser {
 public:
  // `max_reply_bytes` limits one encoded reply. Arrays nest at most seven deep.
  explicit RedisReplyParser(size_t max_reply_bytes = kMaxRedisReply) : max_reply_bytes_(max_reply_bytes) {}

  // Adds the next bytes of the stream. Call Next until it returns nothing before the next Feed. DATA_LOSS: the bytes
  // break the protocol or a limit; then the stream is unusable.
  absl::Status Feed(absl::string_view bytes);
  // The next complete reply, or nothing if more bytes are needed. Errors as Feed.
  absl::StatusOr<std::optional<RedisReply>> Next();
  // True if there are bytes that belong to no returned reply.
  bool has_rest() const { return at_ < buffer_.size(); }

 private:
  // Parses the reply at `at` and moves `at` to its end; false: more bytes are needed. `depth`: number of enclosing
  // arrays.
  absl::StatusOr<bool> Parse(size_t depth, size_t& at, RedisReply& reply);
  absl::StatusOr<bool> ParseValue(size_t size, size_t& at, RedisReply& reply);

  const size_t max_reply_bytes_;
  std::string buffer_;  // The bytes before at_ are parsed.
  size_t at_ = 0;
};

// What an error reply means for the sender of the command.
struct RedisError {
  enum class Kind {
    kMoved,  // The slot lives at `address` now.
    kAsk,    // For this command only: send ASKING and the command to `address`.
    // TRYAGAIN, CLUSTERDOWN, LOADING, MASTERDOWN, READONLY, NOREPLICAS, BUSY, UNBLOCKED: not executed; retrying helps.
    kRetry,
    kForCaller,  // Anything else: not executed (a script perhaps in part); a retry at once would give the same.
  };
  Kind kind = Kind::kForCaller;
  RedisAddress address;  // For kMoved and kAsk; an empty host is that of the server that replied.
};

// Malformed redirections become kForCaller.
RedisError ParseRedisError(absl::string_view text);

// The status for an error reply to `command` (a name), "COMMAND: text":
//   PERMISSION_DENIED    NOAUTH, WRONGPASS, NOPERM
//   RESOURCE_EXHAUSTED   OOM (kOverBudget, with a retry hint)
//   UNAVAILABLE          everything of kind kMoved, kAsk, kRetry; MISCONF
//   FAILED_PRECONDITION  the rest, errors that a script raised itself among them
// At most 256 bytes of the text are repeated.
absl::Status StatusOfRedisError(absl::string_view command, absl::string_view text);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_REDIS_PROTOCOL_H_
