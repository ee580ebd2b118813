// What a server that answers says of itself, and what the caller may do there.
#ifndef CLIENT_RRCTL_DOCTOR_SERVICE_CHECKS_H_
#define CLIENT_RRCTL_DOCTOR_SERVICE_CHECKS_H_

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "client/caller.h"
#include "client/rrctl/doctor/finding.h"
#include "proto/wire/clock.h"

namespace routing_replay::client {

// One GetServerInfo, with the moments around it.
struct Answer {
  v1::ServerInfo info;
  Clock::Duration round_trip{};
  std::chrono::system_clock::time_point middle;  // By this machine's clock.
};
absl::StatusOr<Answer> AskServer(const Caller& caller);

// The checks of one server, in order. Pure: what was seen is given.
Finding CheckFirstAnswer(const absl::StatusOr<Answer>& answer);
Finding CheckVersion(const v1::ServerInfo& info);
Finding CheckLimits(const v1::ServerInfo& info);
Finding CheckLatency(std::vector<Clock::Duration> round_trips);
// Of several answers the fastest, which says most.
Finding CheckClock(const Answer& fastest);

// What the token may do on the runs that are called like `scratch`, a name that no run has. Makes nothing.
struct Access {
  // Nothing: the server says neither yes nor no, as it does of runs that a token must not know of.
  std::optional<bool> put, read, admin;
};
absl::StatusOr<Access> ProbeAccess(const Caller& caller, const std::string& scratch);
Finding CheckAccess(const absl::StatusOr<Access>& access, const std::string& scratch);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_DOCTOR_SERVICE_CHECKS_H_
