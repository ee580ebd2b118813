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

namespace routing_replay::golden {
namespace {

constexpr int kNoSuchCommand = 127;  // Of a shell.
constexpr char kScript[] = "trainer_plugin/python/tests/golden_megatron.py";

// A word of a shell.
std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::optional<std::filesystem::path> FromEnvironment(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? std::nullopt : std::optional<std::filesystem::path>(value);
}

std::optional<std::filesystem::path> FindScript() {
  const auto named = FromEnvironment("RR_GOLDEN_SCRIPT");
  return named ? named : FindAbove(ProgramFolder(), kScript);
}

std::string Command(const std::filesystem::path& script, const std::filesystem::path& file) {
  const auto python = FromEnvironment("RR_GOLDEN_PYTHON").value_or("python3");
  const auto library = FromEnvironment("ROUTING_REPLAY_LIBRARY_DIR").value_or(ProgramFolder().parent_path() / "lib");
  return absl::StrCat("ROUTING_REPLAY_LIBRARY_DIR=", Quoted(library.string()), " PYTHONDONTWRITEBYTECODE=1 ",
                      Quoted(python.string()), " ", Quoted(script.string()), " ", Quoted(file.string()));
}

// What a command writes to its standard output.
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

bool IsPythonKind(const std::string& stem) {
  return stem == "replay_traces" || stem == "router_forward" || stem == "router_parts";
}

absl::StatusOr<PythonAnswer> AskPython(const std::filesystem::path& file) {
  const auto script = FindScript();
  if (!script) return PythonAnswer{.needs = absl::StrCat(kScript, " above the runner"), .outcomes = {}};
  const auto text = Output(Command(*script, file));
  if (!text.ok()) return text.status();
  try {
    return Parse(*text);
  } catch (const Json::exception& error) {
    return absl::InternalError(error.what());
  }
}

}  // namespace routing_replay::golden
