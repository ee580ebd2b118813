#include "server/config/config.h"

#include <cstdlib>
#include <fstream>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_certificates.h"

namespace routing_replay::server {
namespace {

absl::StatusOr<ServerConfig> Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "routing-replay-server");
  return ParseServerConfig(static_cast<int>(arguments.size()), arguments.data());
}

std::string FileWith(const std::string& text) {
  std::string path = ::testing::TempDir() + "/config_test.yaml";
  std::ofstream(path) << text;
  return path;
}

TEST(ConfigTest, UnitsAndLists) {
  ASSERT_OK_AND_ASSIGN(const ServerConfig c, Parse({"--memory-budget", "256MiB", "--drain-timeout=90s", "--listen",
                                                    "127.0.0.1:0", "[::1]:7401", "--insecure=true"}));
  EXPECT_EQ(c.memory_budget, 256 << 20);
  EXPECT_EQ(c.drain_timeout, std::chrono::seconds(90));
  EXPECT_THAT(c.listen, ::testing::ElementsAre("127.0.0.1:0", "[::1]:7401"));
  EXPECT_TRUE(c.insecure);
}

TEST(ConfigTest, FlagBeatsVariableBeatsFile) {
  const std::string path = FileWith("memory-budget: 1GiB\nthreads: 3\nlisten: [\"127.0.0.1:1\", \"127.0.0.1:2\"]\n");
  setenv("RR_THREADS", "5", 1);
  auto c = Parse({"--config", path.c_str()});
  ASSERT_OK(c);
  EXPECT_EQ(c->memory_budget, 1 << 30);
  EXPECT_EQ(c->threads, 5);
  EXPECT_EQ(c->listen.size(), 2u);
  c = Parse({"--config", path.c_str(), "--threads", "7", "--listen", "127.0.0.1:9"});
  unsetenv("RR_THREADS");
  ASSERT_OK(c);
  EXPECT_EQ(c->threads, 7);
  EXPECT_THAT(c->listen, ::testing::ElementsAre("127.0.0.1:9"));
}

TEST(ConfigTest, VariablesThatAreNoSettingsAreToldAndIgnored) {
  setenv("RR_MEMORY_BUGDET", "1GiB", 1);
  setenv("RR_PORT", "tcp://10.0.0.1:7400", 1);
  setenv("RR_THREADS", "5", 1);
  const auto c = Parse({});
  for (const char* name : {"RR_MEMORY_BUGDET", "RR_PORT", "RR_THREADS"}) unsetenv(name);
  ASSERT_OK(c);
  EXPECT_EQ(c->memory_budget, ServerConfig().memory_budget);
  using ::testing::Contains, ::testing::HasSubstr, ::testing::Not;
  EXPECT_THAT(c->warnings, Contains("ignored variable: there is no setting 'RR_MEMORY_BUGDET'"));
  EXPECT_THAT(c->warnings, Contains(HasSubstr("'RR_PORT'")));
  EXPECT_THAT(c->warnings, Not(Contains(HasSubstr("RR_THREADS'"))));
}

TEST(ConfigTest, PrintedYamlReadsBack) {
  ASSERT_OK_AND_ASSIGN(const ServerConfig c,
                       Parse({"--threads", "9", "--drain-delay", "1500ms", "--memory-budget", "3MiB",
                              "--spill-directory", "/var/spill", "--spill-budget", "5GiB"}));
  const std::string path = FileWith(ToYaml(c));
  ASSERT_OK_AND_ASSIGN(const ServerConfig again, Parse({"--config", path.c_str()}));
  EXPECT_EQ(ToYaml(again), ToYaml(c));
}

TEST(ConfigTest, FaultsNameTheKey) {
  for (const auto& [arguments, word] : std::vector<std::pair<std::vector<const char*>, std::string>>{
           {{"--memory-budget", "12parsecs"}, "memory-budget"},
           {{"--no-such-flag"}, "no-such-flag"},
           {{"--store", "tape"}, "tape"},
           {{"--store", "rocksdb:"}, "--store"},
           {{"--store", "redis://"}, "--store"},
           {{"--store", "redis://user:password@host"}, "--store"},
           {{"--durability", "maybe"}, "maybe"},
           {{"--durability", "written"}, "--durability"},
           {{"--store", "rocksdb:/tmp/x", "--spill-directory", "/tmp/y"}, "--spill-directory"},
           {{"--spill-budget", "0"}, "spill-budget"},
           {{"--threads", "0"}, "threads"},
           {{"--listen", "7400"}, "--listen"},
           {{"--listen", "host:65536"}, "host:65536"},
           {{"--direct-listen", "unix:/tmp/x"}, "--direct-listen: 'unix:/tmp/x' is not host:port"},
           {{"--direct-listen", "0.0.0.0:7403"}, "--direct-listen: '0.0.0.0:7403' can be reached"},
           {{"--memory-budget", "0"}, "memory-budget"},
           {{"--drain-delay", "9223372036854775807ms"}, "drain-delay"},
           {{"--listen", "0.0.0.0:7400"}, "'0.0.0.0:7400' can be reached"},
           {{"--listen", "127.0.0.1:1", "[::]:1"}, "--insecure"},
           {{"--tls-cert", "/does/not/exist"}, "--tls-key: must be given with --tls-cert"},
           {{"--tls-key", "/does/not/exist"}, "--tls-cert: must be given with the other TLS settings"},
           {{"--tls-client-ca", "/does/not/exist"}, "--tls-cert: must be given with the other TLS settings"},
           {{"--tls-cert", "/does/not/exist", "--tls-key", "/x"}, "--tls-cert: cannot read /does/not/exist"},
           {{"--token-file", "/does/not/exist"}, "--token-file: cannot read /does/not/exist"},
           {{"--token-file", "README.md"}, "--token-file: README.md: "},
           {{"--operations-listen", "0.0.0.0:7401"}, "--operations-listen: '0.0.0.0:7401' can be reached"},
           {{"--operations-listen", "unix:/tmp/x"}, "--operations-listen: 'unix:/tmp/x' is not host:port"},
           {{"--health-listen", "7402"}, "--health-listen: '7402' is not host:port"},
           {{"--config", "/"}, "--config: /"},
           {{"--config", "/does/not/exist"}, "/does/not/exist"}}) {
    const auto c = Parse(arguments);
    EXPECT_EQ(c.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(c.status().message()), ::testing::HasSubstr(word));
  }
  const std::string path = FileWith("memory_budget: 1MiB\n");
  EXPECT_THAT(std::string(Parse({"--config", path.c_str()}).status().message()), ::testing::HasSubstr("memory_budget"));
}

// Values that can be parsed but make no sense are rejected with the setting, the value and the allowed range.
TEST(ConfigTest, SenselessValuesAreRejected) {
  for (const auto& [flag, value, why] : std::vector<std::tuple<const char*, const char*, std::string>>{
           {"--memory-budget", "1KiB", "Value 1024 not in range 1048576 to 1152921504606846976"},
           {"--spill-budget", "1023KiB", "Value 1047552 not in range 1048576 to "},
           {"--run-budget", "1", "Value 1 not in range 4096 to "},
           {"--memory-budget", "99999999999999999999", " not in range 1048576 to "},
           {"--drain-delay", "721h", "Value 2595600000 not in range 0 to 2592000000"},
           {"--max-connection-age", "1ms", "Value 1 not in range 1000 to "}}) {
    const auto c = Parse({flag, value, "--check-config"});
    EXPECT_EQ(c.status().code(), absl::StatusCode::kInvalidArgument) << flag;
    EXPECT_THAT(std::string(c.status().message()), ::testing::StartsWith(absl::StrCat(flag, ": ")));
    EXPECT_THAT(std::string(c.status().message()), ::testing::HasSubstr(why));
  }
  const std::string path = FileWith("memory-budget: 4Gi\n");
  EXPECT_THAT(std::string(Parse({"--config", path.c_str()}).status().message()),
              ::testing::StartsWith("--memory-budget: Gi unit not recognized"));
  EXPECT_OK(Parse({"--run-budget", "0", "--max-connection-age", "0s", "--memory-budget", "4194304"}));
}

TEST(ConfigTest, OtherSpellingsOfQuantitiesAreRejected) {
  for (const auto& [flag, text] :
       {std::pair("--memory-budget", "4Gi"), std::pair("--memory-budget", "4GB"), std::pair("--memory-budget", "4g"),
        std::pair("--memory-budget", "4 Gi"), std::pair("--memory-budget", "1.5GiB"), std::pair("--drain-delay", "10"),
        std::pair("--drain-delay", "1d"), std::pair("--drain-delay", "7 days"), std::pair("--drain-delay", "1.5h"),
        std::pair("--drain-delay", "1m30s")}) {
    EXPECT_THAT(std::string(Parse({flag, text}).status().message()), ::testing::StartsWith(absl::StrCat(flag, ": ")))
        << text;
  }
}

TEST(ConfigTest, WrongNamesAreTold) {
  EXPECT_THAT(std::string(Parse({"--memory-buget=1GiB"}).status().message()), ::testing::HasSubstr("--memory-buget"));
  EXPECT_THAT(std::string(Parse({"serve"}).status().message()), ::testing::HasSubstr("serve"));
  const std::string path = FileWith("memory_budget: 1GiB\n");
  EXPECT_EQ(Parse({"--config", path.c_str()}).status().message(),
            absl::StrCat(path, ": there is no key 'memory_budget'"));
}

TEST(ConfigTest, ZeroIsWrittenAsPeopleWould) {
  const std::string printed = ToYaml(ServerConfig());
  EXPECT_THAT(printed, ::testing::HasSubstr("drain-delay: 0s\n"));
  EXPECT_THAT(printed, ::testing::HasSubstr("run-budget: 0\n"));
  const std::string help(Parse({"--help"}).status().message());
  EXPECT_THAT(help, ::testing::HasSubstr("--drain-delay TIME=0s "));
  EXPECT_THAT(help, ::testing::Not(::testing::HasSubstr("=0h")));
  EXPECT_THAT(help, ::testing::Not(::testing::HasSubstr("=0TiB")));
}

TEST(ConfigTest, PlaintextStaysOnThisMachineUnlessMeant) {
  ASSERT_OK_AND_ASSIGN(const ServerConfig standard, Parse({}));
  EXPECT_THAT(standard.listen, ::testing::ElementsAre("127.0.0.1:7400"));
  EXPECT_OK(Parse({"--listen", "[::1]:0", "localhost:1", "unix:/run/rr.sock"}));
  EXPECT_OK(Parse({"--listen", "0.0.0.0:7400", "--insecure"}));
  const std::string path = FileWith("listen: [\"0.0.0.0:7400\"]\ninsecure: true\n");
  EXPECT_OK(Parse({"--config", path.c_str()}));
  EXPECT_FALSE(Parse({"--config", path.c_str(), "--insecure=false"}).ok());
  setenv("RR_INSECURE", "true", 1);
  EXPECT_OK(Parse({"--listen", "0.0.0.0:7400"}));
  unsetenv("RR_INSECURE");
}

// The address of the direct path, followed by "…" if another port may be used instead; "none" if it is off.
std::string Direct(const std::vector<std::string>& listen, const std::string& direct_listen, const char* cert = "") {
  ServerConfig config;
  config.listen = listen;
  config.direct_listen = direct_listen;
  config.tls.certificate = cert;
  const auto listener = DirectListenerOf(config);
  return listener ? listener->address + (listener->or_any_port ? "…" : "") : "none";
}

TEST(ConfigTest, TheDirectPathIsBesideGrpcUnlessItIsSaid) {
  EXPECT_EQ(Direct({"127.0.0.1:7400"}, ""), "127.0.0.1:7403…");
  EXPECT_EQ(Direct({"unix:/tmp/x", "[::]:7400", "10.0.0.1:80"}, ""), "[::]:7403…");
  EXPECT_EQ(Direct({"127.0.0.1:0"}, ""), "127.0.0.1:0…");
  EXPECT_EQ(Direct({"127.0.0.1:65534"}, ""), "127.0.0.1:0…");
  EXPECT_EQ(Direct({"unix:/tmp/x"}, ""), "");
  EXPECT_EQ(Direct({"unix:/tmp/x"}, "127.0.0.1:9"), "127.0.0.1:9");
  EXPECT_EQ(Direct({"127.0.0.1:7400"}, "off"), "none");
  EXPECT_EQ(Direct({"127.0.0.1:7400"}, "", "server.crt"), "127.0.0.1:7403…");
  EXPECT_EQ(Direct({"unix:/tmp/x"}, "", "server.crt"), "none");
}

TEST(ConfigTest, PortsForOperators) {
  ASSERT_OK_AND_ASSIGN(const ServerConfig c, Parse({"--operations-listen", "127.0.0.1:7401", "--health-listen",
                                                    "127.0.0.1:7402", "--drain-delay", "5s"}));
  EXPECT_EQ(c.operations_listen, "127.0.0.1:7401");
  EXPECT_EQ(c.health_listen, "127.0.0.1:7402");  // Always plaintext: it tells nothing but whether the server is well.
  EXPECT_EQ(c.drain_delay, std::chrono::seconds(5));
  EXPECT_OK(Parse({"--operations-listen", "0.0.0.0:7401", "--insecure"}));
}

TEST(ConfigTest, ACertificateThatHasExpiredIsTold) {
  const testing::ScratchDirectory directory;
  const testing::TestAuthority authority;
  const testing::TestIdentity expired = authority.Issue(testing::kLocalNames, -std::chrono::hours(1));
  const std::string certificate = directory.path() + "/crt", key = directory.path() + "/key";
  std::ofstream(certificate) << expired.certificate;
  std::ofstream(key) << expired.key;
  const auto parse = [&](const char* more) {
    return Parse({"--tls-cert", certificate.c_str(), "--tls-key", key.c_str(), more});
  };
  const auto checked = parse("--check-config");
  EXPECT_EQ(checked.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(checked.status().message()), ::testing::HasSubstr(certificate + " expired at "));
  // Without --check-config it is only a warning, because the certificate may be replaced while the server runs.
  ASSERT_OK_AND_ASSIGN(const ServerConfig started, parse("--insecure=false"));
  EXPECT_THAT(started.warnings, ::testing::ElementsAre(::testing::HasSubstr("expired at ")));
  const testing::TestIdentity good = authority.Issue(testing::kLocalNames);
  std::ofstream(certificate) << good.certificate;
  std::ofstream(key) << good.key;
  ASSERT_OK_AND_ASSIGN(const ServerConfig fine, parse("--check-config"));
  EXPECT_THAT(fine.warnings, ::testing::IsEmpty());
}

TEST(ConfigTest, HelpIsNotAnError) { EXPECT_EQ(Parse({"--help"}).status().code(), absl::StatusCode::kCancelled); }

}  // namespace
}  // namespace routing_replay::server
