#include "tests/quickstart/report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace routing_replay::quickstart {
namespace {

// One line of the table of bytes. `sent` is false for what another transport would have moved.
struct Traffic {
  std::string key;
  std::string text;
  int64_t bytes;
  bool sent;
};

std::vector<Traffic> TrafficLines(const Report& report) {
  return {
      {"engine_bytes", "produced by the engines", report.in.engine_bytes, true},
      {"server_in_bytes", "into the server", report.in.sent_bytes, true},
      {"server_out_bytes", absl::StrCat("out to the ", report.ranks, " ranks"), report.out.received_bytes, true},
      {"json_list_bytes", "into a service, as a JSON list", report.in.json_bytes, false},
      {"base64_int32_bytes", "into a service, as base64 of int32", report.in.base64_bytes, false},
      {"broadcast_int32_bytes", "out, whole samples to every rank as int32", report.in.int32_bytes * report.ranks,
       false},
  };
}

double Milliseconds(std::chrono::nanoseconds time) { return std::chrono::duration<double, std::milli>(time).count(); }

std::string Grouped(int64_t number) {
  const std::string digits = absl::StrCat(number);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text.push_back(',');
    text.push_back(digits[i]);
  }
  return text;
}

std::string TrafficTable(const Report& report, bool sent) {
  std::string text;
  for (const Traffic& line : TrafficLines(report)) {
    if (line.sent != sent) continue;
    const double per_row = static_cast<double>(line.bytes) / static_cast<double>(report.in.recorded_rows);
    absl::StrAppendFormat(&text, "  %-44s %15s %12.1f\n", line.text, Grouped(line.bytes), per_row);
  }
  return text;
}

}  // namespace

absl::Status AddWorker(const nlohmann::json& result, Report& report) try {
  const auto worker = result.get<WorkerResult>();
  report.in.samples += worker.samples;
  report.in.rows += worker.rows;
  report.in.recorded_rows += worker.recorded_rows;
  report.in.engine_bytes += worker.engine_bytes;
  report.in.sent_bytes += worker.sent_bytes;
  report.in.json_bytes += worker.json_bytes;
  report.in.base64_bytes += worker.base64_bytes;
  report.in.int32_bytes += worker.int32_bytes;
  return absl::OkStatus();
} catch (const nlohmann::json::exception& error) {
  return absl::InternalError(absl::StrCat("a worker's result: ", error.what()));
}

absl::Status AddRank(const nlohmann::json& result, Report& report) try {
  const auto rank = result.get<RankResult>();
  ++report.ranks;
  report.out.micro_batches += rank.micro_batches;
  report.out.received_bytes += rank.received_bytes;
  report.out.replayed_rows += rank.replayed_rows;
  report.out.unrecorded_rows += rank.unrecorded_rows;
  report.out.pad_rows += rank.pad_rows;
  report.out.compared_ids += rank.compared_ids;
  report.out.router_rows += rank.router_rows;
  return absl::OkStatus();
} catch (const nlohmann::json::exception& error) {
  return absl::InternalError(absl::StrCat("a rank's result: ", error.what()));
}

std::string ReportTable(const Report& report) {
  std::string text;
  for (const std::string& run : report.runs) absl::StrAppend(&text, run, "\n");
  absl::StrAppendFormat(&text, "%s samples, %s rows, %s of them recorded\n\n", Grouped(report.in.samples),
                        Grouped(report.in.rows), Grouped(report.in.recorded_rows));
  absl::StrAppendFormat(&text, "%-46s %15s %12s\n", "moved", "payload bytes", "per row");
  absl::StrAppend(&text, TrafficTable(report, true));
  absl::StrAppendFormat(&text, "%-46s %15s %12s\n", "other ways would have moved", "payload bytes", "per row");
  absl::StrAppend(&text, TrafficTable(report, false));
  absl::StrAppendFormat(&text, "\n%-46s %15s\n", "hop, all its processes together", "wall time");
  for (const Hop& hop : report.hops) {
    absl::StrAppendFormat(&text, "  %-44s %12.1f ms\n", hop.text, Milliseconds(hop.time));
  }
  absl::StrAppendFormat(&text, "\n%-46s %15s\n", "rows on the ranks, once per pipeline stage", "rows");
  absl::StrAppendFormat(&text, "  %-44s %15s\n", "replayed", Grouped(report.out.replayed_rows));
  absl::StrAppendFormat(&text, "  %-44s %15s\n", "unrecorded: live routing", Grouped(report.out.unrecorded_rows));
  absl::StrAppendFormat(&text, "  %-44s %15s\n", "pad: filler, balanced over experts", Grouped(report.out.pad_rows));
  absl::StrAppendFormat(&text, "  %-44s %15s\n\n", "rows whose routing map was checked, per layer",
                        Grouped(report.out.router_rows));
  return text;
}

nlohmann::json ReportJson(const Report& report) {
  nlohmann::json json = {{"runs", report.runs},
                         {"samples", report.in.samples},
                         {"rows", report.in.rows},
                         {"recorded_rows", report.in.recorded_rows},
                         {"ranks", report.ranks},
                         {"rank_rows",
                          {{"replayed", report.out.replayed_rows},
                           {"unrecorded", report.out.unrecorded_rows},
                           {"pad", report.out.pad_rows},
                           {"router_checked", report.out.router_rows}}},
                         {"compared_ids", report.out.compared_ids}};
  for (const Traffic& line : TrafficLines(report)) json["bytes"][line.key] = line.bytes;
  for (const Hop& hop : report.hops) json["hop_ms"][hop.key] = Milliseconds(hop.time);
  return json;
}

absl::Status CheckComplete(const Report& report) {
  if (report.out.compared_ids == report.expected_ids) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the ranks compared ", report.out.compared_ids, " expert ids; ",
                                          report.expected_ids, " were recorded"));
}

}  // namespace routing_replay::quickstart
