#include "server/store/redis/client/redis_command.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

// Below this a copy is cheaper than a piece of its own.
constexpr size_t kReferencedBytes = 4096;

absl::string_view TextOf(absl::Span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

size_t BytesOf(const RedisCommand::Pieces& pieces) { return pieces[0].size() + pieces[1].size(); }

}  // namespace

RedisCommand::RedisCommand(std::initializer_list<absl::string_view> arguments) {
  for (const absl::string_view argument : arguments) Add(argument);
}

RedisCommand& RedisCommand::Add(absl::string_view argument) {
  arguments_.emplace_back(std::string(argument));
  return *this;
}

RedisCommand& RedisCommand::Add(int64_t argument) { return Add(absl::StrCat(argument)); }

RedisCommand& RedisCommand::AddBorrowed(absl::string_view argument) {
  arguments_.emplace_back(Pieces{argument, ""});
  return *this;
}

RedisCommand& RedisCommand::AddBorrowed(absl::Span<const uint8_t> argument) { return AddBorrowed(TextOf(argument)); }

RedisCommand& RedisCommand::AddBorrowed(absl::Span<const uint8_t> first, absl::Span<const uint8_t> second) {
  arguments_.emplace_back(Pieces{TextOf(first), TextOf(second)});
  return *this;
}

void RedisCommand::Replace(size_t index, absl::string_view argument) { arguments_[index] = std::string(argument); }

RedisCommand::Pieces RedisCommand::pieces(size_t index) const {
  const auto& argument = arguments_[index];
  if (const auto* owned = std::get_if<std::string>(&argument)) return {*owned, ""};
  return std::get<Pieces>(argument);
}

size_t RedisCommand::argument_bytes() const {
  size_t bytes = 0;
  for (size_t i = 0; i < size(); ++i) bytes += BytesOf(pieces(i));
  return bytes;
}

void RedisCommandQueue::Text(absl::string_view text) {
  if (text.empty()) return;
  if (pieces_.empty() || pieces_.back().borrowed != nullptr) pieces_.push_back({nullptr, text_.size(), 0});
  text_.append(text.data(), text.size());
  pieces_.back().size += text.size();
  total_ += text.size();
}

void RedisCommandQueue::Part(absl::string_view part) {
  if (part.size() < kReferencedBytes) return Text(part);
  pieces_.push_back({part.data(), 0, part.size()});
  total_ += part.size();
}

void RedisCommandQueue::Push(const RedisCommand& command) {
  Text(absl::StrCat("*", command.size(), "\r\n"));
  for (size_t i = 0; i < command.size(); ++i) {
    const RedisCommand::Pieces pieces = command.pieces(i);
    Text(absl::StrCat("$", BytesOf(pieces), "\r\n"));
    for (const absl::string_view piece : pieces) Part(piece);
    Text("\r\n");
  }
  ends_.push_back(total_);
}

std::vector<iovec> RedisCommandQueue::Pending(size_t limit) const {
  std::vector<iovec> pending;
  size_t skipped = first_offset_;
  for (size_t i = first_piece_; i < pieces_.size() && pending.size() < limit; ++i) {
    const Piece& piece = pieces_[i];
    const char* begin = piece.borrowed != nullptr ? piece.borrowed : text_.data() + piece.offset;
    if (piece.size > skipped) pending.push_back({const_cast<char*>(begin) + skipped, piece.size - skipped});
    skipped = 0;
  }
  return pending;
}

void RedisCommandQueue::Advance(size_t bytes) {
  written_ += bytes;
  first_offset_ += bytes;
  while (first_piece_ < pieces_.size() && first_offset_ >= pieces_[first_piece_].size) {
    // The last text may still grow; it is then gone on with from where it was left.
    if (first_piece_ + 1 == pieces_.size()) return;
    first_offset_ -= pieces_[first_piece_++].size;
  }
}

size_t RedisCommandQueue::commands_written() const {
  return static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), written_) - ends_.begin());
}

}  // namespace routing_replay::server
