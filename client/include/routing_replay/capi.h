/* The client without its transport, for other languages: everything that it decides, none of the I/O. The library
 * behind it, librouting_replay.so, holds no gRPC and shows no symbol but these.
 *
 * Functions that can fail return an error: NULL on success, else an object that the caller frees. Outputs are untouched
 * on failure. No exception leaves a function: where there is no memory it says so, or ends the process if it has no
 * error to give. Pointers to objects, to outputs and to bytes of a size above 0 must not be NULL.
 *
 * Objects are opaque and belong to the caller once given; each ..._free takes NULL, too. An object is used by one
 * thread at a time; those passed as const may be shared. Text is UTF-8 with its size beside it; structured values are
 * JSON, in the forms given here. An unknown field is refused. Times are nanoseconds of CLOCK_MONOTONIC. */
#ifndef ROUTING_REPLAY_CAPI_H_
#define ROUTING_REPLAY_CAPI_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RR_API __attribute__((visibility("default")))

typedef struct rr_error rr_error;
typedef struct rr_bytes rr_bytes;
typedef struct rr_geometry rr_geometry;
typedef struct rr_run rr_run;
typedef struct rr_plan rr_plan;
typedef struct rr_message rr_message;
typedef struct rr_appender rr_appender;
typedef struct rr_reader rr_reader;
typedef struct rr_shard rr_shard;
typedef struct rr_lives rr_lives;
typedef struct rr_places rr_places;
typedef struct rr_merge rr_merge;
typedef struct rr_retry rr_retry;
typedef struct rr_servers rr_servers;
typedef struct rr_security rr_security;
typedef struct rr_trajectory rr_trajectory;
typedef struct rr_export rr_export;
typedef struct rr_import rr_import;

/* The number of this interface; raised when something in it changes its meaning. */
#define RR_ABI_VERSION 1
RR_API int32_t rr_abi_version(void);

/* Errors. The JSON: {"code": 3, "code_name": "INVALID_ARGUMENT", "message": "…"} and, where set, the fields of
 * ErrorDetail in common.proto: reason, field, sample, row, layer, committed_rows, revision, first_differing_block,
 * missing_rows, retry_after_ms, server_version, client_version. */
RR_API int32_t rr_error_code(const rr_error* error);     /* Of google.rpc.Code. */
RR_API const char* rr_error_json(const rr_error* error); /* NUL-terminated, as long as the error lives. */
RR_API void rr_error_free(rr_error* error);
/* The error of a failed call: its status code (not 0), its message, and its "grpc-status-details-bin" (or nothing). */
RR_API rr_error* rr_error_from_rpc(int32_t code, const char* message, size_t message_size, const void* details,
                                   size_t details_size);

/* Bytes or text that was given. */
RR_API const void* rr_bytes_data(const rr_bytes* bytes);
RR_API size_t rr_bytes_size(const rr_bytes* bytes);
RR_API void rr_bytes_free(rr_bytes* bytes);

/* {"version", "endpoint_variable", "call_timeout_ms", "ask_timeout_ms", "queue_timeout_ms", "append_timeout_ms",
 *  "max_queued_bytes", "max_names_per_call", "channel_options": [["grpc.…", 1], …]} */
RR_API rr_error* rr_defaults(int32_t use_http_proxy, rr_bytes** json);
/* The servers of an endpoint as users write it; empty: of the environment's. INVALID_ARGUMENT for one that cannot be an
 * endpoint; a "file:PATH" need not be there yet. Thread-safe. */
RR_API rr_error* rr_servers_new(const char* endpoint, size_t size, rr_servers** servers);
RR_API void rr_servers_free(rr_servers* servers);
/* {"target": the gRPC target of the one to talk to, "judged": that which rr_security_channel is to be asked of,
 * "channel_options": [["grpc.…", "…"], …] beside those of rr_defaults}. Waits at most timeout_ms for a "file:PATH":
 * DEADLINE_EXCEEDED. */
RR_API rr_error* rr_servers_present(rr_servers* servers, int64_t timeout_ms, rr_bytes** json);
/* 1 where another server may be there when the present one is away; 0 while nothing is known of a "file:PATH". */
RR_API int32_t rr_servers_has_others(rr_servers* servers);
/* A call to this target found no server. */
RR_API void rr_servers_on_unavailable(rr_servers* servers, const char* target, size_t size);
/* Reads the file of a "file:PATH" again. */
RR_API void rr_servers_look_again(rr_servers* servers);
/* How the client knows the server and shows who it is: {"tls": false, "cacert": "PATH", "cert": "PATH", "key": "PATH",
 * "server_name": "…", "token_file": "PATH"}, each of them optional (see routing_replay/security.h, also for the
 * environment). Thread-safe. */
RR_API rr_error* rr_security_new(const char* json, size_t size, rr_security** security);
RR_API void rr_security_free(rr_security* security);
/* Of a new channel to a target, files as they are now: {"encrypted": true, "root_certificates": "PEM", "certificate":
 * "PEM", "key": "PEM", "channel_options": [["grpc.…", "…"], …]}; "" where there is none. INVALID_ARGUMENT: a file
 * cannot be read, or a token would go there in plaintext. */
RR_API rr_error* rr_security_channel(rr_security* security, const char* target, size_t size, rr_bytes** json);
/* Of a new call: the value of its metadata "authorization", "" for none. */
RR_API rr_error* rr_security_authorization(rr_security* security, rr_bytes** value);
/* Whether a call that carried `authorization` and ended with `error` is to be made again as if UNAVAILABLE: its token
 * was refused, and another one has come meanwhile. */
RR_API int32_t rr_security_token_replaced(rr_security* security, const char* authorization, size_t size,
                                          const rr_error* error);
/* The handle of a sample id. */
RR_API rr_error* rr_sample_handle(const char* sample, size_t size, int64_t* handle);
/* Token ids as functions take them, u32 little-endian, from an array of the host. What the array is:
 *   {"dtype": "int64", "axes": 1, "field": "append.token_ids", "sample": "a"}
 * dtype: of its elements, little-endian, as numpy calls it. INVALID_ARGUMENT naming `field` (and the sample, if given)
 * for what is no integer (DTYPE), for other than one axis (SHAPE), for no ids at all (LENGTH: to say nothing of tokens,
 * leave them out), and for ids that do not have 32 bits (FIELD). */
RR_API rr_error* rr_token_ids(const char* json, size_t size, const void* data, size_t data_size, rr_bytes** ids);
/* The token check of the tokens so far (0 of none), extended by more. */
RR_API uint32_t rr_token_check(uint32_t check, const uint32_t* tokens, size_t count);

/* A geometry from {"num_layers": 27, "moe_layers": [1, …], "num_experts": 64, "top_k": 6}: moe_layers absent means all
 * layers; num_experts and top_k are one number or one per MoE layer. */
RR_API rr_error* rr_geometry_new(const char* json, size_t size, rr_geometry** geometry);
/* A geometry from a model's configuration: source "huggingface" (the text of a config.json) or "megatron"
 * (TransformerConfig's fields as an object). Fields that mean nothing here are not looked at. And what it tells of the
 * routers, a fact that it leaves open being null:
 *   {"model_type", "score_function": "softmax" | "sigmoid" | "sqrtsoftplus", "renormalized", "scaling_factor",
 *    "group_limit": {"groups", "kept", "best_summed"}, "expert_bias": "none" | "to_score" | "to_logit",
 *    "shared_experts", "mtp_layers", "zero_experts", "hash_layers": [0, …], "routers_per_layer",
 *    "sources": {"num_experts": "n_routed_experts", …}} */
RR_API rr_error* rr_geometry_from_config(const char* json, size_t size, const char* source, size_t source_size,
                                         rr_geometry** geometry, rr_bytes** routing);
RR_API void rr_geometry_free(rr_geometry* geometry);
/* Its JSON; moe_layers, and one number where all layers are alike. */
RR_API rr_error* rr_geometry_json(const rr_geometry* geometry, rr_bytes** json);
/* {"max_top_k", "id_bytes", "raw_row_bytes", "default_codec", "fingerprint", "text"}; id_bytes of the widest layer. */
RR_API rr_error* rr_geometry_facts(const rr_geometry* geometry, rr_bytes** json);
/* Bytes of `rows` rows of all layers, encoded: codec "RAW" or "PACKED". */
RR_API rr_error* rr_geometry_block_bytes(const rr_geometry* geometry, int64_t rows, const char* codec,
                                         size_t codec_size, int64_t* bytes);

/* A run as OpenRunResponse describes it: {"run", "server_version", "geometry": {…}, "block_rows", "codec",
 * "max_message_bytes", "max_payload_bytes"}; codec is the number, and 0 is what the server left out.
 * FAILED_PRECONDITION (VERSION_MISMATCH) for a server that this client does not understand, and for a codec that it
 * does not know. */
RR_API rr_error* rr_run_new(const char* json, size_t size, rr_run** run);
RR_API void rr_run_free(rr_run* run);

/* Appends. What an append says of its rows; only "sample" must be there:
 *   {"sample", "producer": "rollout" | "trainer", "row_start": 0, "unrecorded": [[3, 5], …], "revision": 0,
 *    "restart_nonce": 0, "group", "weight_version": -1, "weight_label": "",
 *    "weights": [[begin, end, version, label], …], "seal_num_tokens", "seal": false,
 *    "prefix": {"sample", "rows", "revision"}, "engine": "", "surplus_rows": 0}
 * What its payload is:
 *   {"encoding": "RAW" | "NPY" | "BASE64" | "BASE64_NPY", "compression": "NONE" | "ZSTD", "raw_size": 0,
 *    "dtype": "U8" | "I8" | "U16" | "I16" | "I32" | "I64", "shape": [rows, layers, K],
 *    "layer_basis": "ALL_LAYERS" | "MOE_LAYERS" | "EXPLICIT", "layer_ids": [0, …], "take": [begin, end],
 *    "ids_and_weights": false}
 *
 * weights: of ranges of absolute rows, ascending and disjoint; other rows are of weight_version. take: only these rows
 * of the tensor's first axis are appended; the payload need not be decoded to cut it. ids_and_weights: the K axis holds
 * 2K slots, of which the ids are the first K. "seal" without "seal_num_tokens" seals with one token more than the rows
 * up to the end of the append, those of a prefix included. Other meanings as in append.proto. `tokens`: one id per row,
 * or one per position from 0 on, or none. */

/* {"dtype", "shape": [rows, layers, K]} of a payload that is not decoded for this: of its .npy header or as stated;
 * with a stated shape of [layers, K] the rows of flat RAW or BASE64 are counted by their length. */
RR_API rr_error* rr_payload_shape(const char* tensor, size_t tensor_size, const void* payload, size_t payload_size,
                                  rr_bytes** shape);
/* Texts that wrappers of engines put around ids. The base64 is not looked at by the first two.
 * NeMo-RL's "nrlre1:…": {"tensor": {"encoding": "BASE64", "dtype", "shape"}, "data": [begin, end]} of the text. */
RR_API rr_error* rr_open_nrlre1(const void* text, size_t size, rr_bytes** form);
/* The object beside base64, without its data, as JSON: {"tensor": {…}, "start": 0}. Dialects, and the fields that must
 * be there: "any" {shape, dtype}, "prime_rl" {shape} (dtype uint8 if absent), "skyrl" {shape, dtype of uint8, int16,
 * int32}, "ms_swift" {shape, dtype, __ndarray__: true}, "sglang" {shape} (of a row: [layers, K]; dtype of
 * uint8, uint16, int32, the last if absent). */
RR_API rr_error* rr_open_object(const char* dialect, size_t dialect_size, const char* json, size_t size,
                                rr_bytes** form);
/* Whether a payload has the one dtype that SkyRL writes for its ids: DTYPE or ID_RANGE if not. */
RR_API rr_error* rr_check_narrowest(const char* tensor, size_t tensor_size, const void* payload, size_t payload_size);
/* The bytes of base85 as Python's base64.b85encode writes it. */
RR_API rr_error* rr_decode_base85(const void* text, size_t size, rr_bytes** bytes);
/* The rows in a .npy or safetensors file: {"tensor": {"encoding": "RAW", "dtype", "shape"}, "data": [begin, end]} of
 * the file's bytes. name: of the tensor; empty: the only one of rows. NOT_FOUND naming those that are there. */
RR_API rr_error* rr_open_rows_file(const void* file, size_t size, const char* name, size_t name_size, rr_bytes** form);
/* [[begin, end], …]: rows of the sequences of a recorded trace, whose index is JSON with seq_lens, of the file's stem
 * or at its root. ROW_COUNT if they are not the file's `rows`. */
RR_API rr_error* rr_trace_sequences(const char* index, size_t index_size, const char* stem, size_t stem_size,
                                    int64_t rows, rr_bytes** ranges);
/* The routed experts in a JSON body, where they are: [{"path": ["choices", 0, "routed_experts"], "span": [begin, end]},
 * …], of the body's bytes without the quotes. Texts with escapes are left out. Places and fields are those of
 * routed_experts in the Python package's http module. */
RR_API rr_error* rr_find_routes(const void* body, size_t size, rr_bytes** json);
/* Which rows of its sample a tensor holds: {"prompt_tokens", "output_tokens", "start": 0, "rows", "short_rows":
 * "refuse" | "missing_at_front"} → {"row_start", "take": [begin, end], "missing_rows", "surplus_rows"}. start is the
 * first row that the engine was asked for, rows what it gave. With T tokens rows start … T − 2 are expected: a row of
 * the last token is surplus and not taken; if there are fewer, the first ones are missing, or it is an error. Any other
 * count is INVALID_ARGUMENT (ROW_COUNT), also that of an engine which ignored start. */
RR_API rr_error* rr_account_rows(const char* json, size_t size, rr_bytes** account);

/* Weights of rows from an engine's versions of output tokens: {"prompt_tokens", "output_tokens", "row_start": 0,
 *  "spans": [{"version": 7 | "7" | "name", "start", "end"}, …], "numbers": {"name": 7}} → [[begin, end, version,
 * label], …] of absolute rows. A version that is text has the number that `numbers` says, or that of its decimals, or
 * -1, and stays as the label. Rows from row_start to the first output token are of its version. */
RR_API rr_error* rr_output_weights(const char* json, size_t size, rr_bytes** weights);

/* Decodes, checks, narrows and tiles. */
RR_API rr_error* rr_plan_rows(const rr_run* run, const char* append, size_t append_size, const char* tensor,
                              size_t tensor_size, const uint32_t* tokens, size_t token_count, const void* payload,
                              size_t payload_size, rr_plan** plan);
/* Takes the payload as it is; the server decodes it. Copies. */
RR_API rr_error* rr_plan_tensor(const rr_run* run, const char* append, size_t append_size, const char* tensor,
                                size_t tensor_size, const uint32_t* tokens, size_t token_count, const void* payload,
                                size_t payload_size, rr_plan** plan);
/* `rows` rows without a route; 0 to open or to seal. */
RR_API rr_error* rr_plan_unrecorded(const char* append, size_t append_size, int64_t rows, const uint32_t* tokens,
                                    size_t token_count, rr_plan** plan);
RR_API int64_t rr_plan_bytes(const rr_plan* plan); /* Memory that it holds. */
RR_API void rr_plan_free(rr_plan* plan);

/* The Put of a plan of one piece, and what its answer says: an outcome as in rr_appender_take_finished. */
RR_API rr_error* rr_put_message(const rr_run* run, const rr_plan* plan, rr_message** message);
RR_API rr_error* rr_put_outcome(const void* answer, size_t size, rr_bytes** outcome);
/* The same for a plan of several pieces, as one of several weight versions is: one Put each, in order, and the outcome
 * of all their answers. */
RR_API size_t rr_plan_pieces(const rr_plan* plan);
RR_API rr_error* rr_put_piece(const rr_run* run, const rr_plan* plan, size_t index, rr_message** message);
typedef struct rr_span rr_span;
RR_API rr_error* rr_put_outcomes(const rr_span* answers, size_t count, rr_bytes** outcome);

/* A message to send: its bytes are those of its parts, in order. They live as long as the message. */
struct rr_span {
  const void* data;
  size_t size;
};
RR_API const rr_span* rr_message_parts(const rr_message* message, size_t* count);
RR_API void rr_message_free(rr_message* message);

/* An appender without its threads and its I/O. {"run", "max_queued_bytes", "append_timeout_ms"}: none below 0. */
RR_API rr_error* rr_appender_new(const char* json, size_t size, rr_appender** appender);
RR_API void rr_appender_free(rr_appender* appender);
/* Whether there is room for a plan of so many bytes; rr_appender_no_room is what to say if not. */
RR_API int32_t rr_appender_has_room(const rr_appender* appender, int64_t bytes);
RR_API rr_error* rr_appender_no_room(const rr_appender* appender, const char* sample, size_t size);
/* Takes the plan's content and gives its sequence number: 1, 2, … The object is still the caller's to free, and of no
 * other use. */
RR_API rr_error* rr_appender_add(rr_appender* appender, rr_plan* plan, int64_t now, uint64_t* sequence);
/* Takes only a mark: the plan's rows as unrecorded. */
RR_API rr_error* rr_appender_add_dropped(rr_appender* appender, const rr_plan* plan, int64_t now, uint64_t* sequence);
/* As rr_appender_add, of a plan that cannot be sent anywhere: `why` is its outcome. */
RR_API rr_error* rr_appender_add_failed(rr_appender* appender, rr_plan* plan, const rr_error* why, int64_t now,
                                        uint64_t* sequence);

/* An append whose plan was refused, to be counted by the reason of its error ("" for none). */
RR_API void rr_appender_count_refusal(rr_appender* appender, const char* reason, size_t size);

enum {
  RR_WAIT = 0,    /* Nothing to do before `until`, a new append, or news of the stream. */
  RR_ASK = 1,     /* Ask Stat for {"producer", "samples": […]}; then rr_appender_on_states or …_on_ask_error. */
  RR_CONNECT = 2, /* Start an Append stream; rr_appender_on_stream_end is to follow some time. */
  RR_SEND = 3,    /* Send `message` on it. */
  RR_CANCEL = 4   /* End it soon. */
};
typedef struct rr_action {
  int32_t step;
  int64_t until;
  rr_message* message; /* The caller's to free. */
  rr_bytes* ask;       /* The caller's to free. */
} rr_action;
/* What to do now. Ask again after each action but RR_WAIT. */
RR_API rr_error* rr_appender_next(rr_appender* appender, int64_t now, int32_t can_write, rr_action* action);
/* [{"sample", "producer", "committed_rows", "num_tokens", "revision", "content_id", "token_check": [rows, crc32c]}, …]:
 * on an error, too, the question counts as answered, with that error. */
RR_API rr_error* rr_appender_on_states(rr_appender* appender, const char* json, size_t size, int64_t now);
RR_API void rr_appender_on_ask_error(rr_appender* appender, const rr_error* error, int64_t now);
RR_API rr_error* rr_appender_on_message(rr_appender* appender, const void* data, size_t size, int64_t now);
/* `why`: NULL if the server ended the stream without an error. */
RR_API void rr_appender_on_stream_end(rr_appender* appender, const rr_error* why, int64_t now);

/* Outcomes since the last call: [{"sequence", "sample", "committed_rows", "revision", "content_id", "sealed",
 * "trimmed_rows", "conflicting_rows", "late_rows", "unrecorded_rows", "unverified_rows", "error"}, …]; error is absent
 * on success, and with it nothing was stored. */
RR_API rr_error* rr_appender_take_finished(rr_appender* appender, rr_bytes** json);
RR_API int32_t rr_appender_has_finished(const rr_appender* appender);
/* All that was taken so far was told to whom it concerns; until then its appends are open. */
RR_API void rr_appender_delivered(rr_appender* appender);
RR_API uint64_t rr_appender_newest_open(const rr_appender* appender);               /* 0: none is open. */
RR_API int32_t rr_appender_settled(const rr_appender* appender, uint64_t sequence); /* None up to it is open. */
RR_API rr_error* rr_appender_not_flushed(const rr_appender* appender); /* What to say when waiting took too long. */
RR_API rr_error* rr_appender_take_error(rr_appender* appender); /* The first one delivered since the last call. */
/* {"appends", "acknowledged", "failed", "rows", "trimmed_rows", "conflicting_rows", "unrecorded_rows", "payload_bytes",
 *  "resent_bytes", "reconnects", "credit_refusals", "dropped_appends", "dropped_rows", "refused_appends",
 *  "narrowed_appends", "unrecorded_appends", "surplus_rows"}, counted since the start, with "refused_id_range" and the
 * like for the reasons that were met, and "queued_bytes" and "open_appends" of now. */
RR_API rr_error* rr_appender_metrics(const rr_appender* appender, rr_bytes** json);

/* Trajectories: one sample that grows turn by turn. The rules are those of client/trajectory/trajectory.h. */

/* {"sample", "existing": "none" | "resume" | "replace", "strict": false, "producer": "rollout", "group", "engine": ""}:
 * only sample must be there. strict as the run. */
RR_API rr_error* rr_trajectory_new(const char* json, size_t size, rr_trajectory** trajectory);
/* A new sample that begins as this one; its group and engine are the same. */
RR_API rr_error* rr_trajectory_fork(const rr_trajectory* parent, const char* sample, size_t size, rr_trajectory** fork);
RR_API void rr_trajectory_free(rr_trajectory* trajectory);
/* A turn:
 *   {"tokens_start": 0, "row_start": 0, "missing_rows": 0, "outcome": "finished" | "aborted" | "preempted",
 *    "weight_version": -1, "weight_label": "", "weights": [[begin, end, version, label], …],
 *    "missing_is_unrecorded": false, "seal": false, "cut": 5, "engine": ""}
 * tokens_start: `tokens` follow so many tokens that were told before; absent: the history stays. row_start: absolute
 * row of the first row, missing_rows: so many from there on were not given, before the slots taken of the tensor (its
 * JSON as in rr_plan_rows); without a tensor (size 0) there are no rows. cut: the history is cut to so many tokens, and
 * there is nothing else but perhaps a seal. engine: in place of the trajectory's. What to do:
 *   {"step": "ask" | "truncate" | "append", "truncate_rows", "expected_revision", "appends": [[begin, end], …],
 *    "prefix_rows", "num_tokens", "retokenised_at", "surplus_rows", "repeated_rows", "conflicting_rows", "late_rows",
 *    "uncompared_rows", "unrecorded_rows"}
 * ask: ask Stat for the sample; …_on_state; then the turn again. truncate: Truncate; …_on_truncated or
 * …_on_truncate_failed; then the turn again. Before both, all outcomes of the sample must be there and told. append:
 * take one plan for each of `appends` and queue it. Only with append the turn is done; with the others and on an error
 * nothing has changed. */
RR_API rr_error* rr_trajectory_turn(rr_trajectory* trajectory, const rr_run* run, const char* turn, size_t turn_size,
                                    const uint32_t* tokens, size_t token_count, const char* tensor, size_t tensor_size,
                                    const void* payload, size_t payload_size, rr_bytes** decision);
/* The next plan of the last turn; an error if there is none. */
RR_API rr_error* rr_trajectory_take_plan(rr_trajectory* trajectory, rr_plan** plan);
/* An outcome as in rr_appender_take_finished. */
RR_API rr_error* rr_trajectory_on_outcome(rr_trajectory* trajectory, const char* json, size_t size);
/* An append of these rows was queued with rr_appender_add_dropped, or not at all. */
RR_API rr_error* rr_trajectory_on_dropped(rr_trajectory* trajectory, int64_t begin, int64_t end);
/* What Stat found, as in rr_appender_on_states with "unrecorded": [[begin, end], …]: one state or none.
 * ALREADY_EXISTS (OTHER_TOKENS) if it has rows of other tokens. */
RR_API rr_error* rr_trajectory_on_state(rr_trajectory* trajectory, const char* json, size_t size);
RR_API rr_error* rr_trajectory_on_truncated(rr_trajectory* trajectory, const char* json, size_t size);
/* It is not known whether the sample was truncated. */
RR_API void rr_trajectory_on_truncate_failed(rr_trajectory* trajectory);
/* The first row that a request with this context must give. */
RR_API int64_t rr_trajectory_next_row(const rr_trajectory* trajectory, const uint32_t* tokens, size_t token_count);
/* {"num_tokens", "rows", "acknowledged_rows", "revision", "sealed", "counters": {…}}; counters: TrajectoryCounters in
 * client/trajectory/turn.h. */
RR_API rr_error* rr_trajectory_state(const rr_trajectory* trajectory, rr_bytes** json);

/* Reads. What is asked for; everything but samples has a default, that of layers being all MoE layers (an empty list is
 * refused):
 *   {"producer": "rollout", "layers": [3, 4], "wait": false, "only_begun": false, "max_message_bytes": 0,
 *    "samples": [{"sample" | "handle", "rows": [[0, 10]], "num_tokens", "token_checks": [[rows, crc32c]],
 *                 "min_weight_version", "max_weight_version"}]} */
RR_API rr_error* rr_reader_new(const rr_run* run, const char* json, size_t size, rr_reader** reader);
RR_API void rr_reader_free(rr_reader* reader);
/* The request to send: at first what was asked for, after rr_reader_break what is missing. NULL once nothing is. */
RR_API rr_error* rr_reader_request(const rr_reader* reader, rr_bytes** request);
/* A message of the stream: checked and decoded. DATA_LOSS naming sample, layer and row if bytes are damaged. An error
 * is the end of the read: all later calls but free give one. */
RR_API rr_error* rr_reader_push(rr_reader* reader, const void* data, size_t size);
/* The stream ended well: DATA_LOSS if something is missing. Where rr_reader_request then gives another request, that is
 * to be sent; what follows is refused before. */
RR_API rr_error* rr_reader_end(rr_reader* reader);
/* The stream broke off; another server may be asked for the rest, and has to have the same content: else push gives
 * ABORTED (OLD_REVISION) naming the sample. */
RR_API rr_error* rr_reader_break(rr_reader* reader);
/* {"layers": [3, 4], "top_k": 8, "id_bytes": 1, "samples": [{"status": "OK", "message", "committed_rows", "num_tokens",
 *  "revision", "content_id", "unrecorded": [[b, e]], "weights": [[b, e, version, label]], "rows": [[b, e]]}]}: one per
 * sample asked for, in that order; rows are those that were read; num_tokens and content_id where they are known. */
RR_API rr_error* rr_reader_result(const rr_reader* reader, rr_bytes** json);
/* The ids of a sample, once: [layers][rows][top_k], little-endian, id_bytes each; slots beyond a layer's own K are 0.
 */
RR_API rr_error* rr_reader_take_ids(rr_reader* reader, size_t index, rr_bytes** ids);

/* Which making of a run the host means; one life per server that the run is on, 1 unless the endpoint is of several
 * servers as one. `life`: as the answers of OpenRun and List say; 0: not said. Thread-safe. */
RR_API rr_error* rr_lives_new(size_t servers, rr_lives** lives);
RR_API void rr_lives_free(rr_lives* lives);
/* The run was opened on a server. */
RR_API rr_error* rr_lives_open(rr_lives* lives, size_t server, uint64_t life);
/* Of an answer of List: DATA_LOSS if the run was made again since it was opened. */
RR_API rr_error* rr_lives_check(rr_lives* lives, size_t server, const char* run, size_t run_size, uint64_t life);
/* One number for all servers; 0 while one is not known. */
RR_API uint64_t rr_lives_whole(const rr_lives* lives);

/* Several servers as one ("shard:a:7400,b:7400"): where samples are, and reads of all of them. What is sent to whom is
 * for the host; a member is a position in the list that rr_shard_members gives.
 *
 * Of an endpoint as users write it (empty: the environment's); NULL of one that is of one server. Immutable. */
RR_API rr_error* rr_shard_new(const char* endpoint, size_t size, rr_shard** shard);
RR_API void rr_shard_free(rr_shard* shard);
/* {"members": ["a:7400", …], "fingerprint": 1}: what to connect to, and OpenRunRequest.shard_fingerprint. */
RR_API rr_error* rr_shard_members(const rr_shard* shard, rr_bytes** json);
/* Whose answers to a call of all members are needed: */
enum {
  RR_NEEDED_THAT_ANSWER = 0,  /* at least one's; */
  RR_NEEDED_WITH_THE_RUN = 1, /* those of all that have the run; */
  RR_NEEDED_ALL = 2,          /* those of all. */
};
/* What the answers are together. `kinds`, by member: 0 good, 1 no such run, 2 no answer, 3 any other error. `failed`:
 * -1 if the good ones are the whole, else the member whose error says why not. DATA_LOSS: that one lost the run. */
RR_API rr_error* rr_shard_judge(const rr_shard* shard, const int32_t* kinds, size_t count, int32_t needed,
                                int32_t* failed);
/* By member the life of a run that it told, 0 where it did not: INVALID_ARGUMENT if two members are one server. */
RR_API rr_error* rr_shard_check_distinct(const rr_shard* shard, const uint64_t* lives, size_t count);
/* What is known of the places of a run's samples. Thread-safe. Producers are "rollout" and "trainer". */
RR_API rr_error* rr_places_new(const rr_shard* shard, rr_places** places);
RR_API void rr_places_free(rr_places* places);
/* Where a sample is, as far as is known. */
RR_API rr_error* rr_places_find(rr_places* places, const char* producer, size_t producer_size, int64_t handle,
                                int32_t* member);
/* All members were asked for the sample. `found`, by member: 1 it has it, 0 it has not, -1 it did not answer. `member`:
 * where it is; -1: nowhere but where its hash says. UNAVAILABLE if another one that did not answer may have it. */
RR_API rr_error* rr_places_learn(rr_places* places, const char* producer, size_t producer_size, int64_t handle,
                                 const int32_t* found, size_t count, int32_t* member);
/* Where the plan of an append goes, before an appender took it. -1: every member is to be asked for `search` first,
 * {"producer", "handles": [one]}, then rr_places_learn, and again with `searched` once that was no error, which always
 * gives a member. */
RR_API rr_error* rr_places_route(rr_places* places, const rr_plan* plan, int32_t searched, int32_t* member,
                                 rr_bytes** search);

/* A read of several servers. `request`: bytes of a ReadRequest; `places` must live as long. Not thread-safe. */
RR_API rr_error* rr_merge_new(const rr_run* run, rr_places* places, const void* request, size_t size, rr_merge** merge);
RR_API void rr_merge_free(rr_merge* merge);
enum {
  RR_MERGE_START = 0,   /* Begin stream `stream`: a Read at `member`; bytes: its ReadRequest. */
  RR_MERGE_RECEIVE = 1, /* Give rr_merge_on_message or rr_merge_on_end of the stream. */
  RR_MERGE_LOCATE = 2,  /* Ask every member; bytes: {"producer", "handles"}; then rr_merge_on_located. */
  RR_MERGE_DELIVER = 3, /* bytes: the next ReadResponse of the merged read. */
  RR_MERGE_DONE = 4     /* The end. */
};
typedef struct rr_merge_step {
  int32_t kind;
  size_t stream;
  size_t member;
  rr_bytes* bytes; /* NULL where there are none. */
} rr_merge_step;
/* What to do next; the error that the read ends with. */
RR_API rr_error* rr_merge_next(rr_merge* merge, rr_merge_step* step);
/* `data` must live until the stream's next RR_MERGE_RECEIVE. */
RR_API rr_error* rr_merge_on_message(rr_merge* merge, size_t stream, const void* data, size_t size);
/* The stream's call ended: well (NULL) or with an error. */
RR_API rr_error* rr_merge_on_end(rr_merge* merge, size_t stream, const rr_error* error);
/* [[handle, …] | null, …]: by member which of the handles it has, or that it did not answer. */
RR_API rr_error* rr_merge_on_located(rr_merge* merge, const char* json, size_t size);

/* A run into a directory (proto/FORMAT.md, "Exported runs"; routing_replay/checkpoint.h tells the rules). States are
 * those of rr_appender_on_states, with "group", "unrecorded": [[b, e]], "weights": [[b, e, version, label]] and
 * "awaits_checkpoint".
 * options: {"directory", "groups": [begin, end], "producer", "drop_missing", "release_awaiting"}; groups are half-open,
 * absent: all. */
RR_API rr_error* rr_export_new(const rr_run* run, const char* options, size_t size, rr_export** made);
RR_API void rr_export_free(rr_export* export_);
/* All samples of the run that are in the groups; with drop_missing of all groups. Listed after rr_export_new; `life`:
 * rr_lives_whole, asked after the list. FAILED_PRECONDITION: with drop_missing, a sample that is held was lost. */
RR_API rr_error* rr_export_on_list(rr_export* export_, const char* states, size_t size, uint64_t life);
/* {"samples": […], "progress": {"samples", "total", "bytes"}}: ask Stat for these, read them whole and of all layers,
 * and rr_export_on_rows. None: rr_export_finish. */
RR_API rr_error* rr_export_next(rr_export* export_, rr_bytes** json);
/* What Stat said before the read, and the reader of these samples in that order, which has ended well; takes its ids.
 */
RR_API rr_error* rr_export_on_rows(rr_export* export_, const char* states, size_t size, rr_reader* reader);
/* {"samples", "written", "dropped", "unsealed", "bytes", "awaited": […], "awaited_content_ids": […]}: samples that
 * awaited this checkpoint, for ReleaseForCheckpoint with RELEASE_MODE_CHECKPOINTED. */
RR_API rr_error* rr_export_finish(rr_export* export_, rr_bytes** json);
/* Null, or what kept a sample out while all others are in. */
RR_API rr_error* rr_export_unread(const rr_export* export_);

/* A directory into a run: {"directory", "groups": [begin, end]}. FAILED_PRECONDITION (NOT_COMMITTED) where no export
 * has ended. */
RR_API rr_error* rr_import_new(const char* options, size_t size, rr_import** made);
RR_API void rr_import_free(rr_import* import);
/* {"run", "producer", "geometry", "samples": […]} */
RR_API rr_error* rr_import_contents(const rr_import* import, rr_bytes** json);
/* Begins the sample at this place of the list. states: what Stat said of it, one state or none. compare: [[b, e], …],
 * rows that are to be read of all layers for rr_import_compare; often none. ALREADY_EXISTS (CONFLICTING_ROWS) naming
 * sample and row where the run says something else. */
RR_API rr_error* rr_import_begin(rr_import* import, size_t index, const char* states, size_t size, rr_bytes** compare);
/* The reader of these rows of this one sample, which has ended well; takes its ids. Errors as above, with the layer. */
RR_API rr_error* rr_import_compare(rr_import* import, rr_reader* reader);
/* The next append of the sample that was begun, and the bytes of its ids in storage; NULL where there are no more. */
RR_API rr_error* rr_import_take_plan(rr_import* import, const rr_run* run, rr_plan** plan, int64_t* bytes);

/* Attempts of one idempotent call up to a deadline. */
RR_API rr_error* rr_retry_new(int64_t deadline, rr_retry** retry);
RR_API void rr_retry_free(rr_retry* retry);
/* Nanoseconds to wait before the next attempt after `error`; -1 if the error is final. */
RR_API int64_t rr_retry_wait(rr_retry* retry, const rr_error* error, int64_t now);

#ifdef __cplusplus
}
#endif

#endif /* ROUTING_REPLAY_CAPI_H_ */
