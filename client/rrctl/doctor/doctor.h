// `rrctl doctor`: from this machine, can the server be used, and if not, why?
#ifndef CLIENT_RRCTL_DOCTOR_DOCTOR_H_
#define CLIENT_RRCTL_DOCTOR_DOCTOR_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/rrctl/doctor/finding.h"
#include "client/rrctl/doctor/proxy.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

struct DoctorOptions {
  bool transfer = true;  // Measure with a scratch run, which is dropped.
  // What the scratch run's name begins with, so that a token that is for some runs alone covers it.
  std::string scratch = "rrctl-doctor";
};

// The checks in order, of each server of the endpoint: "name", "proxy", "connect", "tls", "service", "version",
// "limits", "latency", "clock"; then of the endpoint as a whole "access" and "bandwidth". What stands on a check that
// failed is not tried. INVALID_ARGUMENT (field endpoint) for an endpoint that is none.
absl::StatusOr<std::vector<Finding>> Examine(const ClientOptions& client, const DoctorOptions& options,
                                             const Environment& environment);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_DOCTOR_DOCTOR_H_
