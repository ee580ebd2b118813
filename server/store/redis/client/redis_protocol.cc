#include "server/store/redis/client/redis_protocol.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay::server {
namespace {

using Type = RedisReply::Type;

// Values smaller than this are copied, which is cheaper than sending them by reference.
constexpr size_t kReferencedBytes = 4096;
constexpr size_t kLongestLine = size_t{64} << 10;
constexpr size_t kMostArrays = 7;

// Digits and nothing else, without a leading zero: absl::SimpleAtoi also takes signs and white space.
std::optional<int64_t> ParseDecimal(absl::string_view text) {
  int64_t value = 0;
  if (!std::all_of(text.begin(), text.end(), absl::ascii_isdigit) || !absl::SimpleAtoi(text, &value)) return {};
  if (text.size() > 1 && text[0] == '0') return {};
  return value;
}

absl::Status Broken(absl::string_view what) { return absl::DataLossError(absl::StrCat("malformed reply: ", what)); }

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

constexpr uint16_t kDefaultPort = 6379;
constexpr size_t kMaxPasswordBytes = 4096;

// Parses host, host:port, [v6] or [v6]:port.
absl::StatusOr<RedisAddress> AddressOf(absl::string_view text) {
  RedisAddress address{.port = kDefaultPort};
  const bool brackets = absl::ConsumePrefix(&text, "[");
  const size_t end = text.find(brackets ? ']' : ':');
  if (brackets && end == absl::string_view::npos) return InvalidEndpoint("host", "must have a closing ] after [");
  address.host = std::string(text.substr(0, end));
  if (address.host.empty()) return InvalidEndpoint("host", "is empty");
  text.remove_prefix(brackets ? end + 1 : address.host.size());
  if (text.empty()) return address;
  if (!absl::ConsumePrefix(&text, ":")) return InvalidEndpoint("host", "after ] there may only be a port (':PORT')");
  if (absl::StrContains(text, ":")) return InvalidEndpoint("host", "an IPv6 address must be in brackets");
  const auto port = ParseDecimal(text);
  if (!port || *port < 1 || *port > 65535) return InvalidEndpoint("port", "must be a number from 1 to 65535");
  address.port = static_cast<uint16_t>(*port);
  return address;
}

absl::Status SetOption(absl::string_view text, RedisEndpoint& endpoint) {
  const std::pair<absl::string_view, absl::string_view> option = absl::StrSplit(text, absl::MaxSplits('=', 1));
  const auto [name, value] = option;
  const std::pair<absl::string_view, std::string*> options[] = {{"prefix", &endpoint.prefix},
                                                                {"password_file", &endpoint.password_file},
                                                                {"ca_file", &endpoint.ca_file},
                                                                {"cert_file", &endpoint.cert_file},
                                                                {"key_file", &endpoint.key_file}};
  for (const auto& [known, into] : options) {
    if (name != known) continue;
    if (value.empty()) return InvalidEndpoint(name, "is empty");
    if (!into->empty()) return InvalidEndpoint(name, "is given twice");
    *into = std::string(value);
    return absl::OkStatus();
  }
  if (name == "password") return InvalidEndpoint(name, "must not be in the URL; use password_file");
  // Does not repeat the unknown option: it may be a mistyped secret.
  return InvalidEndpoint("option", "must be prefix, password_file, ca_file, cert_file or key_file");
}

absl::Status CheckOptions(const RedisEndpoint& endpoint) {
  if (!endpoint.prefix.empty() && !CheckId(endpoint.prefix, "prefix").ok()) {
    return InvalidEndpoint("prefix", "must be 1 to 128 bytes of [A-Za-z0-9._:/-]");
  }
  for (const auto& [name, file] :
       {std::pair("ca_file", &endpoint.ca_file), std::pair("cert_file", &endpoint.cert_file)}) {
    if (!endpoint.tls && !file->empty()) return InvalidEndpoint(name, "requires rediss:// (TLS)");
  }
  if (endpoint.cert_file.empty() != endpoint.key_file.empty()) {
    return InvalidEndpoint(endpoint.cert_file.empty() ? "cert_file" : "key_file",
                           "cert_file and key_file must be given together");
  }
  if (!endpoint.user.empty() && endpoint.password_file.empty()) {
    return InvalidEndpoint("password_file", "must be given with a user");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status InvalidEndpoint(absl::string_view field, absl::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat("redis store: ", field, ": ", what),
                   {.reason = Reason::kField, .field = std::string(field)});
}

std::string RedisAddress::ToString() const {
  return absl::StrContains(host, ":") ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<RedisEndpoint> ParseRedisEndpoint(absl::string_view url) {
  RedisEndpoint endpoint;
  endpoint.tls = absl::ConsumePrefix(&url, "rediss://");
  if (!endpoint.tls && !absl::ConsumePrefix(&url, "redis://")) {
    return InvalidEndpoint("scheme", "must be redis:// or rediss://");
  }
  const std::pair<absl::string_view, absl::string_view> query = absl::StrSplit(url, absl::MaxSplits('?', 1));
  absl::string_view place = query.first;
  // Everything up to the last @ may be secret.
  if (const size_t at = place.rfind('@'); at != absl::string_view::npos) {
    endpoint.user = std::string(place.substr(0, at));
    if (endpoint.user.empty()) return InvalidEndpoint("user", "is empty");
    if (absl::StrContains(endpoint.user, ":")) {
      return InvalidEndpoint("password", "must not be in the URL; use password_file");
    }
    place.remove_prefix(at + 1);
  }
  const std::pair<absl::string_view, absl::string_view> path = absl::StrSplit(place, absl::MaxSplits('/', 1));
  if (!path.second.empty() && path.second != "0") return InvalidEndpoint("database", "must be 0");
  for (const absl::string_view part : absl::StrSplit(path.first, ',')) {
    RR_ASSIGN_OR_RETURN(auto address, AddressOf(part));
    endpoint.seeds.push_back(std::move(address));
  }
  for (const absl::string_view option : absl::StrSplit(query.second, '&', absl::SkipEmpty())) {
    RR_RETURN_IF_ERROR(SetOption(option, endpoint));
  }
  RR_RETURN_IF_ERROR(CheckOptions(endpoint));
  return endpoint;
}

absl::StatusOr<std::string> ReadRedisPassword(const RedisEndpoint& endpoint) {
  if (endpoint.password_file.empty()) return std::string();
  std::ifstream file(endpoint.password_file, std::ios::binary);
  std::string password(kMaxPasswordBytes + 1, '\0');
  file.read(password.data(), static_cast<std::streamsize>(password.size()));
  password.resize(static_cast<size_t>(file.gcount()));
  absl::string_view line = password;
  if (absl::ConsumeSuffix(&line, "\n")) absl::ConsumeSuffix(&line, "\r");
  if (!line.empty() && password.size() <= kMaxPasswordBytes) return std::string(line);
  return MakeError(absl::StatusCode::kPermissionDenied,
                   absl::StrCat("redis store: password_file: ", endpoint.password_file,
                                line.empty() ? " cannot be read or is empty" : " is too long"),
                   {.reason = Reason::kField, .field = "password_file"});
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
  const auto add_text = [&] {
    texts_.push_back(std::exchange(text, {}));
    pieces_.push_back(texts_.back());
  };
  for (size_t i = 0; i < command.size(); ++i) {
    const RedisCommand::Pieces pieces = command.pieces(i);
    absl::StrAppend(&text, "$", BytesOf(pieces), "\r\n");
    for (const absl::string_view piece : pieces) {
      if (piece.size() < kReferencedBytes) {
        absl::StrAppend(&text, piece);
      } else {
        add_text();
        pieces_.push_back(piece);
      }
    }
    absl::StrAppend(&text, "\r\n");
  }
  add_text();
}

std::vector<iovec> RedisCommandQueue::Pending(size_t limit) const {
  std::vector<iovec> pending;
  for (size_t i = 0; i < std::min(limit, pieces_.size()); ++i) {
    pending.push_back({const_cast<char*>(pieces_[i].data()), pieces_[i].size()});
  }
  return pending;
}

void RedisCommandQueue::Advance(size_t bytes) {
  while (!pieces_.empty() && bytes >= pieces_.front().size()) {
    bytes -= pieces_.front().size();
    pieces_.pop_front();
  }
  if (bytes > 0) pieces_.front().remove_prefix(bytes);
}

absl::Status RedisReplyParser::Feed(absl::string_view bytes) {
  buffer_.erase(0, std::exchange(at_, 0));
  if (bytes.size() > max_reply_bytes_ - buffer_.size()) {
    return Broken(absl::StrCat("a reply above the limit of ", max_reply_bytes_, " bytes"));
  }
  buffer_.append(bytes.data(), bytes.size());
  return absl::OkStatus();
}

// If a reply is incomplete, it is parsed again from its beginning when more bytes arrive. That is cheap: a large value
// is one step, and the arrays that the store requests arrive in one or two reads.
absl::StatusOr<std::optional<RedisReply>> RedisReplyParser::Next() {
  RedisReply reply;
  size_t at = at_;
  RR_ASSIGN_OR_RETURN(const bool whole, Parse(0, at, reply));
  if (!whole) return std::nullopt;
  at_ = at;
  return std::optional(std::move(reply));
}

absl::StatusOr<bool> RedisReplyParser::Parse(size_t depth, size_t& at, RedisReply& reply) {
  const size_t end = buffer_.find("\r\n", at);
  if (std::min(end, buffer_.size()) - at > kLongestLine) return Broken("a line that is too long");
  if (end == std::string::npos) return false;
  const absl::string_view line = absl::string_view(buffer_).substr(at, end - at);
  if (line.empty()) return Broken("an empty line");
  at = end + 2;
  const absl::string_view rest = line.substr(1);
  switch (line[0]) {
    case '+':
    case '-':
      reply = {.type = line[0] == '+' ? Type::kStatus : Type::kError, .text = std::string(rest)};
      return true;
    case ':':
      reply.type = Type::kInteger;
      if (!absl::SimpleAtoi(rest, &reply.integer)) return Broken("an integer that is not a number");
      return true;
    case '$':
    case '*':
      break;
    default:
      return Broken("a reply of an unknown type");
  }
  const std::optional<int64_t> size = ParseSize(rest);
  if (!size) return Broken("a length that is not a number");
  if (*size < 0) return true;
  if (line[0] == '$') return ParseValue(static_cast<size_t>(*size), at, reply);
  if (depth == kMostArrays) return Broken(absl::StrCat("arrays nested more than ", kMostArrays, " deep"));
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
  if (buffer_.compare(at + size, 2, "\r\n") != 0) return Broken("a value that is not followed by a line break");
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
