#include "client/rrctl/doctor/finding.h"

#include <algorithm>
#include <set>

namespace routing_replay::client {
namespace {

bool Has(const std::vector<Finding>& findings, Verdict verdict) {
  return std::any_of(findings.begin(), findings.end(), [&](const Finding& f) { return f.verdict == verdict; });
}

}  // namespace

const char* VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kWarn:
      return "warn";
    case Verdict::kFail:
      return "fail";
    case Verdict::kSkip:
      return "skip";
  }
  return "?";
}

bool AnyFailed(const std::vector<Finding>& findings) { return Has(findings, Verdict::kFail); }

Document ToDocument(const std::vector<Finding>& findings) {
  const Verdict worst = AnyFailed(findings)             ? Verdict::kFail
                        : Has(findings, Verdict::kWarn) ? Verdict::kWarn
                                                        : Verdict::kOk;
  Document checks = Document::array();
  for (const Finding& finding : findings) {
    checks.push_back({{"server", finding.server},
                      {"check", finding.check},
                      {"verdict", VerdictName(finding.verdict)},
                      {"what", finding.what},
                      {"fix", finding.fix},
                      {"facts", finding.facts}});
  }
  return {{"verdict", VerdictName(worst)}, {"checks", std::move(checks)}};
}

Document FindingTable(const std::vector<Finding>& findings) {
  std::set<std::string> servers;
  for (const Finding& finding : findings) servers.insert(finding.server);
  servers.erase("");
  Document rows = Document::array();
  for (const Finding& finding : findings) {
    Document& row = rows.emplace_back(Document::object());
    row["verdict"] = VerdictName(finding.verdict);
    row["check"] = finding.check;
    if (servers.size() > 1) row["server"] = finding.server;
    row["what"] = finding.what;
    if (!finding.fix.empty()) row["what"] = finding.what + ". Fix: " + finding.fix;
  }
  return rows;
}

}  // namespace routing_replay::client
