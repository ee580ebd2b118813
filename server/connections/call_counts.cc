#include "server/connections/call_counts.h"

#include <grpc/grpc.h>
#include <grpc/support/alloc.h>

#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"

namespace routing_replay::server {
namespace {

// Channelz answers in JSON. It is searched, not parsed: under attack every allocation waits for those of the attacker's
// calls. Names in it are gRPC's and peers' addresses, so nothing in them looks like a key.
class Answer {
 public:
  explicit Answer(char* json) : json_(json) {}  // Null: gRPC knows nothing of what was asked for.

  // What follows `key` (with its quotes and colon) up to the next quote; empty where it does not come any more. The
  // next search begins behind it.
  absl::string_view Next(absl::string_view key) {
    const size_t found = rest_.find(key);
    if (found == absl::string_view::npos) return {};
    rest_.remove_prefix(found + key.size());
    return rest_.substr(0, rest_.find('"'));
  }
  // The same from the beginning; 0 where it is left out, as numbers are that are 0.
  int64_t Number(absl::string_view key) {
    rest_ = json_ == nullptr ? "" : json_.get();
    int64_t number = 0;
    return absl::SimpleAtoi(Next(key), &number) ? number : 0;
  }
  bool Has(absl::string_view text) const {
    return json_ != nullptr && absl::string_view(json_.get()).find(text) != absl::string_view::npos;
  }

 private:
  struct Free {
    void operator()(char* text) const { gpr_free(text); }
  };
  const std::unique_ptr<char, Free> json_;
  absl::string_view rest_ = json_ == nullptr ? "" : json_.get();
};

constexpr char kEnd[] = "\"end\":true";

int64_t ToNumber(absl::string_view text) {
  int64_t number = 0;
  return absl::SimpleAtoi(text, &number) ? number : 0;
}

}  // namespace

std::optional<CallCounts> CallCountReader::Of(const std::string& peer) {
  auto found = sockets_.find(peer);
  if (found == sockets_.end() && !listed_) FindSockets();
  if (found == sockets_.end()) found = sockets_.find(peer);
  if (found == sockets_.end()) return std::nullopt;
  Answer socket(grpc_channelz_get_socket(found->second));
  return CallCounts{.begun = socket.Number("\"streamsStarted\":\""), .done = socket.Number("\"streamsSucceeded\":\"")};
}

void CallCountReader::FindSockets() {
  listed_ = true;
  sockets_.clear();
  int64_t server = 0;
  for (bool end = false; !end;) {
    Answer servers(grpc_channelz_get_servers(server));
    const int64_t asked = server;
    for (auto id = servers.Next("\"serverId\":\""); !id.empty(); id = servers.Next("\"serverId\":\"")) {
      server = ToNumber(id) + 1;
      FindSocketsOf(server - 1);
    }
    end = server == asked || servers.Has(kEnd);
  }
}

void CallCountReader::FindSocketsOf(int64_t server) {
  int64_t next = 0;
  for (bool end = false; !end;) {
    Answer page(grpc_channelz_get_server_sockets(server, next, 0));
    const int64_t asked = next;
    // {"name":"chttp2 ipv4:127.0.0.1:1234","socketId":"7"}
    for (auto name = page.Next("\"name\":\"chttp2 "); !name.empty(); name = page.Next("\"name\":\"chttp2 ")) {
      const int64_t id = ToNumber(page.Next("\"socketId\":\""));
      sockets_[std::string(name)] = id;
      next = id + 1;
    }
    end = next == asked || page.Has(kEnd);
  }
}

}  // namespace routing_replay::server
