#include "tests/support/redis/scripted_server.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/store/redis/client/redis_cluster.h"
#include "server/store/redis/client/redis_protocol.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

constexpr size_t kMaxCommand = size_t{64} << 20;
const char* const kEmptyArray = "*0\r\n";

}  // namespace

ScriptedServer::ScriptedServer(Handler handler) : handler_(std::move(handler)) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener_, generic, size) == 0 && listen(listener_, 16) == 0 &&
      getsockname(listener_, generic, &size) == 0) {
    port_ = ntohs(address.sin_port);
  }
  accepting_ = std::thread([this] { Accept(); });
}

ScriptedServer::~ScriptedServer() {
  eventfd_write(stop_, 1);
  accepting_.join();
  std::vector<std::thread> threads;
  {
    const MutexLock lock(mutex_);
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
  close(stop_);
  close(listener_);
}

std::vector<ScriptedServer::Command> ScriptedServer::commands() const {
  const MutexLock lock(mutex_);
  return commands_;
}

int ScriptedServer::connections() const {
  const MutexLock lock(mutex_);
  return static_cast<int>(threads_.size());
}

void ScriptedServer::SetHandler(Handler handler) {
  const MutexLock lock(mutex_);
  handler_ = std::move(handler);
}

void ScriptedServer::Accept() {
  while (true) {
    pollfd sockets[] = {{listener_, POLLIN, 0}, {stop_, POLLIN, 0}};
    poll(sockets, 2, -1);
    if (sockets[1].revents != 0) return;
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    const MutexLock lock(mutex_);
    threads_.emplace_back([this, fd] { Serve(fd); });
  }
}

ScriptedServer::Answer ScriptedServer::Handle(Command command) {
  Handler handler;
  {
    const MutexLock lock(mutex_);
    commands_.push_back(command);
    handler = handler_;
  }
  return handler(command);
}

// Commands have the form of replies (arrays of bulk strings), so the parser for replies can read them.
void ScriptedServer::Serve(int fd) {
  RedisReplyParser parser(kMaxCommand);
  std::vector<char> buffer(1 << 16);
  bool open = true;
  while (open) {
    pollfd sockets[] = {{fd, POLLIN, 0}, {stop_, POLLIN, 0}};
    poll(sockets, 2, -1);
    if (sockets[1].revents != 0) break;
    const ssize_t got = recv(fd, buffer.data(), buffer.size(), 0);
    if (got <= 0 || !parser.Feed({buffer.data(), static_cast<size_t>(got)}).ok()) break;
    while (open) {
      auto request = parser.Next();
      if (!request.ok() || !request->has_value()) break;
      Command command;
      for (RedisReply& word : (*request)->elements) command.push_back(std::move(word.text));
      const Answer answer = Handle(std::move(command));
      const bool sent = send(fd, answer.bytes.data(), answer.bytes.size(), MSG_NOSIGNAL) >= 0;
      open = sent && !answer.close;
    }
  }
  close(fd);
}

ScriptedServer::Handler SingleServer(ScriptedServer::Handler handler) {
  return [handler](const ScriptedServer::Command& command) -> ScriptedServer::Answer {
    if (command[0] == "HELLO") return {kEmptyArray};
    if (command[0] == "CLUSTER") return {"-ERR This instance has cluster support disabled\r\n"};
    return handler(command);
  };
}

ScriptedServer::Handler ClusterOf(std::vector<RedisAddress> masters, ScriptedServer::Handler handler) {
  return [masters, handler](const ScriptedServer::Command& command) -> ScriptedServer::Answer {
    if (command[0] == "HELLO") return {kEmptyArray};
    if (command[0] != "CLUSTER") return handler(command);
    std::string slots = absl::StrCat("*", masters.size(), "\r\n");
    const size_t share = kRedisSlots / masters.size();
    for (size_t i = 0; i < masters.size(); ++i) {
      const size_t end = i + 1 == masters.size() ? kRedisSlots : share * (i + 1);
      absl::StrAppend(&slots, "*3\r\n:", share * i, "\r\n:", end - 1, "\r\n*3\r\n", Bulk(masters[i].host), ":",
                      masters[i].port, "\r\n", Bulk("id"));
    }
    return {slots};
  };
}

std::string Bulk(const std::string& text) { return absl::StrCat("$", text.size(), "\r\n", text, "\r\n"); }

}  // namespace routing_replay::testing
