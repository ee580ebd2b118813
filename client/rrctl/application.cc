#include "client/rrctl/application.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "client/rrctl/arguments.h"
#include "client/rrctl/completion.h"
#include "client/rrctl/interrupt.h"
#include "client/rrctl/server_names.h"
#include "client/rrctl/usage.h"

namespace routing_replay::client {
namespace {

void Complain(const absl::Status& status, ExitCode code) {
  std::cerr << Style::For(STDERR_FILENO).Error("rrctl:") << " " << FailureText(status) << HintFor(status, code) << "\n";
}

// The help of a command that there is not.
bool NamesNoCommand(const CLI::App& app) {
  const std::vector<std::string> unknown = app.remaining();
  return app.get_subcommands().empty() &&
         std::any_of(unknown.begin(), unknown.end(), [](const std::string& word) { return word[0] != '-'; });
}

}  // namespace

Application::Application() : app_("Look into a routing-replay server.", "rrctl"), tree_(app_, settings_, command_) {}

ExitCode Application::Main(std::vector<std::string> words) {
  words = JoinWatchInterval(std::move(words));
  if (!words.empty() && words[0] == kCompleteCommand) return Complete({words.begin() + 1, words.end()});
  try {
    std::reverse(words.begin(), words.end());  // As CLI11 takes them.
    app_.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0 && !NamesNoCommand(app_)) {
      app_.exit(error);  // Prints the help, or the version.
      return kExitOk;
    }
    Complain(UsageError(app_, error), kExitUsage);
    return kExitUsage;
  }
  Session session(settings_);
  const absl::Status status = command_(session);
  if (!status.ok()) {
    if (!session.OutputIsTaken() && ReaderIsGone(STDOUT_FILENO)) EndByBrokenPipe();
    Complain(status, session.CodeFor(status));
  }
  return session.CodeFor(status);
}

ExitCode Application::Complete(std::vector<std::string> words) const {
  std::cout << CompletionLines(routing_replay::client::Complete(app_, words, ServerNames));
  return kExitOk;
}

}  // namespace routing_replay::client
