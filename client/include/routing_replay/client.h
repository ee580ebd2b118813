// The C++ client: rows in from rollout workers, slices out to trainer ranks, and control calls.
//
//   auto client = Client::Connect({.endpoint = "server:7400"});
//   auto run = (*client)->OpenRun("grpo-42", geometry);
//   auto appender = (*run)->NewAppender();
//   appender->Append({.sample = "step1/0", .token_ids = tokens, .seal_num_tokens = T}, tensor, bytes);
//   absl::Status all_acknowledged = appender->Flush(deadline);
//
// Errors are absl::Status with an ErrorDetail (routing_replay/wire/error_detail.h). No exceptions.
#ifndef ROUTING_REPLAY_CLIENT_H_
#define ROUTING_REPLAY_CLIENT_H_

#include <chrono>
#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "routing_replay/security.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/row_range.h"
#include "routing_replay/wire/sample.h"
#include "routing_replay/wire/tensor.h"

namespace routing_replay {

struct ClientOptions {
  // "host:port", "[v6]:port" or "unix:PATH": one server. "host:port,host:port,…": servers that share one store, any of
  // which serves any sample. A client picks one at random and stays with it until it is UNAVAILABLE, then moves on to
  // the next. "dns:///host:port": all addresses of a DNS name, likewise sharing one store; calls go to them in turn.
  // "file:PATH": a file that holds an endpoint in one of these forms. The file is read again whenever the server cannot
  // be reached, because a restarted server may have another port. Empty: the environment variable
  // ROUTING_REPLAY_ENDPOINT.
  //
  // "shard:a:7400,b:7400": servers that share nothing; samples are spread over them. The id of a sample alone decides
  // which of these servers (the members) stores it (client/shard/members.h). An id may begin with a place tag, which
  // ends in ':'. If the tag is the host of a member, that member stores the sample ("a:prompt-7/0"). With any other
  // tag, all samples with the same tag are on one member; "prompt-7" is on the same member as "prompt-7:1". A fork must
  // be on the member of its parent; if its id leads to another member, the fork is rejected with a hint. Every client
  // of a run must state the same list, in any order. OpenRun creates the run on all members. A run can be joined and
  // used while some members cannot be reached: reads and appends of their samples end with UNAVAILABLE, and Release
  // skips these samples. List, Drop and ListRuns fail with UNAVAILABLE naming a member, because their result would be
  // incomplete. If a member comes back without the run, List fails with DATA_LOSS until OpenRun creates the run there
  // again. After a failed Drop, the reachable members have dropped the run; call Drop again for the others.
  //
  // A server may advertise such a list (its setting `advertise`). Then the address of that server alone stands for the
  // whole list.
  std::string endpoint;
  SecuritySettings security;
  // The deadline of calls that have no timeout parameter. Until then, transient failures (UNAVAILABLE) are retried, on
  // the next server if there are several.
  std::chrono::milliseconds call_timeout = std::chrono::seconds(30);
  friend auto operator<=>(const ClientOptions&, const ClientOptions&) = default;
};

struct RunSettings {
  std::chrono::milliseconds ttl{0};  // 0: the server's default.
  bool strict = false;
  int32_t block_rows = 0;  // 0: the server's default.
  std::optional<Codec> codec;
  std::optional<Durability> durability;  // Not set: the server's default. In results: the value in force.
  // Set only in results: fingerprint of the list of servers over which the run is spread ("shard:"); 0: one server.
  uint64_t shard_fingerprint = 0;
};

struct RunSummary {
  std::string run;
  Geometry geometry;
  RunSettings settings;
  int64_t samples = 0;
  int64_t sealed_samples = 0;
  int64_t committed_rows = 0;
  int64_t stored_bytes = 0;
};

struct ServerSummary {
  std::string version;
  std::string store;
  int64_t budget_bytes = 0;
  int64_t stored_bytes = 0;
  int64_t reserved_bytes = 0;
  int64_t samples = 0;
  int64_t runs = 0;
  std::chrono::milliseconds uptime{0};
  bool draining = false;
  int64_t spill_budget_bytes = 0;  // Budget of the spill directory, which holds cold samples; 0: no such directory.
  int64_t spilled_bytes = 0;       // Bytes of the files in the spill directory.
  std::vector<std::pair<std::string, int64_t>> counters;
};

// Which transport appends and reads use: "grpc", or one without gRPC: "direct" (TCP), "unix" (unix socket) or "shm"
// (shared memory).
struct ClientMetrics {
  std::string transport;  // Of the newest stream of each server, such as "direct,grpc". Empty: no stream yet.
  int64_t grpc_streams = 0, direct_streams = 0, unix_streams = 0, shm_streams = 0;  // Streams begun so far.
};

class Run;

// Calls one server, several that share a store, or several over which samples are spread ("shard:"). Thread-safe. Its
// runs and appenders may outlive it.
class Client {
 public:
  // Returns without waiting for the server or for the file of a "file:PATH" endpoint. The first calls wait, and fail
  // with DEADLINE_EXCEEDED if the server does not become reachable in time. INVALID_ARGUMENT for a malformed endpoint,
  // for security settings that contradict the endpoint, and for invalid certificate, key or token files.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(ClientOptions options);
  virtual ~Client() = default;

  // Creates the run, or joins it if it exists. FAILED_PRECONDITION if it exists with another geometry or other
  // settings.
  //
  // `resume_at`: the first group that training will produce again after it restarts from a checkpoint. The samples of
  // this group and of higher groups, of both producers, are stale and are removed; Run::dropped() returns how many.
  // Only one coordinator may pass resume_at, before any worker appends.
  virtual absl::StatusOr<std::shared_ptr<Run>> OpenRun(absl::string_view run, const Geometry& geometry,
                                                       const RunSettings& settings = {},
                                                       std::optional<int64_t> resume_at = {}) = 0;
  // NOT_FOUND (kNoRun) if the run does not exist.
  virtual absl::StatusOr<std::shared_ptr<Run>> JoinRun(absl::string_view run) = 0;
  virtual absl::StatusOr<std::vector<RunSummary>> ListRuns() = 0;
  // With "shard:" the numbers are sums over the servers, except that `runs` is the largest and `uptime` the shortest;
  // version and store are those of the first server.
  virtual absl::StatusOr<ServerSummary> GetServerInfo() = 0;
  // Counts the streams of this client and of its runs.
  virtual ClientMetrics metrics() const = 0;
};

// Describes the rows of one append.
struct AppendOptions {
  std::string sample;
  Producer producer = Producer::kRollout;
  int64_t row_start = 0;  // Position of the append's first row in the sample.
  // Appends only rows [begin, end) of the tensor's first axis, so the caller need not cut the payload. Absent: all
  // rows.
  std::optional<RowRange> take;
  std::vector<RowRange> unrecorded;  // Rows of this append that the engine did not deliver; a normal list.
  int64_t revision = 0;              // The sample's revision that the rows belong to, from Stat or Truncate.
  // Not 0: restarts the sample. The first append with a new nonce discards the rows that the sample has at `revision`,
  // and begins a new incarnation. Every append of that incarnation must carry the same nonce.
  uint64_t restart_nonce = 0;
  // The number of the attempt, 0 to 2^32 - 1. Use it instead of restart_nonce if one prompt may be dispatched several
  // times, to workers that do not know of each other. The first append with a higher attempt begins a new incarnation
  // of the sample. From then on, appends of lower attempts end with kOldRevision, which Flush does not report as an
  // error.
  std::optional<int64_t> attempt;
  std::optional<int64_t> group;
  int64_t weight_version = kUnknownWeightVersion;
  std::string weight_label;
  // Weight versions of some rows. The ranges are positions in the sample, none of them empty, ascending and disjoint.
  // Rows in no range have weight_version.
  std::vector<WeightSpan> weights;
  // One token id per appended row; or one for every position from 0 to the end of the append, so that earlier tokens
  // are checked, too. Empty: no token check. The ids are copied.
  absl::Span<const uint32_t> token_ids;
  std::optional<int64_t> seal_num_tokens;
  // Seals the sample and derives the number of tokens: one more than the rows up to the end of this append, including
  // rows of a prefix. Not needed with seal_num_tokens.
  bool seal = false;
  std::string prefix_sample;  // Not empty: the new sample starts with rows [0, prefix_rows) of this one.
  int64_t prefix_rows = 0;
  int64_t prefix_revision = 0;
  std::string engine;
};

// The result of one append. If the server rejects it, nothing of it is stored, except that the first messages of a long
// append may be (committed_rows). After UNAVAILABLE or DEADLINE_EXCEEDED it is unknown whether the append was stored.
struct AppendOutcome {
  std::string sample;
  uint64_t sequence = 0;  // Number of the append in its Appender; 0 for Put.
  absl::Status status;
  int64_t committed_rows = 0;
  int64_t revision = 0;
  uint64_t content_id = 0;
  bool sealed = false;
  int64_t trimmed_rows = 0;
  int64_t conflicting_rows = 0;
  int64_t late_rows = 0;
  int64_t unrecorded_rows = 0;
  int64_t unverified_rows = 0;
};

// Appends that failed since the last Flush.
struct AppendFailures {
  std::set<std::string> failed_samples;  // Samples with failed appends, up to 100,000.
  std::vector<AppendOutcome> failures;   // The first 100 failed appends.
  int64_t appends = 0;                   // Number of failed appends.
};

struct AppenderOptions {
  int64_t max_queued_bytes = int64_t{64} << 20;
  // queue_timeout: how long Append waits for room in the queue. append_timeout: how long an append is retried while the
  // server is unreachable or full.
  std::chrono::milliseconds queue_timeout = std::chrono::seconds(60);
  std::chrono::milliseconds append_timeout = std::chrono::seconds(120);
  // What happens to an append that finds no room in the queue in time. True: it is queued without its bytes, and its
  // rows become unrecorded in the store, so that readers see at once that they are missing. False: it fails with
  // RESOURCE_EXHAUSTED.
  bool drop_when_full = false;
  // Called once per append with its outcome, from threads of the appender. Calls do not overlap, and those of one
  // sample are in the order of its appends. The callback must not call the appender.
  std::function<void(const AppendOutcome&)> on_outcome;
};

struct AppenderMetrics {
  int64_t appends = 0, acknowledged = 0, failed = 0;
  int64_t rows = 0, trimmed_rows = 0, conflicting_rows = 0, unrecorded_rows = 0;
  int64_t payload_bytes = 0, resent_bytes = 0;
  int64_t reconnects = 0, credit_rejections = 0;
  // Dropped because the queue was full; marked as unrecorded in the store.
  int64_t dropped_appends = 0, dropped_rows = 0;
  int64_t stale_appends = 0;                   // Failed because a later attempt had replaced their attempt.
  int64_t queued_bytes = 0, open_appends = 0;  // Gauges.
};

// One append in a call of AppendMany.
struct NewAppend {
  AppendOptions options;
  // Absent: no recorded rows; the append then consists of the rows in options.unrecorded, if there are any.
  std::optional<TensorDescription> tensor;
  absl::Span<const uint8_t> payload;
};

struct QueuedAppends {
  std::vector<uint64_t> sequences;  // Each append's number in its appender: 1, 2, …; with "shard:" there may be gaps.
  size_t dropped = 0;               // How many were queued without their rows (drop_when_full).
};

// Why rows of a sample did not arrive.
struct AppendTrouble {
  absl::Status error;
  bool marked = false;  // The store marked the rows as unrecorded.
};

// Appends rows of many samples over one stream (with "shard:", one per server). If a connection breaks, the appender
// reconnects, to the next server if several share the store, and resends what was not acknowledged; the server trims
// rows that it already has. The appender does not create a run that is gone (dropped, or lost with a server that keeps
// runs in memory): appends end with NOT_FOUND (kNoRun) until OpenRun has created the run again. Appends of one sample
// are applied in the order of the calls. Thread-safe.
class Appender {
 public:
  virtual ~Appender() = default;  // Abandons appends that are not acknowledged; call Flush first.

  // Encodes the ids, queues one append and returns. INVALID_ARGUMENT at once for a payload that fails the ingest
  // checks, RESOURCE_EXHAUSTED if the queue stays full for queue_timeout (unless drop_when_full), CANCELLED after
  // Close. Later failures are reported by on_outcome, Flush and metrics.
  virtual absl::Status Append(const AppendOptions& options, const TensorDescription& tensor,
                              absl::Span<const uint8_t> payload) = 0;
  // Queues several appends in this order, and adds an entry to `queued` for each. Stops at the first append that fails
  // and returns its error; `queued` then has only the appends before it. If `may_wait` is false, also stops, without an
  // error, at the first append that would have to wait for room.
  virtual absl::Status AppendMany(absl::Span<const NewAppend> appends, QueuedAppends& queued, bool may_wait = true) = 0;
  // Waits until every append made so far has an outcome. Returns the first error since the last Flush, if there is any;
  // its message names the sample and some of the other samples with errors, and `failures` has more of them. If the
  // wait itself takes too long (DEADLINE_EXCEEDED), the next Flush reports the failures.
  virtual absl::Status Flush(std::chrono::milliseconds timeout, AppendFailures* failures = nullptr) = 0;
  // Waits until all appends of one sample and attempt have an outcome, and returns what went wrong, if anything did.
  // The answer stays the same until the next append of the sample, and is kept for up to 100,000 samples. Flush reports
  // these errors, too. CANCELLED if the appender was closed before there were outcomes.
  virtual absl::StatusOr<std::optional<AppendTrouble>> Settle(absl::string_view sample, std::optional<int64_t> attempt,
                                                              std::chrono::milliseconds timeout) = 0;
  // Calls Flush and returns its result; then abandons the appends that have no outcome. A second call does nothing.
  virtual absl::Status Close(std::chrono::milliseconds timeout, AppendFailures* failures = nullptr) = 0;
  virtual AppenderMetrics metrics() const = 0;
};

// One piece of a read as it arrives: the ids of `rows` in `layer_count` layers, one layer after the other in `bytes`.
// CRCs are already checked.
struct ReadPiece {
  int32_t sample_index = 0;  // Position in the request.
  int32_t layer_begin = 0;   // Position in the request's layer list.
  int32_t layer_count = 0;
  RowRange rows;
  Codec codec = Codec::kRaw;
  int32_t bit_offset = 0;
  absl::Span<const uint8_t> bytes;  // Valid only during the call. The last bytes of staging(), if the sink has one.
};

// Receives a read in the order of the request: a sample's record, then its pieces. A second record of a sample means:
// discard what was received for it before, because bytes were damaged or because another server starts the sample
// again. If a method returns a status that is not OK, the read is cancelled. Calls do not overlap; they come from the
// caller's thread, or with "shard:" from one thread per server.
class ReadSink {
 public:
  virtual ~ReadSink() = default;
  virtual absl::Status OnRecord(const SampleRecord& record) = 0;
  virtual absl::Status OnPiece(const ReadPiece& piece) = 0;
  // A buffer to which the reader appends all received bytes in order, each before the OnPiece call that refers to them,
  // and also those for which OnPiece is not called. Null: no such buffer.
  virtual std::vector<uint8_t>* staging() { return nullptr; }
};

// A decoded sample, for tools and tests: the ids of the requested layers and rows.
struct SampleRows {
  SampleRecord record;
  std::vector<RowRange> rows;  // The recorded rows that were read; a normal list.
  // Per requested layer: [TotalRows(rows)][K] ids, widened to u16.
  std::vector<std::vector<uint16_t>> layers;
};

struct ReleaseOptions {
  std::optional<Producer> producer;  // Absent: both.
  // Samples by their handles (Run::Handle), in addition to those by id. 0 stands for no sample and is skipped.
  std::vector<int64_t> handles;
};

struct ReleaseOutcome {
  int64_t samples = 0;  // Number of samples that this call released.
  int64_t bytes = 0;    // Stored bytes that this call freed.
};

// One run on a server, or on several. Thread-safe. Keeps the connections of its client open.
class Run {
 public:
  virtual ~Run() = default;
  virtual const std::string& name() const = 0;
  virtual const Geometry& geometry() const = 0;
  virtual const RunSettings& settings() const = 0;  // In force, with defaults filled in.
  // What OpenRun's resume_at removed.
  virtual const ReleaseOutcome& dropped() const = 0;
  // The handle of a sample: an int64 that replaces its id in a batch tensor. It is SampleHandle(sample); with "shard:"
  // its highest byte is replaced by the server's number, 1 for the first member of the sorted list.
  virtual int64_t Handle(absl::string_view sample) const { return SampleHandle(sample); }
  // With "shard:": the place tag of the member on this machine ("node-3:"). If a worker begins its sample ids with this
  // tag, the rows stay on this machine and cross the network only to readers. The member on this machine is the one
  // whose host the environment variable ROUTING_REPLAY_PLACE names; without it, the one whose host is an address or the
  // name of this machine. Empty if no member, or more than one, is on this machine.
  virtual std::string place() const { return {}; }
  // The place tags of all members that have one.
  virtual std::vector<std::string> places() const { return {}; }

  virtual std::unique_ptr<Appender> NewAppender(AppenderOptions options = {}) = 0;
  // Makes one append without an appender, and returns when all of it is acknowledged. It is sent in one RPC for each
  // weight version and each 2 MiB.
  virtual absl::StatusOr<AppendOutcome> Put(const AppendOptions& options, const TensorDescription& tensor,
                                            absl::Span<const uint8_t> payload) = 0;
  // Put for an append without recorded rows: to create or seal a sample (rows = 0), or to append `rows` unrecorded
  // rows.
  virtual absl::StatusOr<AppendOutcome> PutUnrecorded(const AppendOptions& options, int64_t rows) = 0;

  // Fills in request.run, and passes the rows to `sink` while the next messages arrive. If the server fails, the read
  // continues within `timeout` on the next server, or on the same one when it is back. If a sample was only partly
  // read, the sink gets it again from its beginning; finished samples are not repeated. UNAVAILABLE if no server came
  // back in time. With "shard:" the samples of an unreachable server get the status kUnavailable after about a second.
  virtual absl::Status Read(ReadRequest request, ReadSink& sink, std::chrono::milliseconds timeout) = 0;
  // Reads and decodes. Returns one entry per entry of request.samples.
  absl::StatusOr<std::vector<SampleRows>> ReadRows(ReadRequest request, std::chrono::milliseconds timeout);

  virtual absl::StatusOr<SampleState> Truncate(absl::string_view sample, Producer producer, int64_t rows,
                                               std::optional<int64_t> expected_revision) = 0;
  // NOT_FOUND (kNoSample) if there is no such sample.
  absl::StatusOr<SampleState> Stat(absl::string_view sample, Producer producer = Producer::kRollout);
  // The samples that exist, in the order of the request.
  virtual absl::StatusOr<std::vector<SampleState>> StatMany(absl::Span<const std::string> samples,
                                                            Producer producer = Producer::kRollout) = 0;
  // Lists all samples, over all pages. `groups` is half-open; absent: all groups.
  virtual absl::StatusOr<std::vector<SampleState>> List(std::optional<std::pair<int64_t, int64_t>> groups = {},
                                                        Producer producer = Producer::kRollout) = 0;
  virtual absl::StatusOr<ReleaseOutcome> Release(absl::Span<const std::string> samples,
                                                 const ReleaseOptions& options = {}) = 0;
  // Releases the samples with begin <= group < end.
  virtual absl::StatusOr<ReleaseOutcome> ReleaseGroups(int64_t begin, int64_t end,
                                                       const ReleaseOptions& options = {}) = 0;
  virtual absl::StatusOr<ReleaseOutcome> Drop() = 0;
};

}  // namespace routing_replay

#endif  // ROUTING_REPLAY_CLIENT_H_
