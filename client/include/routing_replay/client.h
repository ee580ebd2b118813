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
#include <cstdint>
#include <functional>
#include <map>
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
  // the next. "dns:///host:port": the same for all addresses of a name, with calls going to them in turn. "file:PATH":
  // a file that holds one of these. It is read again whenever the server cannot be reached, because a restarted server
  // may have another port. Empty: ROUTING_REPLAY_ENDPOINT of the environment.
  //
  // "shard:a:7400,b:7400": servers that know nothing of each other, over which samples are spread. The id of a sample
  // says which member has it (client/shard/members.h). An id may begin with a place tag that ends in ':'. If the tag is
  // the host of one member, the sample goes there ("a:prompt-7/0"). Other samples with the same tag are together, and
  // so is "prompt-7:1" with "prompt-7". A fork must be on its parent's member; if its id says otherwise, it is rejected
  // with a hint. Every client of a run must state the same list, in any order. OpenRun makes the run on all members; a
  // run can be joined and used while some cannot be reached. Then reads report UNAVAILABLE for the samples there, and
  // so do appends; Release skips them; List, Drop and ListRuns would be incomplete and fail with UNAVAILABLE naming one
  // member. If a member comes back without the run, List fails with DATA_LOSS until OpenRun makes the run there again.
  // After a failed Drop the reachable members have dropped the run: call it again.
  //
  // A server may advertise its list (its setting `advertise`): its address alone then means the whole list.
  std::string endpoint;
  SecuritySettings security;
  // False: HTTP proxies of the environment are ignored.
  bool use_http_proxy = false;
  // For calls without a deadline of their own. Transient failures (UNAVAILABLE) are retried within it, on the next
  // server if there are several.
  std::chrono::milliseconds call_timeout = std::chrono::seconds(30);
};

struct RunSettings {
  std::chrono::milliseconds ttl{0};  // 0: the server's default.
  bool strict = false;
  int32_t block_rows = 0;  // 0: the server's default.
  std::optional<Codec> codec;
  std::optional<Durability> durability;  // Nothing: the server's default. In an answer: the one in force.
  // Only in an answer: fingerprint of the list of servers that the run is spread over (ClientOptions::endpoint); 0: one
  // server.
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
  int64_t spill_budget_bytes = 0;  // Budget of the directory for cold samples; 0: there is none.
  int64_t spilled_bytes = 0;       // Bytes that the files there take.
  std::vector<std::pair<std::string, int64_t>> counters;
};

// How appends and reads go to the server: "grpc", or without gRPC "direct" (TCP), "unix" or "shm" (shared memory).
struct ClientMetrics {
  std::string transport;  // Of the last stream; of several servers each, where they differ; empty: there was none.
  int64_t grpc_streams = 0, direct_streams = 0, unix_streams = 0, shm_streams = 0;  // Begun so far.
};

class Run;

// One server, several that share a store, or several that act as one. Thread-safe. Destroy it after everything made
// from it.
class Client {
 public:
  // Does not wait for the server, nor for the file of a "file:PATH": the first calls wait for it, and fail with
  // DEADLINE_EXCEEDED. INVALID_ARGUMENT for a malformed endpoint, and for security settings that contradict it or whose
  // files are wrong.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(ClientOptions options);
  virtual ~Client() = default;

  // Makes the run or joins it. FAILED_PRECONDITION if the run has another geometry or other settings.
  //
  // `resume_at`: training continues from a checkpoint with this group. The samples of this and of higher groups, of
  // both producers, are left from before the restart and are removed; Run::dropped() returns how much. Only one
  // coordinator may pass it, before any worker appends.
  virtual absl::StatusOr<std::shared_ptr<Run>> OpenRun(absl::string_view run, const Geometry& geometry,
                                                       const RunSettings& settings = {},
                                                       std::optional<int64_t> resume_at = {}) = 0;
  // NOT_FOUND (kNoRun) if there is none.
  virtual absl::StatusOr<std::shared_ptr<Run>> JoinRun(absl::string_view run) = 0;
  virtual absl::StatusOr<std::vector<RunSummary>> ListRuns() = 0;
  // For several servers: the sums, the shortest uptime, and the version and store of the first.
  virtual absl::StatusOr<ServerSummary> GetServerInfo() = 0;
  // Of what this client and its runs have done.
  virtual ClientMetrics metrics() const = 0;
};

// Describes the rows of one append.
struct AppendOptions {
  std::string sample;
  Producer producer = Producer::kRollout;
  int64_t row_start = 0;  // Absolute row of the first row.
  // Only rows [begin, end) of the tensor's first axis are appended; the payload need not be decoded to cut it. Absent:
  // all.
  std::optional<RowRange> take;
  // The tensor's K axis holds 2K slots: the ids, then as many that are ignored (prime-rl's fp32 weights).
  bool ids_and_weights = false;
  std::vector<RowRange> unrecorded;  // Rows inside the append that the engine did not deliver; normal list.
  int64_t revision = 0;              // Revision of the sample that the rows belong to; from Stat or Truncate.
  // Not 0: the first append with this nonce begins a new incarnation of the sample, in place of `revision`. Every
  // append of that incarnation carries the same nonce.
  uint64_t restart_nonce = 0;
  // Use instead of restart_nonce if one prompt may be dispatched more than once, to workers that know nothing of each
  // other: 0 to 2^32 - 1. The first append of a later attempt begins a new incarnation of the sample. Later appends of
  // an earlier attempt end with kOldRevision, which Flush does not report as an error.
  std::optional<int64_t> attempt;
  std::optional<int64_t> group;
  int64_t weight_version = kUnknownWeightVersion;
  std::string weight_label;
  // Ranges of absolute rows of the append: not empty, ascending, disjoint. All other rows have weight_version.
  std::vector<WeightSpan> weights;
  // Token ids of the appended rows' positions (one per row), or of all positions from 0 on (then the history is checked
  // too). Empty: no token check. Copied.
  absl::Span<const uint32_t> token_ids;
  std::optional<int64_t> seal_num_tokens;
  // Seals without seal_num_tokens: the number of tokens is one more than the rows up to the end of this append, those
  // of a prefix included.
  bool seal = false;
  int64_t surplus_rows = 0;   // Rows that the engine gave for the last token and the caller left out; only counted.
  std::string prefix_sample;  // Not empty: the sample is opened as rows [0, prefix_rows) of this sample.
  int64_t prefix_rows = 0;
  int64_t prefix_revision = 0;
  std::string engine;
};

// The result of one append. `status` not OK: nothing of it was stored; or only its first rows, up to committed_rows, if
// it was so long that it was sent in several messages.
struct AppendOutcome {
  std::string sample;
  uint64_t sequence = 0;  // Of its Appender; 0 for Put.
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
  std::set<std::string> failed_samples;  // All samples of failed appends, up to 100,000.
  std::vector<AppendOutcome> failures;   // The first 100 failed appends.
  int64_t appends = 0;                   // Number of failed appends.
};

struct AppenderOptions {
  int64_t max_queued_bytes = int64_t{64} << 20;
  // How long Append waits for room in the queue, and how long an append is retried while the server is unreachable or
  // full.
  std::chrono::milliseconds queue_timeout = std::chrono::seconds(60);
  std::chrono::milliseconds append_timeout = std::chrono::seconds(120);
  // True: an append for which there is no room in time is queued without its bytes; its rows become unrecorded in the
  // store, so that readers learn of it at once. False: it fails with RESOURCE_EXHAUSTED.
  bool drop_when_full = false;
  // Called once per append, in order per sample, one at a time, from threads of the appender. Must not call the
  // appender.
  std::function<void(const AppendOutcome&)> on_outcome;
};

struct AppenderMetrics {
  int64_t appends = 0, acknowledged = 0, failed = 0;
  int64_t rows = 0, trimmed_rows = 0, conflicting_rows = 0, unrecorded_rows = 0;
  int64_t payload_bytes = 0, resent_bytes = 0;
  int64_t reconnects = 0, credit_rejections = 0;
  // Dropped because the queue was full; marked as unrecorded in the store.
  int64_t dropped_appends = 0, dropped_rows = 0;
  int64_t rejected_appends = 0;                  // Rejected by the ingest checks, before they were queued …
  std::map<Reason, int64_t> rejected_by_reason;  // … by reason.
  int64_t narrowed_appends = 0;                  // Came in a wider dtype than E needs.
  int64_t unrecorded_appends = 0;                // Appends without a recorded row.
  int64_t surplus_rows = 0;                      // AppendOptions::surplus_rows.
  int64_t stale_appends = 0;                     // Failed because a later attempt had replaced theirs.
  int64_t queued_bytes = 0, open_appends = 0;    // Gauges.
};

// One append of several.
struct NewAppend {
  AppendOptions options;
  // Absent: no recorded rows; if options.unrecorded is not empty, those rows are appended.
  std::optional<TensorDescription> tensor;
  absl::Span<const uint8_t> payload;
};

struct QueuedAppends {
  std::vector<uint64_t> sequences;  // One per append; ascending per appender, from 1 on.
  size_t dropped = 0;               // How many of them are queued as a mark only (drop_when_full).
};

// Why rows of a sample did not arrive.
struct AppendTrouble {
  absl::Status error;
  bool marked = false;  // The store marked the rows as unrecorded.
};

// Appends rows. Many samples in flight on one stream. After a broken connection it connects again, to the next server
// if there are several, and sends again what was not acknowledged; the server trims what it has. A run that is gone
// (dropped, or lost with a server that keeps runs in memory) is not made again: its appends end with NOT_FOUND (kNoRun)
// until OpenRun has made it again. Appends of one sample are applied in the order of the calls. Thread-safe.
class Appender {
 public:
  virtual ~Appender() = default;  // Abandons appends that are not acknowledged; call Flush first.

  // Encodes the ids, queues one append and returns. INVALID_ARGUMENT at once for a payload that fails the ingest
  // checks, RESOURCE_EXHAUSTED if the queue stays full for queue_timeout (unless drop_when_full), CANCELLED after
  // Close. Later failures are reported by on_outcome, Flush and metrics.
  virtual absl::Status Append(const AppendOptions& options, const TensorDescription& tensor,
                              absl::Span<const uint8_t> payload) = 0;
  // An append without recorded rows: to open, to seal, or for rows that are all unrecorded (`rows` of them).
  virtual absl::Status AppendUnrecorded(const AppendOptions& options, int64_t rows) = 0;
  // Queues several appends in this order, and adds them to `queued`. Stops at the first error and returns it: it
  // belongs to the append after those in `queued`. With `may_wait` false it also stops, without an error, at the first
  // append that would have to wait.
  virtual absl::Status AppendMany(absl::Span<const NewAppend> appends, QueuedAppends& queued, bool may_wait = true) = 0;
  // Waits until every append so far has its outcome. Returns the first error since the last Flush, if any; its text
  // names the sample and some of the others, `failures` has all of them. DEADLINE_EXCEEDED: then the next Flush reports
  // the failures.
  virtual absl::Status Flush(std::chrono::milliseconds timeout, AppendFailures* failures = nullptr) = 0;
  // Waits for the outcomes of one sample and attempt, and returns what went wrong with it, until more of it is
  // appended. Flush reports the same. Remembers the trouble of 100,000 samples. CANCELLED if the appender was closed
  // before the outcomes.
  virtual absl::StatusOr<std::optional<AppendTrouble>> Settle(absl::string_view sample, std::optional<int64_t> attempt,
                                                              std::chrono::milliseconds timeout) = 0;
  // Calls Flush and returns its result; then abandons what is left. A second call does nothing.
  virtual absl::Status Close(std::chrono::milliseconds timeout, AppendFailures* failures = nullptr) = 0;
  virtual AppenderMetrics metrics() const = 0;
  // Counts a rejection that happened before there was an append.
  virtual void CountRejection(Reason reason) = 0;
};

// One piece of a read as it arrives: `layer_count` cuts of `rows`, one after the other in `bytes`. CRCs are checked.
struct ReadPiece {
  int32_t sample_index = 0;  // Position in the request.
  int32_t layer_begin = 0;   // Position in the request's layer list.
  int32_t layer_count = 0;
  RowRange rows;
  Codec codec = Codec::kRaw;
  int32_t bit_offset = 0;
  absl::Span<const uint8_t> bytes;  // Valid during the call only; if staging() is used, the end of it.
};

// Receives a read in the order of the request: a sample's record, then its pieces. A second record of a sample cancels
// what came before it: bytes turned out to be damaged, or another server begins the sample again. A status that is not
// OK cancels the read. Called from one thread at a time: with "shard:" from one thread per server, else from the
// caller's thread.
class ReadSink {
 public:
  virtual ~ReadSink() = default;
  virtual absl::Status OnRecord(const SampleRecord& record) = 0;
  virtual absl::Status OnPiece(const ReadPiece& piece) = 0;
  // The buffer in which received bytes are gathered before OnPiece is called: appended in order, including pieces for
  // which OnPiece is not called. Null: none.
  virtual std::vector<uint8_t>* staging() { return nullptr; }
};

// A decoded sample: ids of the asked layers and rows, for tools and tests.
struct SampleRows {
  SampleRecord record;
  std::vector<RowRange> rows;  // The recorded rows that were read, normal list.
  // Per requested layer: [TotalRows(rows)][K] ids, widened to u16.
  std::vector<std::vector<uint16_t>> layers;
};

struct ReleaseOptions {
  std::optional<Producer> producer;  // Absent: both.
  // Samples by their handles (Run::Handle), in addition to those by id. 0 stands for no sample and is skipped.
  std::vector<int64_t> handles;
};

struct ReleaseOutcome {
  int64_t samples = 0;  // Released now …
  int64_t bytes = 0;    // … and the bytes that this freed.
};

// One run on a server, or on several. Thread-safe. Keeps its client's channels alive.
class Run {
 public:
  virtual ~Run() = default;
  virtual const std::string& name() const = 0;
  virtual const Geometry& geometry() const = 0;
  virtual const RunSettings& settings() const = 0;  // In force, with defaults filled in.
  // What OpenRun's resume_at removed.
  virtual const ReleaseOutcome& dropped() const = 0;
  // The number that stands for a sample in an int64 column of a batch: SampleHandle; with "shard:" the index of its
  // server is in the highest byte.
  virtual int64_t Handle(absl::string_view sample) const { return SampleHandle(sample); }
  // With "shard:": the place tag of the member on this machine ("node-3:"). Begin ids of samples with it where they are
  // made, and their bytes cross the network on their way to readers alone. That member is the one whose host
  // ROUTING_REPLAY_PLACE names, else an address of this machine, or this machine's name; empty: there is none, or more
  // than one.
  virtual std::string place() const { return {}; }
  // The tags of all members that have one.
  virtual std::vector<std::string> places() const { return {}; }

  virtual std::unique_ptr<Appender> NewAppender(AppenderOptions options = {}) = 0;
  // One append without a queue: one call per weight version and 2 MiB, all acknowledged when this returns.
  virtual absl::StatusOr<AppendOutcome> Put(const AppendOptions& options, const TensorDescription& tensor,
                                            absl::Span<const uint8_t> payload) = 0;
  // Put for an append without recorded rows, as AppendUnrecorded.
  virtual absl::StatusOr<AppendOutcome> PutUnrecorded(const AppendOptions& options, int64_t rows) = 0;

  // request.run is filled in. Streams into `sink` while the next messages arrive. If the server goes away, the read
  // continues within `timeout`, on the next server if there are several, else when it is back: the sink gets the sample
  // that was half read from its beginning, and no finished one again. UNAVAILABLE if no server came back in time. With
  // "shard:" the samples of an unreachable server get the status kUnavailable at once.
  virtual absl::Status Read(ReadRequest request, ReadSink& sink, std::chrono::milliseconds timeout) = 0;
  // Reads and decodes. One entry per entry of request.samples.
  absl::StatusOr<std::vector<SampleRows>> ReadRows(ReadRequest request, std::chrono::milliseconds timeout);

  virtual absl::StatusOr<SampleState> Seal(absl::string_view sample, Producer producer, int64_t num_tokens,
                                           int64_t revision) = 0;
  virtual absl::StatusOr<SampleState> Truncate(absl::string_view sample, Producer producer, int64_t rows,
                                               std::optional<int64_t> expected_revision) = 0;
  // NOT_FOUND (kNoSample) if there is no such sample.
  absl::StatusOr<SampleState> Stat(absl::string_view sample, Producer producer = Producer::kRollout);
  // The samples that exist, in the order of the request.
  virtual absl::StatusOr<std::vector<SampleState>> StatMany(absl::Span<const std::string> samples,
                                                            Producer producer = Producer::kRollout) = 0;
  // All samples, through all pages. Groups are half-open; absent: all.
  virtual absl::StatusOr<std::vector<SampleState>> List(std::optional<std::pair<int64_t, int64_t>> groups = {},
                                                        Producer producer = Producer::kRollout) = 0;
  virtual absl::StatusOr<ReleaseOutcome> Release(absl::Span<const std::string> samples,
                                                 const ReleaseOptions& options = {}) = 0;
  // begin <= group < end.
  virtual absl::StatusOr<ReleaseOutcome> ReleaseGroups(int64_t begin, int64_t end,
                                                       const ReleaseOptions& options = {}) = 0;
  virtual absl::StatusOr<ReleaseOutcome> Drop() = 0;
};

}  // namespace routing_replay

#endif  // ROUTING_REPLAY_CLIENT_H_
