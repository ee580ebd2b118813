#include "client/rrctl/watch.h"

#include <map>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/rrctl/failure.h"
#include "proto/json/status_json.h"
#include "proto/wire/human.h"

namespace routing_replay::client {
namespace {

using TimePoint = std::chrono::system_clock::time_point;

struct Answer {
  TimePoint time;
  absl::StatusOr<Document> document;
};

std::string Rate(const std::string& key, int64_t change, double seconds) {
  const double rate = static_cast<double>(change) / seconds;
  const Document whole = static_cast<int64_t>(rate);
  const std::string bytes = Cell(key, whole);
  // What has no unit is shown with a digit behind the point, so that slow counters do not look still.
  return absl::StrCat(change > 0 ? "+" : "", bytes == whole.dump() ? absl::StrFormat("%.1f", rate) : bytes, "/s");
}

// How fast the numbers of `now` have changed since `before`, by key.
void AddRates(const Document& before, const Document& now, double seconds, std::map<std::string, std::string>& rates) {
  if (!before.is_object() || !now.is_object()) return;
  for (const auto& [key, value] : now.items()) {
    if (!before.contains(key)) continue;
    const Document& old = before[key];
    if (value.is_object()) AddRates(old, value, seconds, rates);
    if (!value.is_number_integer() || !old.is_number_integer() || absl::EndsWith(key, "_ms")) continue;
    const int64_t change = value.get<int64_t>() - old.get<int64_t>();
    if (change != 0) rates[key] = Rate(key, change, seconds);
  }
}

std::map<std::string, std::string> Rates(const std::optional<Answer>& before, const Answer& now) {
  std::map<std::string, std::string> rates;
  if (!before || !before->document.ok() || !now.document.ok()) return rates;
  const double seconds = std::chrono::duration<double>(now.time - before->time).count();
  if (seconds > 0) AddRates(*before->document, *now.document, seconds, rates);
  return rates;
}

std::string JsonLine(const Answer& answer) {
  Document line = {{"time", Timestamp(answer.time)}};
  if (answer.document.ok()) {
    line["result"] = *answer.document;
  } else {
    line["error"] = StatusToJson(answer.document.status());
  }
  return ToJsonLine(line) + "\n";
}

std::string Frame(const std::optional<Answer>& before, const Answer& answer, Layout layout, const Style& style) {
  const std::string time = Timestamp(answer.time) + "\n";
  if (!answer.document.ok()) return absl::StrCat(time, style.Error(FailureText(answer.document.status())), "\n");
  return absl::StrCat(time, ToText(*answer.document, layout, style, Rates(before, answer)));
}

// Draws each frame over the one before.
class Screen {
 public:
  std::string Draw(const std::string& frame, TerminalSize size) {
    std::vector<std::string> lines = absl::StrSplit(frame, '\n');
    lines.pop_back();  // Behind the last line's end.
    const auto room = static_cast<size_t>(std::max(size.rows - 1, 1));
    if (lines.size() > room) {
      const size_t hidden = lines.size() - room + 1;
      lines.resize(room);
      lines.back() = absl::StrCat("… ", hidden, " more lines");
    }
    std::string out = drawn_ == 0 ? "" : absl::StrCat("\033[", drawn_, "A\r\033[J");
    for (const std::string& line : lines) absl::StrAppend(&out, CutToWidth(line, size.columns), "\n");
    drawn_ = lines.size();
    return out;
  }

 private:
  size_t drawn_ = 0;
};

bool WorthAnotherTry(const absl::Status& status) { return ExitCodeFor(status) == kExitUnreachable; }

}  // namespace

absl::Status Watch(const std::function<absl::StatusOr<Document>()>& ask, Layout layout, const WatchOptions& options,
                   const WatchSurroundings& surroundings, Output& output) {
  std::optional<Answer> before;
  Screen screen;
  for (int64_t tick = 1;; ++tick) {
    absl::StatusOr<Document> document = ask();
    const bool last = options.count && tick >= *options.count;
    const absl::Status& status = document.status();
    if (!status.ok() && (!before || last || !WorthAnotherTry(status))) return status;
    Answer answer{surroundings.now(), std::move(document)};
    if (output.format() == Format::kJson) {
      output.Write(JsonLine(answer));
    } else if (surroundings.terminal) {
      output.Write(screen.Draw(Frame(before, answer, layout, output.style()), surroundings.terminal()));
    } else {
      output.Write(Frame(before, answer, layout, output.style()) + "\n");
    }
    if (absl::Status written = output.Flush(); !written.ok()) return written;
    if (last) return absl::OkStatus();
    before = std::move(answer);
    surroundings.sleep(options.interval);
  }
}

}  // namespace routing_replay::client
