// What a check of `rrctl doctor` says.
#ifndef CLIENT_RRCTL_DOCTOR_FINDING_H_
#define CLIENT_RRCTL_DOCTOR_FINDING_H_

#include <string>
#include <vector>

#include "client/rrctl/table.h"

namespace routing_replay::client {

enum class Verdict { kOk, kWarn, kFail, kSkip };
const char* VerdictName(Verdict verdict);

struct Finding {
  std::string server;  // The member of the endpoint; empty: the endpoint as a whole.
  std::string check;
  Verdict verdict = Verdict::kOk;
  std::string what;                     // In words.
  std::string fix;                      // What to do; empty where nothing is to be done.
  Document facts = Document::object();  // The same in numbers.
};

// {"verdict": the worst, "checks": [{"server", "check", "verdict", "what", "fix", "facts"}]}
Document ToDocument(const std::vector<Finding>& findings);
// The same as columns for people, without the numbers and, where there is one server alone, without its name.
Document FindingTable(const std::vector<Finding>& findings);
bool AnyFailed(const std::vector<Finding>& findings);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_DOCTOR_FINDING_H_
