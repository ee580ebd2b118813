#include "server/admission/connection_calls.h"

#include <vector>

#include "routing_replay/wire/error_detail.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::server {
namespace {

TEST(ConnectionCallsTest, EachConnectionHasTwiceItsCalls) {
  ConnectionCalls calls(2);
  std::vector<std::unique_ptr<ConnectionCalls::Place>> places;
  const auto enter = [&](const char* peer) {
    auto place = calls.Enter(peer);
    if (place.ok()) places.push_back(*std::move(place));
    return place.status();
  };
  for (int i = 0; i < 4; ++i) EXPECT_OK(enter("ipv4:10.0.0.1:1"));
  const absl::Status refused = enter("ipv4:10.0.0.1:1");
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetail(refused)->field, "max-streams");
  EXPECT_OK(enter("ipv4:10.0.0.1:2"));
  places.erase(places.begin());
  EXPECT_OK(enter("ipv4:10.0.0.1:1"));
}

TEST(ConnectionCallsTest, UnixSocketsAreNotCounted) {
  ConnectionCalls calls(1);
  std::vector<std::unique_ptr<ConnectionCalls::Place>> places;
  for (int i = 0; i < 3; ++i) {
    auto place = calls.Enter("unix:");
    ASSERT_OK(place);
    places.push_back(*std::move(place));
  }
}

}  // namespace
}  // namespace routing_replay::server
