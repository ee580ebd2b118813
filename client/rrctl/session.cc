#include "client/rrctl/session.h"

#include <unistd.h>

#include <iostream>
#include <iterator>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/channel/endpoint.h"
#include "client/rrctl/bench/figures.h"
#include "client/rrctl/completion.h"
#include "client/rrctl/file.h"
#include "client/rrctl/progress.h"
#include "client/shard/members.h"
#include "trainer_plugin/layout/explain_json.h"
#include "trainer_plugin/layout/plan_json.h"

namespace routing_replay::client {
Session::Session(const Settings& settings)
    : settings_(settings), output_(std::cout, settings.format, Style::For(STDOUT_FILENO)) {}

ClientOptions Session::Options() const {
  return {.endpoint = settings_.endpoint,
          .security = settings_.security,
          .call_timeout = std::chrono::seconds(settings_.timeout_s)};
}

absl::StatusOr<std::unique_ptr<Client>> Session::Connect() const { return Client::Connect(Options()); }

absl::Status Session::Show(Layout layout, const Query& query) {
  if (settings_.watching) return WatchQuery(layout, query);
  const auto client = Connect();
  if (!client.ok()) return client.status();
  const auto document = query(**client);
  if (!document.ok()) return document.status();
  output_.Print(*document, layout);
  return output_.Flush();
}

absl::Status Session::ShowStatus() {
  ClientOptions options = Options();
  auto endpoint = EndpointOrEnvironment(settings_.endpoint);
  if (!endpoint.ok() || !ShardMembers::IsShardEndpoint(*endpoint)) return Show(Layout::kRecords, DescribeServer);
  options.endpoint = *std::move(endpoint);
  absl::Status all_there;
  const absl::Status shown = Show(Layout::kColumns, [&](Client&) {
    auto members = DescribeMembers(options);
    all_there = members.ok() ? ReachabilityOf(*members) : absl::OkStatus();
    return members;
  });
  return shown.ok() ? all_there : shown;
}

absl::Status Session::WatchQuery(Layout layout, const Query& query) {
  const HeldInterrupts held;
  const auto client = Connect();
  if (!client.ok()) return client.status();
  WatchSurroundings surroundings{.now = std::chrono::system_clock::now, .sleep = [&](std::chrono::milliseconds time) {
                                   const HeldInterrupts::Window window(held);
                                   std::this_thread::sleep_for(time);
                                 }};
  if (IsTerminal(STDOUT_FILENO)) surroundings.terminal = [] { return SizeOf(STDOUT_FILENO); };
  const auto ask = [&] {
    const HeldInterrupts::Window window(held);
    return query(**client);
  };
  return Watch(ask, layout, settings_.watch, surroundings, output_);
}

absl::Status Session::Get() {
  const auto client = Connect();
  if (!client.ok()) return client.status();
  Output::Stream rows(output_);
  absl::Status status = routing_replay::client::Get(**client, settings_.get,
                                                    [&rows](const Document& portion) { return rows.Add(portion); });
  return status.ok() ? rows.End() : status;
}

absl::Status Session::Put() {
  return Show(Layout::kRecords,
              [this](Client& client) { return routing_replay::client::Put(client, settings_.put, std::cin); });
}

absl::Status Session::Remove() {
  return Show(Layout::kRecords, [this](Client& client) -> absl::StatusOr<Document> {
    const std::string& run = settings_.run;
    const bool asks = settings_.samples.empty() && !settings_.yes && IsTerminal(STDIN_FILENO);
    if (settings_.dry_run || asks) {
      auto removal = DescribeRemoval(client, run, settings_.samples);
      if (settings_.dry_run || !removal.ok()) return removal;
      std::cerr << "drop run " << run << " with " << (*removal)["samples"] << " samples? [y/N] ";
      std::string answer;
      std::getline(std::cin, answer);
      if (answer != "y" && answer != "yes") return absl::AbortedError("nothing was removed");
    }
    return routing_replay::client::Remove(client, run, settings_.samples);
  });
}

absl::Status Session::Bench() {
  HeldInterrupts held;
  const auto client = Connect();
  if (!client.ok()) return client.status();
  absl::StatusOr<Document> result;
  {
    ProgressLine line;
    result = RunBench(**client, settings_.bench,
                      {.interrupted = [&](std::chrono::milliseconds time) { return held.WaitFor(time); },
                       .progress = [&](const Progress& progress) { line.Show(progress); }});
  }
  if (!result.ok()) return result.status();
  if (absl::Status written = WriteFigures(*result); !written.ok()) return written;
  if (output_.format() == Format::kJson) {
    output_.Print(*result, Layout::kRecords);
  } else {
    output_.Print(FigureTable((*result)["figures"]), Layout::kColumns);
  }
  return output_.Flush();
}

absl::Status Session::WriteFigures(const Document& result) const {
  if (!settings_.bench_json.empty()) {
    absl::Status written = WriteFile(settings_.bench_json, ToJsonLine(result) + "\n");
    if (!written.ok()) return written;
  }
  return settings_.bench_csv.empty() ? absl::OkStatus() : WriteFile(settings_.bench_csv, FigureCsv(result["figures"]));
}

absl::StatusOr<Document> Session::Transfer(absl::StatusOr<Document> (*transfer)(Client&, const TransferOptions&,
                                                                                const ShowProgress&)) {
  const auto client = Connect();
  if (!client.ok()) return client.status();
  ProgressLine line;
  return transfer(**client, settings_.transfer, [&](const Progress& progress) { line.Show(progress); });
}

absl::Status Session::Export() {
  const auto exported = Transfer(ExportToDirectory);
  if (!exported.ok()) return exported.status();
  output_.Print(*exported, Layout::kRecords);
  return output_.Flush();
}

absl::Status Session::Import() {
  const auto imported = Transfer(ImportFromDirectory);
  if (!imported.ok()) return imported.status();
  output_.Print(*imported, Layout::kRecords);
  return output_.Flush();
}

absl::Status Session::Verify() {
  const auto verified = settings_.transfer.directory.empty() ? Transfer(routing_replay::client::Verify) : VerifyHere();
  if (!verified.ok()) return verified.status();
  if (output_.format() == Format::kJson) {
    output_.Print(*verified, Layout::kRecords);
  } else {
    Document summary = *verified;
    summary["damaged"] = (*verified)["damaged"].size();
    output_.Print(summary, Layout::kRecords);
    if (!(*verified)["damaged"].empty()) output_.Write("\n");
    output_.Print((*verified)["damaged"], Layout::kColumns);
  }
  const absl::Status taken = output_.Flush();
  return taken.ok() ? DamageOf(*verified) : taken;
}

absl::StatusOr<Document> Session::VerifyHere() {
  ProgressLine line;
  return VerifyDirectory(settings_.transfer, [&](const Progress& progress) { line.Show(progress); });
}

absl::Status Session::MakeToken() {
  const auto made = routing_replay::client::MakeToken(settings_.token);
  if (!made.ok()) return made.status();
  const std::string hint = HintFor(settings_.token);
  if (!hint.empty()) std::cerr << "rrctl: note: " << hint << "\n";
  output_.Print(*made, Layout::kRecords);
  return output_.Flush();
}

absl::Status Session::Diagnose() {
  const std::string text(std::istreambuf_iterator<char>(std::cin), {});
  const DiagnoseOptions& options = settings_.diagnose;
  if (!options.ids.empty()) {
    return Show(Layout::kColumns, [&](Client& client) { return DiagnoseReplayedIds(client, options, text); });
  }
  const auto observed = trainer::ObservedFromJson(text);
  if (!observed.ok()) return observed.status();
  const auto found = trainer::Diagnose(*observed);
  if (!found.ok()) return found.status();
  output_.Print(*found, Layout::kColumns);
  return output_.Flush();
}

// For people: who holds which layers, who holds which rows, and what the rank of the description reads.
absl::Status Session::Explain(absl::string_view description) {
  const auto explained = trainer::ExplainFromJson(description);
  if (!explained.ok()) return explained.status();
  if (output_.format() == Format::kJson) {
    output_.Print(*explained, Layout::kRecords);
    return output_.Flush();
  }
  output_.Print((*explained)["layers"], Layout::kColumns);
  output_.Write("\n");
  output_.Print((*explained)["rows"], Layout::kColumns);
  output_.Write("\n");
  output_.Print((*explained)["rank"], Layout::kRecords);
  for (const Document& warning : (*explained)["warnings"]) {
    output_.Write(absl::StrCat("\n", output_.style().Error("warning:"), " ", warning.get<std::string>(), "\n"));
  }
  return output_.Flush();
}

absl::Status Session::Plan() {
  const std::string text(std::istreambuf_iterator<char>(std::cin), {});
  if (settings_.explain) return Explain(text);
  const auto plan = trainer::PlanFromJson(text);
  if (!plan.ok()) return plan.status();
  output_.Write(absl::StrCat(*plan, "\n"));
  return output_.Flush();
}

absl::Status Session::CompletionScript() {
  const auto script = routing_replay::client::CompletionScript(settings_.shell);
  if (!script.ok()) return script.status();
  output_.Write(*script);
  return output_.Flush();
}

}  // namespace routing_replay::client
