#include "client/channel/client_security.h"

#include <cstdlib>
#include <fstream>

#include "tests/support/scratch_directory.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::client {
namespace {

using testing::Fails;

// Well-formed PEM whose content is not a certificate, only DER: an empty SEQUENCE, and a SEQUENCE of one NULL.
constexpr char kPem[] = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
constexpr char kOtherPem[] = "# who\n-----BEGIN CERTIFICATE-----\nMAIF\nAA==\n-----END CERTIFICATE-----\n";

class ClientSecurityTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(directory_.path() + "/" + name) << text;
    return directory_.path() + "/" + name;
  }
  static std::shared_ptr<ClientSecurity> Make(SecuritySettings settings) {
    auto made = ClientSecurity::Create(std::move(settings));
    EXPECT_OK(made);
    return *std::move(made);
  }
  static void ExpectInvalid(const absl::Status& status, const std::string& field) {
    EXPECT_THAT(status, Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
    EXPECT_EQ(GetErrorDetail(status)->field, field);
  }

  testing::ScratchDirectory directory_;
};

TEST_F(ClientSecurityTest, PlaintextWithoutSettings) {
  const auto security = Make({});
  EXPECT_EQ(*security->KeysFor("dns:///server:7400"), ChannelKeys());
  EXPECT_EQ(*security->Authorization(), "");
}

TEST_F(ClientSecurityTest, AnyOfTheSettingsEncrypts) {
  const std::string ca = Write("ca", kPem), cert = Write("cert", "CERT"), key = Write("key", "KEY");
  EXPECT_EQ(*Make({.tls = true})->KeysFor("dns:///a:1"), ChannelKeys{.encrypted = true});
  EXPECT_EQ(*Make({.cacert = ca, .server_name = "b"})->KeysFor("dns:///a:1"),
            (ChannelKeys{.encrypted = true, .root_certificates = kPem, .server_name = "b"}));
  const auto mutual = Make({.cert = cert, .key = key});
  EXPECT_EQ(*mutual->KeysFor("dns:///a:1"), (ChannelKeys{.encrypted = true, .certificate = "CERT", .key = "KEY"}));
  EXPECT_EQ(*mutual->KeysFor("unix:/run/rr.sock"), ChannelKeys());
  Write("cert", "CERT 2");
  EXPECT_EQ(mutual->KeysFor("dns:///a:1")->certificate, "CERT 2");
}

TEST_F(ClientSecurityTest, TheEnvironmentIsAskedLast) {
  const std::string ca = Write("ca", kPem), other = Write("other", kOtherPem), token = Write("token", "t\n");
  ::setenv("ROUTING_REPLAY_CACERT", ca.c_str(), 1);
  ::setenv("ROUTING_REPLAY_TOKEN_FILE", token.c_str(), 1);
  EXPECT_EQ(Make({})->KeysFor("dns:///a:1")->root_certificates, kPem);
  EXPECT_EQ(*Make({})->Authorization(), "Bearer t");
  EXPECT_EQ(Make({.cacert = other})->KeysFor("dns:///a:1")->root_certificates, kOtherPem);
  ::unsetenv("ROUTING_REPLAY_CACERT");
  ::unsetenv("ROUTING_REPLAY_TOKEN_FILE");
  for (const auto& [value, encrypted] : {std::pair("1", true), {"true", true}, {"0", false}, {"", false}}) {
    ::setenv("ROUTING_REPLAY_TLS", value, 1);
    EXPECT_EQ(Make({})->KeysFor("dns:///a:1")->encrypted, encrypted) << value;
  }
  ::unsetenv("ROUTING_REPLAY_TLS");
}

TEST_F(ClientSecurityTest, ATokenNeverGoesElsewhereInPlaintext) {
  const std::string ca = Write("ca", kPem), token = Write("token", "secret\n");
  const auto plain = Make({.token_file = token});
  for (const char* here : {"dns:///127.0.0.1:1", "dns:///localhost:1", "dns:///%5B::1%5D:1", "unix:/run/rr.sock"}) {
    EXPECT_EQ(*plain->KeysFor(here), ChannelKeys()) << here;
  }
  for (const char* there : {"dns:///10.0.0.1:1", "dns:///server:1"}) {
    const auto keys = plain->KeysFor(there);
    ExpectInvalid(keys.status(), "token_file");
    EXPECT_EQ(keys.status().message().find("secret"), absl::string_view::npos);
    EXPECT_OK(Make({.cacert = ca, .token_file = token})->KeysFor(there));
  }
}

// A cacert file without a whole certificate is an error: gRPC would take an empty text for the system's certificate
// authorities, and so trust all of them.
TEST_F(ClientSecurityTest, ANamedAuthorityIsThere) {
  const std::string half = std::string(kPem).substr(0, 40);
  for (const std::string& text : {std::string(), std::string("# soon\n"), half, kPem + half}) {
    const std::string ca = Write("ca", text);
    const auto keys = Make({.tls = true, .cacert = ca})->KeysFor("dns:///a:1");
    ExpectInvalid(keys.status(), "cacert");
    EXPECT_THAT(keys.status().message(), ::testing::HasSubstr(ca));
  }
  EXPECT_OK(Make({.cacert = Write("ca", std::string(kPem) + kOtherPem)})->KeysFor("dns:///a:1"));
}

TEST_F(ClientSecurityTest, FaultsNameTheSetting) {
  ExpectInvalid(ClientSecurity::Create({.cert = "c"}).status(), "key");
  ExpectInvalid(ClientSecurity::Create({.key = "k"}).status(), "cert");
  ExpectInvalid(Make({.cacert = "/does/not/exist"})->KeysFor("dns:///a:1").status(), "cacert");
  const auto missing = Make({.token_file = "/does/not/exist"});
  for (int i = 0; i < 2; ++i) ExpectInvalid(missing->Authorization().status(), "token_file");
  for (const char* bad : {"", "\n", "two words\n", "t\x01\n"}) {
    ExpectInvalid(Make({.token_file = Write("bad", bad)})->Authorization().status(), "token_file");
  }
}

TEST_F(ClientSecurityTest, AReplacedTokenIsTriedAgain) {
  const auto security = Make({.token_file = Write("token", "one\nnot looked at\n")});
  const std::string first = *security->Authorization();
  EXPECT_EQ(first, "Bearer one");
  const absl::Status rejected = absl::UnauthenticatedError("no");
  EXPECT_EQ(security->Judge(first, rejected), rejected);
  Write("token", "two\n");
  EXPECT_EQ(*security->Authorization(), "Bearer two");
  EXPECT_TRUE(absl::IsUnavailable(security->Judge(first, rejected)));
  EXPECT_EQ(security->Judge("Bearer two", rejected), rejected);
  EXPECT_OK(security->Judge(first, absl::OkStatus()));
  EXPECT_EQ(security->Judge(first, absl::NotFoundError("x")), absl::NotFoundError("x"));
}

}  // namespace
}  // namespace routing_replay::client
