#include "server/store/redis/client/redis_protocol.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "tests/support/status_matchers.h"

namespace routing_replay::server {
namespace {

using routing_replay::testing::Fails;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(RedisEndpointTest, AllParts) {
  ASSERT_OK_AND_ASSIGN(const RedisEndpoint endpoint,
                       ParseRedisEndpoint("rediss://me@a.example:7000,10.0.0.1,[::1]:7001,[fe80::1]/0?password_file=/"
                                          "p w&ca_file=/ca&cert_file=/c&key_file=/k"));
  EXPECT_TRUE(endpoint.tls);
  EXPECT_THAT(endpoint.seeds, ElementsAre(RedisAddress{"a.example", 7000}, RedisAddress{"10.0.0.1", 6379},
                                          RedisAddress{"::1", 7001}, RedisAddress{"fe80::1", 6379}));
  EXPECT_EQ(endpoint.user, "me");
  EXPECT_EQ(endpoint.password_file, "/p w");
  EXPECT_EQ(endpoint.ca_file, "/ca");
  EXPECT_EQ(endpoint.cert_file, "/c");
  EXPECT_EQ(endpoint.key_file, "/k");
  EXPECT_EQ(endpoint.seeds[2].ToString(), "[::1]:7001");
}

TEST(RedisEndpointTest, ShortestForm) {
  ASSERT_OK_AND_ASSIGN(const RedisEndpoint endpoint, ParseRedisEndpoint("redis://h"));
  EXPECT_FALSE(endpoint.tls);
  EXPECT_THAT(endpoint.seeds, ElementsAre(RedisAddress{"h", 6379}));
  EXPECT_EQ(ReadRedisPassword(endpoint).value(), "");
  EXPECT_OK(ParseRedisEndpoint("redis://h/"));
  EXPECT_EQ(endpoint.prefix, "");
  EXPECT_EQ(ParseRedisEndpoint("redis://h?prefix=team/a").value().prefix, "team/a");
}

TEST(RedisEndpointTest, ErrorsNameTheField) {
  const std::pair<const char*, const char*> cases[] = {
      {"http://h", "scheme"},
      {"redis://", "host"},
      {"redis://h,", "host"},
      {"redis://::1", "host"},
      {"redis://[::1", "host"},
      {"redis://[::1]x", "host"},
      {"redis://h:0", "port"},
      {"redis://h:65536", "port"},
      {"redis://h:+5", "port"},
      {"redis://h:", "port"},
      {"redis://h:80 ", "port"},
      {"redis://h/1", "database"},
      {"redis://@h", "user"},
      {"redis://me@h", "password_file"},
      {"redis://me:hunter2@h", "password"},
      {"redis://h?password=hunter2", "password"},
      {"redis://h?hunter2", "option"},
      {"redis://h?ca_file=/x", "ca_file"},
      {"redis://h?password_file=", "password_file"},
      {"redis://h?prefix=a{b", "prefix"},
      {"redis://h?prefix=a b", "prefix"},
      {"redis://h?password_file=a&password_file=b", "password_file"},
      {"rediss://h?cert_file=/x", "key_file"},
      {"rediss://h?key_file=/x", "cert_file"},
  };
  for (const auto& [url, field] : cases) {
    const auto endpoint = ParseRedisEndpoint(url);
    ASSERT_THAT(endpoint, Fails(absl::StatusCode::kInvalidArgument, Reason::kField)) << url;
    EXPECT_EQ(GetErrorDetail(endpoint.status())->field, field) << url;
    EXPECT_THAT(std::string(endpoint.status().message()), Not(HasSubstr("hunter2"))) << url;
  }
}

TEST(RedisEndpointTest, PasswordFile) {
  RedisEndpoint endpoint{.password_file = "/tmp/routing-replay-password." + std::to_string(getpid())};
  const auto write = [&](const std::string& text) { std::ofstream(endpoint.password_file) << text; };
  EXPECT_THAT(ReadRedisPassword(endpoint), Fails(absl::StatusCode::kPermissionDenied, Reason::kField));
  for (const char* text : {" p w ", " p w \n", " p w \r\n"}) {
    write(text);
    EXPECT_EQ(ReadRedisPassword(endpoint).value(), " p w ");
  }
  for (const std::string& text : {std::string("\n"), std::string(), std::string(5000, 'x')}) {
    write(text);
    EXPECT_THAT(ReadRedisPassword(endpoint), Fails(absl::StatusCode::kPermissionDenied, Reason::kField));
  }
  std::remove(endpoint.password_file.c_str());
}

}  // namespace
}  // namespace routing_replay::server
