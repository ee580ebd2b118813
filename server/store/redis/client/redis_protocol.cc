#include "server/store/redis/client/redis_protocol.h"

#include <openssl/sha.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {
namespace {

using Type = RedisReply::Type;

// Below this a copy is cheaper than a piece of its own.
constexpr size_t kReferencedBytes = 4096;
constexpr size_t kLongestLine = size_t{64} << 10;
constexpr size_t kMostArrays = 7;
// So much of a value is made room for at once.
constexpr size_t kRoom = size_t{4} << 20;

size_t BytesOf(const RedisCommand::Pieces& pieces) { return pieces[0].size() + pieces[1].size(); }

std::string Sha1(absl::string_view text) {
  std::string digest(SHA_DIGEST_LENGTH, '\0');
  SHA1(reinterpret_cast<const unsigned char*>(text.data()), text.size(),
       reinterpret_cast<unsigned char*>(digest.data()));
  return absl::BytesToHexString(digest);
}

// A length or a count; -1 is that of nil.
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

// "MOVED 3999 127.0.0.1:6381", with an empty host for the server that answers, and IPv6 hosts without brackets.
std::optional<RedisError> Redirection(absl::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  if (words.size() != 3 || (words[0] != "MOVED" && words[0] != "ASK")) return std::nullopt;
  const size_t colon = words[2].rfind(':');
  const auto slot = ParseDecimal(words[1]);
  const auto port = ParseDecimal(colon == absl::string_view::npos ? "" : words[2].substr(colon + 1));
  if (!slot || *slot >= kRedisSlots || !port || *port < 1 || *port > 65535) return std::nullopt;
  RedisError error{.kind = words[0] == "ASK" ? RedisError::Kind::kAsk : RedisError::Kind::kMoved,
                   .slot = static_cast<int>(*slot),
                   .address = {std::string(words[2].substr(0, colon)), static_cast<uint16_t>(*port)}};
  if (error.address.host == "?") error.address.host.clear();
  return error;
}

absl::StatusCode CodeOf(absl::string_view text) {
  const absl::string_view word = FirstWord(text);
  if (IsOneOf(word, kDenied)) return absl::StatusCode::kPermissionDenied;
  if (word == "OOM") return absl::StatusCode::kResourceExhausted;
  const RedisError::Kind kind = ParseRedisError(text).kind;
  const bool passes =
      kind == RedisError::Kind::kMoved || kind == RedisError::Kind::kAsk || kind == RedisError::Kind::kRetry;
  return passes || word == "MISCONF" ? absl::StatusCode::kUnavailable : absl::StatusCode::kFailedPrecondition;
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

RedisScript::RedisScript(std::string source) : source_(std::move(source)), sha1_(Sha1(source_)) {}

RedisCommand RedisScript::Call(absl::Span<const std::string> keys) const {
  RedisCommand command({"EVALSHA", sha1_});
  command.Add(static_cast<int64_t>(keys.size()));
  for (const std::string& key : keys) command.Add(key);
  return command;
}

RedisCommand RedisScript::WithSource(RedisCommand call) const {
  call.Replace(0, "EVAL");
  call.Replace(1, source_);
  return call;
}

absl::Status RedisReplyParser::Break(absl::string_view what) {
  broken_ = absl::DataLossError(absl::StrCat("not the Redis protocol: ", what));
  return broken_;
}

absl::Status RedisReplyParser::Feed(absl::string_view bytes) {
  if (!broken_.ok()) return broken_;
  if (bytes.size() > max_reply_bytes_ - rest_bytes_) {
    return Break(absl::StrCat("a reply above the limit of ", max_reply_bytes_, " bytes"));
  }
  rest_bytes_ += bytes.size();
  buffer_.erase(0, std::exchange(at_, 0));
  buffer_.append(bytes.data(), bytes.size());
  return absl::OkStatus();
}

// Only what is as large as a read of a connection is worth a read of its own.
absl::Span<char> RedisReplyParser::Direct() {
  if (!broken_.ok() || value_.reply == nullptr || at_ < buffer_.size() || value_.size < kReferencedBytes) return {};
  MakeRoom();
  std::string& text = value_.reply->text;
  const size_t room = std::min(text.size() - value_.filled, max_reply_bytes_ - rest_bytes_);
  return {text.data() + value_.filled, room};
}

void RedisReplyParser::Filled(size_t bytes) {
  value_.filled += bytes;
  rest_bytes_ += bytes;
}

void RedisReplyParser::MakeRoom() {
  std::string& text = value_.reply->text;
  if (value_.filled == text.size()) text.resize(std::min(value_.size, text.size() + kRoom));
}

absl::StatusOr<std::optional<RedisReply>> RedisReplyParser::Next() {
  if (!broken_.ok()) return broken_;
  while (!whole_) {
    const absl::StatusOr<bool> taken = Step();
    if (!taken.ok()) return taken.status();
    if (!*taken) return std::nullopt;
  }
  whole_ = false;
  rest_bytes_ = buffer_.size() - at_;
  return std::optional<RedisReply>(std::exchange(root_, RedisReply()));
}

absl::StatusOr<bool> RedisReplyParser::Step() {
  if (value_.reply != nullptr) return TakeValue();
  const size_t end = buffer_.find("\r\n", at_);
  if (std::min(end, buffer_.size()) - at_ > kLongestLine) return Break("a line without its end");
  if (end == std::string::npos) return false;
  const absl::string_view line = absl::string_view(buffer_).substr(at_, end - at_);
  if (absl::Status status = TakeLine(line); !status.ok()) return status;
  at_ = end + 2;
  return true;
}

absl::StatusOr<bool> RedisReplyParser::TakeValue() {
  while (value_.filled < value_.size) {
    if (at_ == buffer_.size()) return false;
    MakeRoom();
    const size_t part = std::min(value_.reply->text.size() - value_.filled, buffer_.size() - at_);
    std::memcpy(value_.reply->text.data() + value_.filled, buffer_.data() + at_, part);
    value_.filled += part;
    at_ += part;
  }
  if (buffer_.size() - at_ < 2) return false;
  if (buffer_.compare(at_, 2, "\r\n") != 0) return Break("a value without its end");
  at_ += 2;
  value_ = {};
  Complete();
  return true;
}

// Builds the reply from the outside in.
absl::Status RedisReplyParser::TakeLine(absl::string_view line) {
  if (line.empty()) return Break("an empty line");
  const absl::string_view rest = line.substr(1);
  if (!arrays_.empty()) arrays_.back().reply->elements.emplace_back();
  RedisReply* const reply = arrays_.empty() ? &root_ : &arrays_.back().reply->elements.back();
  const std::optional<int64_t> size = ParseSize(rest);
  switch (line[0]) {
    case '+':
    case '-':
      *reply = {.type = line[0] == '+' ? Type::kStatus : Type::kError, .text = std::string(rest)};
      break;
    case ':':
      reply->type = Type::kInteger;
      if (!absl::SimpleAtoi(rest, &reply->integer)) return Break("an integer that is no number");
      break;
    case '$':
      if (!size) return Break("a value whose length is no number");
      if (*size < 0) break;
      reply->type = Type::kBulk;
      value_ = {.reply = reply, .size = static_cast<size_t>(*size)};
      return absl::OkStatus();
    case '*':
      if (!size) return Break("an array whose length is no number");
      if (*size < 0) break;
      reply->type = Type::kArray;
      if (*size == 0) break;
      if (arrays_.size() == kMostArrays) return Break("arrays in arrays in arrays");
      arrays_.push_back({reply, *size});
      return absl::OkStatus();
    default:
      return Break("a reply of an unknown type");
  }
  Complete();
  return absl::OkStatus();
}

void RedisReplyParser::Complete() {
  while (!arrays_.empty() && --arrays_.back().left == 0) arrays_.pop_back();
  whole_ = arrays_.empty();
}

RedisError ParseRedisError(absl::string_view text) {
  if (auto redirection = Redirection(text)) return *std::move(redirection);
  const absl::string_view word = FirstWord(text);
  if (word == "NOSCRIPT") return {.kind = RedisError::Kind::kNoScript};
  return {.kind = IsOneOf(word, kPassing) ? RedisError::Kind::kRetry : RedisError::Kind::kForCaller};
}

absl::Status StatusOfRedisError(absl::string_view command, absl::string_view text) {
  const absl::StatusCode code = CodeOf(text);
  const std::string message = absl::StrCat("Redis: ", command, ": ", text.substr(0, kRepeatedText));
  if (code == absl::StatusCode::kResourceExhausted) {
    return MakeError(code, message, {.reason = Reason::kOverBudget, .retry_after_ms = kOutOfMemoryRetryMs});
  }
  return absl::Status(code, message);
}

}  // namespace routing_replay::server
