/* The C functions of librouting_replay.so, which the Python packages call. The library contains the whole C++ client,
 * gRPC included, and exports only these symbols and those of routing_replay/trainer/capi.h.
 *
 * Calls. A function that may wait takes an rr_call. If the rr_call has no queue, the function blocks until the call is
 * done. If it has a queue, the function returns at once, and the completion (rr_ended) is delivered through the queue
 * with the call's tag. Outputs are written before the completion is taken from the queue. Until then, output pointers
 * and payload bytes must stay valid; all other arguments are copied. Both ways run the same code. At most 1,024 calls
 * with a queue run at a time. A further one begins when one of them has ended, and cannot time out before that.
 *
 * Arguments. Pointers must not be NULL unless a comment allows it. An rr_call may be NULL: the function blocks, as with
 * timeout_ms below 0. A zeroed rr_text is the empty text. Other structs have no defaults, so set all their fields;
 * where a comment says "below 0: …", any negative number stands for "not given".
 *
 * Errors. Functions that can fail return NULL on success, else an error that the caller frees with rr_free. With a
 * queue, the function itself returns only errors in the arguments; all others are in the completion. Outputs are
 * untouched on failure. No exception leaves a function. The codes are those of the C++ function of the same name
 * (routing_replay/client.h), and INVALID_ARGUMENT for arguments that no C++ type can hold.
 *
 * Memory. Results are structs that rr_free frees together with all that they point to. Objects are opaque and freed by
 * rr_object_free; an object may be freed before the objects that were made from it. Text is UTF-8 with its size beside
 * it, and must not contain NUL. All functions but rr_object_free and rr_queue_wait are thread-safe. Structs carry no
 * size or version field: the library and its header have the same version (rr_abi_version).
 *
 * Processes. After a fork, parent and child may both keep using all objects if rr_fork_before was called before the
 * fork, and rr_fork_in_parent and rr_fork_in_child after it. */
#ifndef ROUTING_REPLAY_C_API_H_
#define ROUTING_REPLAY_C_API_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef RR_API
#define RR_API __attribute__((visibility("default")))
#endif

typedef struct rr_queue rr_queue;
typedef struct rr_client rr_client;
typedef struct rr_run rr_run;
typedef struct rr_appender rr_appender;
typedef struct rr_trajectory rr_trajectory;

/* --- Values ------------------------------------------------------------------------------------------------------ */

typedef struct rr_text {
  const char* data;
  size_t size; /* 0: empty, or absent where the field is optional. */
} rr_text;

typedef struct rr_range { /* Half-open. */
  int64_t begin, end;
} rr_range;

typedef struct rr_ranges {
  const rr_range* data;
  size_t count;
} rr_ranges;

typedef struct rr_integer { /* An optional integer: `value` is set only if `present` is not 0. */
  int64_t value;
  int32_t present;
} rr_integer;

enum rr_producer { RR_ROLLOUT = 1, RR_TRAINER = 2 };

typedef struct rr_weight_span { /* Rows [begin, end) were routed under these weights; version -1: unknown. */
  int64_t begin, end, version;
  rr_text label;
} rr_weight_span;

/* Errors: the fields of ErrorDetail in common.proto; those that are not set are absent. */
typedef struct rr_error {
  int32_t code;                                      /* A google.rpc.Code; never 0. */
  rr_text code_name, message, reason, field, sample; /* reason: a name, for example "ID_RANGE". */
  rr_integer row, layer, first_differing_block, retry_after_ms, committed_rows, revision;
  /* Set by a flush: the samples with failed appends (at most 100,000), and the first 100 failed appends. */
  const rr_text* failed_samples;
  size_t failed_count;
  const struct rr_error* const* failures; /* Each names its sample. */
  size_t failures_count;
} rr_error;

#define RR_ABI_VERSION 2
RR_API int32_t rr_abi_version(void);
RR_API const char* rr_version(void); /* Version of the product. */
/* Frees a result or an error; NULL is allowed. */
RR_API void rr_free(const void* result);
/* Frees an object of this header or of routing_replay/trainer/capi.h; NULL is allowed. Freeing a client, a run, an
 * appender or a trajectory does not block: calls in progress keep what they need, and appends that are not acknowledged
 * yet are abandoned. Freeing a queue cancels its calls and waits for them. */
RR_API void rr_object_free(void* object);

/* --- Calls ------------------------------------------------------------------------------------------------------- */

typedef struct rr_call {
  int64_t timeout_ms; /* For the whole call; below 0: the client's call_timeout, unless the function states another. */
  rr_queue* queue;    /* NULL: the call blocks. */
  uint64_t tag;
} rr_call;

typedef struct rr_ended {
  uint64_t tag;
  const rr_error* error; /* NULL: success. The caller frees it with rr_free. */
} rr_ended;

/* A queue collects the completions of calls that do not block. Its descriptor (an eventfd) is readable while the queue
 * is not empty. */
RR_API rr_error* rr_queue_new(rr_queue** queue);
RR_API int32_t rr_queue_descriptor(const rr_queue* queue);
/* Takes up to `capacity` completions and returns their number. Never waits. */
RR_API size_t rr_queue_take(rr_queue* queue, rr_ended* ended, size_t capacity);
/* Waits for one completion: returns 1, or 0 if there is none after timeout_ms. Only one thread may call this at a time.
 * This is cheaper than polling the descriptor, which does not become readable for a completion that this call takes. */
RR_API int32_t rr_queue_wait(rr_queue* queue, int64_t timeout_ms, rr_ended* ended);
/* Cancels the call with this tag: it ends with CANCELLED soon, unless it has ended already. Does nothing if no call has
 * this tag. A call that waits because 1,024 others are running ends only when it would have begun. */
RR_API void rr_queue_cancel(rr_queue* queue, uint64_t tag);

/* Call these around fork(), in the thread that forks. rr_fork_before holds back new calls, pauses those in progress
 * (reads and other calls that may be repeated are cut off and continued afterwards), and ends all threads of the
 * library. It waits at most 5 s; if calls are still running then, the child's calls fail with FAILED_PRECONDITION.
 * Objects of the parent keep working in both processes. Queued appends stay with the parent; the child's appenders are
 * empty, its queues have no calls, and its trajectories fail with FAILED_PRECONDITION. */
RR_API void rr_fork_before(void);
RR_API void rr_fork_in_parent(void);
RR_API void rr_fork_in_child(void);

/* --- Geometries -------------------------------------------------------------------------------------------------- */

typedef struct rr_geometry {
  int32_t num_layers;
  const int32_t* moe_layers;  /* Global ids of the `count` MoE layers, ascending. */
  const int32_t* num_experts; /* One value per MoE layer, like top_k. */
  const int32_t* top_k;
  size_t count;
} rr_geometry;

typedef struct rr_geometry_facts { /* A result, freed by rr_free. */
  int32_t max_top_k, id_bytes;     /* id_bytes: bytes of one expert id, 1 or 2. */
  rr_text text;
  uint64_t fingerprint;
} rr_geometry_facts;

RR_API rr_error* rr_geometry_check(const rr_geometry* geometry, const rr_geometry_facts** facts);

/* --- Clients and runs -------------------------------------------------------------------------------------------- */

/* ClientOptions and SecuritySettings of client.h and security.h. Absent texts and tls = 0 mean: use the environment
 * variables. */
typedef struct rr_client_options {
  rr_text endpoint;
  int32_t tls;
  int64_t call_timeout_ms; /* Below 0: the default. */
  rr_text cacert, cert, key, server_name, token_file;
} rr_client_options;

typedef struct rr_run_settings {
  int64_t ttl_ms; /* 0: the server's default. */
  int32_t strict;
  int32_t block_rows; /* 0: the server's default. */
  rr_text codec;      /* "RAW", "PACKED", "": the server picks. */
  rr_text durability; /* "memory", "written", "synced", "": the server's default. */
} rr_run_settings;

typedef struct rr_released {
  int64_t samples, bytes;
} rr_released;

typedef struct rr_run_info { /* A result, freed by rr_free. */
  rr_text name;
  rr_geometry geometry;
  rr_run_settings settings; /* The settings in force, with defaults filled in. */
  rr_released dropped;      /* What resume_at removed. */
  rr_text place;            /* As Run::place. */
  const rr_text* places;    /* As Run::places. */
  size_t place_count;
} rr_run_info;

typedef struct rr_counter {
  rr_text name;
  int64_t value;
} rr_counter;

typedef struct rr_counters { /* A result, freed by rr_free. */
  const rr_counter* data;
  size_t count;
} rr_counters;

typedef struct rr_server_info { /* A result, freed by rr_free. */
  rr_text version, store;
  int64_t budget_bytes, stored_bytes, reserved_bytes, samples, runs, uptime_ms, spill_budget_bytes, spilled_bytes;
  int32_t draining;
  rr_counters counters;
} rr_server_info;

typedef struct rr_transports { /* A result, freed by rr_free. */
  rr_text transport;
  int64_t grpc_streams, direct_streams, unix_streams, shm_streams;
} rr_transports;

RR_API rr_error* rr_client_new(const rr_client_options* options, rr_client** client);
/* geometry NULL: joins an existing run, never creates it. wait_ms: how long to wait while the server cannot be reached
 * and, without a geometry, while the run does not exist yet. */
RR_API rr_error* rr_client_open_run(rr_client* client, rr_text name, const rr_geometry* geometry,
                                    const rr_run_settings* settings, rr_integer resume_at, int64_t wait_ms,
                                    const rr_call* call, rr_run** run);
RR_API rr_error* rr_client_server_info(rr_client* client, const rr_call* call, const rr_server_info** info);
/* ClientMetrics of client.h. Clients of one process with equal options share their counters. */
RR_API rr_error* rr_client_metrics(const rr_client* client, const rr_transports** transports);

RR_API rr_error* rr_run_describe(const rr_run* run, const rr_run_info** info);

typedef struct rr_token_check {
  int64_t rows;
  uint32_t crc32c;
} rr_token_check;

typedef struct rr_sample_state {
  rr_text sample, engine;
  int64_t handle, group, committed_rows, revision, stored_bytes, idle_ms;
  uint64_t content_id;
  rr_integer num_tokens;
  int32_t producer, has_token_check;
  rr_token_check token_check;
  rr_ranges unrecorded;
  const rr_weight_span* weights;
  size_t weights_count;
} rr_sample_state;

typedef struct rr_sample_states { /* A result, freed by rr_free. */
  const rr_sample_state* data;
  size_t count;
} rr_sample_states;

/* States of the requested samples that exist, in the order of the request. */
RR_API rr_error* rr_run_stat(rr_run* run, const rr_text* samples, size_t count, int32_t producer, const rr_call* call,
                             const rr_sample_states** states);
/* groups NULL: samples of all groups. */
RR_API rr_error* rr_run_list(rr_run* run, const rr_range* groups, int32_t producer, const rr_call* call,
                             const rr_sample_states** states);
RR_API rr_error* rr_run_truncate(rr_run* run, rr_text sample, int32_t producer, int64_t rows,
                                 rr_integer expected_revision, const rr_call* call, const rr_sample_states** state);
/* Releases the samples named by id and by handle (handle 0 is skipped). If `groups` is given, releases all samples of
 * these groups instead; then pass no ids or handles. producer 0: samples of both producers. */
RR_API rr_error* rr_run_release(rr_run* run, const rr_text* samples, size_t count, const int64_t* handles,
                                size_t handle_count, const rr_range* groups, int32_t producer, const rr_call* call,
                                rr_released* released);
RR_API rr_error* rr_run_drop(rr_run* run, const rr_call* call, rr_released* released);

/* --- Rows in ----------------------------------------------------------------------------------------------------- */

/* Describes a payload. If dtype is absent or shape_count is 0, the value of the payload's .npy header is used. */
typedef struct rr_tensor {
  const void* data;
  size_t size;
  rr_text encoding;    /* "RAW", "NPY", "BASE64", "BASE64_NPY". */
  rr_text compression; /* "NONE", "ZSTD". */
  rr_text dtype;       /* "U8", "I8", "U16", "I16", "I32", "I64". */
  rr_text layer_basis; /* "ALL_LAYERS", "MOE_LAYERS", "EXPLICIT"; "": derived from the length of the layer axis. */
  int64_t raw_size;
  const int64_t* shape; /* rows, layers, K. */
  size_t shape_count;
  const int32_t* layer_ids;
  size_t layer_count;
  const rr_range* take; /* NULL: all rows of the first axis. */
} rr_tensor;

/* Token ids: a little-endian array of `dtype` as numpy names it ("uint32", "int64", …) with `axes` axes. data NULL: no
 * token ids. */
typedef struct rr_tokens {
  const void* data;
  size_t size; /* Bytes. */
  rr_text dtype;
  int32_t axes;
} rr_tokens;

typedef struct rr_append {
  rr_text sample;
  int32_t producer;      /* 0: rollout. */
  const rr_tensor* rows; /* NULL: no recorded rows; only the rows in `unrecorded` are appended, if there are any. */
  int64_t row_start;
  rr_ranges unrecorded;
  rr_tokens tokens;
  int64_t revision;
  uint64_t restart;
  rr_integer attempt, group, num_tokens; /* num_tokens present: the append also seals. */
  int64_t weight_version;                /* -1: unknown. */
  rr_text weight_label;
  const rr_weight_span* weights;
  size_t weights_count;
  int32_t seal;
  rr_text engine;
} rr_append;

typedef struct rr_outcome {
  rr_text sample;
  uint64_t sequence; /* 0 for rr_run_put. */
  int64_t committed_rows, revision, trimmed_rows, conflicting_rows, late_rows, unrecorded_rows, unverified_rows;
  uint64_t content_id;
  int32_t sealed;
  const rr_error* error; /* NULL: acknowledged. Part of the result. */
} rr_outcome;

typedef struct rr_outcomes { /* A result, freed by rr_free. */
  const rr_outcome* data;
  size_t count;
} rr_outcomes;

/* Makes one append without an appender. When the call ends, the append is acknowledged. */
RR_API rr_error* rr_run_put(rr_run* run, const rr_append* append, const rr_call* call, const rr_outcomes** outcome);

enum rr_on_full { RR_BLOCK = 0, RR_DROP = 1, RR_RAISE = 2 };

typedef struct rr_appender_options {
  int64_t max_queued_bytes, queue_timeout_ms, append_timeout_ms; /* Below 0: the default. */
  /* When the queue is full. RR_BLOCK: waits for queue_timeout_ms, then drops. RR_DROP: drops. RR_RAISE: fails. */
  int32_t on_full;
  int32_t keep_outcomes; /* Not 0: outcomes are kept for rr_appender_outcomes. 0: they are only counted. */
} rr_appender_options;

RR_API rr_error* rr_run_new_appender(rr_run* run, const rr_appender_options* options, rr_appender** appender);
/* Queues appends in this order. `sequences` gets one number per append (QueuedAppends); `dropped` gets how many appends
 * did not fit into the full queue; their rows are only marked as unrecorded. Stops at the first append that is
 * invalid or does not fit: the appends before it are queued, and the error of an invalid one names its sample. on_full,
 * for this call: RR_BLOCK does what the appender's options say; RR_DROP drops what does not fit now; RR_RAISE does what
 * the options say if that needs no wait, else fails with RESOURCE_EXHAUSTED (OVER_BUDGET). If the rr_call has a queue,
 * small appends for which there is room are queued before the function returns, unless an earlier call still waits. No
 * append overtakes one of an earlier call. call->timeout_ms has no effect. */
RR_API rr_error* rr_appender_append(rr_appender* appender, const rr_append* appends, size_t count, int32_t on_full,
                                    const rr_call* call, uint64_t* sequences, size_t* dropped);
/* Waits until every append made so far has an outcome (acknowledged or failed), at most call->timeout_ms (below 0: 120
 * s). */
RR_API rr_error* rr_appender_flush(rr_appender* appender, const rr_call* call);
/* Flushes, then abandons the appends that are still not acknowledged. Later appends fail. Returns the result of the
 * flush; closing again does nothing. If this call is cancelled, the appender stays open. */
RR_API rr_error* rr_appender_close(rr_appender* appender, const rr_call* call);
/* Waits for outcomes that no earlier call returned. Returns an empty result when the appender is closed and all
 * outcomes were returned. Outcomes count as handled when this function is called again; flush and close wait until
 * all are handled. call->timeout_ms below 0: no limit. */
RR_API rr_error* rr_appender_outcomes(rr_appender* appender, const rr_call* call, const rr_outcomes** outcomes);
/* The counters of AppenderMetrics. */
RR_API rr_error* rr_appender_metrics(const rr_appender* appender, const rr_counters** counters);

typedef struct rr_commit {
  rr_text sample;
  rr_text status; /* "committed", "marked", "missing". */
  int64_t committed_rows;
  rr_integer num_tokens;
  const rr_error* error;
} rr_commit;

/* Waits for all appends of one sample, made through any appender of this run object, at most call->timeout_ms (below 0:
 * 120 s). With num_tokens or tokens, then marks rows that did not arrive as unrecorded, and seals the sample. See
 * Run.commit of the Python package. */
RR_API rr_error* rr_run_commit(rr_run* run, rr_text sample, rr_integer num_tokens, const rr_tokens* tokens,
                               rr_integer attempt, const rr_call* call, const rr_commit** commit);

/* --- Trajectories ------------------------------------------------------------------------------------------------ */

typedef struct rr_trajectory_options {
  rr_text sample;
  rr_text existing; /* "none", "resume", "replace". */
  rr_integer group;
} rr_trajectory_options;

typedef struct rr_turn {
  const rr_tensor* rows; /* NULL: no rows. */
  rr_tokens tokens;      /* The token history from tokens_start on. */
  int64_t tokens_start;
  int64_t row_start;    /* Absolute position of the first row. */
  int64_t missing_rows; /* Number of rows, from row_start on, that the engine did not give; `rows` follow them. */
  rr_text outcome;      /* "finished", "aborted", "preempted". */
  rr_integer weight_version;
  rr_text weight_label;
  const rr_weight_span* weights;
  size_t weights_count;
  int32_t missing_is_unrecorded;
  int32_t seal;
  rr_integer cut; /* Cuts the history to this many tokens. Such a turn may also seal, but nothing else. */
  rr_text engine; /* Name of the engine that made the rows. */
} rr_turn;

typedef struct rr_turn_result { /* A result, freed by rr_free. Fields as in Turn of the Python package. */
  int64_t num_tokens, unrecorded_rows, truncated_rows, repeated_rows, conflicting_rows, late_rows, uncompared_rows,
      shared_rows, surplus_rows, dropped_rows;
  rr_integer retokenised_at;
  rr_ranges appended;
} rr_turn_result;

typedef struct rr_trajectory_state { /* A result, freed by rr_free. */
  int64_t num_tokens, rows;
  int32_t sealed;
} rr_trajectory_state;

/* The trajectory makes its appends through `appender`, to the appender's run. */
RR_API rr_error* rr_appender_new_trajectory(rr_appender* appender, const rr_trajectory_options* options,
                                            rr_trajectory** trajectory);
/* Turns of one trajectory are processed one after the other. call->timeout_ms is ignored. */
RR_API rr_error* rr_trajectory_add(rr_trajectory* trajectory, const rr_turn* turn, const rr_call* call,
                                   const rr_turn_result** result);
/* Forks the trajectory: the new sample starts with the rows of this one. Waits at most call->timeout_ms (below 0: 1 s)
 * until these rows are acknowledged. */
RR_API rr_error* rr_trajectory_fork(rr_trajectory* trajectory, rr_text sample, const rr_call* call,
                                    rr_trajectory** fork);
/* The first row that the engine must return for a request with these tokens as its context. */
RR_API rr_error* rr_trajectory_next_row(rr_trajectory* trajectory, const rr_tokens* tokens, int64_t* row);
RR_API rr_error* rr_trajectory_describe(rr_trajectory* trajectory, const rr_trajectory_state** state);

/* --- Rows out ---------------------------------------------------------------------------------------------------- */

typedef struct rr_sample_read {
  rr_text sample; /* If absent, the handle names the sample. */
  int64_t handle;
  rr_ranges rows; /* Empty: all committed rows; with rr_read.wait, those of the sealed sample. */
  rr_integer num_tokens, min_weight_version, max_weight_version;
  const rr_token_check* token_checks;
  size_t token_checks_count;
} rr_sample_read;

typedef struct rr_read {
  const rr_sample_read* samples;
  size_t count;
  const int32_t* layers; /* NULL: all MoE layers. */
  size_t layer_count;
  int32_t producer; /* 0: rollout. */
  int32_t wait, only_begun;
} rr_read;

typedef struct rr_sample_rows {
  rr_text status, message; /* status: "OK" or another name of SampleStatus. */
  int64_t committed_rows, revision;
  uint64_t content_id;
  rr_integer num_tokens;
  rr_ranges unrecorded;
  const rr_weight_span* weights;
  size_t weights_count;
  rr_ranges rows;  /* Absolute rows that were read. */
  const void* ids; /* [layers][rows][top_k], little-endian, id_bytes each; slots beyond a layer's own K are 0. NULL if
                      the status is not OK. */
  size_t ids_size;
} rr_sample_rows;

typedef struct rr_rows { /* A result, freed by rr_free. */
  const int32_t* layers;
  size_t layer_count;
  int32_t top_k, id_bytes; /* The largest value among the requested layers. */
  const rr_sample_rows* samples;
  size_t count;
} rr_rows;

/* call->timeout_ms below 0: 120 s. */
RR_API rr_error* rr_run_read(rr_run* run, const rr_read* read, const rr_call* call, const rr_rows** rows);

/* --- Checkpoints ------------------------------------------------------------------------------------------------- */

typedef struct rr_export_options {
  rr_text directory, previous; /* previous: an export of the same run; empty: none. */
  const rr_range* groups;      /* NULL: all. */
  int32_t producer;
} rr_export_options;

typedef struct rr_exported {
  int64_t samples, written, unsealed, bytes;
} rr_exported;

typedef struct rr_import_options {
  rr_text directory;
  rr_text run;            /* "": the name under which it was exported. */
  const rr_range* groups; /* NULL: all. */
} rr_import_options;

typedef struct rr_imported { /* A result, freed by rr_free. */
  rr_text run;
  int64_t samples, appended, bytes;
} rr_imported;

/* call->timeout_ms is ignored. */
RR_API rr_error* rr_run_export(rr_run* run, const rr_export_options* options, const rr_call* call,
                               rr_exported* exported);
RR_API rr_error* rr_client_import(rr_client* client, const rr_import_options* options, const rr_call* call,
                                  const rr_imported** imported);

/* --- What engines emit ------------------------------------------------------------------------------------------- */

/* The shape of ids that are not decoded yet. A result, freed by rr_free. */
typedef struct rr_form {
  const int64_t* shape;
  size_t shape_count;
} rr_form;

/* The shape that the tensor or its .npy header states. */
RR_API rr_error* rr_payload_shape(const rr_tensor* tensor, const rr_form** form);

typedef struct rr_step { /* One step of a path into a JSON value: an object key or an array index. */
  rr_text key;
  int64_t index; /* -1: the step is `key`. */
} rr_step;

typedef struct rr_route {
  const rr_step* path; /* For example "choices", 0, "routed_experts". */
  size_t path_count;
  rr_range data; /* Byte range of the text in the body, without its quotes. */
} rr_route;

typedef struct rr_routes { /* A result, freed by rr_free. */
  const rr_route* data;
  size_t count;
} rr_routes;

/* Finds the routed experts in a JSON body. Strings with JSON escapes are skipped. The function searches the fields that
 * the documentation of routed_experts in the Python package's http module lists. */
RR_API rr_error* rr_find_routes(const void* body, size_t size, const rr_routes** routes);

/* --- Small things ------------------------------------------------------------------------------------------------ */

typedef struct rr_bytes { /* A result, freed by rr_free. */
  const void* data;
  size_t size;
} rr_bytes;

typedef struct rr_texts { /* A result, freed by rr_free. */
  const rr_text* data;
  size_t count;
} rr_texts;

/* Waits for log lines of all clients of the process that no earlier call returned. These are warnings about things that
 * no call has reported as an error. Only lines since the first call are kept, at most 1,000. call->timeout_ms below 0:
 * 24 hours. */
RR_API rr_error* rr_log(const rr_call* call, const rr_texts** lines);
/* The handle of a sample: an integer that replaces its id in a batch tensor. With one server the handle depends only on
 * the id, and `run` may be NULL. With "shard:" it also depends on the list of servers of `run`. */
RR_API rr_error* rr_sample_handle(const rr_run* run, rr_text sample, int64_t* handle);
/* Checks `tokens` and converts them to u32. INVALID_ARGUMENT names `field` and `sample`. */
typedef struct rr_ids { /* A result, freed by rr_free. */
  const uint32_t* data;
  size_t count;
} rr_ids;
RR_API rr_error* rr_token_ids(const rr_tokens* tokens, rr_text field, rr_text sample, const rr_ids** ids);
/* Returns the token check (CRC32C) of the earlier tokens and `tokens` together. `check` is the token check of the
 * earlier tokens, 0 if there are none. */
RR_API uint32_t rr_token_crc(uint32_t check, const uint32_t* tokens, size_t count);

#ifdef __cplusplus
}
#endif

#endif /* ROUTING_REPLAY_C_API_H_ */
