// Text into HTML, so that whatever ids and labels hold stays text.
#ifndef CLIENT_RRCTL_REPORT_HTML_H_
#define CLIENT_RRCTL_REPORT_HTML_H_

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "client/rrctl/table.h"

namespace routing_replay::client {

// For text between tags and for values of attributes in double quotes; control characters as Printable shows them.
std::string HtmlText(absl::string_view text);

// For what stands in <script type="application/json">: no '<' is left in it.
std::string ScriptJson(const Document& document);

// `page` with each {{name}} replaced by its value, in one pass: what a value holds is not looked at. A name without a
// value stays.
std::string FillTemplate(absl::string_view page, const std::map<std::string, std::string>& values);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_REPORT_HTML_H_
