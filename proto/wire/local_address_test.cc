#include "proto/wire/local_address.h"

namespace routing_replay {
namespace {

TEST(LocalAddressTest, LoopbackAndSocketsAreHere) {
  for (const char* here :
       {"127.0.0.1:7400", "127.8.9.1:0", "[::1]:7400", "localhost:1", "LOCALHOST:1", "unix:/run/rr", "unix:rr.sock"}) {
    EXPECT_TRUE(IsLocalAddress(here)) << here;
  }
}

TEST(LocalAddressTest, AllElseIsElsewhere) {
  for (const char* there :
       {"0.0.0.0:7400", "[::]:7400", "10.0.0.1:7400", "[fe80::1]:7400", "server:7400", "localhost.example.org:7400",
        "127.0.0.1.example.org:7400", "127.0.0.1", "128.0.0.1:1", "", ":7400", "[::ffff:10.0.0.1]:1", "unixes:1"}) {
    EXPECT_FALSE(IsLocalAddress(there)) << there;
  }
}

}  // namespace
}  // namespace routing_replay
