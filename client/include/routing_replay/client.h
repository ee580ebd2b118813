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
  // "host:port", "[v6]:port" or "unix:PATH": one server. "host:port,host:port,…": servers of one store that they share,
  // any of which serves any sample; each client begins at one of them by chance and stays there until it is
  // UNAVAILABLE, then goes on to the next. "dns:///host:port": the same of all addresses of a name, calls going to them
  // in turn. "file:PATH": of a file that holds one of these and is read again whenever the server cannot be reached:
  // a restarted one may have another port. Empty: the environment's ROUTING_REPLAY_ENDPOINT.
  //
  // "shard:a:7400,b:7400" stands for several servers that know nothing of each other, over which samples are spread:
  // the id of a sample says which member has it (client/shard/members.h). An id may begin with a place tag that ends in
  // ':'; a tag that is the host of one member goes there ("a:prompt-7/0"), all other samples with one tag are together,
  // and so is "prompt-7:1" with "prompt-7". A fork must be with its parent, and is rejected with a hint where its id
  // says otherwise. Every client of a run must state the same list, in any order. A run is made on all members; it is
  // joined, and used, without those that cannot be reached. Reads say UNAVAILABLE of their samples. Release leaves them
  // out; List, Drop and ListRuns, whose answers would not be whole, fail with UNAVAILABLE naming one. That is the
  // outcome of an append whose sample is with one of them. A member that is back without the run fails List with
  // DATA_LOSS until OpenRun makes the run there again. After a Drop that failed, what the others had is gone: call it
  // again.
  std::string endpoint;
  SecuritySettings security;
  // HTTP proxies of the environment are ignored unless this is set.
  bool use_http_proxy = false;
  // For a call without a deadline of its own; transient failures (UNAVAILABLE) are retried within it, on the next
  // server where there are several.
  std::chrono::milliseconds call_timeout = std::chrono::seconds(30);
};

struct RunSettings {
  std::chrono::milliseconds ttl{0};  // 0: the server's default.
  bool strict = false;
  int32_t block_rows = 0;  // 0: the server's default.
  std::optional<Codec> codec;
  std::optional<Durability> durability;  // Nothing: the server's default. In an answer: what is in force.
  // In an answer alone: of the list of servers that the run is spread over (ClientOptions::endpoint); 0: of one server.
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
  int64_t spill_budget_bytes = 0;  // Of the directory to which cold samples go; 0: they go nowhere.
  int64_t spilled_bytes = 0;       // That the files there take.
  std::vector<std::pair<std::string, int64_t>> counters;
};

class Run;

// One server, several that share a store, or several as one. Thread-safe. Destroy it after everything made from it.
class Client {
 public:
  // Does not wait for the server, nor for the file of a "file:PATH", which the first calls wait for: DEADLINE_EXCEEDED.
  // INVALID_ARGUMENT for an endpoint that cannot be one, and for security settings that do not fit it or its files.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(ClientOptions options);
  virtual ~Client() = default;

  // Makes the run or joins it; another geometry or other settings than its own: FAILED_PRECONDITION.
  //
  // `resume_at`: training goes on from a checkpoint with this group. The samples of this and of higher groups, of both
  // producers, are what an earlier life of the training left, and are removed; Run::dropped() tells how much. For the
  // one coordinator, before any worker appends.
  virtual absl::StatusOr<std::shared_ptr<Run>> OpenRun(absl::string_view run, const Geometry& geometry,
                                                       const RunSettings& settings = {},
                                                       std::optional<int64_t> resume_at = {}) = 0;
  // NOT_FOUND (kNoRun) if there is none.
  virtual absl::StatusOr<std::shared_ptr<Run>> JoinRun(absl::string_view run) = 0;
  virtual absl::StatusOr<std::vector<RunSummary>> ListRuns() = 0;
  // Of several servers the sums, the shortest uptime, and the version and store of the first.
  virtual absl::StatusOr<ServerSummary> GetServerInfo() = 0;
};

// What one append says of its rows.
struct AppendOptions {
  std::string sample;
  Producer producer = Producer::kRollout;
  int64_t row_start = 0;  // Absolute row of the first row.
  // Rows [begin, end) of the tensor's first axis are appended, the others left out; no need to decode a payload to cut
  // it. Absent: all.
  std::optional<RowRange> take;
  // The tensor's K axis holds 2K slots: the ids, then as many that are not looked at (prime-rl's fp32 weights).
  bool ids_and_weights = false;
  std::vector<RowRange> unrecorded;  // Rows inside the append that the engine did not deliver; normal list.
  int64_t revision = 0;              // Of the sample's life that the rows belong to; from Stat or Truncate.
  // Not 0: the first append with this nonce begins a new life of the sample in place of `revision`. The same nonce on
  // every append of that life.
  uint64_t restart_nonce = 0;
  // In the place of restart_nonce, where one prompt may be dispatched more than once, to workers that know nothing of
  // each other: 0 to 2^32 - 1. The first append of a later attempt begins a new life of the sample; what then comes of
  // an earlier one ends with kOldRevision, which is no error of Flush.
  std::optional<int64_t> attempt;
  std::optional<int64_t> group;
  int64_t weight_version = kUnknownWeightVersion;
  std::string weight_label;
  // Of ranges of absolute rows of the append: not empty, ascending, disjoint. Rows in none of them are of
  // weight_version.
  std::vector<WeightSpan> weights;
  // Token ids of the appended rows' positions (then one per row), or of all positions from 0 on (then the history is
  // checked too). Empty: no token check. Copied.
  absl::Span<const uint32_t> token_ids;
  std::optional<int64_t> seal_num_tokens;
  // Seals, where seal_num_tokens says no number, with one token more than the rows up to the end of this append, those
  // of a prefix included.
  bool seal = false;
  int64_t surplus_rows = 0;   // That the engine gave for the last token and the caller left out; only counted.
  std::string prefix_sample;  // Not empty: open as rows [0, prefix_rows) of this sample.
  int64_t prefix_rows = 0;
  int64_t prefix_revision = 0;
  std::string engine;
};

// What the server said of one append. `status` not OK: nothing of it was stored, or only its first rows, up to
// committed_rows, where it was long enough to be sent in several messages.
struct AppendOutcome {
  std::string sample;
  uint64_t sequence = 0;  // Of its Appender; 0 of a Put.
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

// Appends that failed since the Flush before.
struct AppendFailures {
  std::set<std::string> failed_samples;  // All their samples, up to 100,000.
  std::vector<AppendOutcome> failures;   // The first 100 appends.
  int64_t appends = 0;                   // How many there are.
};

struct AppenderOptions {
  int64_t max_queued_bytes = int64_t{64} << 20;
  // How long Append waits for room in the queue, and how long an append is retried while the server is unreachable or
  // full.
  std::chrono::milliseconds queue_timeout = std::chrono::seconds(60);
  std::chrono::milliseconds append_timeout = std::chrono::seconds(120);
  // An append for which there is no room in time is taken without its bytes: its rows become unrecorded in the store,
  // so that readers learn of it at once. False: it is RESOURCE_EXHAUSTED.
  bool drop_when_full = false;
  // Called once per append, in order per sample, one at a time, from threads of the appender. Must not call it.
  std::function<void(const AppendOutcome&)> on_outcome;
};

struct AppenderMetrics {
  int64_t appends = 0, acknowledged = 0, failed = 0;
  int64_t rows = 0, trimmed_rows = 0, conflicting_rows = 0, unrecorded_rows = 0;
  int64_t payload_bytes = 0, resent_bytes = 0;
  int64_t reconnects = 0, credit_refusals = 0;
  int64_t dropped_appends = 0, dropped_rows = 0;  // Of a full queue; marked as unrecorded in the store.
  int64_t refused_appends = 0;                    // By the ingest checks, before they were queued …
  std::map<Reason, int64_t> refused_by_reason;    // … and why.
  int64_t narrowed_appends = 0;                   // Came in a wider dtype than E needs.
  int64_t unrecorded_appends = 0;                 // Without one recorded row.
  int64_t surplus_rows = 0;                       // AppendOptions::surplus_rows.
  int64_t stale_appends = 0;                      // Of those that failed: of an attempt that a later one has replaced.
  int64_t queued_bytes = 0, open_appends = 0;     // At present.
};

// One append of several.
struct NewAppend {
  AppendOptions options;
  // Absent: no recorded rows; those of options.unrecorded are appended, if any.
  std::optional<TensorDescription> tensor;
  absl::Span<const uint8_t> payload;
};

struct QueuedAppends {
  std::vector<uint64_t> sequences;  // One per append; ascending per appender, from 1 on.
  size_t dropped = 0;               // How many of them only have a mark in the queue (drop_when_full).
};

// Why rows of a sample did not come.
struct AppendTrouble {
  absl::Status error;
  bool marked = false;  // The store was told, in the place of the rows.
};

// Rows in. Many samples in flight on one stream; survives broken connections: on a new one, to the next server where
// there are several, it sends again what was not acknowledged, and the server trims what it has. A run that is gone
// (dropped, or lost with a server that keeps runs in memory) is not made again: its appends end with NOT_FOUND (kNoRun)
// until OpenRun has made it again. Appends of one sample are applied in the order of the calls. Thread-safe.
class Appender {
 public:
  virtual ~Appender() = default;  // Abandons what is not acknowledged; Flush first.

  // Queues one append and returns; the ids are encoded before. INVALID_ARGUMENT at once for a payload that the ingest
  // checks refuse, RESOURCE_EXHAUSTED if the queue stays full for queue_timeout
  // (unless drop_when_full), CANCELLED once it is closed. Failures found later come through on_outcome, Flush and
  // metrics.
  virtual absl::Status Append(const AppendOptions& options, const TensorDescription& tensor,
                              absl::Span<const uint8_t> payload) = 0;
  // The same without recorded rows: to open, to seal, or for rows that are all unrecorded (`rows` of them).
  virtual absl::Status AppendUnrecorded(const AppendOptions& options, int64_t rows) = 0;
  // Queues several in this order, and adds to `queued`. Stops at the first error, which is that of the append behind
  // those in `queued`. With `may_wait` false it also stops, without an error, at the first that would have to wait.
  virtual absl::Status AppendMany(absl::Span<const NewAppend> appends, QueuedAppends& queued, bool may_wait = true) = 0;
  // Waits until every append so far has its outcome. The first error since the last Flush, if any, with its sample and
  // some of the others in the text; all of them in `failures`. DEADLINE_EXCEEDED; then the failures come with the next
  // Flush.
  virtual absl::Status Flush(std::chrono::milliseconds timeout, AppendFailures* failures = nullptr) = 0;
  // The same of one sample and attempt alone: tells what went wrong with it, until more of it is appended. Flush tells
  // it, too. Trouble is remembered of 100,000 samples. CANCELLED if the appender was closed before the outcomes.
  virtual absl::StatusOr<std::optional<AppendTrouble>> Settle(absl::string_view sample, std::optional<int64_t> attempt,
                                                              std::chrono::milliseconds timeout) = 0;
  // Flushes, and says what that says; then abandons what is left. Nothing happens the second time.
  virtual absl::Status Close(std::chrono::milliseconds timeout, AppendFailures* failures = nullptr) = 0;
  virtual AppenderMetrics metrics() const = 0;
  // Something was refused before it could be an append.
  virtual void CountRefusal(Reason reason) = 0;
};

// One piece of a read as it arrives: `layer_count` cuts of `rows`, one after the other in `bytes`. CRCs are checked.
struct ReadPiece {
  int32_t sample_index = 0;  // Position in the request.
  int32_t layer_begin = 0;   // Position in the request's layer list.
  int32_t layer_count = 0;
  RowRange rows;
  Codec codec = Codec::kRaw;
  int32_t bit_offset = 0;
  absl::Span<const uint8_t> bytes;  // Valid during the call only; the end of ReadSink::staging() where there is one.
};

// Receives a read in the order asked: a sample's record, then its pieces. A second record of a sample takes back what
// came of it: bytes that turned out to be damaged, or another server that begins with it again. A status that is not OK
// cancels the read. Called from one thread at a time: with "shard:" from one of each server, else from that of the
// call.
class ReadSink {
 public:
  virtual ~ReadSink() = default;
  virtual absl::Status OnRecord(const SampleRecord& record) = 0;
  virtual absl::Status OnPiece(const ReadPiece& piece) = 0;
  // Where received bytes are gathered before OnPiece is told of them: appended in order, pieces that are not told of
  // included. Null: nowhere.
  virtual std::vector<uint8_t>* staging() { return nullptr; }
};

// A decoded sample: ids of the asked layers and rows, for tools and tests.
struct SampleRows {
  SampleRecord record;
  std::vector<RowRange> rows;  // The recorded rows read, normal list.
  // Per asked layer: [TotalRows(rows)][K] ids, widened to u16.
  std::vector<std::vector<uint16_t>> layers;
};

struct ReleaseOptions {
  std::optional<Producer> producer;  // Absent: both.
  // Samples by their handles (Run::Handle), beside those by id. 0, of no sample, is skipped.
  std::vector<int64_t> handles;
};

struct ReleaseOutcome {
  int64_t samples = 0;  // Given back now …
  int64_t bytes = 0;    // … and what that freed.
};

// One run of a server, or of several. Thread-safe. Keeps its client's channels alive.
class Run {
 public:
  virtual ~Run() = default;
  virtual const std::string& name() const = 0;
  virtual const Geometry& geometry() const = 0;
  virtual const RunSettings& settings() const = 0;  // In force, defaults filled in.
  // What OpenRun's resume_at removed.
  virtual const ReleaseOutcome& dropped() const = 0;
  // What an int64 column of a batch carries of a sample in place of its id: SampleHandle, and with "shard:" the place
  // of its server in the highest byte.
  virtual int64_t Handle(absl::string_view sample) const { return SampleHandle(sample); }

  virtual std::unique_ptr<Appender> NewAppender(AppenderOptions options = {}) = 0;
  // One append without a queue: in one call per weight version and 2 MiB, which are acknowledged when this returns.
  virtual absl::StatusOr<AppendOutcome> Put(const AppendOptions& options, const TensorDescription& tensor,
                                            absl::Span<const uint8_t> payload) = 0;
  // The same as AppendUnrecorded.
  virtual absl::StatusOr<AppendOutcome> PutUnrecorded(const AppendOptions& options, int64_t rows) = 0;

  // request.run is filled in. Streams into `sink` while the next messages arrive.
  // A read whose server goes away is continued within `timeout`, on the next one where there are several, else when it
  // is back: the sink gets the sample that was half there from its beginning, and no whole one again. UNAVAILABLE if no
  // server came back in time. With "shard:" the samples of a server that is away have the status kUnavailable, and
  // nothing is waited for.
  virtual absl::Status Read(ReadRequest request, ReadSink& sink, std::chrono::milliseconds timeout) = 0;
  // Reads and decodes. One entry per request.samples.
  absl::StatusOr<std::vector<SampleRows>> ReadRows(ReadRequest request, std::chrono::milliseconds timeout);

  virtual absl::StatusOr<SampleState> Seal(absl::string_view sample, Producer producer, int64_t num_tokens,
                                           int64_t revision) = 0;
  virtual absl::StatusOr<SampleState> Truncate(absl::string_view sample, Producer producer, int64_t rows,
                                               std::optional<int64_t> expected_revision) = 0;
  // NOT_FOUND (kNoSample) if there is none.
  absl::StatusOr<SampleState> Stat(absl::string_view sample, Producer producer = Producer::kRollout);
  // The ones that exist, in the order asked.
  virtual absl::StatusOr<std::vector<SampleState>> StatMany(absl::Span<const std::string> samples,
                                                            Producer producer = Producer::kRollout) = 0;
  // All pages. Groups are half-open; absent: all.
  virtual absl::StatusOr<std::vector<SampleState>> List(std::optional<std::pair<int64_t, int64_t>> groups = {},
                                                        Producer producer = Producer::kRollout) = 0;
  // UNIMPLEMENTED from a server without the mode.
  virtual absl::StatusOr<ReleaseOutcome> Release(absl::Span<const std::string> samples,
                                                 const ReleaseOptions& options = {}) = 0;
  // begin <= group < end.
  virtual absl::StatusOr<ReleaseOutcome> ReleaseGroups(int64_t begin, int64_t end,
                                                       const ReleaseOptions& options = {}) = 0;
  virtual absl::StatusOr<ReleaseOutcome> Drop() = 0;
};

}  // namespace routing_replay

#endif  // ROUTING_REPLAY_CLIENT_H_
