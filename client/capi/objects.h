// What is behind the opaque types of capi.h.
#ifndef CLIENT_CAPI_OBJECTS_H_
#define CLIENT_CAPI_OBJECTS_H_

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/appender/append_session.h"
#include "client/capi/values.h"
#include "client/channel/client_security.h"
#include "client/channel/server_choice.h"
#include "client/reader/resumable_read.h"
#include "client/reader/row_planes.h"
#include "client/retry.h"
#include "client/run_lives.h"
#include "client/shard/answers.h"
#include "client/shard/places.h"
#include "client/shard/read_merge.h"
#include "client/trajectory/trajectory.h"
#include "proto/capi/bytes.h"
#include "proto/capi/error.h"
#include "routing_replay/capi.h"

struct rr_error final : routing_replay::capi::ErrorObject {
  using ErrorObject::ErrorObject;
};

struct rr_bytes final : routing_replay::capi::BytesObject {
  using BytesObject::BytesObject;
};

struct rr_geometry final {
  routing_replay::Geometry geometry;
};

struct rr_run final {
  routing_replay::capi::RunInfo info;
};

struct rr_plan final {
  routing_replay::client::AppendPlan plan;
};

struct rr_message final {
  explicit rr_message(routing_replay::client::AppendQueue::Message content);
  rr_message(const rr_message&) = delete;
  rr_message& operator=(const rr_message&) = delete;

  const routing_replay::client::AppendQueue::Message message;
  std::vector<rr_span> parts;
};

struct rr_appender final {
  explicit rr_appender(const routing_replay::client::AppendSession::Options& options) : session(options) {}

  routing_replay::client::AppendSession session;
  std::vector<routing_replay::client::AppendQueue::Finished> taken;  // And not told of yet.
};

struct rr_reader final {
  rr_reader(const routing_replay::Geometry& run_geometry, routing_replay::ReadRequest asked)
      : geometry(run_geometry), request(std::move(asked)) {}

  const routing_replay::Geometry geometry;
  const routing_replay::ReadRequest request;
  std::unique_ptr<routing_replay::client::PlaneCollector> collector;
  std::unique_ptr<routing_replay::client::ResumableRead> read;
  std::set<size_t> taken;
  bool ended = false;  // Well: all that was asked for is there.
};

struct rr_servers final {
  explicit rr_servers(std::string endpoint)
      : choice(std::move(endpoint), routing_replay::client::ServerChoice::AnyBegin()) {}

  routing_replay::client::ServerChoice choice;
};

struct rr_security final {
  const std::shared_ptr<const routing_replay::client::ClientSecurity> security;
};

struct rr_shard final {
  const routing_replay::client::ShardMembers members;
};

struct rr_lives final {
  explicit rr_lives(size_t servers) : lives(servers) {}

  routing_replay::client::RunLives lives;
};

struct rr_places final {
  explicit rr_places(const routing_replay::client::ShardMembers& members) : places(members) {}

  routing_replay::client::Places places;
};

struct rr_merge final {
  rr_merge(routing_replay::ReadRequest request, size_t layers, routing_replay::client::Places& places)
      : merge(std::move(request), layers, places) {}

  routing_replay::client::ReadMerge merge;
};

struct rr_retry final {
  explicit rr_retry(routing_replay::Clock::Time deadline) : schedule(deadline) {}

  routing_replay::client::RetrySchedule schedule;
};

struct rr_trajectory final {
  routing_replay::client::Trajectory trajectory;
  routing_replay::AppendOptions common;  // Of its appends.
  std::deque<routing_replay::client::AppendPlan> plans;
};

namespace routing_replay::capi {

template <typename Body>
rr_error* Guard(Body&& body) noexcept {
  return Barrier<rr_error>(std::forward<Body>(body));
}

inline absl::Status CheckEnded(const rr_reader* reader, bool wanted) {
  if (reader->ended == wanted) return absl::OkStatus();
  return absl::FailedPreconditionError(wanted ? "the read has not ended well" : "the read has ended");
}

inline absl::Span<const uint32_t> Tokens(const uint32_t* tokens, size_t count) { return {tokens, count}; }
inline Clock::Time At(int64_t nanoseconds) { return Clock::Time(std::chrono::nanoseconds(nanoseconds)); }

}  // namespace routing_replay::capi

#endif  // CLIENT_CAPI_OBJECTS_H_
