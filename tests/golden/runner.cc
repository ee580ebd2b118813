#include "tests/golden/runner.h"

#include <exception>
#include <map>
#include <string>

#include "tests/golden/golden_file.h"
#include "tests/golden/kind.h"

namespace routing_replay::golden {
namespace {

Outcome RunCase(const Kind& kind, const Json& golden_case) {
  try {
    return kind.run(golden_case);
  } catch (const std::exception& error) {
    return Failed(std::string("the case has another form: ") + error.what());
  }
}

std::string NameOf(const Json& golden_case) {
  const bool named = golden_case.is_object() && golden_case.contains("name") && golden_case["name"].is_string();
  return named ? golden_case["name"].get<std::string>() : "(a case without a name)";
}

class Run {
 public:
  explicit Run(std::ostream& out) : out_(out) {}

  void Directory(const std::filesystem::path& directory) {
    const auto files = FindGoldenFiles(directory);
    if (!files.ok()) return Fail(directory, files.status().message());
    for (const std::filesystem::path& path : *files) File(path);
  }

  Totals Finish() {
    for (const auto& [what, cases] : not_yet_answered_) {
      out_ << "not yet answered: " << what << ", " << cases << (cases == 1 ? " case\n" : " cases\n");
    }
    out_ << totals_.passed << " passed, " << totals_.failed << " failed\n";
    return totals_;
  }

 private:
  void Fail(const std::filesystem::path& path, absl::string_view words) {
    out_ << path.string() << ": FAILED: " << words << "\n";
    ++totals_.failed;
  }

  void File(const std::filesystem::path& path) {
    const absl::StatusOr<Json> file = LoadGoldenFile(path);
    if (!file.ok()) return Fail(path, file.status().message());
    const Json& cases = (*file)["cases"];
    const std::string stem = Stem(path);
    const Kind* kind = FindKind(stem);
    if (kind != nullptr) return Cases(path, *kind, cases);
    if (!IsNotYetAnswered(stem)) return Fail(path, "unknown kind " + stem);
    not_yet_answered_[stem] += static_cast<int64_t>(cases.size());
  }

  void Cases(const std::filesystem::path& path, const Kind& kind, const Json& cases) {
    Totals of_file;
    int64_t open = 0;
    std::string failures;
    std::map<std::string, int64_t> without;  // Passed cases by what they were asked without.
    for (const Json& golden_case : cases) {
      const Outcome outcome = RunCase(kind, golden_case);
      switch (outcome.verdict) {
        case Outcome::Verdict::kPassed:
          ++of_file.passed;
          if (!outcome.words.empty()) ++without[outcome.words];
          break;
        case Outcome::Verdict::kFailed:
          ++of_file.failed;
          failures += "  FAILED " + NameOf(golden_case) + ": " + outcome.words + "\n";
          break;
        case Outcome::Verdict::kNotYetAnswered:
          ++open;
          ++not_yet_answered_[Stem(path) + " (" + outcome.words + ")"];
          break;
      }
    }
    out_ << path.string() << ": " << of_file.passed << " passed, " << of_file.failed << " failed";
    if (open > 0) out_ << ", " << open << " not yet answered";
    out_ << "\n" << failures;
    for (const auto& [what, count] : without) {
      out_ << "  " << count << (count == 1 ? " case" : " cases") << " without " << what << "\n";
    }
    totals_.passed += of_file.passed;
    totals_.failed += of_file.failed;
  }

  std::ostream& out_;
  Totals totals_;
  std::map<std::string, int64_t> not_yet_answered_;  // Cases by kind.
};

}  // namespace

Totals RunGoldenFiles(const std::vector<std::filesystem::path>& directories, std::ostream& out) {
  Run run(out);
  for (const std::filesystem::path& directory : directories) run.Directory(directory);
  return run.Finish();
}

}  // namespace routing_replay::golden
