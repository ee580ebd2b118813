// Attacks on the direct listeners of a real server, with and without a ticket, while another client appends.
#include <sys/un.h>

#include <cstring>
#include <deque>
#include <random>

#include "proto/wire/message/append_message.h"
#include "proto/wire/message/frame.h"
#include "proto/wire/message/read_message.h"
#include "tests/security/attack_fixture.h"
#include "tests/security/raw_socket.h"

namespace routing_replay::testing {
namespace {

std::string FrameOf(FrameType type, const std::string& header, size_t payload = 0) {
  return EncodeFrame(type, header.size(), payload) + header;
}

std::string CallOf(const std::string& method, const std::string& ticket) {
  v1::DirectCall call;
  call.set_method(method);
  call.set_ticket(ticket);
  return FrameOf(FrameType::kCall, call.SerializeAsString());
}

class DirectAttackTest : public AttackTest {
 protected:
  v1::OpenDirectResponse OpenDirect() {
    v1::OpenDirectResponse direct;
    EXPECT_TRUE(stub_->OpenDirect(NewCall("attacker").get(), {}, &direct).ok());
    EXPECT_FALSE(direct.ticket().empty());
    return direct;
  }

  // A connection to the TCP port, or to the Unix socket; -1 if there is none.
  static int Connect(const v1::OpenDirectResponse& direct, bool over_unix) {
    if (!over_unix) {
      const int fd = socket(AF_INET, SOCK_STREAM, 0);
      const sockaddr_in to = LoopbackAddress(static_cast<int>(direct.port()));
      if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0) return fd;
      close(fd);
      return -1;
    }
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    memcpy(to.sun_path + 1, direct.unix_socket().data(), direct.unix_socket().size());
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + direct.unix_socket().size());
    if (connect(fd, reinterpret_cast<const sockaddr*>(&to), size) == 0) return fd;
    close(fd);
    return -1;
  }

  // The bytes that one attacker sends before it closes the connection, resets it or goes silent.
  std::string Attack(const std::string& ticket) {
    const std::string append = CallOf("Append", ticket);
    const std::string read = CallOf("Read", ticket);
    const std::string wish =
        FrameOf(FrameType::kMessage, EncodeAppendRequest({.run = "run", .want_bytes = kMiB << 10}, 0));
    switch (random_() % 13) {
      case 0:
        return "";
      case 1:
        return "GET / HTTP/1.1\r\n\r\n";
      case 12:
        return std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);  // A ClientHello of 512 bytes.
      case 2:
        return EncodeFrame(FrameType::kCall, 0xFFFFFFFF, 0);
      case 3:
        return EncodeFrame(FrameType::kCall, 20, size_t{1} << 60);
      case 4:
        return append.substr(0, random_() % append.size());
      case 5:
        return CallOf("Append", std::string(16, 'x')) + wish;
      case 6:
        return append + EncodeFrame(FrameType::kMessage, 0, size_t{1} << 40);
      case 7:
        return append + wish;
      case 8:
        return append + EncodeFrame(FrameType::kMessage, 100, 30'000) + std::string(100 + random_() % 30'000, '\x08');
      case 9:
        return append + EncodeFrame(FrameType::kMessage, 0xFFFFFF, 0) + std::string(30'000, '\x0a');
      case 10:
        return read + FrameOf(FrameType::kMessage,
                              EncodeReadRequest({.run = "run", .samples = {{.sample = "s"}}, .wait = true}));
      default: {
        std::string noise(random_() % 200, '\0');
        for (char& byte : noise) byte = static_cast<char>(random_());
        return append + noise;
      }
    }
  }

  // Opens connections, the last 200 of which stay open.
  void AttackWith(int connections, bool over_unix) {
    std::deque<int> open;
    v1::OpenDirectResponse direct = OpenDirect();
    for (int i = 0; i < connections; ++i) {
      const int fd = Connect(direct, over_unix);
      ASSERT_GE(fd, 0) << i << ": " << strerror(errno);
      const std::string bytes = Attack(direct.ticket());
      send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      const linger reset{1, 0};
      if (random_() % 3 == 0) setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
      open.push_back(fd);
      if (open.size() <= 200) continue;
      close(open.front());
      open.pop_front();
    }
    for (const int fd : open) close(fd);
  }

  int Descriptors() const {
    const std::filesystem::directory_iterator all(absl::StrCat("/proc/", server_->pid(), "/fd"));
    return static_cast<int>(std::distance(begin(all), end(all)));
  }

  std::mt19937 random_{1};
};

// With TLS, what the attackers send is no TLS handshake, or only the beginning of one.
TEST_F(DirectAttackTest, ConnectionsThatLieStallAndFlood) {
  for (const bool encrypted : {false, true}) {
    Start({"--stall-timeout", "3s"}, encrypted);
    Bystander bystander(*server_);
    bystander.Await(1);
    const int before = Descriptors();
    AttackWith(4000, /*over_unix=*/false);
    if (!encrypted) AttackWith(4000, /*over_unix=*/true);
    bystander.Await(50);
    EXPECT_LT(PeakMemory(), kBound);
    Await([&] { return Descriptors() <= before; });
  }
}

}  // namespace
}  // namespace routing_replay::testing
