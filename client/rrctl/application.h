// The program rrctl: the flags that every command has, the commands, and the exit codes.
//
// Each file of this folder adds its own commands (AddDiff in diff.h, for example), and the trainer's folder adds `plan`
// and `diagnose`: trainer_plugin/rrctl/main.cc makes the program. A command gets a Session, which it uses to ask a
// server and to print the answer.
#ifndef CLIENT_RRCTL_APPLICATION_H_
#define CLIENT_RRCTL_APPLICATION_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/rrctl/output.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

// `rrctl --help` and client/rrctl/README.md say what each code means.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,
  kExitUsage = 2,
  kExitUnreachable = 3,
  kExitUndecided = 4,
};

// `failed`: the exit code for all other failures. A command that uses kExitFailed as an answer (diff, doctor) passes
// kExitUndecided.
ExitCode ExitCodeFor(const absl::Status& status, ExitCode failed = kExitFailed);

// One line without a line feed: code, reason, message and the other fields of the error's detail.
//   "NOT_FOUND (NO_SAMPLE): run a has no sample b [sample=b]"
std::string FailureText(const absl::Status& status);

// Advice about a failure with exit code `code`, to be appended to its line; empty if there is none.
std::string HintFor(const absl::Status& status, ExitCode code);

// Gives a command access to the server and to the output.
class Session {
 public:
  using Question = std::function<absl::StatusOr<Document>(Client&)>;

  Session(ClientOptions options, Format format);

  const ClientOptions& options() const { return options_; }
  absl::StatusOr<std::unique_ptr<Client>> Connect() const { return Client::Connect(options_); }
  Output& output() { return output_; }

  // Asks the server.
  absl::StatusOr<Document> Answer(const Question& question);
  // Prints the answer, or returns its error.
  absl::Status Show(const absl::StatusOr<Document>& answer, Layout layout = Layout::kRecords);
  // Asks the server, and prints the answer.
  absl::Status Ask(const Question& question, Layout layout = Layout::kRecords);

  // For a command whose exit code is the answer yes or no: other failures get another code, so that they do not look
  // like a no.
  void ExitCodeIsTheAnswer() { failed_ = kExitUndecided; }
  void AnswerNo() { verdict_ = kExitFailed; }
  ExitCode CodeFor(const absl::Status& status) const { return status.ok() ? verdict_ : ExitCodeFor(status, failed_); }

 private:
  const ClientOptions options_;
  Output output_;
  ExitCode verdict_ = kExitOk;     // The exit code of a command that has printed its whole answer.
  ExitCode failed_ = kExitFailed;  // The exit code of a command that failed.
};

// The program itself. It uses the process's standard streams, so a process makes one Application and calls Main once.
class Application {
 public:
  using Command = std::function<absl::Status(Session&)>;

  // Returns the program with the commands of this folder.
  Application();
  Application(const Application&) = delete;
  Application& operator=(const Application&) = delete;

  // Only the first line of `help` appears in the list of commands. Add the command's options to the result; the
  // variables that they fill must live as long as `command`.
  CLI::App* Add(const std::string& name, const std::string& help, Command command);

  // `words`: the command line without the program's name.
  ExitCode Main(std::vector<std::string> words);

 private:
  void AddProgramFlags();
  void AddSecurityFlags();

  CLI::App app_;
  ClientOptions options_;
  int timeout_s_ = 10;
  Format format_;
  Command command_;  // The command that the user named.
};

// Makes a one-line INVALID_ARGUMENT with the wrong word. `error` is the exception of app.parse().
absl::Status UsageError(const CLI::App& app, const CLI::ParseError& error);

// Returns the value. If there is none, throws the error with which CLI11 reports a wrong value of `option`.
template <typename T>
T OrUsageError(const absl::StatusOr<T>& value, const std::string& option) {
  if (!value.ok()) throw CLI::ValidationError(option, std::string(value.status().message()));
  return *value;
}

// Options that several commands have.
void AddRun(CLI::App* command, std::string& run);
// --trainer
void AddProducer(CLI::App* command, Producer& producer);
// --group
using Groups = std::optional<std::pair<int64_t, int64_t>>;
void AddGroups(CLI::App* command, Groups& groups);
// "7" is [7, 8) and "3:17" [3, 17). INVALID_ARGUMENT for anything else, and for what is not in [least, most); `one`
// says what a number stands for.
absl::StatusOr<std::pair<int64_t, int64_t>> ParseRange(absl::string_view text, const char* one, int64_t least,
                                                       int64_t most);
absl::StatusOr<std::pair<int64_t, int64_t>> ParseGroups(absl::string_view text);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_APPLICATION_H_
