// rrctl: the operator's and debugger's tool.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <iostream>
#include <iterator>

#include "client/rrctl/commands.h"
#include "client/rrctl/table.h"
#include "trainer_plugin/layout/plan_json.h"

namespace routing_replay {
namespace {

// Documented in README.md.
constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

struct Flags {
  std::string endpoint;
  int timeout_s = 10;
  std::string format = isatty(STDOUT_FILENO) ? "table" : "json";
  bool trainer = false;
  std::vector<std::string> samples;
  std::string rows;
  GetOptions get;
  PutOptions put;
};

Producer ProducerOf(const Flags& flags) { return flags.trainer ? Producer::kTrainer : Producer::kRollout; }

using Command = std::function<absl::StatusOr<Rows>(Client&)>;

// Parses standard input as a micro-batch description; needs no server.
int PlanCommand() {
  const std::string text(std::istreambuf_iterator<char>(std::cin), {});
  const auto plan = trainer::PlanFromJson(text);
  if (!plan.ok()) {
    std::cerr << "rrctl: " << plan.status().message() << "\n";
    return kExitFailed;
  }
  std::cout << *plan << "\n";
  return 0;
}

int RunCommand(const Flags& flags, const Command& command) {
  auto client = Client::Connect({.endpoint = flags.endpoint, .call_timeout = std::chrono::seconds(flags.timeout_s)});
  const auto rows = client.ok() ? command(**client) : client.status();
  if (!rows.ok()) {
    std::cerr << "rrctl: " << absl::StatusCodeToString(rows.status().code()) << ": " << rows.status().message() << "\n";
    return kExitFailed;
  }
  if (flags.format == "table") {
    PrintTable(*rows, std::cout);
  } else {
    std::cout << nlohmann::ordered_json(*rows).dump() << "\n";
  }
  return 0;
}

class Application {
 public:
  Application() {
    app_.set_version_flag("--version", ROUTING_REPLAY_VERSION);
    app_.require_subcommand(1);
    app_.fallthrough();
    app_.add_option("--endpoint", flags_.endpoint, "host:port of the server")->envname("ROUTING_REPLAY_ENDPOINT");
    app_.add_option("--timeout", flags_.timeout_s, "seconds to wait for the server's answer")
        ->capture_default_str()
        ->check(CLI::Range(1, 3600));
    app_.add_option("-w,--write-out", flags_.format, "table or json; json when piped")
        ->check(CLI::IsMember({"table", "json"}));
    app_.add_flag("--trainer", flags_.trainer, "rows of the trainer (R2) instead of the rollout engine (R3)");
    AddRunCommands();
    AddGet();
    AddPut();
    Add("plan",
        "description of a micro-batch and a rank as JSON on standard input, its plan as JSON on standard output",
        nullptr);
  }

  int Main(int argc, char** argv) {
    try {
      app_.parse(argc, argv);
      if (!flags_.rows.empty()) {
        auto rows = ParseRows(flags_.rows);
        if (!rows.ok()) throw CLI::ValidationError("--rows", std::string(rows.status().message()));
        flags_.get.rows = *rows;
      }
    } catch (const CLI::ParseError& e) {
      const int code = app_.exit(e);
      return code == 0 ? 0 : kExitUsage;
    }
    return command_ ? RunCommand(flags_, command_) : PlanCommand();
  }

 private:
  CLI::App* Add(const std::string& name, const std::string& help, Command command) {
    CLI::App* sub = app_.add_subcommand(name, help);
    sub->callback([this, command = std::move(command)] { command_ = command; });
    return sub;
  }

  void AddRunCommands() {
    Add("status", "the server: version, store, budget, counters", [](Client& c) { return StatusCommand(c); });
    Add("runs", "all runs", [](Client& c) { return RunsCommand(c); });
    Add("ls", "the samples of a run", [this](Client& c) { return ListCommand(c, run_, ProducerOf(flags_)); })
        ->add_option("RUN", run_)
        ->required();
    CLI::App* stat = Add("stat", "everything known of samples",
                         [this](Client& c) { return StatCommand(c, run_, flags_.samples, ProducerOf(flags_)); });
    stat->add_option("RUN", run_)->required();
    stat->add_option("SAMPLE", flags_.samples)->required();
    CLI::App* rm = Add("rm", "release samples, or drop the whole run with --all",
                       [this](Client& c) { return RemoveCommand(c, run_, flags_.samples); });
    rm->add_option("RUN", run_)->required();
    auto* samples = rm->add_option("SAMPLE", flags_.samples);
    auto* all = rm->add_flag("--all", drop_run_, "drop the whole run");
    rm->callback([this, samples, all] {
      if (samples->empty() == all->empty()) throw CLI::ValidationError("rm", "name samples, or give --all");
      command_ = [this](Client& c) { return RemoveCommand(c, run_, flags_.samples); };
    });
  }

  void AddGet() {
    CLI::App* get = Add("get", "expert ids of a sample", [this](Client& c) {
      flags_.get.run = run_;
      flags_.get.producer = ProducerOf(flags_);
      return GetCommand(c, flags_.get);
    });
    get->add_option("RUN", run_)->required();
    get->add_option("SAMPLE", flags_.get.sample)->required();
    get->add_option("--layer", flags_.get.layers, "global decoder layer ids")->delimiter(',');
    get->add_option("--row,--rows", flags_.rows, "ROW or BEGIN:END");
  }

  void AddPut() {
    CLI::App* put = Add("put", "append the rows of a .npy file", [this](Client& c) {
      flags_.put.run = run_;
      return PutCommand(c, flags_.put);
    });
    put->add_option("RUN", run_)->required();
    put->add_option("SAMPLE", flags_.put.sample)->required();
    put->add_option("FILE", flags_.put.file, ".npy, [rows, layers, K]")->required()->check(CLI::ExistingFile);
    put->add_option("--experts", flags_.put.num_experts, "make the run, with this many experts");
    put->add_option("--moe-layers", flags_.put.moe_layers, "… and these MoE layers")->delimiter(',');
    put->add_option("--row-start", flags_.put.row_start, "default: behind the committed rows");
    put->add_option("--group", flags_.put.group);
    put->add_flag("--seal", flags_.put.seal);
  }

  CLI::App app_{"rrctl: look into a routing-replay server", "rrctl"};
  Flags flags_;
  std::string run_;
  bool drop_run_ = false;
  Command command_;
};

}  // namespace
}  // namespace routing_replay

int main(int argc, char** argv) { return routing_replay::Application().Main(argc, argv); }
