// A report as one HTML file that needs nothing else: no network, no other file.
#ifndef CLIENT_RRCTL_REPORT_PAGE_H_
#define CLIENT_RRCTL_REPORT_PAGE_H_

#include <string>

#include "client/rrctl/table.h"

namespace routing_replay::client {

// `report` is what GatherReport gives; `made` says when, in words. The page's words and styles are in report.html.
std::string RenderReport(const Document& report, const std::string& made);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_REPORT_PAGE_H_
