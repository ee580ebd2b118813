#include "client/rrctl/application.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <map>

#include "client/rrctl/arguments.h"
#include "client/rrctl/completion.h"
#include "client/rrctl/server_names.h"

namespace routing_replay {
namespace {

constexpr char kFooter[] = R"(
Examples:
  export ROUTING_REPLAY_ENDPOINT=localhost:7400
  rrctl status --watch                        what the server does, every 2 seconds
  rrctl ls grpo-42                            the samples of a run
  rrctl stat grpo-42 step1/0                  one sample: rows, weight versions, gaps
  rrctl get grpo-42 step1/0 --layer 24 --rows 0:4
  rrctl put grpo-42 step1/0 rows.npy --experts 128 --seal
  rrctl -w json ls grpo-42 | jq '.[] | select(.sealed | not) | .sample'
  rrctl bench --samples 64 --workers 8
  source <(rrctl completion bash)

Answers go to standard output: tables on a terminal, else JSON with exact numbers.
Failures go to standard error, with code, reason and fields.

Exit codes: 0 done; 1 refused by the server, or not there; 2 wrong command line;
3 no server there, or none that answers in time; 130 bench stopped with Ctrl-C.)";

}  // namespace

Application::Application() : app_("Look into a routing-replay server.", "rrctl"), tree_(app_, settings_, command_) {
  settings_.format = IsTerminal(STDOUT_FILENO) ? Format::kTable : Format::kJson;
  app_.set_version_flag("--version", ROUTING_REPLAY_VERSION, "print the version and exit");
  app_.set_help_flag("-h,--help", "print this help and exit");
  app_.require_subcommand(1);
  app_.fallthrough();
  app_.footer(kFooter);
  app_.add_option("--endpoint", settings_.endpoint, "server: host:port, [v6]:port, unix:PATH or file:PATH")
      ->envname("ROUTING_REPLAY_ENDPOINT")
      ->type_name("ADDRESS");
  app_.add_option("--timeout", settings_.timeout_s, "longest wait for an answer")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->check(CLI::Range(1, 3600));
  static const std::map<std::string, Format> kFormats = {{"table", Format::kTable}, {"json", Format::kJson}};
  app_.add_option_function<std::string>(
          "-w,--write-out", [this](const std::string& name) { settings_.format = kFormats.at(name); },
          "table or json; left out: table on a terminal, else json")
      ->type_name("")
      ->check(CLI::IsMember(std::vector<std::string>{"table", "json"}));
}

ExitCode Application::Main(std::vector<std::string> words) {
  words = JoinWatchInterval(std::move(words));
  if (!words.empty() && words[0] == kCompleteCommand) return Complete({words.begin() + 1, words.end()});
  try {
    std::reverse(words.begin(), words.end());  // As CLI11 takes them.
    app_.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    return app_.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  Session session(settings_);
  const absl::Status status = command_(session);
  if (status.ok()) return kExitOk;
  std::cerr << Style::For(STDERR_FILENO).Error("rrctl:") << " " << FailureText(status) << "\n";
  return ExitCodeFor(status);
}

ExitCode Application::Complete(std::vector<std::string> words) const {
  std::cout << CompletionLines(routing_replay::Complete(app_, words, ServerNames));
  return kExitOk;
}

}  // namespace routing_replay
