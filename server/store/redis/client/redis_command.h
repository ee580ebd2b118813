// Commands and the bytes that carry them.
#ifndef SERVER_STORE_REDIS_CLIENT_REDIS_COMMAND_H_
#define SERVER_STORE_REDIS_CLIENT_REDIS_COMMAND_H_

#include <sys/uio.h>

#include <array>
#include <initializer_list>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace routing_replay::server {

// A command and its arguments, any bytes each. Values are borrowed where the caller says so, so that they are copied
// only by the socket.
//
//   RedisCommand({"SET", key}).AddBorrowed(chunk).Add("PX").Add(60000)
class RedisCommand {
 public:
  RedisCommand() = default;
  RedisCommand(std::initializer_list<absl::string_view> arguments);

  RedisCommand& Add(absl::string_view argument);  // Copies.
  RedisCommand& Add(int64_t argument);            // In decimal.
  // Keeps a reference: `argument` must stay as it is until the last call with this command or a copy of it returned.
  RedisCommand& AddBorrowed(absl::string_view argument);
  RedisCommand& AddBorrowed(absl::Span<const uint8_t> argument);
  // One argument, which lies in two pieces.
  RedisCommand& AddBorrowed(absl::Span<const uint8_t> first, absl::Span<const uint8_t> second);
  // Puts another argument in the place of the one at `index`, which must be there.
  void Replace(size_t index, absl::string_view argument);

  size_t size() const { return arguments_.size(); }
  // The two pieces of an argument, one after the other; of most the second one is empty.
  using Pieces = std::array<absl::string_view, 2>;
  Pieces pieces(size_t index) const;
  // Of an argument in one piece.
  absl::string_view argument(size_t index) const { return pieces(index)[0]; }
  // Bytes of all arguments.
  size_t argument_bytes() const;
  // The first word, for messages; never a key or a value.
  std::string name() const { return arguments_.empty() ? "" : std::string(argument(0)); }

 private:
  std::vector<std::variant<std::string, Pieces>> arguments_;
};

// Commands on their way into a socket: RESP headers and small arguments in one text, large borrowed ones by reference.
// Not thread-safe.
class RedisCommandQueue {
 public:
  // `command` must live until its bytes are written.
  void Push(const RedisCommand& command);
  // What is to be written next, at most `limit` pieces, in order; valid until the next call of another function.
  std::vector<iovec> Pending(size_t limit) const;
  // Says that the first `bytes` bytes of Pending() were written.
  void Advance(size_t bytes);
  bool empty() const { return written_ == total_; }
  // Commands whose last byte was written; the others cannot have been executed.
  size_t commands_written() const;
  size_t bytes_written() const { return written_; }

 private:
  struct Piece {
    const char* borrowed;  // Null: `size` bytes of text_ from `offset` on.
    size_t offset;
    size_t size;
  };
  void Text(absl::string_view text);
  void Part(absl::string_view part);

  std::string text_;
  std::vector<Piece> pieces_;
  std::vector<size_t> ends_;  // Of each command, counted in bytes from the first.
  size_t first_piece_ = 0;    // The piece that the next byte comes from, and how much of it is written.
  size_t first_offset_ = 0;
  size_t written_ = 0;
  size_t total_ = 0;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_REDIS_COMMAND_H_
