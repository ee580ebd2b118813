// report.html as it was when this was built.
#ifndef CLIENT_RRCTL_REPORT_TEMPLATE_H_
#define CLIENT_RRCTL_REPORT_TEMPLATE_H_

namespace routing_replay::client {

extern const char kReportTemplate[];

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_REPORT_TEMPLATE_H_
