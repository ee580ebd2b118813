#include "tests/quickstart/phase_gate.h"

#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"

namespace routing_replay::quickstart {
namespace {

absl::Status LetGo(const Children& children) {
  for (const auto& child : children) {
    if (absl::Status written = child->WriteLine("go"); !written.ok()) return written;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FinishPhase(absl::string_view phase) {
  std::cout << phase << std::endl;
  std::string line;
  if (!std::getline(std::cin, line)) return absl::UnavailableError("the parent process is gone");
  return absl::OkStatus();
}

void WriteResult(const nlohmann::json& result) { std::cout << result.dump() << std::endl; }

absl::Status AwaitPhase(const Children& children, absl::string_view phase) {
  for (const auto& child : children) {
    const absl::StatusOr<std::string> line = child->ReadLine(kPhaseTimeout);
    if (!line.ok()) return line.status();
    if (*line != phase) return absl::InternalError(absl::StrCat(child->name(), " says: ", *line));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::chrono::nanoseconds> RunPhase(const Children& children, absl::string_view phase) {
  const auto start = std::chrono::steady_clock::now();
  if (absl::Status status = LetGo(children); !status.ok()) return status;
  if (absl::Status status = AwaitPhase(children, phase); !status.ok()) return status;
  return std::chrono::steady_clock::now() - start;
}

absl::StatusOr<std::vector<nlohmann::json>> CollectResults(const Children& children) {
  if (absl::Status status = LetGo(children); !status.ok()) return status;
  std::vector<nlohmann::json> results;
  for (const auto& child : children) {
    const absl::StatusOr<std::string> line = child->ReadLine(kPhaseTimeout);
    if (!line.ok()) return line.status();
    results.push_back(nlohmann::json::parse(*line, nullptr, /*allow_exceptions=*/false));
    if (!results.back().is_object()) return absl::InternalError(absl::StrCat(child->name(), " says: ", *line));
    if (absl::Status ended = child->WaitForSuccess(kPhaseTimeout); !ended.ok()) return ended;
  }
  return results;
}

}  // namespace routing_replay::quickstart
