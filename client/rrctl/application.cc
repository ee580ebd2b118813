#include "client/rrctl/application.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/rrctl/diff.h"
#include "client/rrctl/doctor.h"
#include "client/rrctl/report.h"
#include "client/rrctl/rows.h"
#include "client/rrctl/runs.h"
#include "client/rrctl/token.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

constexpr char kFooter[] = R"(
Examples:
  export ROUTING_REPLAY_ENDPOINT=localhost:7400
  rrctl status                                version, memory and counters of the server
  rrctl doctor                                can this machine use the server, and if not, why?
  rrctl ls                                    all runs
  rrctl ls grpo-42                            the samples of a run
  rrctl stat grpo-42 step1/0                  one sample: rows, weight versions, gaps
  rrctl get grpo-42 step1/0 --layer 24 --rows 0:4
  rrctl put grpo-42 step1/0 rows.npy --experts 128 --seal
  rrctl -w json ls grpo-42 | jq '.[] | select(.sealed | not) | .sample'
  rrctl export grpo-42 /checkpoints/grpo-42   sealed samples, into a new directory
  rrctl import /checkpoints/grpo-42           back into a server
  rrctl diff grpo-42:a/0 grpo-43:a/0          first row and layer with other experts; exit code 1
  rrctl report grpo-42 -o report.html         charts of its routes, in one file
  rrctl verify grpo-42                        check every checksum; for an exported run, give ./DIR
  rrctl plan < micro_batch.json               which layers and rows a rank has; needs no server

Answers go to standard output: tables on a terminal, otherwise JSON with exact numbers.
Failures go to standard error, with code, reason and fields.

Exit codes:
  0  done
  1  the server rejected the call, something does not exist or is damaged, or the output could not be written;
     diff: only if there are differences; doctor: only if a check failed
  2  the command line, the address, or a file of TLS or tokens is wrong; no server was asked
  3  a server that the command needs does not answer within --timeout, or is shutting down
  4  diff and doctor could not decide, because of a failure that ends other commands with 1)";

constexpr char kCommandFooter[] =
    "\n--endpoint, --timeout, -w and the flags of TLS and tokens work with every command: see rrctl --help.";

// Returns true if an error with this field is about the command line: the field is a flag, a sample of `diff`, or is
// named as in ClientOptions. Servers do not use these names.
bool IsOfTheCommandLine(absl::string_view field) {
  constexpr absl::string_view kSettings[] = {"endpoint", "cacert", "cert", "key", "token_file", "A", "B"};
  return absl::StartsWith(field, "--") ||
         std::find(std::begin(kSettings), std::end(kSettings), field) != std::end(kSettings);
}

void Complain(const absl::Status& status, ExitCode code) {
  std::cerr << "rrctl: " << FailureText(status) << HintFor(status, code) << "\n";
}

}  // namespace

ExitCode ExitCodeFor(const absl::Status& status, ExitCode failed) {
  const std::optional<ErrorDetail> detail = GetErrorDetail(status);
  if (absl::IsInvalidArgument(status) && detail && IsOfTheCommandLine(detail->field)) return kExitUsage;
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return kExitUnreachable;
    default:
      return failed;
  }
}

std::string FailureText(const absl::Status& status) {
  const ErrorDetail detail = GetErrorDetail(status).value_or(ErrorDetail{});
  std::string text = absl::StatusCodeToString(status.code());
  if (detail.reason != Reason::kUnspecified) absl::StrAppend(&text, " (", ReasonName(detail.reason), ")");
  absl::StrAppend(&text, ": ", absl::string_view(status.message()));
  std::vector<std::string> fields;
  if (!detail.field.empty()) fields.push_back(absl::StrCat("field=", detail.field));
  if (detail.layer) fields.push_back(absl::StrCat("layer=", *detail.layer));
  if (detail.row) fields.push_back(absl::StrCat("row=", *detail.row));
  if (!detail.sample.empty()) fields.push_back(absl::StrCat("sample=", detail.sample));
  if (!fields.empty()) absl::StrAppend(&text, " [", absl::StrJoin(fields, " "), "]");
  return Printable(text);
}

std::string HintFor(const absl::Status& status, ExitCode code) {
  if (code == kExitUnreachable) return "; run `rrctl doctor` for the cause and the fix";
  if (absl::IsUnauthenticated(status)) return "; give the token with --token-file";
  return "";
}

Session::Session(ClientOptions options, Format format) : options_(std::move(options)), output_(std::cout, format) {}

absl::Status Session::Show(const absl::StatusOr<Document>& answer, Layout layout) {
  if (!answer.ok()) return answer.status();
  output_.Print(*answer, layout);
  return output_.Flush();
}

absl::StatusOr<Document> Session::Answer(const Question& question) {
  RR_ASSIGN_OR_RETURN(const auto client, Connect());
  return question(*client);
}

absl::Status Session::Ask(const Question& question, Layout layout) { return Show(Answer(question), layout); }

Application::Application()
    : app_("Inspect and manage a routing-replay server.", "rrctl"),
      format_(isatty(STDOUT_FILENO) == 1 ? Format::kTable : Format::kJson) {
  AddProgramFlags();
  AddSecurityFlags();
  AddStatus(*this);
  AddDoctor(*this);
  AddListAndStat(*this);
  AddGet(*this);
  AddPut(*this);
  AddDiff(*this);
  AddReport(*this);
  AddTransfers(*this);
  AddRemove(*this);
  AddToken(*this);
}

void Application::AddProgramFlags() {
  app_.set_version_flag("--version", ROUTING_REPLAY_VERSION, "print the version and exit");
  app_.set_help_flag("-h,--help", "print this help and exit");
  app_.require_subcommand(1);
  app_.fallthrough();
  app_.footer(kFooter);
  app_.add_option("--endpoint", options_.endpoint,
                  "the server: host:port, [v6]:port, a list of these with commas, dns:///host:port, "
                  "unix:PATH or file:PATH; shard:a:7400,b:7400 for several that share nothing")
      ->envname("ROUTING_REPLAY_ENDPOINT")
      ->type_name("ADDRESS");
  app_.add_option("--timeout", timeout_s_, "how long to wait for an answer")
      ->envname("ROUTING_REPLAY_TIMEOUT")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->check(CLI::Range(1, 3600));
  app_.add_option_function<std::string>(
          "-w,--write-out",
          [this](const std::string& name) { format_ = name == "table" ? Format::kTable : Format::kJson; },
          "output format; by default a table on a terminal, otherwise json")
      ->envname("ROUTING_REPLAY_WRITE_OUT")
      ->type_name("FORMAT")
      ->check(CLI::IsMember(std::vector<std::string>{"table", "json"}));
}

void Application::AddSecurityFlags() {
  SecuritySettings& security = options_.security;
  const auto add = [this](const char* name, std::string& value, const char* variable, const char* type,
                          const char* help) { app_.add_option(name, value, help)->envname(variable)->type_name(type); };
  app_.add_flag("--tls", security.tls,
                "use TLS, as with --cacert or --cert; without --cacert, trust the system's authorities")
      ->envname("ROUTING_REPLAY_TLS");
  add("--cacert", security.cacert, "ROUTING_REPLAY_CACERT", "FILE",
      "PEM file with the authorities that signed the server's certificate");
  add("--cert", security.cert, "ROUTING_REPLAY_CERT", "FILE",
      "PEM file with the client's own certificate, if the server asks for one");
  add("--key", security.key, "ROUTING_REPLAY_KEY", "FILE", "PEM file with the private key of --cert");
  add("--server-name", security.server_name, "ROUTING_REPLAY_SERVER_NAME", "NAME",
      "the name in the server's certificate, if it differs from the host in --endpoint");
  add("--token-file", security.token_file, "ROUTING_REPLAY_TOKEN_FILE", "FILE",
      "file whose first line is the bearer token");
}

CLI::App* Application::Add(const std::string& name, const std::string& help, Command command) {
  const size_t line = help.find('\n');
  CLI::App* sub = app_.add_subcommand(name, help.substr(0, line));
  sub->footer(absl::StrCat(line == help.npos ? "" : help.substr(line), kCommandFooter));
  sub->callback([this, command = std::move(command)] { command_ = command; });
  return sub;
}

ExitCode Application::Main(std::vector<std::string> words) {
  // If the reader of a pipe goes away, the process ends by SIGPIPE, even if its parent ignored that signal.
  signal(SIGPIPE, SIG_DFL);
  try {
    std::reverse(words.begin(), words.end());  // The order that CLI11 expects.
    app_.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      app_.exit(error);  // Prints the help, or the version.
      return kExitOk;
    }
    Complain(UsageError(app_, error), kExitUsage);
    return kExitUsage;
  }
  options_.call_timeout = std::chrono::seconds(timeout_s_);
  Session session(options_, format_);
  const absl::Status status = command_(session);
  if (!status.ok()) Complain(status, session.CodeFor(status));
  return session.CodeFor(status);
}

absl::Status UsageError(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
  const std::string wrong = unknown.empty()
                                ? absl::StrReplaceAll(absl::StripAsciiWhitespace(error.what()), {{"\n", " "}})
                                : absl::StrCat("there is no command, flag or further argument '", unknown.front(), "'");
  return absl::InvalidArgumentError(absl::StrCat(wrong, " (see ", app.get_name(), " --help)"));
}

void AddRun(CLI::App* command, std::string& run) { command->add_option("RUN", run, "name of the run")->required(); }

void AddProducer(CLI::App* command, Producer& producer) {
  command->add_flag_callback(
      "--trainer", [&producer] { producer = Producer::kTrainer; },
      "rows that the trainer recorded (R2), not those of the rollout engine (R3)");
}

void AddGroups(CLI::App* command, Groups& groups) {
  command
      ->add_option_function<std::string>(
          "--group", [&groups](const std::string& text) { groups = OrUsageError(ParseGroups(text), "--group"); },
          "only samples of one group, or of several: 3:17 is group 3 to group 16")
      ->type_name("N|BEGIN:END");
}

absl::StatusOr<std::pair<int64_t, int64_t>> ParseRange(absl::string_view text, const char* one, int64_t least,
                                                       int64_t most) {
  const std::vector<absl::string_view> ends = absl::StrSplit(text, ':');
  int64_t begin = 0, end = 0;
  bool good = ends.size() <= 2 && absl::SimpleAtoi(ends[0], &begin) && begin >= least && begin < most;
  if (good && ends.size() == 1) {
    end = begin + 1;
  } else {
    good = good && absl::SimpleAtoi(ends[1], &end) && begin < end && end <= most;
  }
  if (!good) return absl::InvalidArgumentError(absl::StrCat("must be ", one, " or BEGIN:END, got '", text, "'"));
  return std::pair(begin, end);
}

absl::StatusOr<std::pair<int64_t, int64_t>> ParseGroups(absl::string_view text) {
  using Limits = std::numeric_limits<int64_t>;
  return ParseRange(text, "a group", Limits::min(), Limits::max());
}

}  // namespace routing_replay::client
