#include "client/rrctl/report/html.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/rrctl/output.h"
#include "client/rrctl/terminal.h"

namespace routing_replay::client {

std::string HtmlText(absl::string_view text) {
  return absl::StrReplaceAll(Printable(text),
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

std::string ScriptJson(const Document& document) {
  // Outside its strings JSON has none of these.
  return absl::StrReplaceAll(ToJsonLine(document), {{"<", "\\u003c"}, {"\u2028", "\\u2028"}, {"\u2029", "\\u2029"}});
}

std::string FillTemplate(absl::string_view page, const std::map<std::string, std::string>& values) {
  std::vector<std::pair<std::string, std::string>> replacements;
  for (const auto& [name, value] : values) replacements.emplace_back(absl::StrCat("{{", name, "}}"), value);
  return absl::StrReplaceAll(page, replacements);
}

}  // namespace routing_replay::client
