#include "client/rrctl/command_tree.h"

#include <map>
#include <sstream>

#include "absl/strings/str_format.h"
#include "client/rrctl/failure.h"
#include "client/rrctl/inspect.h"
#include "client/rrctl/interval.h"

namespace routing_replay::client {
namespace {

constexpr char kFooter[] = R"(
Examples:
  export ROUTING_REPLAY_ENDPOINT=localhost:7400
  rrctl status --watch                        what the server does, every 2 seconds
  rrctl doctor                                can this machine use the server, and if not, why?
  rrctl ls grpo-42                            the samples of a run
  rrctl stat grpo-42 step1/0                  one sample: rows, weight versions, gaps
  rrctl get grpo-42 step1/0 --layer 24 --rows 0:4
  rrctl put grpo-42 step1/0 rows.npy --experts 128 --seal
  rrctl -w json ls grpo-42 | jq '.[] | select(.sealed | not) | .sample'
  rrctl export grpo-42 /checkpoints/grpo-42   sealed samples, those that are not there yet
  rrctl import /checkpoints/grpo-42           back into a server
  rrctl diff grpo-42:a/0 grpo-43:a/0          first row and layer with other experts; exit code 1
  rrctl report grpo-42 -o report.html         pictures of its routes, in one file
  rrctl verify grpo-42                        every row, every checksum; of an export: ./DIR
  rrctl bench --samples 64 --workers 8
  rrctl plan --explain < micro_batch.json     who holds which rows and layers; needs no server
  source <(rrctl completion bash)

Answers go to standard output: tables on a terminal, else JSON with exact numbers.
Failures go to standard error, with code, reason and fields.

Exit codes:)";

constexpr char kCommandFooter[] =
    "\n--endpoint, --timeout, -w and the flags of TLS and tokens are for every command: see rrctl --help.";

constexpr int64_t kMaxBenchSamples = 1000000;
constexpr int kMaxBenchWorkers = 64;

std::string Footer() {
  std::string text = kFooter;
  for (const ExitMeaning& exit : ExitMeanings()) absl::StrAppendFormat(&text, "\n  %-4d %s", exit.code, exit.meaning);
  return text;
}

template <typename T>
T OrUsageError(const absl::StatusOr<T>& value, const std::string& option) {
  if (!value.ok()) throw CLI::ValidationError(option, std::string(value.status().message()));
  return *value;
}

// "--watch{2}" → "--watch [SECONDS]"
class Formatter final : public CLI::Formatter {
 public:
  Formatter() { column_width(30); }
  // A list of commands has their first lines; the rest is in their own help.
  std::string make_subcommand(const CLI::App* sub) const override {
    const std::string whole = sub->get_description();
    std::ostringstream line;
    CLI::detail::format_help(line, sub->get_display_name(true), whole.substr(0, whole.find('\n')), column_width_);
    return line.str();
  }
  std::string make_option_name(const CLI::Option* option, bool positional) const override {
    std::string name = CLI::Formatter::make_option_name(option, positional);
    const size_t brace = name.find('{');
    if (brace == std::string::npos) return name;
    return name.substr(0, brace) + (name.substr(brace) == "{false}" ? "" : " [SECONDS]");  // A switch, or --watch.
    return name;
  }
};

}  // namespace

CommandTree::CommandTree(CLI::App& app, Settings& settings, Command& command)
    : app_(app), settings_(settings), command_(command) {
  AddProgram();
  AddLooks();
  AddGet();
  AddPut();
  AddDoctor();
  AddDiff();
  AddReport();
  AddTransfers();
  AddRemove();
  AddBench();
  AddLayouts();
  AddToken();
  CLI::App* completion =
      Add("completion", "print the shell's completion script\nFor example: source <(rrctl completion bash)",
          &Session::CompletionScript);
  completion->add_option("SHELL", settings_.shell)
      ->required()
      ->check(CLI::IsMember(std::vector<std::string>{"bash", "zsh", "fish"}));
}

void CommandTree::AddProgram() {
  app_.set_version_flag("--version", ROUTING_REPLAY_VERSION, "print the version and exit");
  app_.set_help_flag("-h,--help", "print this help and exit");
  app_.formatter(std::make_shared<Formatter>());
  app_.require_subcommand(1);
  app_.fallthrough();
  app_.footer(Footer());
  app_.add_option("--endpoint", settings_.endpoint,
                  "the server: host:port, [v6]:port, a list of these with commas, dns:///host:port, "
                  "unix:PATH or file:PATH; shard:a:7400,b:7400 for several that share nothing")
      ->envname("ROUTING_REPLAY_ENDPOINT")
      ->type_name("ADDRESS");
  AddSecurity();
  app_.add_option("--timeout", settings_.timeout_s, "longest wait for an answer")
      ->envname("ROUTING_REPLAY_TIMEOUT")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->check(CLI::Range(1, 3600));
  app_.add_option_function<std::string>(
          "-w,--write-out",
          [this](const std::string& name) { settings_.format = name == "table" ? Format::kTable : Format::kJson; },
          "left out: table on a terminal, else json")
      ->envname("ROUTING_REPLAY_WRITE_OUT")
      ->type_name("FORMAT")
      ->check(CLI::IsMember(std::vector<std::string>{"table", "json"}));
}

void CommandTree::AddSecurity() {
  SecuritySettings& security = settings_.security;
  const auto add = [this](const char* name, std::string& value, const char* variable, const char* help) {
    return app_.add_option(name, value, help)->envname(variable);
  };
  app_.add_flag("--tls", security.tls, "encrypt, trusting the system's authorities; --cacert and --cert mean it, too")
      ->envname("ROUTING_REPLAY_TLS");
  add("--cacert", security.cacert, "ROUTING_REPLAY_CACERT", "who signs servers' certificates, PEM")->type_name("FILE");
  add("--cert", security.cert, "ROUTING_REPLAY_CERT", "the client's own certificate, PEM")->type_name("FILE");
  add("--key", security.key, "ROUTING_REPLAY_KEY", "its key, PEM")->type_name("FILE");
  add("--server-name", security.server_name, "ROUTING_REPLAY_SERVER_NAME",
      "the name in the server's certificate, where it is not that of the address")
      ->type_name("NAME");
  add("--token-file", security.token_file, "ROUTING_REPLAY_TOKEN_FILE", "its first line is the token to show")
      ->type_name("FILE");
}

void CommandTree::AddToken() {
  TokenOptions& options = settings_.token;
  CLI::App* token = Add("token",
                        "make a token, and its entry for the server's --token-file\n"
                        "The server keeps the hash alone: give the token to its user, and keep no copy.",
                        &Session::MakeToken);
  token->add_option("NAME", options.name, "whose it is, for people")->required();
  token->add_option("--run", options.run_prefixes, "runs whose names begin so; \"\" is every run")
      ->required()
      ->type_name("PREFIX");
  token->add_option("--scope", options.scopes, "put, read or admin; may be given several times")
      ->required()
      ->type_name("SCOPE")
      ->delimiter(',')
      ->check(CLI::IsMember(std::vector<std::string>{"put", "read", "admin"}));
  token->add_option("--max-runs", options.max_runs, "it makes no further run where there are so many of its prefixes")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  token->add_option("--expires", options.expires, "the day it ends (2027-01-31, UTC), or the time")->type_name("DATE");
  token->add_option("--append", options.append, "add the entry to the server's token file, by replacing it as a whole")
      ->type_name("FILE");
  token->add_option("--out", options.file, "write the token to this new file, for its owner alone to read")
      ->type_name("FILE");
}

CLI::App* CommandTree::Add(const std::string& name, const std::string& help, Command command) {
  CLI::App* sub = app_.add_subcommand(name, help);
  sub->footer(kCommandFooter);
  sub->callback([this, command = std::move(command)] { command_ = command; });
  return sub;
}

CLI::App* CommandTree::AddLook(const std::string& name, const std::string& help, Layout layout, Query query) {
  return Add(name, help, [layout, query = std::move(query)](Session& session) { return session.Show(layout, query); });
}

void CommandTree::AddRun(CLI::App* command, std::string& run) {
  command->add_option("RUN", run, "name of the run")->required();
}

CLI::Option* CommandTree::AddSamples(CLI::App* command, const std::string& help) {
  return command->add_option("SAMPLE", settings_.samples, help);
}

void CommandTree::AddGroups(CLI::App* command, std::optional<std::pair<int64_t, int64_t>>& groups) {
  command
      ->add_option_function<std::string>(
          "--group,--groups",
          [&groups](const std::string& text) { groups = OrUsageError(ParseGroups(text), "--groups"); },
          "only samples of this group, or of these: 3:17 is group 3 to group 16")
      ->type_name("N|BEGIN:END");
}

void CommandTree::AddTrainerFlag(CLI::App* command, Producer& producer) {
  command->add_flag_callback(
      "--trainer", [&producer] { producer = Producer::kTrainer; },
      "rows that the trainer recorded (R2), not those of the rollout engine (R3)");
}

void CommandTree::AddWatch(CLI::App* command) {
  command->add_flag("--watch{2}", watch_, "ask again every so many seconds (--watch 5, --watch 500ms) until Ctrl-C")
      ->check([this](const std::string& text) {
        const auto interval = ParseInterval(text);
        settings_.watching = true;
        settings_.watch.interval = interval.value_or(settings_.watch.interval);
        return std::string(interval.status().message());
      });
  command->add_option("--count", settings_.watch.count, "with --watch: end after so many answers")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
}

void CommandTree::AddLooks() {
  AddWatch(Add("status", "the server: version, store, memory and counters; of several servers one line each",
               &Session::ShowStatus));
  AddLook("runs", "all runs", Layout::kColumns, ListRuns);
  CLI::App* ls = AddLook("ls", "the samples of a run", Layout::kColumns,
                         [this](Client& client) { return ListSamples(client, settings_.run, settings_.producer); });
  AddRun(ls, settings_.run);
  AddTrainerFlag(ls, settings_.producer);
  CLI::App* stat =
      AddLook("stat", "everything known of a run, or of samples", Layout::kRecords, [this](Client& client) {
        return settings_.samples.empty()
                   ? DescribeRun(client, settings_.run)
                   : DescribeSamples(client, settings_.run, settings_.samples, settings_.producer);
      });
  AddRun(stat, settings_.run);
  AddSamples(stat, "names of samples; without any, the run is described");
  AddTrainerFlag(stat, settings_.producer);
  AddWatch(stat);
}

void CommandTree::AddGet() {
  CLI::App* get = Add("get", "expert ids of a sample, by row and layer", &Session::Get);
  AddRun(get, settings_.get.run);
  get->add_option("SAMPLE", settings_.get.sample, "name of the sample")->required();
  get->add_option("--layer", settings_.get.layers, "only these decoder layers, for example 0,47")
      ->delimiter(',')
      ->type_name("ID,…")
      ->allow_extra_args(false);
  get->add_option_function<std::string>(
         "--row,--rows",
         [this](const std::string& text) { settings_.get.rows = OrUsageError(ParseRows(text), "--rows"); },
         "only this row, or these: 3:17 is row 3 to row 16")
      ->type_name("ROW|BEGIN:END");
  AddTrainerFlag(get, settings_.get.producer);
}

void CommandTree::AddPut() {
  PutOptions& options = settings_.put;
  CLI::App* put = Add("put", "append the rows of a file to a sample", &Session::Put);
  AddRun(put, options.run);
  put->add_option("SAMPLE", options.sample, "name of the sample, which is made if it is not there")->required();
  put->add_option("FILE", options.file, "ids [rows, layers, K], .npy or safetensors; - is standard input")->required();
  put->add_option("--tensor", options.tensor, "its name in a safetensors file; left out: the only one of rows")
      ->type_name("NAME");
  put->add_option("--index", options.index,
                  "of a recorded trace: JSON whose seq_lens say where its sequences end; they become samples SAMPLE/0, "
                  "SAMPLE/1, …")
      ->type_name("FILE");
  put->add_option("--experts", options.num_experts, "make the run if it is not there, with so many experts")
      ->type_name("E")
      ->check(CLI::Range(1, kMaxExperts));
  put->add_option("--top-k", options.top_k, "with --experts: experts of a token; left out: the last axis of the file")
      ->type_name("K")
      ->check(CLI::Range(1, kMaxTopK));
  put->add_option("--layers", options.moe_layers,
                  "with --experts: the decoder layers that have experts; left out: 0, 1, … as the file has layers")
      ->delimiter(',')
      ->type_name("ID,…")
      ->allow_extra_args(false)
      ->check(CLI::Range(0, kMaxLayers - 1));
  put->add_option("--row-start", options.row_start, "number of the first row; left out: the next row of the sample")
      ->type_name("ROW")
      ->check(CLI::Range(int64_t{0}, kMaxRows));
  put->add_option("--group", options.group, "group of the sample, such as the training step")->type_name("N");
  put->add_flag("--seal", options.seal, "no more rows will come");
  AddTrainerFlag(put, options.producer);
}

void CommandTree::AddTransfers() {
  TransferOptions& options = settings_.transfer;
  CLI::App* exported = Add("export",
                           "write a run's sealed samples to a directory, those that are not there yet\n"
                           "The directory is an exported run, which a trainer can also replay from. What ended early "
                           "goes on when it is called again.",
                           &Session::Export);
  AddRun(exported, options.run);
  exported->add_option("DIR", options.directory, "the directory, which is made if it is not there")->required();
  AddGroups(exported, options.groups);
  exported->add_flag("--drop-missing", options.drop_missing,
                     "drop what the directory has of these groups and the run has not any more");
  exported->add_flag("--checkpoint", options.checkpoint,
                     "give back what the run keeps until a checkpoint holds it: this is one");
  AddTrainerFlag(exported, options.producer);
  CLI::App* imported = Add("import",
                           "append the samples of a directory to a run, those that are not there yet\n"
                           "What ended early goes on when it is called again.",
                           &Session::Import);
  imported->add_option("DIR", options.directory, "an exported run")->required();
  imported->add_option("RUN", options.run,
                       "name of the run, which is made if it is not there; left out: as it was exported");
  AddGroups(imported, options.groups);
  CLI::App* verify = Add("verify",
                         "read every row of a run, or of an exported run, and compare every checksum\n"
                         "For a directory, which is written /DIR, ./DIR or ../DIR, no server is asked.",
                         &Session::Verify);
  verify
      ->add_option_function<std::string>(
          "RUN",
          [&options](const std::string& name) { (IsDirectoryName(name) ? options.directory : options.run) = name; },
          "name of the run, or an exported run: /DIR, ./DIR or ../DIR")
      ->required();
  AddGroups(verify, options.groups);
  AddTrainerFlag(verify, options.producer);
}

void CommandTree::AddLayouts() {
  Add("plan", "lay out a micro-batch: its description as JSON on standard input, the plan as JSON on standard output",
      &Session::Plan)
      ->add_flag("--explain", settings_.explain,
                 "instead: which rank holds which rows of which sample, and which layers");
  DiagnoseOptions& options = settings_.diagnose;
  CLI::App* diagnose =
      Add("diagnose",
          "say which known mistake explains the routes that a rank replayed\n"
          "The description of a plan is on standard input: with \"observed\", the rows and layers that were replayed; "
          "or without it, where RUN and --ids say what the samples hold and what the routers got.",
          &Session::Diagnose);
  CLI::Option* run = diagnose->add_option("RUN", options.run, "name of the run that was replayed");
  diagnose
      ->add_option("--ids", options.ids,
                   "what the routers replayed: [local rows, MoE layers of the rank, K], .npy or "
                   "safetensors")
      ->type_name("FILE")
      ->needs(run);
  AddTrainerFlag(diagnose, options.producer);
}

void CommandTree::AddRemove() {
  CLI::App* rm = app_.add_subcommand("rm",
                                     "release samples, or drop a whole run with --all\n"
                                     "Samples that are not there are no error: the answer says how many "
                                     "were.");
  AddRun(rm, settings_.run);
  const CLI::Option* samples = AddSamples(rm, "names of samples");
  const CLI::Option* all = rm->add_flag("--all", drop_run_, "drop the run with all its samples");
  rm->add_flag("--dry-run", settings_.dry_run, "remove nothing, and say what would be");
  rm->add_flag("--yes", settings_.yes, "do not ask before a run is dropped");
  rm->callback([this, samples, all] {
    if (samples->empty() == all->empty()) throw CLI::ValidationError("rm", "name samples, or give --all");
    command_ = &Session::Remove;
  });
}

void CommandTree::AddBench() {
  BenchOptions& options = settings_.bench;
  CLI::App* bench = Add("bench",
                        "append and read a little, and measure it\n"
                        "Appends random samples to a run of its own and reads them back; the run is dropped at the "
                        "end.",
                        &Session::Bench);
  const auto add = [bench](const std::string& name, auto& value, auto minimum, auto maximum, const std::string& help) {
    bench->add_option(name, value, help)->capture_default_str()->type_name("N")->check(CLI::Range(minimum, maximum));
  };
  add("--samples", options.samples, int64_t{1}, kMaxBenchSamples, "samples of a round");
  add("--tokens", options.tokens, int64_t{2}, kMaxRows, "tokens of a sample");
  add("--workers", options.workers, 1, kMaxBenchWorkers, "samples under way at a time");
  add("--rounds", options.rounds, 1, 1000, "how often; the spread is that of the rounds");
  add("--layers", options.layers, 1, kMaxMoeLayers, "MoE layers");
  add("--experts", options.experts, 1, kMaxExperts, "experts of a layer");
  add("--top-k", options.top_k, 1, kMaxTopK, "experts of a token");
  bench
      ->add_option_function<int64_t>(
          "--max-time", [&options](int64_t seconds) { options.max_time = std::chrono::seconds(seconds); },
          "no sample is begun after so many seconds")
      ->default_str("60")
      ->type_name("SECONDS")
      ->check(CLI::Range(1, 86400));
  bench->add_option("--json", settings_.bench_json, "write the figures to this file, too, as JSON")->type_name("FILE");
  bench->add_option("--csv", settings_.bench_csv, "write the figures to this file, too, as CSV")->type_name("FILE");
}

}  // namespace routing_replay::client
