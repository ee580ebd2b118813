#include "server/server.h"

#include <fcntl.h>
#include <grpcpp/resource_quota.h>
#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "proto/wire/security.h"
#include "proto/wire/status_macros.h"
#include "server/admission/byte_budget.h"
#include "server/config/open_store.h"
#include "server/connections/accept_loop.h"
#include "server/connections/grpc_ports.h"
#include "server/direct/direct_server.h"
#include "server/log/event_log.h"
#include "server/operations/operations.h"
#include "server/operations/periodic_thread.h"
#include "server/security/access_control.h"
#include "server/security/served_tls.h"
#include "server/service/grpc_stream.h"

namespace routing_replay::server {
namespace {

// Shortest time for which new calls are rejected before gRPC shuts down. Most active clients make a call within it.
constexpr std::chrono::milliseconds kRejectingTime(500);
constexpr std::chrono::milliseconds kPoll(5);
constexpr int64_t kSweptAtATime = 1000;  // Expired samples removed at a time: few, so that appends are not delayed.
// Time between two checks of memory and of the TLS files. Reading three small files once a second is cheaper than
// watching them.
constexpr std::chrono::milliseconds kUpkeep(1000);

// Unix sockets are served without TLS: the mode of the path protects them, and their clients are on this machine.
// `tls`: null for plaintext.
std::shared_ptr<grpc::ServerCredentials> CredentialsFor(ServedTls* tls, const std::string& address) {
  const bool plain = tls == nullptr || absl::StartsWith(address, "unix:");
  return plain ? grpc::InsecureServerCredentials() : tls->NewCredentials();
}

ConnectionLimits LimitsOf(const ServerConfig& config) {
  return WithinDescriptors({.connections = config.max_connections,
                            .per_address = config.max_connections_per_address,
                            .calls_at_a_time = config.max_streams});
}

// Limits the cost of a peer that sends little, nothing, or everything at once.
void SetConnectionLimits(const ServerConfig& config, grpc::ServerBuilder& builder) {
  SetPeerLimits(config.stall_timeout, builder);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, config.max_streams);
  // gRPC counts the memory of messages in transfer and ends calls if it exceeds this quota: the whole memory budget, in
  // case all of it is promised as credit, plus 16 of the longest messages.
  constexpr int64_t kMostMessages = 16;
  grpc::ResourceQuota quota("connections");
  quota.Resize(static_cast<size_t>(std::min(config.memory_budget, INT64_MAX / 2)) +
               static_cast<size_t>(kMostMessages * config.max_message_bytes));
  builder.SetResourceQuota(quota);
}

// An old connection is asked to end, so that its client looks up the servers again; gRPC varies the age by a tenth.
void SetConnectionAge(const ServerConfig& config, grpc::ServerBuilder& builder) {
  if (config.max_connection_age.count() == 0) return;
  const auto in_range = [](std::chrono::milliseconds time) {
    return static_cast<int>(std::min<int64_t>(time.count(), INT_MAX));
  };
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, in_range(config.max_connection_age));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, in_range(config.max_connection_age_grace));
}

// Open access is fine on a trusted network, but it may also be a mistake, so the log warns about it.
std::vector<std::string> AccessWarnings(const ServerConfig& config) {
  std::vector<std::string> warnings;
  for (const std::string& address : config.listen) {
    if (!config.token_file.empty() || !config.tls.client_ca.empty() || IsLocalAddress(address)) continue;
    warnings.push_back(absl::StrCat("access is not restricted: everybody who can reach ", address,
                                    " may read, change and drop every run; set --token-file"));
  }
  return warnings;
}

absl::StatusOr<std::unique_ptr<AccessControl>> OpenAccess(const ServerConfig& config, const Clock& clock,
                                                          Metrics& metrics) {
  if (config.token_file.empty()) return std::make_unique<AccessControl>();
  return AccessControl::Create(config.token_file, clock, [&metrics](const absl::Status& reload) {
    metrics.CountTokenFileReload(reload.ok());
    if (reload.ok()) return;
    LogEvent(LogLevel::kError, "token_file_rejected",
             absl::StrCat("the previous tokens stay valid, including removed ones: ", reload.message()));
  });
}

// Limits of the threads that wait for the store. There are more threads than cores, because threads that wait for the
// same disk sync share it; but not many more, because each holds a second copy of its message.
WorkerPool::Limits StoreWorkers(std::string field) {
  return {.threads = 32, .threads_of_an_owner = 24, .waiting_of_an_owner = SIZE_MAX, .field = std::move(field)};
}

// Writes the line that tells clients where the server listens. They see either the whole line or the previous file: it
// is written under a temporary name that nobody else in the directory can take or redirect by a link, and then renamed.
// Returns the file's inode, by which it is recognized later.
absl::StatusOr<ino_t> WriteEndpointFile(const std::string& path, const std::string& address) {
  constexpr mode_t kForAll = 0644;
  const auto failed = [&path] {
    return absl::InvalidArgumentError(absl::StrCat("--endpoint-file: cannot write ", path, ": ", std::strerror(errno)));
  };
  std::string part = path + ".XXXXXX";
  const int fd = mkostemp(part.data(), O_CLOEXEC);
  if (fd < 0) return failed();
  const absl::Cleanup close_file = [fd] { close(fd); };
  const std::string line = address + "\n";
  struct stat file {};
  if (write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size()) && fchmod(fd, kForAll) == 0 &&
      fstat(fd, &file) == 0 && std::rename(part.c_str(), path.c_str()) == 0) {
    return file.st_ino;
  }
  absl::Status status = failed();
  unlink(part.c_str());
  return status;
}

// Removes the endpoint file, unless it has been replaced meanwhile, for example by a server that was started in place
// of this one.
void RemoveEndpointFile(const std::string& path, ino_t number) {
  struct stat file {};
  if (stat(path.c_str(), &file) == 0 && file.st_ino == number) unlink(path.c_str());
}

// Returns freed memory to the system while the server is idle. The allocator keeps freed memory for later use, which
// makes a busy server faster, but after a spike it would keep unused memory for ever: for example, 900 MiB resident in
// a server that accounts for 10.
class MemoryTrim {
 public:
  // Call it once a second. `accounted`: bytes of memory that the process needs.
  void Look(int64_t accounted) {
    constexpr int64_t kSlack = int64_t{48} << 20;  // Allowed difference without a trim.
    constexpr int kPause = 10;  // Checks to skip after a trim: memory that was not freed then is not freed soon.
    const std::clock_t now = std::clock();  // CPU time of all threads.
    const bool idle = now - std::exchange(before_, now) < CLOCKS_PER_SEC / 5;
    if (pause_ > 0) --pause_;
    if (!idle || pause_ > 0 || LookAtProcess().resident_bytes <= accounted + accounted / 4 + kSlack) return;
    malloc_trim(0);
    pause_ = kPause;
  }

 private:
  std::clock_t before_ = std::clock();
  int pause_ = 0;
};

class GrpcServer final : public Server {
 public:
  GrpcServer(ServerConfig config, const Clock& clock, std::function<void(const std::string&)> warn,
             std::unique_ptr<Metrics> metrics, std::unique_ptr<AccessControl> access, std::unique_ptr<ServedTls> tls,
             std::unique_ptr<Operations> operations, std::unique_ptr<ByteBudget> budget, OpenedStore store)
      : config_(std::move(config)),
        warn_(std::move(warn)),
        owned_metrics_(std::move(metrics)),
        metrics_(*owned_metrics_),
        access_(std::move(access)),
        tls_(std::move(tls)),
        operations_(std::move(operations)),
        budget_(std::move(budget)),
        found_(std::move(store.found)),
        warnings_(AccessWarnings(config_)),
        store_(std::move(store.store)),
        context_(config_, clock, *access_, *budget_, *store_, metrics_),
        accept_loop_(LimitsOf(config_), [this](ConnectionEvent event) { Count(event); }) {
    if (store_->MayWait()) {
      context_.readers = &readers_;
      context_.writers = &writers_;
    }
  }

  ~GrpcServer() override { Shutdown(std::chrono::milliseconds(0)); }

  absl::Status Listen();

  const std::string& advertised() const override { return context_.advertised; }
  std::string StartLine() const override {
    return absl::StrCat("routing-replay-server ", ROUTING_REPLAY_VERSION, " listening on ",
                        absl::StrJoin(Listeners(), ", "), " store ", store_->name(), " budget ",
                        config_.memory_budget >> 20, " MiB",
                        config_.spill_directory.empty() ? "" : absl::StrCat(" spill ", config_.spill_directory),
                        found_.empty() ? "" : "; ", found_);
  }
  const std::vector<std::string>& warnings() const override { return warnings_; }
  std::string operations_address() const override { return operations_->http_address(); }
  std::string health_address() const override { return operations_->health_address(); }
  void Drain() override;
  void Shutdown(std::chrono::milliseconds patience) override;

 private:
  void Count(ConnectionEvent event);
  // The addresses of all ports, as text for people.
  std::vector<std::string> Listeners() const;
  void RejectNewCalls(Clock::Time deadline);
  void ReloadTls();

  const ServerConfig config_;
  const std::function<void(const std::string&)> warn_;
  const std::unique_ptr<Metrics> owned_metrics_;
  Metrics& metrics_;
  std::unique_ptr<AccessControl> access_;
  const std::unique_ptr<ServedTls> tls_;
  std::string tls_trouble_;  // Error of the last check of the TLS files; used by the upkeep thread.
  const std::unique_ptr<Operations> operations_;
  const std::unique_ptr<ByteBudget> budget_;
  const std::string found_;
  const std::vector<std::string> warnings_;
  const std::unique_ptr<Store> store_;
  ServiceContext context_;
  RawService service_;
  WorkerPool workers_{WorkerPool::Limits{}};
  // Worker threads for Read, and others for Append and Put, so that neither waits for the other. Their queues have no
  // limit, because each call has at most one message in them.
  WorkerPool readers_{StoreWorkers("reads")};
  WorkerPool writers_{StoreWorkers("appends")};
  std::vector<std::unique_ptr<GrpcLoop>> loops_;
  AcceptLoop accept_loop_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<DirectServer> direct_;  // Null: there is no direct path.
  std::unique_ptr<PeriodicThread> sweeper_;
  std::unique_ptr<PeriodicThread> upkeep_;
  std::vector<std::string> addresses_;
  std::optional<ino_t> endpoint_file_;  // Its inode while it exists.
};

void GrpcServer::Count(ConnectionEvent event) {
  if (event == ConnectionEvent::kOpened) metrics_.connections.Increment();
  if (event == ConnectionEvent::kEnded) metrics_.connections.Decrement();
  if (event == ConnectionEvent::kRejected) metrics_.rejected_connections.Increment();
  if (event == ConnectionEvent::kCut) metrics_.cut_connections.Increment();
}

std::vector<std::string> GrpcServer::Listeners() const {
  std::vector<std::string> all = addresses_;
  if (direct_ != nullptr && !direct_->address().empty()) all.push_back(absl::StrCat(direct_->address(), " (direct)"));
  if (!operations_address().empty())
    all.push_back(absl::StrCat(config_.tls.certificate.empty() ? "http://" : "https://", operations_address()));
  if (!health_address().empty()) all.push_back(absl::StrCat(health_address(), " (health)"));
  return all;
}

absl::Status GrpcServer::Listen() {
  const auto owned = NewServerBuilder(/*health=*/false);
  grpc::ServerBuilder& builder = *owned;
  for (const std::string& wanted : config_.listen) {
    RR_ASSIGN_OR_RETURN(auto address, accept_loop_.Listen(builder, wanted, CredentialsFor(tls_.get(), wanted)));
    addresses_.push_back(std::move(address));
  }
  builder.RegisterService(&service_);
  builder.SetMaxReceiveMessageSize(static_cast<int>(config_.max_message_bytes));
  builder.SetMaxSendMessageSize(-1);
  SetConnectionLimits(config_, builder);
  SetConnectionAge(config_, builder);
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  // The first loop is for calls without payload, so that these are answered while the other loops are busy. gRPC
  // distributes connections over the queues that are polled frequently. The first queue is not, because otherwise its
  // loop would get a share of the connections as well.
  for (int i = 0; i <= config_.threads; ++i) {
    loops_.push_back(std::make_unique<GrpcLoop>(builder.AddCompletionQueue(/*is_frequently_polled=*/i > 0)));
  }
  if (const auto listener = DirectListenerOf(config_)) {
    RR_ASSIGN_OR_RETURN(direct_, DirectServer::Listen(context_, *listener, tls_.get(), LimitsOf(config_),
                                                      [this](ConnectionEvent event) { Count(event); }));
    for (const std::string& address : addresses_) {
      int port = 0;  // Stays 0 for a Unix socket.
      if (absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) context_.direct.grpc_ports.push_back(port);
    }
  }
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) return absl::UnavailableError("gRPC cannot start its server");
  const bool names_one = !config_.advertise.empty() && !absl::StartsWith(config_.advertise, kShard);
  context_.advertised = names_one ? config_.advertise : addresses_[0];
  for (const UnaryMethod& method : ControlMethods()) {
    server::Listen(context_, service_, *loops_[0], method, &workers_);
  }
  for (const auto& loop : absl::MakeConstSpan(loops_).subspan(1)) {
    ServeAppend(context_, *loop, std::make_unique<GrpcStream>(service_, *loop, "Append"));
    ServeRead(context_, *loop, std::make_unique<GrpcStream>(service_, *loop, "Read"));
    server::Listen(context_, service_, *loop, PutMethod(), context_.writers);
  }
  for (const auto& loop : loops_) loop->Start();
  accept_loop_.Start();
  if (direct_ != nullptr) direct_->Start();
  sweeper_ = std::make_unique<PeriodicThread>([this] {
    const int64_t removed = store_->Sweep(kSweptAtATime);
    metrics_.expired.Increment(static_cast<double>(removed));
    // If a full batch was removed, more samples may have expired, so it continues at once.
    return removed < kSweptAtATime ? config_.sweep_interval : std::chrono::milliseconds(1);
  });
  upkeep_ = std::make_unique<PeriodicThread>([this, trim = MemoryTrim()]() mutable {
    if (tls_ != nullptr) ReloadTls();
    // Adds the store's cache, which the budget excludes, because the process needs its memory, too.
    const int64_t cache = config_.memory_budget - budget_->limit();
    trim.Look(budget_->used() + cache + context_.control_memory.used() + context_.read_requests.used());
    return kUpkeep;
  });
  operations_->Serve({*budget_, *store_, metrics_, context_.calls.journal, Listeners()});
  if (config_.endpoint_file.empty()) return absl::OkStatus();
  RR_ASSIGN_OR_RETURN(auto file, WriteEndpointFile(config_.endpoint_file, context_.advertised));
  endpoint_file_ = file;
  return absl::OkStatus();
}

void GrpcServer::ReloadTls() {
  const absl::Status changed = tls_->Reload().status();
  if (!changed.ok()) metrics_.tls_reload_failures.Increment();
  const std::string before = std::exchange(tls_trouble_, std::string(changed.message()));
  if (!changed.ok() && tls_trouble_ != before) {
    warn_(absl::StrCat("the previous certificates stay in use: ", tls_trouble_));
  }
}

void GrpcServer::Drain() {
  if (endpoint_file_) RemoveEndpointFile(config_.endpoint_file, *std::exchange(endpoint_file_, std::nullopt));
  operations_->Drain();
}

// Waits until no call is in flight: at least kRejectingTime, at most until `deadline`. Meanwhile the loops reject new
// calls with an error that sends the client to another server. gRPC's Shutdown would cancel them without a reason.
void GrpcServer::RejectNewCalls(Clock::Time deadline) {
  const auto enough = Clock::Real().Now() + kRejectingTime;
  for (auto now = Clock::Real().Now(); now < deadline; now = Clock::Real().Now()) {
    if (now >= enough && metrics_.calls_in_flight() == 0) return;
    std::this_thread::sleep_for(kPoll);
  }
}

void GrpcServer::Shutdown(std::chrono::milliseconds patience) {
  Drain();
  context_.draining = true;
  if (server_ != nullptr) {
    for (const auto& loop : loops_) loop->Drain();
    if (direct_ != nullptr) direct_->Drain();
    const Clock::Time deadline = DeadlineAfter(Clock::Real().Now(), patience);
    RejectNewCalls(deadline);
    accept_loop_.StopListening();
    server_->Shutdown(GrpcTime(deadline));  // Waits for running handlers, however long they take.
  }
  upkeep_.reset();
  sweeper_.reset();
  for (WorkerPool* pool : {&workers_, &readers_, &writers_}) pool->Finish();
  for (const auto& loop : loops_) loop->ShutdownAndJoin();
  loops_.clear();
  if (direct_ != nullptr) direct_->ShutdownAndJoin();
  server_.reset();
  operations_->Stop();  // Last, so that the shutdown can be observed.
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(ServerConfig config, const Clock& clock,
                                                      const std::function<void(const std::string&)>& warn,
                                                      const std::function<bool()>& give_up) {
  auto metrics = std::make_unique<Metrics>(clock);
  RR_ASSIGN_OR_RETURN(auto access, OpenAccess(config, clock, *metrics));
  absl::StatusOr<std::unique_ptr<ServedTls>> tls = nullptr;
  if (!config.tls.certificate.empty()) tls = ServedTls::Create(config.tls);
  if (!tls.ok()) return tls.status();
  RR_ASSIGN_OR_RETURN(auto operations,
                      Operations::Start(config, clock, tls->get(), MakeOperatorCheck(config, *access)));
  SpillOptions spill{.budget_bytes = config.spill_budget, .warn = warn};
  if (!config.spill_directory.empty()) {
    RR_ASSIGN_OR_RETURN(auto disk, OpenSpillDirectory(config.spill_directory));
    spill.disk = std::move(disk);
  }
  const int64_t cache_bytes = CacheBytes(config.store, config.memory_budget);
  auto budget = std::make_unique<ByteBudget>(config.memory_budget - cache_bytes);
  auto store =
      OpenStore(config.store, config.durability, cache_bytes,
                {.clock = &clock, .budget = budget.get(), .default_ttl = config.default_ttl, .spill = std::move(spill)},
                {.give_up = give_up, .warn = warn});
  if (!store.ok()) return store.status();
  auto server =
      std::make_unique<GrpcServer>(std::move(config), clock, warn, std::move(metrics), std::move(access),
                                   *std::move(tls), std::move(operations), std::move(budget), *std::move(store));
  RR_RETURN_IF_ERROR(server->Listen());
  return server;
}

}  // namespace routing_replay::server
