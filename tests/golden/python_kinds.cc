#include "tests/golden/python_kinds.h"

#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tests/golden/find_file.h"
#include "tests/golden/golden_file.h"

namespace routing_replay::golden {
namespace {

constexpr int kNoSuchCommand = 127;  // A shell's status for a missing command.
constexpr char kMegatron[] = "trainer_plugin/python/tests/golden_megatron.py";
constexpr char kModelConfigs[] = "client/python/tests/golden_model_config.py";

const char* ScriptOf(const std::string& stem) {
  if (stem.starts_with("geometry_") || stem == "moe_pattern") return kModelConfigs;
  return stem == "replay_traces" || stem == "router_forward" || stem == "router_parts" ? kMegatron : nullptr;
}

// Quotes a word for the shell.
std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::optional<std::filesystem::path> FromEnvironment(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? std::nullopt : std::optional<std::filesystem::path>(value);
}

std::string Command(const std::string& python, const std::filesystem::path& script, const std::filesystem::path& file) {
  const auto library = FromEnvironment("ROUTING_REPLAY_LIBRARY_DIR").value_or(ProgramFolder().parent_path() / "lib");
  return absl::StrCat("ROUTING_REPLAY_LIBRARY_DIR=", Quoted(library.string()), " PYTHONDONTWRITEBYTECODE=1 ",
                      Quoted(python), " ", Quoted(script.string()), " ", Quoted(file.string()));
}

// The standard output of a command.
absl::StatusOr<std::string> Output(const std::string& command) {
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return absl::InternalError(absl::StrCat("cannot run ", command));
  std::string text;
  char part[4096];
  for (size_t size; (size = fread(part, 1, sizeof part, pipe)) > 0;) text.append(part, size);
  const int status = pclose(pipe);
  if (status == 0) return text;
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoSuchCommand) return std::string(R"({"needs": "python3"})");
  return absl::InternalError(absl::StrCat(command, " ended with status ", status));
}

Outcome OutcomeOf(const Json& line) {
  const std::string verdict = line.at("verdict").get<std::string>();
  const std::string words = line.at("words").get<std::string>();
  if (verdict == "passed") return Passed();
  return verdict == "needs" ? Needs(words) : Failed(words);
}

PythonAnswer Parse(const std::string& text) {
  PythonAnswer answer;
  for (absl::string_view text_line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const Json line = Json::parse(text_line.begin(), text_line.end());
    if (line.contains("needs")) {
      answer.needs = line["needs"].get<std::string>();
    } else {
      answer.outcomes.push_back({line.at("name").get<std::string>(), OutcomeOf(line)});
    }
  }
  return answer;
}

}  // namespace

bool IsPythonKind(const std::string& stem) { return ScriptOf(stem) != nullptr; }

absl::StatusOr<PythonAnswer> AskPython(const std::filesystem::path& file) {
  const char* name = ScriptOf(Stem(file));
  const auto script = FindAbove(ProgramFolder(), name);
  if (!script) return PythonAnswer{.needs = absl::StrCat(name, " above the runner"), .outcomes = {}};
  const auto named = FromEnvironment("RR_GOLDEN_PYTHON");
  const std::vector<std::string> pythons =
      named ? std::vector<std::string>{named->string()} : std::vector<std::string>{"python3", "/usr/bin/python3"};
  PythonAnswer answer;
  for (const std::string& python : pythons) {
    const auto text = Output(Command(python, *script, file));
    if (!text.ok()) return text.status();
    try {
      answer = Parse(*text);
    } catch (const Json::exception& error) {
      return absl::InternalError(error.what());
    }
    if (answer.needs.empty()) break;
  }
  return answer;
}

}  // namespace routing_replay::golden
