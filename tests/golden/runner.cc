#include "tests/golden/runner.h"

#include <exception>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/golden/golden_file.h"
#include "tests/golden/kind.h"
#include "tests/golden/python_kinds.h"

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
    for (const auto& [what, cases] : needs_) {
      out_ << "needs " << what << ", " << cases << (cases == 1 ? " case\n" : " cases\n");
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
    if (IsPythonKind(stem)) return Python(path, kind, cases);
    if (kind == nullptr) return Fail(path, "unknown kind " + stem);
    std::vector<NamedOutcome> outcomes;
    for (const Json& golden_case : cases) outcomes.push_back({NameOf(golden_case), RunCase(*kind, golden_case)});
    Cases(path, outcomes);
  }

  // Lets Python run the cases. If there is a C++ `kind` for the file, too, it then runs the cases that have passed in
  // Python; otherwise `kind` is null.
  void Python(const std::filesystem::path& path, const Kind* kind, const Json& cases) {
    auto answer = AskPython(path);
    if (!answer.ok()) return Fail(path, answer.status().message());
    if (!answer->needs.empty()) {
      needs_[answer->needs + ": " + Stem(path)] += static_cast<int64_t>(cases.size());
      return;
    }
    if (answer->outcomes.size() != cases.size()) {
      return Fail(path, absl::StrCat(answer->outcomes.size(), " of ", cases.size(), " cases were answered"));
    }
    for (size_t i = 0; kind != nullptr && i < cases.size(); ++i) {
      Outcome& outcome = answer->outcomes[i].outcome;
      if (outcome.verdict == Outcome::Verdict::kPassed) outcome = RunCase(*kind, cases[i]);
    }
    Cases(path, answer->outcomes);
  }

  void Cases(const std::filesystem::path& path, const std::vector<NamedOutcome>& outcomes) {
    Totals of_file;
    int64_t open = 0;
    std::string failures;
    std::map<std::string, int64_t> without;  // Passed cases by the part that they skipped.
    for (const auto& [name, outcome] : outcomes) {
      switch (outcome.verdict) {
        case Outcome::Verdict::kPassed:
          ++of_file.passed;
          if (!outcome.words.empty()) ++without[outcome.words];
          break;
        case Outcome::Verdict::kFailed:
          ++of_file.failed;
          failures += "  FAILED " + name + ": " + outcome.words + "\n";
          break;
        case Outcome::Verdict::kNeeds:
          ++open;
          ++needs_[outcome.words + ": " + Stem(path)];
          break;
      }
    }
    out_ << path.string() << ": " << of_file.passed << " passed, " << of_file.failed << " failed";
    if (open > 0) out_ << ", " << open << " not asked";
    out_ << "\n" << failures;
    for (const auto& [what, count] : without) {
      out_ << "  " << count << (count == 1 ? " case" : " cases") << " without " << what << "\n";
    }
    totals_.passed += of_file.passed;
    totals_.failed += of_file.failed;
  }

  std::ostream& out_;
  Totals totals_;
  std::map<std::string, int64_t> needs_;  // Cases by missing package and kind.
};

}  // namespace

Totals RunGoldenFiles(const std::vector<std::filesystem::path>& directories, std::ostream& out) {
  Run run(out);
  for (const std::filesystem::path& directory : directories) run.Directory(directory);
  return run.Finish();
}

}  // namespace routing_replay::golden
