/* The trainer plugin on the CPU for other languages: plan, fetch, realign, router replay. The library behind it is the
 * one of routing_replay/c_api.h, which has its version; a fetch reads from runs of that interface.
 *
 * Errors, results, objects and texts are as in c_api.h: functions that can fail return NULL or an error for rr_free,
 * outputs are untouched on failure, results are freed with rr_free and objects with rr_object_free. An object may be
 * used by one thread at a time; objects passed as const may be shared. Arguments given once per plan, step or source
 * are JSON in the forms below, and unknown fields are rejected; arguments of each read are structs. */
#ifndef ROUTING_REPLAY_TRAINER_CAPI_H_
#define ROUTING_REPLAY_TRAINER_CAPI_H_

#include <stddef.h>
#include <stdint.h>

#include "routing_replay/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RRT_API __attribute__((visibility("default")))

typedef struct rrt_plan rrt_plan;
typedef struct rrt_fetch rrt_fetch;
typedef struct rrt_source rrt_source;
typedef struct rrt_step_cache rrt_step_cache;
typedef struct rrt_staged rrt_staged;
typedef struct rrt_agreement rrt_agreement;

/* The replay plan of one micro-batch on one rank. Its description, which `rrctl plan` also accepts:
 *   {"geometry": {"num_layers": 27, "moe_layers": [1, 2, …, 26], "num_experts": 64, "top_k": 6},
 *    "split": {"pipeline_size": 2, "first_stage_layers": 13},
 *    "micro_batch": {"format": "THD", "sequences": [{"sample": "math-7/0", "tokens": 13}],
 *                    "cu_seqlens_padded": [0, 16], "total_rows": 16, "partition": "zigzag_per_document",
 *                    "cp_size": 2, "tp_size": 2, "sequence_parallel": true},
 *    "rank": {"pp": 1, "cp": 0, "tp": 0}}
 * Values below are defaults.
 * geometry: moe_layers, all layers if absent; num_experts and top_k, one number or one per MoE layer.
 * split: one stage if absent.
 *   pipeline_size 1, virtual_stages null (1, or as the stages below give it), first_stage_layers and last_stage_layers
 *     null, account_for_embedding and account_for_loss false, mtp_num_layers 0;
 *   or all stages written out: layout, "Et*3|(tt|)*29m|L" or a list of lists of embedding, decoder, mtp and loss;
 *   or hybrid_pattern, "M*ME|MEME", whose symbols E must be the MoE layers of the geometry.
 * run_geometry: the run's geometry, if it lacks hash_layers, [], or native_layers, because the engine captures none of
 *   these.
 * native_layers: [], MoE layers whose own choice the trainer keeps (hash-routed layers, in some trainers).
 * micro_batch:
 *   format "THD" with cu_seqlens_padded and total_rows, or "BSHD" with batch_size and padded_length;
 *   sequences: sample "", tokens, recorded_rows tokens - 1, first_row 0 (rows of padding before it); instead of sample
 *     and recorded_rows, pieces that follow each other in the sequence, [{"sample", "tokens", "start": 0,
 *     "rows": tokens - 1}]: its tokens are those of the sample from `start` on; the first `rows` of them have a route.
 *     If any sequence has pieces, then "sequence" below, in row maps, slices and fetches, means one piece; pieces of
 *     all sequences are numbered in order (a sequence without tokens has none). live false: true for a sequence or a
 *     piece of no sample, without recorded rows: it routes live, and its rows are in state 3;
 *   last_row_filler false: whether a fetch gives filler, as for a pad, to the last token of a sequence if only this
 *     token has no route and its sample does not fall back;
 *   partition "zigzag_per_document", "zigzag_per_sequence", "contiguous", "contiguous_per_sequence" or "explicit";
 *   cp_size 1, tp_size 1, sequence_parallel false, tokens_per_sample null, target_rows null;
 *   row_order "sequence_major" or "batch_major", sp_slice "after_flatten" or "before_flatten";
 *   local_cp_size, the size for this micro-batch (dynamic and hybrid context parallelism), overrides cp_size;
 *   padding: a policy, below.
 * rank: pp 0, chunk null (all chunks), cp 0, tp 0, positions [] (for an explicit partition).
 *   model null: the layers of the rank's live model, per chunk {"layer_numbers": [14, …], "mtp_layer_numbers": [1]}:
 *     the layer_number of each router in the decoder, and separately of each in the MTP block, which counts from 1
 *     again. With a split, both must agree, or the error names the first difference; without a split, the model alone
 *     defines which layers the rank has.
 * ep_size: size of the expert-parallel group; filler is spread over it, so it must divide num_experts.
 *
 * micro_batch.padding, {"policy": NAME, options…}, names the padding of a framework. It predicts format, partition and
 * shape if they are not given. Given values win; the first difference is a warning. Names, and options with their
 * defaults, which routing_replay/trainer/padding.h explains:
 *   megatron: packed true, use_per_sequence_balancing false, seq_length null
 *   verl: use_remove_padding true, cp_layout "zigzag" or "contiguous", fp8 false, csa_window_size null,
 *     pad_to_length_bucket null, forced_max_seqlen null, local_cp_size null
 *   slime: data_pad_size_multiplier 128, allgather_cp false
 *   miles: qkv_format "thd" or "bshd", data_pad_size_multiplier 128, allgather_cp false, compress_ratios []
 *   skyrl: remove_microbatch_padding true, fp8 false, release "main" or "pr1327"
 *   nemo_rl: sequence_packing true, make_sequence_length_divisible_by 1, fp8_recipe "", "delayed", "tensorwise",
 *     "blockwise" or "mxfp8", hybridep false, pp 1, max_packed_length_in_batch 0 (the length of this pack)
 *   ms_swift: padding_free true, fp8_recipe "", fp8_format "", fp4_format "", attention_backend "", release "main"
 *     or "before_9722"; of its pull request 8393, if pull_request_8393 is true: moe_flex_dispatcher_backend "",
 *     seq_length null, max_length null
 *   prime_rl: pad_to_multiple_of 1
 * One example of micro_batch for each, without its sequences:
 *   {"padding": {"policy": "megatron", "seq_length": 4096}, "cp_size": 2, "tp_size": 2, "sequence_parallel": true}
 *   {"padding": {"policy": "verl", "fp8": true}, "cp_size": 2, "tp_size": 2, "sequence_parallel": true}
 *   {"padding": {"policy": "slime", "allgather_cp": true}, "cp_size": 4}
 *   {"padding": {"policy": "miles", "qkv_format": "bshd", "data_pad_size_multiplier": 8}, "cp_size": 2}
 *   {"padding": {"policy": "skyrl"}, "tp_size": 4, "sequence_parallel": true}
 *   {"padding": {"policy": "nemo_rl", "make_sequence_length_divisible_by": 8, "pp": 2}, "cp_size": 2}
 *   {"padding": {"policy": "ms_swift", "attention_backend": "fused"}, "cp_size": 4}
 *   {"padding": {"policy": "prime_rl", "pad_to_multiple_of": 64}, "cp_size": 2} */
/* described: the plan as JSON, for rr_free:
 * {"layers": [{"layer": 13, "ordinal": 12, "chunk": 0, "offset": 0, "num_experts": 64, "top_k": 6, "id_bytes": 1}, …],
 *  "mtp_layers": 0, "buffer_bytes": 336, "geometry": {…}, "geometry_fingerprint": 17,
 *  "layout": {"format": "THD", "cu_seqlens_padded": [0, 16], "total_rows": 16, "partition": "zigzag_per_document",
 *             "cp_size": 2, "tp_size": 2, "sequence_parallel": true},
 *  "row_map": {"rows": 4, "replayed": 4, "unrecorded": 0, "pads": 0,
 *              "runs": [{"local_row": 0, "stride": 1, "count": 4, "sequence": 0, "row": 0, "state": "replayed"}]},
 *  "slices": [{"sequence": 0, "sample": "math-7/0", "rows": [[0, 4]]}], "rows_to_read": 4, "bytes_to_read": 336,
 *  "index_bytes": 336, "padded_bytes": 0, "warnings": []}
 * layers: a layer's ids are [rows][top_k] little-endian at `offset` of the index buffer, a multiple of id_bytes; the
 * layers fill its buffer_bytes. geometry: of the plan; its fingerprint is the same on every machine for the same
 * geometry. Local rows in no run are pads; rows are half-open ranges. layout: the layout used, given or predicted.
 * index_bytes: size of the index buffers of all layers, for all local rows; padded_bytes: the part for pads.
 * mtp_layers: number of MTP layers in the planned chunks; they carry no routes and are in no list of layers.
 * warnings: known faults of the framework with this padding policy, and where the given layout differs from it. */
RRT_API rr_error* rrt_plan_new(rr_text json, int32_t ep_size, rrt_plan** plan, const rr_bytes** described);
/* The row map, one entry for each of the `count` local rows: the sequence and row that it shows, and its state:
 * 0 replayed, 1 unrecorded (a real token without a route), 2 pad, 3 of a live sequence. Sequence and row of a pad are
 * -1. */
RRT_API rr_error* rrt_plan_row_map(const rrt_plan* plan, int32_t* sequences, int32_t* rows, uint8_t* states,
                                   size_t count);
/* One sequence of a fetch, or a sample of an inspection (FetchSequence in routing_replay/trainer/source.h). */
typedef struct rrt_sequence {
  rr_text sample; /* If it is absent, handle is used. */
  int64_t handle;
  rr_integer num_tokens;      /* Expected T; a sample with another T counts as missing. */
  rr_token_check token_check; /* Expected, if has_token_check; a sample with another one counts as missing. */
  uint64_t content_id;        /* The content that the ranks of the replica agreed on, if has_content_id. */
  int32_t has_token_check, has_content_id;
  int32_t live; /* It falls back, and none of its rows is read. */
} rrt_sequence;

enum rrt_missing { RRT_STRICT = 0, RRT_LIVE = 1, RRT_DROP = 2 }; /* MissingPolicy of source.h. */

typedef struct rrt_fetch_options {
  rr_text run;      /* Its name, for a step cache. */
  int32_t producer; /* 0: rollout. */
  int32_t missing;
  int32_t wait;                  /* Whether to wait for rows that are not committed yet. */
  const rrt_sequence* sequences; /* One per sequence of the micro-batch. NULL: samples and T of the plan. */
  size_t count;
} rrt_fetch_options;

/* What a source reports about a sample. */
typedef struct rrt_record {
  int32_t sequence;    /* Its number in the micro-batch, or in the inspection. */
  rr_text sample;      /* Its id, as given. */
  rr_sample_rows said; /* Without rows and ids. */
} rrt_record;

typedef struct rrt_dropped {
  int32_t sequence;
  rr_text sample; /* If it is absent, handle is used. */
  int64_t handle;
} rrt_dropped;

typedef struct rrt_records { /* A result. */
  const rrt_record* data;    /* For a fetch: one per sequence that the rank reads. */
  size_t count;
  const rrt_dropped* dropped; /* With RRT_DROP: what falls back; the caller must leave it out of the loss. */
  size_t dropped_count;
  int64_t fallback_sequences;
  int64_t replayed_rows, unrecorded_rows, pad_rows; /* Counted when the rows are realigned. */
} rrt_records;

/* The destination of rows: an index buffer of the plan (buffer_bytes), and one state per local row, as in
 * rrt_plan_row_map but as the fetch found it; 2 also for last tokens on filler. Both are fully overwritten. */
typedef struct rrt_target {
  void* indices;
  size_t indices_size;
  uint8_t* states;
  size_t states_size;
} rrt_target;

/* Makes a fetch of a plan's slices, for rrt_fetch_read or rrt_source_fetch. The plan must outlive it. */
RRT_API rr_error* rrt_fetch_new(const rrt_plan* plan, const rrt_fetch_options* options, rrt_fetch** fetch);
/* Reads from the service, as a call of routing_replay/c_api.h with the timeout of rr_run_read. FAILED_PRECONDITION:
 * with RRT_STRICT, naming a sample that cannot be replayed; with every policy, and the field content_id, naming a
 * sample that differs from what was agreed. INVALID_ARGUMENT (GEOMETRY_MISMATCH) if the plan's geometry is not the
 * run's. After UNAVAILABLE or DEADLINE_EXCEEDED, call it again, which reads everything again, or call
 * rrt_fetch_give_up. With a queue, do not use the fetch until the call has ended. */
RRT_API rr_error* rrt_fetch_read(rrt_fetch* fetch, rr_run* run, const rr_call* call);
/* Whole fetches in one call, one after the other, on the thread that reads: what rrt_fetch_new, rrt_fetch_read and
 * rrt_fetch_result do, but rows are moved to the target when they arrive, so that it holds anything after an error; and
 * without RRT_STRICT a sample that is not there in time falls back. The timeout is that of all together. With a queue,
 * plans, targets and `fetches` must live until the call has ended. */
typedef struct rrt_row_fetch {
  const rrt_plan* plan;
  rrt_fetch_options options;
  rrt_target target;
  const rrt_records* records; /* Out, if all of them succeed. */
} rrt_row_fetch;
RRT_API rr_error* rrt_fetch_rows(rr_run* run, rrt_row_fetch* fetches, size_t count, const rr_call* call);
/* Gives up the rest: samples that are not complete become NOT_READY with the message `why`, and fall back. */
RRT_API rr_error* rrt_fetch_give_up(rrt_fetch* fetch, rr_text why);

/* The records of an ended fetch; unless target is NULL, also writes its rows there. FAILED_PRECONDITION before the
 * fetch has ended. */
RRT_API rr_error* rrt_fetch_result(const rrt_fetch* fetch, const rrt_target* target, const rrt_records** records);

/* What a read would report about samples, before any rows are fetched; costs one row of one layer per sample. Returns
 * one record per sequence of `options`, whose `missing` and `live` are ignored. A sample that is not sealed is
 * NOT_READY: ask again to wait for the seal. A call like rrt_fetch_read, but DEADLINE_EXCEEDED is not an error: samples
 * without an answer until then are NOT_READY. */
RRT_API rr_error* rrt_inspect(rr_run* run, const rrt_fetch_options* options, const rr_call* call,
                              const rrt_records** records);

/* Keeps a step's slices, so that each is read once (trainer_plugin/fetch/step_cache.h). Thread-safe. Use one cache per
 * source: the key of a slice is run, producer, sample and rows, not its source, and local rows have no run. It assumes
 * that samples do not change within a step. Attach a new fetch to the cache, then:
 *   while (rrt_step_cache_next(fetch, …, &reads), reads) { read the fetch as one without a cache }
 * Then the fetch has ended. It may outlive the cache's handle. */
typedef struct rrt_step_cache_counts {
  int64_t hits;   /* Slices that a fetch found, or that another one was reading. */
  int64_t misses; /* Slices that a fetch had to read itself. */
  int64_t ahead;  /* Slices read ahead. */
  int64_t stale;  /* Kept slices whose content was not the one that the ranks agreed on. */
  int64_t evictions, not_kept;
  int64_t bytes, most_bytes, slices; /* Bytes held now and at most; slices held now. */
  int64_t bytes_read;
} rrt_step_cache_counts;
RRT_API rr_error* rrt_step_cache_new(int64_t max_bytes, rrt_step_cache** cache);
/* ahead: 0 the rows are needed now, 1 later in this step, 2 in the next step. A fetch ahead never waits for rows,
 * whatever its options say, and rejects no sample: slices that it cannot read at once are read when they are needed. It
 * has no rows at its end. */
RRT_API rr_error* rrt_step_cache_attach(const rrt_step_cache* cache, rrt_fetch* fetch, int32_t ahead);
/* Lets others read the slices that the fetch should have read but did not; freeing the fetch does so, too. It keeps its
 * result. */
RRT_API rr_error* rrt_step_cache_detach(rrt_fetch* fetch);
/* reads 1: the fetch must now be read; 0: it has ended. DEADLINE_EXCEEDED if it has waited timeout_ms for another
 * fetch, or a fetch ahead for room: then rrt_fetch_give_up ends it with the slices that exist. CANCELLED after a stop.
 * FAILED_PRECONDITION while its previous read has neither ended nor been given up. */
RRT_API rr_error* rrt_step_cache_next(rrt_fetch* fetch, int64_t timeout_ms, int32_t* reads);
/* Begins the next step: drops all slices except those read ahead for it. */
RRT_API rr_error* rrt_step_cache_end_step(rrt_step_cache* cache);
/* Ends all waits, now and later, with CANCELLED. */
RRT_API rr_error* rrt_step_cache_stop(rrt_step_cache* cache);
RRT_API rr_error* rrt_step_cache_counters(const rrt_step_cache* cache, rrt_step_cache_counts* counts);

/* Sources of rows without the service. This one reads a directory: an exported run (proto/FORMAT.md, "Exported runs").
 * FAILED_PRECONDITION if the directory has no finished export, DATA_LOSS for files that are not as they were written,
 * ALREADY_EXISTS for two samples with one handle. May be shared between threads. described, as JSON: {"run",
 * "producer", "geometry": {…}, "samples": [id, …]}. A fetch or an inspection for another producer finds no sample. */
RRT_API rr_error* rrt_directory_source_open(rr_text path, rrt_source** source, const rr_bytes** described);
/* A source of arrays that the caller already has in host memory. Geometry as in the description of a plan. */
RRT_API rr_error* rrt_local_source_new(rr_text geometry, rrt_source** source);
/* Adds rows 0 … num_tokens - 2 of a sample; the tensor holds those that are not unrecorded. If num_tokens is absent, it
 * is one more than the rows. tokens: ids from position 0 on, at least one per row, or none. Replaces an existing sample
 * of that id. INVALID_ARGUMENT naming sample, field, row and layer; ALREADY_EXISTS if another sample has the same
 * handle. */
RRT_API rr_error* rrt_local_source_add(rrt_source* source, rr_text sample, rr_integer num_tokens, rr_ranges unrecorded,
                                       const rr_tensor* tensor, const uint32_t* tokens, size_t token_count);
/* R2 without transport: adds the rows of one sequence of the plan's micro-batch that this rank recorded itself, from an
 * index buffer of the plan. The plan must have all layers of the source's geometry. The sample's name and num_tokens
 * are those in the plan's description. Rows that this rank does not hold are unrecorded. The sample has no content_id,
 * because ranks hold different parts of it. */
RRT_API rr_error* rrt_local_source_record(rrt_source* source, const rrt_plan* plan, int32_t sequence,
                                          const uint32_t* tokens, size_t token_count, const void* indices,
                                          size_t indices_size);
/* Returns 1 if the sample existed. */
RRT_API int32_t rrt_local_source_remove(rrt_source* source, rr_text sample);
RRT_API rr_error* rrt_source_fetch(const rrt_source* source, rrt_fetch* fetch);
/* Like rrt_inspect. */
RRT_API rr_error* rrt_source_inspect(const rrt_source* source, const rrt_fetch_options* options,
                                     const rrt_records** records);

/* A fetch's rows for a device, which realigns them: one block of bytes to copy there. It begins with a packed plan; the
 * staged rows follow, in the compact form in which they arrived. Everything is checked when the block is made, so the
 * device cannot fail on it. The fetch must outlive it. Immutable; may be shared between threads. */
typedef struct rrt_staged_shape {
  int64_t bytes;          /* Of the block. */
  int64_t staging_offset; /* Of the staged rows in it, a multiple of 256. */
  int64_t states_offset;  /* Of the row states in it, one byte per local row. */
  int64_t units;          /* Of the packed plan: the size of a launch. */
  int64_t replayed_rows, unrecorded_rows, pad_rows;
} rrt_staged_shape;
RRT_API rr_error* rrt_staged_new(const rrt_fetch* fetch, rrt_staged** staged, rrt_staged_shape* shape);
/* Writes the block to an address that is a multiple of 16 (for example pinned memory). `size` may exceed its bytes. */
RRT_API rr_error* rrt_staged_write(const rrt_staged* staged, void* block, size_t size);

/* Router replay: Megatron-Core's topk_routing_with_score_function with its top-k replaced. dtype: of logits,
 * probabilities and gradients. */
enum { RRT_FLOAT32 = 0, RRT_FLOAT64 = 1, RRT_BFLOAT16 = 2, RRT_FLOAT16 = 3 };
typedef struct rrt_router {
  int32_t dtype;
  int32_t score_function; /* 0 softmax, 1 sigmoid, 2 sqrtsoftplus */
  int32_t pre_softmax;
  int32_t rounding; /* 0 once (Megatron-Core >= 0.18), 1 each step (0.16, 0.17) */
  int32_t num_experts;
  int32_t top_k;
  int32_t num_groups; /* 1: no limit */
  int32_t group_topk;
  double scaling_factor;
} rrt_router;
/* Every call adds to these. */
typedef struct rrt_router_counters {
  int64_t replayed_rows, live_rows, pad_rows, clamped_ids, zero_probabilities;
} rrt_router_counters;
/* logits, probs [rows][E]; indices, chosen [rows][K] compact ids; states [rows]; routing_map [rows][E] of 0 and 1;
 * compact_probs [rows][K]; expert_bias [E], used by a live choice with sigmoid and sqrtsoftplus. expert_bias,
 * compact_probs and chosen may be NULL. Memory must be aligned to its dtype. */
RRT_API rr_error* rrt_router_forward(const rrt_router* router, int64_t rows, const void* logits, const void* indices,
                                     const uint8_t* states, const float* expert_bias, void* probs, uint8_t* routing_map,
                                     void* compact_probs, void* chosen, rrt_router_counters* counters);
RRT_API rr_error* rrt_router_backward(const rrt_router* router, int64_t rows, const void* logits, const void* chosen,
                                      const void* grad_probs, void* grad_logits, rrt_router_counters* counters);

/* Every call adds to these: rows compared, rows whose sets of experts differ, rows without a common expert, and common
 * experts. */
typedef struct rrt_compare_counters {
  int64_t rows, different_rows, disjoint_rows, common_ids;
} rrt_compare_counters;
/* Compares the replayed choice with a live one, as sets, in the rows with state 0: [rows][K] compact ids each. Uses
 * only E and K of the router, and does not check ids. */
RRT_API rr_error* rrt_compare(const rrt_router* router, int64_t rows, const void* replayed, const uint8_t* states,
                              const void* live, rrt_compare_counters* counters);

/* Decides what all ranks of a model replica do with the samples of a step, without I/O.
 * routing_replay/trainer/agreement.h explains what is compared and how it fails. json, what this rank has seen:
 *   {"policy": "strict" | "live" | "drop", "geometry_fingerprint": 0, "source_failed": false, "samples":
 *    [{"sample" (or "handle"), "status": "OK", "num_tokens", "revision", "content_id", "oldest_weight_version",
 *      "newest_weight_version"}, …]}
 * status as in a fetch, not UNSPECIFIED. Wrong JSON is an error of the first push, not of this function, because the
 * other ranks must learn of it. Then, while there are words: reduce them to their maxima over all ranks and push the
 * result. A push after the last round is FAILED_PRECONDITION. */
RRT_API rr_error* rrt_agreement_new(int32_t rank, rr_text json, rrt_agreement** agreement);
/* Returns the number of words; they stay valid until the next push. */
RRT_API size_t rrt_agreement_words(const rrt_agreement* agreement, const int64_t** words);
RRT_API rr_error* rrt_agreement_push(rrt_agreement* agreement, const int64_t* reduced, size_t count);
/* {"samples": [{"action": "replay" | "live" | "drop", "status", "missing_on", "missing_everywhere", "num_tokens",
 *  "revision", "content_id", "oldest_weight_version", "newest_weight_version"}, …], "counts": {"OK": 2, …},
 *  "replayed": 2, "fallen_back": 0, "source_failed_on"}; unknown fields are absent. FAILED_PRECONDITION before the last
 * round, and if a round failed. */
RRT_API rr_error* rrt_agreement_decision(const rrt_agreement* agreement, const rr_bytes** json);

/* R2: merges what ranks recorded of one micro-batch to whole rows of its sequences. plans: one for each rank and each
 * of its chunks, without pieces; together they have all layers of the model's geometry. indices: their index buffers,
 * of `sizes` bytes. FAILED_PRECONDITION naming a sample, row and layer that no plan has, or that differs between two.
 */
typedef struct rrt_merged_sequence {
  int64_t rows;
  const void* planes; /* For each MoE layer, ids [rows][K] as in an index buffer. */
  size_t size;
} rrt_merged_sequence;
typedef struct rrt_merged { /* A result. */
  const rrt_merged_sequence* data;
  size_t count;
} rrt_merged;
RRT_API rr_error* rrt_merge_records(const rrt_plan* const* plans, const void* const* indices, const size_t* sizes,
                                    size_t count, const rrt_merged** merged);

/* Ids of a plan's micro-batch as int32; K is the largest of the geometry, unused slots are -1. */
typedef struct rrt_route_ids {
  size_t sequences;        /* Number in the plan: sequences of the micro-batch, or all pieces. */
  const int64_t* rows;     /* Rows of each one's record; 0 leaves it out. */
  const int32_t* recorded; /* [rows][all MoE layers][K] of each, one after the other; -1: unknown. */
  size_t recorded_count;
  const int32_t* seen; /* [local rows][layers of the plan][K] */
  size_t seen_count;
} rrt_route_ids;
/* Judges whether the record fits what the routers chose by themselves; drift of the weights alone is unlikely to make
 * it misfit:
 *   {"misaligned": true, "kept": 0.04, "chance": 0.06, "explained_kept": 0.97, "sequence": 1, "layer": 17,
 *    "explanations": [{"of": "rows", "mistakes": ["partition_contiguous"], "matched": 10, "compared": 10,
 *                      "exact": true, "what": "…"}, {"of": "layers", …}]}
 * explanations: the best ones (routing_replay/trainer/diagnose.h), for the rows and for the layers.
 * sequence: the one whose record fits worst; it and the layer are null if nothing is compared. */
RRT_API rr_error* rrt_judge_alignment(const rrt_plan* plan, const rrt_route_ids* ids, const rr_bytes** verdict);

#ifdef __cplusplus
}
#endif

#endif /* ROUTING_REPLAY_TRAINER_CAPI_H_ */
