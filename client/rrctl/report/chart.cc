#include "client/rrctl/report/chart.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/rrctl/report/html.h"

namespace routing_replay::client {
namespace {

std::string YAxis(const Chart& chart) {
  std::string html = R"(<div class="y">)";
  // Labels are placed, which takes no room: hidden ones make it.
  for (const Tick& tick : chart.y) absl::StrAppend(&html, "<i>", HtmlText(tick.label), "</i>");
  for (const Tick& tick : chart.y) {
    absl::StrAppendFormat(&html, R"(<span style="top:%.4g%%">%s</span>)", 100 * tick.at, HtmlText(tick.label));
  }
  return html + "</div>";
}

// The outer labels stay inside, and every other one goes where there is little room.
std::string XAxis(const Chart& chart) {
  std::string html = R"(<div class="x">)";
  for (size_t i = 0; i < chart.x.size(); ++i) {
    const bool alone = chart.x.size() == 1;
    const char* style = alone                     ? "only"
                        : i == 0                  ? "first"
                        : i + 1 == chart.x.size() ? "last"
                        : i % 2 == 1              ? "minor"
                                                  : "mid";
    absl::StrAppendFormat(&html, R"(<span class="%s" style="left:%.4g%%">%s</span>)", style, 100 * chart.x[i].at,
                          HtmlText(chart.x[i].label));
  }
  return absl::StrCat(html, R"(</div><div class="axis">)", HtmlText(chart.x_name), "</div>");
}

}  // namespace

std::vector<Tick> CellTicks(size_t cells, size_t count, const std::function<std::string(size_t cell)>& label) {
  std::vector<Tick> ticks;
  const size_t shown = std::min(cells, count);
  for (size_t i = 0; i < shown; ++i) {
    const size_t cell = shown == 1 ? 0 : i * (cells - 1) / (shown - 1);
    ticks.push_back({(static_cast<double>(cell) + 0.5) / static_cast<double>(cells), label(cell)});
  }
  return ticks;
}

std::vector<Tick> ScaleTicks(double least, double most) {
  std::vector<Tick> ticks;
  for (const double share : {0.0, 0.5, 1.0}) {
    ticks.push_back({1 - share, absl::StrFormat("%.4g", least + share * (most - least))});
  }
  return ticks;
}

std::string ChartHtml(const Chart& chart) {
  std::string html = absl::StrCat(R"(<div class="chart">)");
  if (!chart.name.empty()) absl::StrAppend(&html, R"(<div class="name">)", HtmlText(chart.name), "</div>");
  html += YAxis(chart);
  absl::StrAppendFormat(
      &html, R"(<div class="plot %s%s" data-tell="%s" data-rows="%d" data-columns="%d" style="height:%dpx">)",
      chart.heat ? "heat" : "open", chart.style, chart.tell, chart.rows, chart.columns, chart.height);
  if (!chart.heat) {
    for (const Tick& tick : chart.y) absl::StrAppendFormat(&html, R"(<hr style="top:%.4g%%">)", 100 * tick.at);
  }
  return absl::StrCat(html, chart.svg, "</div>", XAxis(chart), "</div>");
}

}  // namespace routing_replay::client
