#include "client/rrctl/doctor/proxy.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace routing_replay::client {
namespace {

constexpr const char* kProxyVariables[] = {"grpc_proxy", "https_proxy", "http_proxy"};

// Proxy addresses may hold a password.
std::string WithoutPassword(const std::string& proxy) {
  const size_t at = proxy.rfind('@');
  if (at == proxy.npos) return proxy;
  const size_t scheme = proxy.find("://");
  return absl::StrCat(scheme == proxy.npos ? "" : proxy.substr(0, scheme + 3), "…", proxy.substr(at));
}

bool Excepted(const std::string& host, const std::string& list) {
  for (absl::string_view entry : absl::StrSplit(list, ',', absl::SkipWhitespace())) {
    if (absl::EndsWithIgnoreCase(host, absl::StripAsciiWhitespace(entry))) return true;
  }
  return false;
}

}  // namespace

Finding CheckProxy(const ServerAddress& server, const Environment& environment) {
  Finding finding{.server = server.endpoint, .check = "proxy"};
  for (const char* name : kProxyVariables) {
    const std::string proxy = environment(name);
    if (proxy.empty()) continue;
    finding.facts = {{"variable", name}, {"proxy", WithoutPassword(proxy)}};
    const char* exceptions = environment("no_grpc_proxy").empty() ? "no_proxy" : "no_grpc_proxy";
    if (!server.unix_path.empty() || Excepted(server.host, environment(exceptions))) {
      finding.what = absl::StrCat(name, " is set, and does not hold for this server");
      return finding;
    }
    finding.verdict = Verdict::kWarn;
    finding.what = absl::StrCat(name, "=", WithoutPassword(proxy),
                                ": this project's clients ignore it, stock gRPC clients on "
                                "this machine would go through it");
    finding.fix = absl::StrCat("for them: export ", exceptions, "=", server.host);
    return finding;
  }
  finding.what = "no proxy variable is set that gRPC reads";
  return finding;
}

}  // namespace routing_replay::client
