#include "server/store/redis/client/redis_protocol.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {
namespace {

using Type = RedisReply::Type;

// Values smaller than this are copied, which is cheaper than sending them by reference.
constexpr size_t kReferencedBytes = 4096;
constexpr size_t kLongestLine = size_t{64} << 10;
constexpr size_t kMostArrays = 7;

size_t BytesOf(const RedisCommand::Pieces& pieces) { return pieces[0].size() + pieces[1].size(); }

// A length or a count; -1 means nil.
std::optional<int64_t> ParseSize(absl::string_view text) {
  return text == "-1" ? std::optional<int64_t>(-1) : ParseDecimal(text);
}

constexpr size_t kRepeatedText = 256;
constexpr int32_t kOutOfMemoryRetryMs = 1000;
constexpr absl::string_view kPassing[] = {"TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN",
                                          "READONLY", "NOREPLICAS",  "BUSY",    "UNBLOCKED"};
constexpr absl::string_view kDenied[] = {"NOAUTH", "WRONGPASS", "NOPERM"};

absl::string_view FirstWord(absl::string_view text) { return text.substr(0, text.find(' ')); }

template <size_t n>
bool IsOneOf(absl::string_view word, const absl::string_view (&words)[n]) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

// "MOVED 3999 127.0.0.1:6381". An empty host means the server that answers; IPv6 hosts have no brackets.
std::optional<RedisError> Redirection(absl::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  if (words.size() != 3 || (words[0] != "MOVED" && words[0] != "ASK")) return std::nullopt;
  const size_t colon = words[2].rfind(':');
  const auto slot = ParseDecimal(words[1]);
  const auto port = ParseDecimal(colon == absl::string_view::npos ? "" : words[2].substr(colon + 1));
  if (!slot || *slot >= kRedisSlots || !port || *port < 1 || *port > 65535) return std::nullopt;
  RedisError error{.kind = words[0] == "ASK" ? RedisError::Kind::kAsk : RedisError::Kind::kMoved,
                   .address = {std::string(words[2].substr(0, colon)), static_cast<uint16_t>(*port)}};
  if (error.address.host == "?") error.address.host.clear();
  return error;
}

}  // namespace

std::optional<int64_t> ParseDecimal(absl::string_view text) {
  int64_t value = 0;
  if (!std::all_of(text.begin(), text.end(), absl::ascii_isdigit) || !absl::SimpleAtoi(text, &value)) return {};
  if (text.size() > 1 && text[0] == '0') return {};
  return value;
}

RedisCommand::RedisCommand(std::initializer_list<absl::string_view> arguments) {
  for (const absl::string_view argument : arguments) Add(argument);
}

RedisCommand& RedisCommand::Add(absl::string_view argument) {
  arguments_.emplace_back(std::string(argument));
  return *this;
}

RedisCommand& RedisCommand::Add(int64_t argument) { return Add(absl::StrCat(argument)); }

RedisCommand& RedisCommand::AddBorrowed(absl::string_view first, absl::string_view second) {
  arguments_.emplace_back(Pieces{first, second});
  return *this;
}

RedisCommand::Pieces RedisCommand::pieces(size_t index) const {
  const auto& argument = arguments_[index];
  if (const auto* owned = std::get_if<std::string>(&argument)) return {*owned, ""};
  return std::get<Pieces>(argument);
}

void RedisCommandQueue::Push(const RedisCommand& command) {
  if (pieces_.empty()) texts_.clear();
  std::string text = absl::StrCat("*", command.size(), "\r\n");
  const auto add_text = [&](bool last) {
    texts_.push_back(std::exchange(text, {}));
    pieces_.push_back({texts_.back(), last});
  };
  for (size_t i = 0; i < command.size(); ++i) {
    const RedisCommand::Pieces pieces = command.pieces(i);
    absl::StrAppend(&text, "$", BytesOf(pieces), "\r\n");
    for (const absl::string_view piece : pieces) {
      if (piece.size() < kReferencedBytes) {
        absl::StrAppend(&text, piece);
      } else {
        add_text(false);
        pieces_.push_back({piece, false});
      }
    }
    absl::StrAppend(&text, "\r\n");
  }
  add_text(true);
}

std::vector<iovec> RedisCommandQueue::Pending(size_t limit) const {
  std::vector<iovec> pending;
  for (size_t i = 0; i < std::min(limit, pieces_.size()); ++i) {
    pending.push_back({const_cast<char*>(pieces_[i].bytes.data()), pieces_[i].bytes.size()});
  }
  return pending;
}

size_t RedisCommandQueue::Advance(size_t bytes) {
  size_t commands = 0;
  while (!pieces_.empty() && bytes >= pieces_.front().bytes.size()) {
    bytes -= pieces_.front().bytes.size();
    commands += pieces_.front().last;
    pieces_.pop_front();
  }
  if (bytes > 0) pieces_.front().bytes.remove_prefix(bytes);
  return commands;
}

absl::Status RedisReplyParser::Break(absl::string_view what) {
  broken_ = absl::DataLossError(absl::StrCat("malformed reply: ", what));
  return broken_;
}

absl::Status RedisReplyParser::Feed(absl::string_view bytes) {
  if (!broken_.ok()) return broken_;
  buffer_.erase(0, std::exchange(at_, 0));
  if (bytes.size() > max_reply_bytes_ - buffer_.size()) {
    return Break(absl::StrCat("a reply above the limit of ", max_reply_bytes_, " bytes"));
  }
  buffer_.append(bytes.data(), bytes.size());
  return absl::OkStatus();
}

// If a reply is incomplete, it is parsed again from its beginning when more bytes arrive. That is cheap: a large value
// is one step, and the arrays that the store requests arrive in one or two reads.
absl::StatusOr<std::optional<RedisReply>> RedisReplyParser::Next() {
  if (!broken_.ok()) return broken_;
  RedisReply reply;
  size_t at = at_;
  RR_ASSIGN_OR_RETURN(const bool whole, Parse(0, at, reply));
  if (!whole) return std::nullopt;
  at_ = at;
  return std::optional(std::move(reply));
}

absl::StatusOr<bool> RedisReplyParser::Parse(size_t depth, size_t& at, RedisReply& reply) {
  const size_t end = buffer_.find("\r\n", at);
  if (std::min(end, buffer_.size()) - at > kLongestLine) return Break("a line that is too long");
  if (end == std::string::npos) return false;
  const absl::string_view line = absl::string_view(buffer_).substr(at, end - at);
  if (line.empty()) return Break("an empty line");
  at = end + 2;
  const absl::string_view rest = line.substr(1);
  switch (line[0]) {
    case '+':
    case '-':
      reply = {.type = line[0] == '+' ? Type::kStatus : Type::kError, .text = std::string(rest)};
      return true;
    case ':':
      reply.type = Type::kInteger;
      if (!absl::SimpleAtoi(rest, &reply.integer)) return Break("an integer that is not a number");
      return true;
    case '$':
    case '*':
      break;
    default:
      return Break("a reply of an unknown type");
  }
  const std::optional<int64_t> size = ParseSize(rest);
  if (!size) return Break("a length that is not a number");
  if (*size < 0) return true;
  if (line[0] == '$') return ParseValue(static_cast<size_t>(*size), at, reply);
  if (depth == kMostArrays) return Break(absl::StrCat("arrays nested more than ", kMostArrays, " deep"));
  reply.type = Type::kArray;
  for (int64_t i = 0; i < *size; ++i) {
    const absl::StatusOr<bool> whole = Parse(depth + 1, at, reply.elements.emplace_back());
    if (!whole.ok() || !*whole) return whole;
  }
  return true;
}

absl::StatusOr<bool> RedisReplyParser::ParseValue(size_t size, size_t& at, RedisReply& reply) {
  const size_t there = buffer_.size() - at;
  if (there < 2 || size > there - 2) return false;
  if (buffer_.compare(at + size, 2, "\r\n") != 0) return Break("a value that is not followed by a line break");
  reply.type = Type::kBulk;
  reply.text.assign(buffer_, at, size);
  at += size + 2;
  return true;
}

RedisError ParseRedisError(absl::string_view text) {
  if (auto redirection = Redirection(text)) return *std::move(redirection);
  return {.kind = IsOneOf(FirstWord(text), kPassing) ? RedisError::Kind::kRetry : RedisError::Kind::kForCaller};
}

absl::Status StatusOfRedisError(absl::string_view command, absl::string_view text) {
  const absl::string_view word = FirstWord(text);
  const std::string message = absl::StrCat("Redis: ", command, ": ", text.substr(0, kRepeatedText));
  if (IsOneOf(word, kDenied)) return absl::PermissionDeniedError(message);
  if (word == "OOM") {
    return MakeError(absl::StatusCode::kResourceExhausted, message,
                     {.reason = Reason::kOverBudget, .retry_after_ms = kOutOfMemoryRetryMs});
  }
  const bool passes = ParseRedisError(text).kind != RedisError::Kind::kForCaller || word == "MISCONF";
  return passes ? absl::UnavailableError(message) : absl::FailedPreconditionError(message);
}

}  // namespace routing_replay::server
