#include "server/store/redis/client/redis_cluster.h"

#include <algorithm>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/backoff.h"
#include "proto/wire/mutex.h"
#include "proto/wire/status_macros.h"
#include "server/store/redis/client/redis_connection.h"

namespace routing_replay::server {
namespace {

using Type = RedisReply::Type;

uint16_t Crc16(absl::string_view text) {
  unsigned crc = 0;
  for (const char c : text) {
    crc ^= static_cast<unsigned>(static_cast<uint8_t>(c)) << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 0x8000) != 0 ? crc << 1 ^ 0x1021 : crc << 1;
  }
  return static_cast<uint16_t>(crc);
}

absl::Status Malformed() { return absl::DataLossError("the answer to CLUSTER SLOTS cannot be parsed"); }

bool IsInteger(const RedisReply& reply, int64_t low, int64_t high) {
  return reply.type == Type::kInteger && reply.integer >= low && reply.integer <= high;
}

constexpr Backoff::Options kPauses = {.initial = std::chrono::milliseconds(5),
                                      .maximum = std::chrono::milliseconds(250)};

const RedisCommand& Asking() {
  static const RedisCommand asking({"ASKING"});
  return asking;
}

// True if a later retry cannot help.
bool IsFinalRedisError(const absl::Status& status) {
  return absl::IsPermissionDenied(status) || absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status);
}

// Knows how to log in and which server serves which slot, and keeps open connections.
class Cluster final : public RedisCluster {
 public:
  struct View {
    SlotMap map;
    int64_t generation = 0;  // Number of maps received so far.
    bool clustered = false;
  };

  // `tls` is null for plaintext. The cluster has no slot map before the first Refresh.
  Cluster(const RedisEndpoint& endpoint, const RedisClusterOptions& options, TlsContext tls)
      : endpoint_(endpoint), options_(options), tls_(std::move(tls)) {}

  std::vector<RedisResult> Execute(absl::Span<const RedisRequest> requests, Clock::Time deadline) override;
  bool clustered() const override { return view()->clustered; }

  std::shared_ptr<const View> view() const {
    const MutexLock lock(mutex_);
    return view_;
  }
  // Asks servers for the map until one answers, unless the current map is already newer than generation `seen`. If
  // several callers need a new map, one asks and the others wait for it. UNAVAILABLE if no server answers or no slot is
  // served; other errors are those of RedisCluster::Connect.
  absl::Status Refresh(int64_t seen, Clock::Time deadline);

  // A connection that one caller uses alone. Returned at the end, or closed if it is dead or replies are outstanding.
  struct GiveBack {
    Cluster* cluster;
    void operator()(RedisConnection* connection) const {
      cluster->TakeBack(std::unique_ptr<RedisConnection>(connection));
    }
  };
  using Lease = std::unique_ptr<RedisConnection, GiveBack>;
  // An idle connection that still works, or a new one.
  absl::StatusOr<Lease> Take(const RedisAddress& server, Clock::Time deadline);
  void Run(absl::Span<RedisExchange> exchanges, Clock::Time deadline) const {
    RunRedisExchanges(exchanges, options_.response_timeout, deadline);
  }

 private:
  void TakeBack(std::unique_ptr<RedisConnection> connection);
  std::vector<RedisAddress> Candidates();
  absl::StatusOr<View> AskAnyone(Clock::Time deadline);
  absl::StatusOr<View> Ask(const RedisAddress& server, Clock::Time deadline);

  const RedisEndpoint endpoint_;
  const RedisClusterOptions options_;
  const TlsContext tls_;
  Mutex refreshing_;  // Held by the caller that asks; taken before mutex_.
  mutable Mutex mutex_;
  // The idle connections to each server. The one used last is at the end of its list and is used again first.
  std::map<RedisAddress, std::vector<std::unique_ptr<RedisConnection>>> idle_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const View> view_ ABSL_GUARDED_BY(mutex_) = std::make_shared<const View>();
  size_t first_candidate_ ABSL_GUARDED_BY(mutex_) = 0;
};

absl::StatusOr<Cluster::Lease> Cluster::Take(const RedisAddress& server, Clock::Time deadline) {
  std::unique_ptr<RedisConnection> connection;
  {
    const MutexLock lock(mutex_);
    std::vector<std::unique_ptr<RedisConnection>>& idle = idle_[server];
    if (!idle.empty()) {
      connection = std::move(idle.back());
      idle.pop_back();
    }
  }
  if (connection == nullptr || !connection->CheckIdle()) {
    const Clock::Time in_time = DeadlineAfter(Clock::Real().Now(), options_.connect_timeout);
    auto opened = RedisConnection::Open(server, endpoint_, tls_, std::min(deadline, in_time));
    // The attempt has its own time limit, `in_time`. If that ends first, the server does not answer (UNAVAILABLE), and
    // the caller still has time to try another one. DEADLINE_EXCEEDED is kept for the caller's deadline.
    if (absl::IsDeadlineExceeded(opened.status()) && in_time < deadline) {
      return absl::UnavailableError(
          absl::StrCat(server.ToString(), ": no connection within ", options_.connect_timeout.count(), " ms"));
    }
    if (!opened.ok()) return opened.status();
    connection = *std::move(opened);
  }
  return Lease(connection.release(), GiveBack{this});
}

void Cluster::TakeBack(std::unique_ptr<RedisConnection> connection) {
  if (!connection->usable()) return;
  const MutexLock lock(mutex_);
  idle_[connection->address()].push_back(std::move(connection));
}

absl::Status Cluster::Refresh(int64_t seen, Clock::Time deadline) {
  const MutexLock refreshing(refreshing_);
  if (this->view()->generation > seen) return absl::OkStatus();
  RR_ASSIGN_OR_RETURN(auto view, AskAnyone(deadline));
  const MutexLock lock(mutex_);
  view.generation = view_->generation + 1;
  view_ = std::make_shared<const View>(std::move(view));
  // When a node moves to another address, connections to the old one are closed.
  const std::vector<RedisAddress>& nodes = view_->map.nodes();
  std::erase_if(idle_,
                [&](const auto& server) { return std::find(nodes.begin(), nodes.end(), server.first) == nodes.end(); });
  return absl::OkStatus();
}

// Starts with another server each time, because a server that is cut off from the others may have a stale map.
std::vector<RedisAddress> Cluster::Candidates() {
  const MutexLock lock(mutex_);
  std::vector<RedisAddress> candidates = view_->map.nodes();
  for (const RedisAddress& seed : endpoint_.seeds) {
    if (std::find(candidates.begin(), candidates.end(), seed) == candidates.end()) candidates.push_back(seed);
  }
  const size_t first = first_candidate_++ % candidates.size();
  std::rotate(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(first), candidates.end());
  return candidates;
}

absl::StatusOr<Cluster::View> Cluster::AskAnyone(Clock::Time deadline) {
  absl::Status status;
  for (const RedisAddress& candidate : Candidates()) {
    // Each server gets a limited time, so that one that hangs leaves time for the others.
    auto view = Ask(candidate, std::min(deadline, Clock::Real().Now() + options_.connect_timeout));
    if (view.ok()) return view;
    // An error that an operator must fix is more useful than one about a server that is down.
    if (status.ok() || !IsFinalRedisError(status)) status = view.status();
  }
  return status;
}

absl::StatusOr<Cluster::View> Cluster::Ask(const RedisAddress& server, Clock::Time deadline) {
  const RedisCommand command({"CLUSTER", "SLOTS"});
  const auto lease = Take(server, deadline);
  if (IsFinalRedisError(lease.status())) return lease.status();
  absl::StatusOr<std::vector<RedisReply>> replies;
  if (lease.ok()) {
    replies = (*lease)->Exchange(absl::MakeConstSpan(&command, 1), deadline);
  } else {
    replies = lease.status();
  }
  if (!replies.ok()) {
    return absl::UnavailableError(absl::StrCat(server.ToString(), ": CLUSTER SLOTS: ", replies.status().message()));
  }
  const RedisReply& reply = replies->front();
  if (reply.is_error() && absl::StrContains(reply.text, "cluster support disabled")) {
    if (endpoint_.seeds.size() == 1) return View{.map = SlotMap::Single(server)};
    return absl::FailedPreconditionError(
        absl::StrCat(server.ToString(),
                     " is not a cluster, but several servers were given: name one server, or servers of one cluster"));
  }
  if (reply.is_error()) return StatusOfRedisError("CLUSTER SLOTS", reply.text);
  RR_ASSIGN_OR_RETURN(auto map, SlotMap::Parse(reply, server.host));
  if (map.nodes().empty()) {
    return absl::UnavailableError(absl::StrCat(server.ToString(), ": the cluster serves no slots yet"));
  }
  return View{.map = std::move(map), .clustered = true};
}

// One call of RedisCluster::Execute: repeats rounds until each request has its result. Used once, by one thread.
class Execution {
 public:
  // The arguments must outlive the execution.
  Execution(Cluster& cluster, absl::Span<const RedisRequest> requests, Clock::Time deadline)
      : cluster_(cluster), requests_(requests), deadline_(deadline), results_(requests.size()), left_(requests.size()) {
    for (const RedisRequest& request : requests) states_.push_back({.slot = RedisSlotOf(request.key)});
  }

  std::vector<RedisResult> Run() && {
    while (left_ > 0 && Clock::Real().Now() < deadline_) {
      pause_ = refresh_ = false;
      Round();
      if (left_ > 0) Pause();
    }
    GiveUp();
    return std::move(results_);
  }

 private:
  struct Redirection {
    RedisAddress server;
    bool asking;  // Sends ASKING first.
  };
  struct State {
    int slot;
    // Set if a server redirected the request. It takes precedence over the map, which may come from a server that does
    // not know of the change yet.
    std::optional<Redirection> redirection;
    absl::Status last_error;
    bool repeated = false;
    bool done = false;
  };
  // The requests for one server, and where the commands of each request end in the pipeline.
  struct Batch {
    std::vector<size_t> requests;
    std::vector<size_t> ends;
  };

  // Sends every unfinished request once.
  void Round();
  std::map<RedisAddress, Batch> Route() {
    std::map<RedisAddress, Batch> batches;
    for (size_t i = 0; i < states_.size(); ++i) {
      const State& state = states_[i];
      if (state.done) continue;
      const auto server =
          state.redirection ? std::optional(state.redirection->server) : view_->map.MasterOf(state.slot);
      if (server) {
        batches[*server].requests.push_back(i);
      } else {
        RetryLater(i, absl::UnavailableError(absl::StrCat("Redis: no server has slot ", state.slot)));
      }
    }
    return batches;
  }
  RedisExchange Prepare(RedisConnection& connection, Batch& batch) {
    RedisExchange exchange{.connection = &connection};
    for (const size_t request : batch.requests) {
      State& state = states_[request];
      if (state.redirection && state.redirection->asking) exchange.commands.push_back(&Asking());
      state.redirection.reset();
      for (const RedisCommand& command : requests_[request].before) exchange.commands.push_back(&command);
      exchange.commands.push_back(&requests_[request].command);
      batch.ends.push_back(exchange.commands.size());
    }
    return exchange;
  }
  void Evaluate(RedisExchange& exchange, const Batch& batch);
  // Decides what `reply` means for the request. `reply` is that to the request's last command, or to the first one that
  // failed.
  void Judge(size_t request, RedisReply reply, const RedisAddress& server);
  // `sent`: a part of the request may have been written, so it may have been executed.
  void Lost(size_t request, const absl::Status& status, bool sent) {
    if (IsFinalRedisError(status)) return Finish(request, status);
    states_[request].repeated |= sent;
    RetryLater(request, status);
  }
  void RetryLater(size_t request, absl::Status why) {
    absl::Status& last = states_[request].last_error;
    if (last.ok() || !absl::IsDeadlineExceeded(why)) last = std::move(why);
    pause_ = refresh_ = true;
  }
  void Finish(size_t request, absl::StatusOr<RedisReply> reply) {
    states_[request].done = true;
    results_[request] = {.reply = std::move(reply), .repeated = states_[request].repeated};
    --left_;
  }
  void Pause();
  void GiveUp();

  Cluster& cluster_;
  const absl::Span<const RedisRequest> requests_;
  const Clock::Time deadline_;
  std::vector<State> states_;
  std::vector<RedisResult> results_;
  size_t left_;
  Backoff backoff_{kPauses};
  std::shared_ptr<const Cluster::View> view_;
  // True after the first redirection, which is followed at once. Later ones pause: servers may redirect back and forth.
  bool redirected_ = false;
  bool pause_ = false;    // Wait before the next round.
  bool refresh_ = false;  // The map may be out of date.
};

void Execution::Round() {
  view_ = cluster_.view();
  std::map<RedisAddress, Batch> batches = Route();
  std::vector<Cluster::Lease> leases;
  std::vector<RedisExchange> exchanges;
  std::vector<const Batch*> asked;
  for (auto& [server, batch] : batches) {
    auto lease = cluster_.Take(server, deadline_);
    if (!lease.ok()) {
      for (const size_t request : batch.requests) Lost(request, lease.status(), /*sent=*/false);
      continue;
    }
    exchanges.push_back(Prepare(**lease, batch));
    leases.push_back(*std::move(lease));
    asked.push_back(&batch);
  }
  cluster_.Run(absl::MakeSpan(exchanges), deadline_);
  for (size_t i = 0; i < exchanges.size(); ++i) Evaluate(exchanges[i], *asked[i]);
}

void Execution::Evaluate(RedisExchange& exchange, const Batch& batch) {
  size_t decides = 0;
  for (size_t i = 0; i < batch.requests.size(); decides = batch.ends[i++]) {
    const size_t last = batch.ends[i] - 1;
    if (last >= exchange.replies.size()) {
      Lost(batch.requests[i], exchange.status, /*sent=*/true);
      continue;
    }
    while (decides < last && !exchange.replies[decides].is_error()) ++decides;
    states_[batch.requests[i]].repeated |= decides < last && !exchange.replies[last].is_error();
    Judge(batch.requests[i], std::move(exchange.replies[decides]), exchange.connection->address());
  }
}

void Execution::Judge(size_t request, RedisReply reply, const RedisAddress& server) {
  if (!reply.is_error()) return Finish(request, std::move(reply));
  State& state = states_[request];
  const absl::Status status = StatusOfRedisError(requests_[request].command.name(), reply.text);
  RedisError error = ParseRedisError(reply.text);
  if (error.address.host.empty()) error.address.host = server.host;
  switch (error.kind) {
    case RedisError::Kind::kAsk:
      // While the slot moves, some of the keys may be at the old server and some at the new one. If all commands went
      // to one of them, keys of the slot would remain at both, and the move could not end. So the request waits.
      if (!requests_[request].before.empty()) return RetryLater(request, status);
      [[fallthrough]];
    case RedisError::Kind::kMoved:
      refresh_ |= error.kind == RedisError::Kind::kMoved;
      state.redirection = {error.address, /*asking=*/error.kind == RedisError::Kind::kAsk};
      state.last_error = status;
      return;
    case RedisError::Kind::kRetry:
      return RetryLater(request, status);
    case RedisError::Kind::kForCaller:
      return Finish(request, status);
  }
}

void Execution::Pause() {
  if (pause_ || std::exchange(redirected_, true)) {
    const Clock::Duration left = std::max<Clock::Duration>(deadline_ - Clock::Real().Now(), Clock::Duration::zero());
    std::this_thread::sleep_for(std::min(backoff_.Next(), left));
  }
  // Asks for the map again after an error or MOVED. If no server answers, that is no error yet: the next round tries
  // the servers known so far.
  if (refresh_ && view_->clustered) cluster_.Refresh(view_->generation, deadline_).IgnoreError();
}

void Execution::GiveUp() {
  for (size_t i = 0; i < states_.size() && left_ > 0; ++i) {
    if (states_[i].done) continue;
    const absl::Status& last = states_[i].last_error;
    const std::string what = absl::StrCat("Redis: ", requests_[i].command.name(), ": no answer before the deadline");
    if (last.ok() || absl::IsDeadlineExceeded(last)) {
      Finish(i, absl::DeadlineExceededError(what));
    } else {
      Finish(i, absl::UnavailableError(absl::StrCat(what, "; last error: ", last.message())));
    }
  }
}

std::vector<RedisResult> Cluster::Execute(absl::Span<const RedisRequest> requests, Clock::Time deadline) {
  return Execution(*this, requests, deadline).Run();
}

}  // namespace

int RedisSlotOf(absl::string_view key) {
  const size_t open = key.find('{');
  if (open != absl::string_view::npos) {
    const size_t close = key.find('}', open + 1);
    if (close != absl::string_view::npos && close > open + 1) key = key.substr(open + 1, close - open - 1);
  }
  return Crc16(key) % kRedisSlots;
}

SlotMap SlotMap::Single(RedisAddress address) {
  SlotMap map;
  map.nodes_.push_back(std::move(address));
  map.nodes_of_slots_.fill(0);
  return map;
}

// Parses [[first slot, last slot, master, replica, …], …], where a node is [host, port, id, …].
absl::StatusOr<SlotMap> SlotMap::Parse(const RedisReply& reply, absl::string_view asked_host) {
  SlotMap map;
  for (const RedisReply& range : reply.elements) {
    const auto& parts = range.elements;
    if (parts.size() < 3 || !IsInteger(parts[0], 0, kRedisSlots - 1) ||
        !IsInteger(parts[1], parts[0].integer, kRedisSlots - 1)) {
      return Malformed();
    }
    for (size_t i = 2; i < parts.size(); ++i) {
      const auto& node = parts[i].elements;
      if (node.size() < 2 || !IsInteger(node[1], 1, 65535)) return Malformed();
      const bool unknown = node[0].text.empty() || node[0].text == "?";
      const uint16_t index =
          map.IndexOf({unknown ? std::string(asked_host) : node[0].text, static_cast<uint16_t>(node[1].integer)});
      if (i == 2) {
        std::fill(&map.nodes_of_slots_[parts[0].integer], &map.nodes_of_slots_[parts[1].integer] + 1, index);
      }
    }
  }
  return map;
}

uint16_t SlotMap::IndexOf(const RedisAddress& node) {
  const auto index = static_cast<uint16_t>(std::find(nodes_.begin(), nodes_.end(), node) - nodes_.begin());
  if (index == nodes_.size()) nodes_.push_back(node);
  return index;
}

std::optional<RedisAddress> SlotMap::MasterOf(int slot) const {
  const uint16_t node = nodes_of_slots_[static_cast<size_t>(slot)];
  if (node == kNobody) return std::nullopt;
  return nodes_[node];
}

absl::StatusOr<std::unique_ptr<RedisCluster>> RedisCluster::Connect(const RedisEndpoint& endpoint,
                                                                    const RedisClusterOptions& options,
                                                                    Clock::Time deadline) {
  RR_ASSIGN_OR_RETURN(TlsContext tls, endpoint.tls ? NewRedisTls(endpoint) : nullptr);
  auto cluster = std::make_unique<Cluster>(endpoint, options, std::move(tls));
  RR_RETURN_IF_ERROR(cluster->Refresh(0, deadline));
  return cluster;
}

}  // namespace routing_replay::server
