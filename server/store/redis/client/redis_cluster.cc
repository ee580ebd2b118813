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
#include "server/store/redis/client/redis_connection.h"

namespace routing_replay::server {
namespace {

using Type = RedisReply::Type;

constexpr std::array<uint16_t, 256> MakeCrcTable() {
  std::array<uint16_t, 256> table{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    unsigned crc = byte << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 0x8000) != 0 ? crc << 1 ^ 0x1021 : crc << 1;
    table[byte] = static_cast<uint16_t>(crc);
  }
  return table;
}
constexpr std::array<uint16_t, 256> kCrcTable = MakeCrcTable();

uint16_t Crc16(absl::string_view text) {
  unsigned crc = 0;
  for (const char c : text) crc = (crc << 8 ^ kCrcTable[(crc >> 8 ^ static_cast<uint8_t>(c)) & 0xff]) & 0xffff;
  return static_cast<uint16_t>(crc);
}

absl::Status Malformed(absl::string_view what) { return absl::DataLossError(absl::StrCat("CLUSTER SLOTS: ", what)); }

bool IsInteger(const RedisReply& reply, int64_t low, int64_t high) {
  return reply.type == Type::kInteger && reply.integer >= low && reply.integer <= high;
}

// [host, port, id, …]
absl::StatusOr<RedisAddress> NodeOf(const RedisReply& reply, absl::string_view asked_host) {
  const auto& parts = reply.elements;
  if (parts.size() < 2 || (parts[0].type != Type::kBulk && !parts[0].is_nil())) return Malformed("a node has no host");
  if (!IsInteger(parts[1], 1, 65535)) return Malformed("a node has no port");
  const bool unknown = parts[0].text.empty() || parts[0].text == "?";
  return RedisAddress{unknown ? std::string(asked_host) : parts[0].text, static_cast<uint16_t>(parts[1].integer)};
}

// A slot that is sent to and fro by two servers that do not agree yet.
constexpr int kRoundsWithoutPause = 8;
constexpr Backoff::Options kPauses = {.initial = std::chrono::milliseconds(5),
                                      .maximum = std::chrono::milliseconds(250)};

const RedisCommand& Asking() {
  static const RedisCommand asking({"ASKING"});
  return asking;
}

// Whether trying again later cannot help.
bool IsFinalRedisError(const absl::Status& status) {
  return absl::IsPermissionDenied(status) || absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status);
}

// What is known of a deployment: how to log in, who serves what, and the connections that are open. Thread-safe.
class Topology {
 public:
  struct View {
    SlotMap map;
    int64_t generation = 0;  // Of the answer that the map comes from; single slots may have been corrected since.
    bool clustered = false;
  };

  // `tls` as the endpoint wants it. Knows nothing before the first Refresh.
  Topology(const RedisEndpoint& endpoint, const RedisClusterOptions& options, std::shared_ptr<const RedisTls> tls);

  std::shared_ptr<const View> view() const;
  // Asks one server after the other for the map, unless the view is newer than generation `seen` already; one caller
  // asks, the others wait for it. UNAVAILABLE: none answers, or nobody serves anything; else as RedisCluster::Connect.
  absl::Status Refresh(int64_t seen, Clock::Time deadline);
  // A server said that `slot` lives at `master` now.
  void Moved(int slot, const RedisAddress& master);

  absl::StatusOr<RedisLease> Take(const RedisAddress& server, Clock::Time deadline) {
    return pool_.Take(server, deadline);
  }
  // RedisCluster::Abandon.
  void Abandon() { abandoned_.Set(); }
  bool abandoned() const { return abandoned_.is_set(); }
  // A wait that ends when the topology is abandoned.
  RedisWait WaitUntil(Clock::Time deadline) const {
    return {.deadline = deadline, .clock = options_.clock, .interrupt_fd = abandoned_.fd()};
  }

  const RedisClusterOptions& options() const { return options_; }

 private:
  absl::StatusOr<std::unique_ptr<RedisConnection>> Open(const RedisAddress& server, RedisWait wait);
  std::vector<RedisAddress> Candidates();
  absl::StatusOr<View> AskAnyone(Clock::Time deadline);
  absl::StatusOr<View> Ask(const RedisAddress& server, Clock::Time deadline);
  absl::StatusOr<View> Read(const RedisAddress& server, const RedisReply& reply);

  const RedisEndpoint endpoint_;
  const RedisClusterOptions options_;
  const std::shared_ptr<const RedisTls> tls_;
  WakeEvent abandoned_;
  RedisPool pool_;
  mutable Mutex mutex_;
  CondVar refreshed_;
  std::shared_ptr<const View> view_ ABSL_GUARDED_BY(mutex_) = std::make_shared<const View>();
  bool refreshing_ ABSL_GUARDED_BY(mutex_) = false;
  size_t first_candidate_ ABSL_GUARDED_BY(mutex_) = 0;
  bool nobody_answered_ ABSL_GUARDED_BY(mutex_) = false;  // To the last refresh.
};

Topology::Topology(const RedisEndpoint& endpoint, const RedisClusterOptions& options,
                   std::shared_ptr<const RedisTls> tls)
    : endpoint_(endpoint),
      options_(options),
      tls_(std::move(tls)),
      pool_({options.max_connections, options.idle_timeout, options.clock},
            [this](const RedisAddress& server, Clock::Time deadline) { return Open(server, WaitUntil(deadline)); }) {}

std::shared_ptr<const Topology::View> Topology::view() const {
  const MutexLock lock(mutex_);
  return view_;
}

absl::StatusOr<std::unique_ptr<RedisConnection>> Topology::Open(const RedisAddress& server, RedisWait wait) {
  const Clock::Time callers_deadline = wait.deadline;
  wait.deadline = std::min(wait.deadline, DeadlineAfter(wait.clock->Now(), options_.connect_timeout));
  auto connection = RedisConnection::Open(server, endpoint_, tls_.get(), options_.max_reply_bytes, wait);
  // Only what the caller waits for is the caller's deadline.
  if (absl::IsDeadlineExceeded(connection.status()) && wait.deadline < callers_deadline) {
    return absl::UnavailableError(
        absl::StrCat(server.ToString(), ": no connection within ", options_.connect_timeout.count(), " ms"));
  }
  return connection;
}

void Topology::Moved(int slot, const RedisAddress& master) {
  const MutexLock lock(mutex_);
  if (view_->map.MasterOf(slot) == master) return;
  auto corrected = std::make_shared<View>(*view_);
  corrected->map.Assign(slot, master);
  view_ = std::move(corrected);
}

absl::Status Topology::Refresh(int64_t seen, Clock::Time deadline) {
  {
    const MutexLock lock(mutex_);
    while (refreshing_) {
      if (!refreshed_.WaitUntil(mutex_, deadline)) return absl::DeadlineExceededError("waiting for the map of slots");
    }
    if (view_->generation > seen) return absl::OkStatus();
    refreshing_ = true;
  }
  auto view = AskAnyone(deadline);
  const MutexLock lock(mutex_);
  refreshing_ = false;
  refreshed_.NotifyAll();
  nobody_answered_ = !view.ok();
  if (!view.ok()) return view.status();
  view->generation = view_->generation + 1;
  view_ = std::make_shared<const View>(*std::move(view));
  return absl::OkStatus();
}

// Starts with another one each time, so that a server cut off from the others is not believed for ever.
std::vector<RedisAddress> Topology::Candidates() {
  const MutexLock lock(mutex_);
  std::vector<RedisAddress> candidates = view_->map.nodes();
  for (const RedisAddress& seed : endpoint_.seeds) {
    if (std::find(candidates.begin(), candidates.end(), seed) == candidates.end()) candidates.push_back(seed);
  }
  const size_t first = first_candidate_++ % candidates.size();
  std::rotate(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(first), candidates.end());
  return candidates;
}

absl::StatusOr<Topology::View> Topology::AskAnyone(Clock::Time deadline) {
  absl::Status status;
  // One that hangs must not use up the time in which the others would answer, unless all of them are that slow.
  Clock::Duration time = options_.connect_timeout;
  const std::vector<RedisAddress> candidates = Candidates();
  if (const MutexLock lock(mutex_); candidates.size() > 1 && !nobody_answered_) time /= 4;
  for (const RedisAddress& candidate : candidates) {
    auto view = Ask(candidate, std::min(deadline, options_.clock->Now() + time));
    if (view.ok()) return view;
    // What an operator has to fix says more than who happens to be down.
    if (status.ok() || !IsFinalRedisError(status)) status = view.status();
  }
  return status;
}

absl::StatusOr<Topology::View> Topology::Ask(const RedisAddress& server, Clock::Time deadline) {
  const RedisWait wait = WaitUntil(deadline);
  const auto lease = Take(server, wait.deadline);
  if (IsFinalRedisError(lease.status())) return lease.status();
  const RedisCommand command({"CLUSTER", "SLOTS"});
  absl::Status status = lease.status();
  if (status.ok()) {
    const auto replies = (*lease)->Exchange(absl::MakeConstSpan(&command, 1), wait);
    if (replies.ok()) return Read(server, replies->front());
    status = replies.status();
  }
  return absl::UnavailableError(absl::StrCat(server.ToString(), ": CLUSTER SLOTS: ", status.message()));
}

absl::StatusOr<Topology::View> Topology::Read(const RedisAddress& server, const RedisReply& reply) {
  if (reply.is_error() && absl::StrContains(reply.text, "cluster support disabled")) {
    if (endpoint_.seeds.size() == 1) return View{.map = SlotMap::Single(server)};
    return absl::FailedPreconditionError(
        absl::StrCat(server.ToString(), " is no cluster: name one server only, or the servers of one cluster"));
  }
  if (reply.is_error()) return StatusOfRedisError("CLUSTER SLOTS", reply.text);
  auto map = SlotMap::Parse(reply, server.host);
  if (!map.ok()) return map.status();
  if (map->unserved_slots() == kRedisSlots) {
    return absl::UnavailableError(absl::StrCat(server.ToString(), ": the cluster has no slots yet"));
  }
  return View{.map = *std::move(map), .clustered = true};
}

// One call of RedisCluster::Execute: rounds of asking until each request has its result. Used once, by one thread.
class Execution {
 public:
  // All of it must outlive the execution.
  Execution(Topology& topology, absl::Span<const RedisRequest> requests, Clock::Time deadline);

  std::vector<RedisResult> Run() &&;

 private:
  struct Redirection {
    RedisAddress server;
    bool asking;  // ASKING goes first.
  };
  struct State {
    int slot;
    // Where a server said that the next try should go: it knows better than the map, which another server may have told
    // that has not heard of the change yet.
    std::optional<Redirection> redirection;
    std::optional<RedisCommand> with_source;  // In place of the request's command.
    // Of a sequence that met a slot on its way to another server: each command goes alone, to where that one belongs.
    // All of them together at one of both servers would leave keys at both, and the slot could not move on.
    bool in_steps = false;
    size_t steps_done = 0;
    absl::Status last_error;
    bool repeated = false;
    bool done = false;
  };
  // Where a request is in a pipeline.
  struct Place {
    size_t begin;  // Of its commands, all of them together …
    size_t end;
    size_t step;  // … of which each so many-th is one of its own, and the others are ASKING.
  };
  // The requests that go to one server, and their places.
  struct Batch {
    std::vector<size_t> requests;
    std::vector<Place> places;
  };

  // Asks for everything that is not done once.
  void Round();
  std::map<RedisAddress, Batch> Route();
  RedisExchange Prepare(const RedisLease& lease, Batch& batch);
  void Evaluate(RedisExchange& exchange, const Batch& batch);
  // `reply`: to `command`, which is the last one of the request, or one that failed.
  void Judge(size_t request, const RedisCommand& command, RedisReply reply, const RedisAddress& server);
  void Lost(size_t request, const absl::Status& status, bool written);
  void RetryLater(size_t request, absl::Status why);
  void Finish(size_t request, RedisResult result);
  void Pause();
  void GiveUp();

  Topology& topology_;
  const absl::Span<const RedisRequest> requests_;
  const Clock::Time deadline_;
  const Clock& clock_;
  std::vector<State> states_;
  std::vector<RedisResult> results_;
  size_t left_;
  std::optional<Backoff> backoff_;  // Made when it is needed: most calls have no pause.
  std::shared_ptr<const Topology::View> view_;
  int rounds_without_pause_ = 0;
  bool pause_ = false;    // Something must have time to pass before the next round.
  bool refresh_ = false;  // The map is not to be trusted.
};

Execution::Execution(Topology& topology, absl::Span<const RedisRequest> requests, Clock::Time deadline)
    : topology_(topology),
      requests_(requests),
      deadline_(deadline),
      clock_(*topology.options().clock),
      results_(requests.size()),
      left_(requests.size()) {
  for (const RedisRequest& request : requests) states_.push_back({.slot = RedisSlotOf(request.key)});
}

std::vector<RedisResult> Execution::Run() && {
  while (left_ > 0 && clock_.Now() < deadline_ && !topology_.abandoned()) {
    pause_ = refresh_ = false;
    Round();
    if (left_ > 0) Pause();
  }
  GiveUp();
  return std::move(results_);
}

void Execution::Round() {
  view_ = topology_.view();
  std::map<RedisAddress, Batch> batches = Route();
  std::vector<RedisLease> leases;
  std::vector<RedisExchange> exchanges;
  std::vector<const Batch*> asked;
  for (auto& [server, batch] : batches) {
    auto lease = topology_.Take(server, deadline_);
    if (!lease.ok()) {
      for (const size_t request : batch.requests) Lost(request, lease.status(), /*written=*/false);
      continue;
    }
    exchanges.push_back(Prepare(*lease, batch));
    leases.push_back(*std::move(lease));
    asked.push_back(&batch);
  }
  RunRedisExchanges(absl::MakeSpan(exchanges), topology_.options().response_timeout, topology_.WaitUntil(deadline_));
  for (size_t i = 0; i < exchanges.size(); ++i) Evaluate(exchanges[i], *asked[i]);
}

std::map<RedisAddress, Execution::Batch> Execution::Route() {
  std::map<RedisAddress, Batch> batches;
  for (size_t i = 0; i < states_.size(); ++i) {
    if (states_[i].done) continue;
    const State& state = states_[i];
    const auto server = state.redirection ? std::optional(state.redirection->server) : view_->map.MasterOf(state.slot);
    if (server) {
      batches[*server].requests.push_back(i);
    } else {
      RetryLater(i, absl::UnavailableError(absl::StrCat("Redis: no server has slot ", state.slot)));
    }
  }
  return batches;
}

RedisExchange Execution::Prepare(const RedisLease& lease, Batch& batch) {
  RedisExchange exchange{.connection = &*lease};
  for (const size_t request : batch.requests) {
    State& state = states_[request];
    const bool asking = state.redirection && state.redirection->asking;
    state.redirection.reset();
    const size_t begin = exchange.commands.size();
    const auto add = [&](const RedisCommand& command) {
      if (asking) exchange.commands.push_back(&Asking());
      exchange.commands.push_back(&command);
    };
    const std::vector<RedisCommand>& before = requests_[request].before;
    const RedisCommand& last = state.with_source ? *state.with_source : requests_[request].command;
    if (state.in_steps) {
      add(state.steps_done < before.size() ? before[state.steps_done] : last);
    } else {
      for (const RedisCommand& command : before) add(command);
      add(last);
    }
    batch.places.push_back({begin, exchange.commands.size(), size_t{asking ? 2u : 1u}});
  }
  return exchange;
}

void Execution::Evaluate(RedisExchange& exchange, const Batch& batch) {
  for (size_t i = 0; i < batch.requests.size(); ++i) {
    const Place& place = batch.places[i];
    if (place.end > exchange.replies.size()) {
      Lost(batch.requests[i], exchange.status, /*written=*/place.end <= exchange.written);
      continue;
    }
    size_t decides = place.begin + place.step - 1;
    while (decides + 1 < place.end && !exchange.replies[decides].is_error()) decides += place.step;
    states_[batch.requests[i]].repeated |= decides + 1 < place.end && !exchange.replies[place.end - 1].is_error();
    Judge(batch.requests[i], *exchange.commands[decides], std::move(exchange.replies[decides]),
          exchange.connection->address());
  }
}

void Execution::Judge(size_t request, const RedisCommand& command, RedisReply reply, const RedisAddress& server) {
  State& state = states_[request];
  if (!reply.is_error()) {
    if (state.in_steps && state.steps_done++ < requests_[request].before.size()) return;
    return Finish(request, {.reply = std::move(reply)});
  }
  const std::string name = command.name();
  RedisError error = ParseRedisError(reply.text);
  if (error.address.host.empty()) error.address.host = server.host;
  switch (error.kind) {
    case RedisError::Kind::kMoved:
      topology_.Moved(error.slot, error.address);
      refresh_ = true;
      state.redirection = {error.address, /*asking=*/false};
      state.last_error = StatusOfRedisError(name, reply.text);
      return;
    case RedisError::Kind::kAsk:
      state.last_error = StatusOfRedisError(name, reply.text);
      // Of one command of a sequence: the others may belong elsewhere.
      if (!state.in_steps && !requests_[request].before.empty()) {
        state.in_steps = true;
      } else {
        state.redirection = {error.address, /*asking=*/true};
      }
      return;
    case RedisError::Kind::kNoScript:
      if (requests_[request].script == nullptr || state.with_source) break;
      state.with_source = requests_[request].script->WithSource(requests_[request].command);
      return;
    case RedisError::Kind::kRetry:
      state.in_steps = !requests_[request].before.empty();
      return RetryLater(request, StatusOfRedisError(name, reply.text));
    case RedisError::Kind::kForCaller:
      break;
  }
  Finish(request, {.reply = StatusOfRedisError(name, reply.text)});
}

void Execution::Lost(size_t request, const absl::Status& status, bool written) {
  if (written && !requests_[request].idempotent) {
    return Finish(request, {.reply = absl::UnavailableError(absl::StrCat("Redis: ", requests_[request].command.name(),
                                                                         ": outcome unknown: ", status.message())),
                            .outcome_unknown = true});
  }
  if (IsFinalRedisError(status)) return Finish(request, {.reply = status});
  states_[request].repeated |= written;
  RetryLater(request, status);
}

void Execution::RetryLater(size_t request, absl::Status why) {
  states_[request].last_error = std::move(why);
  states_[request].redirection.reset();
  pause_ = refresh_ = true;
}

void Execution::Finish(size_t request, RedisResult result) {
  states_[request].done = true;
  result.repeated = states_[request].repeated;
  results_[request] = std::move(result);
  --left_;
}

void Execution::Pause() {
  if (++rounds_without_pause_ > kRoundsWithoutPause) pause_ = true;
  if (pause_) {
    rounds_without_pause_ = 0;
    if (!backoff_) backoff_.emplace(kPauses);
    const Clock::Duration left = deadline_ - clock_.Now();
    std::this_thread::sleep_for(std::clamp<Clock::Duration>(backoff_->Next(), Clock::Duration::zero(),
                                                            std::max(left, Clock::Duration::zero())));
  }
  // If nobody can say, the next round finds out what is still there.
  if (refresh_ && view_->clustered) topology_.Refresh(view_->generation, deadline_).IgnoreError();
}

void Execution::GiveUp() {
  for (size_t i = 0; i < states_.size() && left_ > 0; ++i) {
    const State& state = states_[i];
    if (state.done) continue;
    const bool abandoned = topology_.abandoned();
    const std::string what = absl::StrCat("Redis: ", requests_[i].command.name(), ": no answer before ",
                                          abandoned ? "this server stops" : "the deadline");
    if (abandoned) {
      Finish(i, {.reply = absl::UnavailableError(what)});
    } else if (state.last_error.ok() || absl::IsDeadlineExceeded(state.last_error)) {
      Finish(i, {.reply = absl::DeadlineExceededError(what)});
    } else {
      Finish(i, {.reply = absl::UnavailableError(absl::StrCat(what, "; last: ", state.last_error.message()))});
    }
  }
}

constexpr Backoff::Options kConnectPauses = {.initial = std::chrono::milliseconds(20),
                                             .maximum = std::chrono::milliseconds(500)};

class Cluster final : public RedisCluster {
 public:
  explicit Cluster(std::shared_ptr<Topology> topology) : topology_(std::move(topology)) {}

  std::vector<RedisResult> Execute(absl::Span<const RedisRequest> requests, Clock::Time deadline) override {
    return Execution(*topology_, requests, deadline).Run();
  }
  std::vector<RedisAddress> Masters() override { return topology_->view()->map.Masters(); }
  bool clustered() const override { return topology_->view()->clustered; }
  void Abandon() override { topology_->Abandon(); }

  RedisResult ExecuteAt(const RedisAddress& server, const RedisCommand& command, Clock::Time deadline) override {
    RedisResult result = AskOnce(server, command, deadline);
    // Most likely a connection that the server closed just when it was used again.
    if (absl::IsUnavailable(result.reply.status())) result = AskOnce(server, command, deadline);
    return result;
  }

 private:
  RedisResult AskOnce(const RedisAddress& server, const RedisCommand& command, Clock::Time deadline) {
    const auto lease = topology_->Take(server, deadline);
    if (!lease.ok()) return {.reply = lease.status()};
    RedisExchange exchange{.connection = &**lease, .commands = {&command}};
    RunRedisExchanges(absl::MakeSpan(&exchange, 1), topology_->options().response_timeout,
                      topology_->WaitUntil(deadline));
    if (absl::IsCancelled(exchange.status)) return {.reply = absl::UnavailableError(exchange.status.message())};
    if (exchange.replies.empty()) return {.reply = exchange.status};
    RedisReply reply = std::move(exchange.replies.front());
    if (reply.is_error()) return {.reply = StatusOfRedisError(command.name(), reply.text)};
    return {.reply = std::move(reply)};
  }

  const std::shared_ptr<Topology> topology_;
};

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

absl::StatusOr<SlotMap> SlotMap::Parse(const RedisReply& reply, absl::string_view asked_host) {
  if (reply.type != Type::kArray) return Malformed("is no array");
  SlotMap map;
  for (const RedisReply& range : reply.elements) {
    const auto& parts = range.elements;
    if (parts.size() < 3) return Malformed("a range is not first slot, last slot, master");
    if (!IsInteger(parts[0], 0, kRedisSlots - 1) || !IsInteger(parts[1], parts[0].integer, kRedisSlots - 1)) {
      return Malformed("a range of slots that do not exist");
    }
    const auto master = NodeOf(parts[2], asked_host);
    if (!master.ok()) return master.status();
    const uint16_t index = map.IndexOf(*master);
    for (int64_t slot = parts[0].integer; slot <= parts[1].integer; ++slot) {
      uint16_t& node = map.nodes_of_slots_[static_cast<size_t>(slot)];
      if (node != kNobody) return Malformed("a slot is given twice");
      node = index;
    }
    for (size_t i = 3; i < parts.size(); ++i) {
      const auto replica = NodeOf(parts[i], asked_host);
      if (!replica.ok()) return replica.status();
      map.IndexOf(*replica);
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

std::vector<RedisAddress> SlotMap::Masters() const {
  std::vector<bool> serves(nodes_.size());
  for (const uint16_t node : nodes_of_slots_) {
    if (node != kNobody) serves[node] = true;
  }
  std::vector<RedisAddress> masters;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (serves[i]) masters.push_back(nodes_[i]);
  }
  std::sort(masters.begin(), masters.end());
  return masters;
}

void SlotMap::Assign(int slot, const RedisAddress& master) {
  nodes_of_slots_[static_cast<size_t>(slot)] = IndexOf(master);
}

int SlotMap::unserved_slots() const {
  return static_cast<int>(std::count(nodes_of_slots_.begin(), nodes_of_slots_.end(), kNobody));
}

absl::StatusOr<std::unique_ptr<RedisCluster>> RedisCluster::Connect(const RedisEndpoint& endpoint,
                                                                    const RedisClusterOptions& options,
                                                                    Clock::Time deadline) {
  std::shared_ptr<const RedisTls> tls;
  if (endpoint.tls) {
    auto created = RedisTls::Create(endpoint);
    if (!created.ok()) return created.status();
    tls = *std::move(created);
  }
  auto topology = std::make_shared<Topology>(endpoint, options, std::move(tls));
  Backoff backoff(kConnectPauses);
  absl::Status status = topology->Refresh(0, deadline);
  while (!status.ok() && !IsFinalRedisError(status)) {
    const Clock::Duration pause = backoff.Next();
    if (options.clock->Now() + pause >= deadline) break;
    std::this_thread::sleep_for(pause);
    status = topology->Refresh(0, deadline);
  }
  if (IsFinalRedisError(status) || absl::IsDeadlineExceeded(status)) return status;
  if (!status.ok()) return absl::UnavailableError(status.message());
  return std::make_unique<Cluster>(std::move(topology));
}

RedisResult RedisCluster::ExecuteOne(const RedisRequest& request, Clock::Time deadline) {
  return std::move(Execute(absl::MakeConstSpan(&request, 1), deadline).front());
}

}  // namespace routing_replay::server
