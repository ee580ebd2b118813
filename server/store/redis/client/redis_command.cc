#include "server/store/redis/client/redis_command.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace routing_replay {
namespace {

// Below this a copy is cheaper than a piece of its own.
constexpr size_t kReferencedBytes = 4096;

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
  arguments_.emplace_back(argument);
  return *this;
}

RedisCommand& RedisCommand::AddBorrowed(absl::Span<const uint8_t> argument) {
  return AddBorrowed(absl::string_view(reinterpret_cast<const char*>(argument.data()), argument.size()));
}

void RedisCommand::Replace(size_t index, absl::string_view argument) { arguments_[index] = std::string(argument); }

absl::string_view RedisCommand::argument(size_t index) const {
  const auto& argument = arguments_[index];
  if (const auto* owned = std::get_if<std::string>(&argument)) return *owned;
  return std::get<absl::string_view>(argument);
}

size_t RedisCommand::argument_bytes() const {
  size_t bytes = 0;
  for (size_t i = 0; i < size(); ++i) bytes += argument(i).size();
  return bytes;
}

void RedisCommandQueue::Text(absl::string_view text) {
  if (pieces_.empty() || pieces_.back().borrowed != nullptr) pieces_.push_back({nullptr, text_.size(), 0});
  text_.append(text.data(), text.size());
  pieces_.back().size += text.size();
  total_ += text.size();
}

void RedisCommandQueue::Argument(absl::string_view argument) {
  Text(absl::StrCat("$", argument.size(), "\r\n"));
  if (argument.size() < kReferencedBytes) {
    Text(argument);
  } else {
    pieces_.push_back({argument.data(), 0, argument.size()});
    total_ += argument.size();
  }
  Text("\r\n");
}

void RedisCommandQueue::Push(const RedisCommand& command) {
  Text(absl::StrCat("*", command.size(), "\r\n"));
  for (size_t i = 0; i < command.size(); ++i) Argument(command.argument(i));
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

}  // namespace routing_replay
