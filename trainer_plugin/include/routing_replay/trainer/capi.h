/* The trainer plugin on the CPU for other languages: plan, fetch, realign, router replay. These functions are in the
 * same library as those of routing_replay/c_api.h, which also has the version; a fetch reads from an rr_run of that
 * header.
 *
 * Errors, results, objects and texts are as in c_api.h: functions that can fail return NULL or an error for rr_free,
 * outputs are untouched on failure, results are freed with rr_free and objects with rr_object_free. An object may be
 * used by one thread at a time; objects passed as const may be shared between threads. Arguments that are given once
 * per plan, step or source are JSON in the forms below, where unknown fields are rejected. Arguments of every read are
 * structs. */
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
 * The value after a field below is its default; to get the default null, leave the field out.
 * geometry: moe_layers, all layers if absent; num_experts and top_k, one number or one per MoE layer.
 * split: one stage if absent.
 *   pipeline_size 1, virtual_stages null (1, or as many as layout or hybrid_pattern lists), first_stage_layers and
 *     last_stage_layers null, account_for_embedding and account_for_loss false, mtp_num_layers 0;
 *   or all stages written out: layout, "Et*3|(tt|)*29m|L" or a list of lists of embedding, decoder, mtp and loss;
 *   or hybrid_pattern, "M*ME|MEME", whose symbols E are the MoE layers of the geometry.
 * run_geometry: the geometry of the run, if it has fewer MoE layers than `geometry` because the engine does not capture
 *   them. The missing ones must be in native_layers, or in hash_layers (default [], the hash-routed layers).
 * native_layers: [], MoE layers that the trainer routes live instead of replaying (in some trainers, layers that are
 *   hash-routed, that is, find their experts in a table of token ids).
 * micro_batch, explained in routing_replay/trainer/rows.h:
 *   format "THD" with cu_seqlens_padded and total_rows, or "BSHD" with batch_size and padded_length;
 *   sequences: sample "", tokens, recorded_rows tokens - 1, first_row 0 (rows of padding before it); instead of sample
 *     and recorded_rows, pieces that follow each other in the sequence, [{"sample", "tokens", "start": 0,
 *     "rows": tokens - 1}]: a piece has the sample's tokens from `start` on, of which the first `rows` have a route.
 *     If any sequence has pieces, then "sequence" below, in row maps, slices and fetches, means one piece; pieces of
 *     all sequences are numbered in order (a sequence without tokens has none). live false; true means that the
 *     sequence or piece belongs to no sample and has no recorded rows: it routes live, and its rows are in state 3;
 *   last_row_filler false; true gives the last token of a sequence filler ids, as for a pad. This needs recorded_rows
 *     (in its last piece: rows) equal to tokens - 1, and a sample that does not fall back;
 *   partition "zigzag_per_document", "zigzag_per_sequence", "contiguous" or "contiguous_per_sequence";
 *   cp_size 1, tp_size 1, sequence_parallel false, tokens_per_sample null, target_rows null;
 *   row_order "sequence_major" or "batch_major", sp_slice "after_flatten" or "before_flatten";
 *   local_cp_size, the size for this micro-batch (dynamic and hybrid context parallelism), overrides cp_size;
 *   padding: a policy, below.
 * rank: pp 0, chunk null (all chunks), cp 0, tp 0.
 *   model null: the layers found in the rank's live model, for each chunk {"layer_numbers": [14, …]}: the layer_number
 *     of each router in the decoder (not of those in the MTP block, whose numbers start at 1 again). Model and split
 *     must agree, or the error lists the layers of both.
 * ep_size: size of the expert-parallel group. Filler ids are spread evenly over its ranks, so ep_size must divide
 *   num_experts.
 *
 * micro_batch.padding, {"policy": NAME, options…}, names the padding of a framework. The policy predicts format,
 * partition and shape if they are not given. Given values win over predicted ones; the first difference becomes a
 * warning. Names and options with their defaults, explained in routing_replay/trainer/padding.h:
 *   megatron
 *   verl: use_remove_padding true, cp_layout "zigzag" or "contiguous", fp8 false, csa_window_size null,
 *     pad_to_length_bucket null, forced_max_seqlen null
 *   slime: data_pad_size_multiplier 128, allgather_cp false
 *   miles: qkv_format "thd" or "bshd", data_pad_size_multiplier 128, allgather_cp false, compress_ratios []
 *   skyrl: remove_microbatch_padding true, fp8 false, release "main" or "pr1327"
 *   nemo_rl: sequence_packing true, make_sequence_length_divisible_by 1, fp8_recipe "", "delayed", "tensorwise",
 *     "blockwise" or "mxfp8", hybridep false, pp 1, max_packed_length_in_batch 0 (the length of this pack)
 *   ms_swift: padding_free true, fp8_recipe "", fp8_format "", fp4_format "", attention_backend "", release "main"
 *     or "before_9722"; used only with pull_request_8393 true (default false): moe_flex_dispatcher_backend "",
 *     seq_length null, max_length null
 *   prime_rl: pad_to_multiple_of 1 */
/* described: the plan as JSON, for rr_free:
 * {"layers": [{"layer": 13, "ordinal": 12, "chunk": 0, "offset": 0, "num_experts": 64, "top_k": 6, "id_bytes": 1}, …],
 *  "buffer_bytes": 336, "geometry": {…}, "geometry_fingerprint": 17,
 *  "layout": {"format": "THD", "cu_seqlens_padded": [0, 16], "total_rows": 16, "partition": "zigzag_per_document",
 *             "cp_size": 2, "tp_size": 2, "sequence_parallel": true},
 *  "row_map": {"rows": 4, "replayed": 4, "unrecorded": 0, "pads": 0,
 *              "runs": [{"local_row": 0, "stride": 1, "count": 4, "sequence": 0, "row": 0, "state": "replayed"}]},
 *  "slices": [{"sequence": 0, "sample": "math-7/0", "rows": [[0, 4]]}], "rows_to_read": 4, "bytes_to_read": 336,
 *  "warnings": []}
 * layers: a layer's ids are [rows][top_k], little-endian, at byte `offset` of the index buffer (a multiple of
 *   id_bytes). The whole index buffer has buffer_bytes.
 * geometry: that of the plan. Its fingerprint is the same on every machine for the same geometry.
 * row_map: local rows that are in no run are pads. slices: rows are half-open ranges.
 * layout: the layout that is used, whether given or predicted.
 * warnings: where the given layout differs from the padding policy. */
RRT_API rr_error* rrt_plan_new(rr_text json, int32_t ep_size, rrt_plan** plan, const rr_bytes** described);
/* The row map, one entry for each of the `count` local rows: the sequence and row that it shows, and its state:
 * 0 replayed, 1 unrecorded (a real token without a route), 2 pad, 3 token of a live sequence. Sequence and row of a pad
 * are -1. */
RRT_API rr_error* rrt_plan_row_map(const rrt_plan* plan, int32_t* sequences, int32_t* rows, uint8_t* states,
                                   size_t count);
/* One sequence of a fetch, or a sample of an inspection (FetchSequence in routing_replay/trainer/source.h). */
typedef struct rrt_sequence {
  rr_text sample; /* If absent, the handle names the sample. */
  int64_t handle;
  rr_integer num_tokens; /* Expected T; a sample with another T counts as missing. */
  /* Expected token check, if has_token_check; a sample with another one counts as missing. */
  rr_token_check token_check;
  uint64_t content_id; /* If has_content_id: the content id that all ranks of the replica agreed on. */
  int32_t has_token_check, has_content_id;
  int32_t live; /* Not 0: routes live, and none of its rows is read. */
} rrt_sequence;

enum rrt_missing { RRT_STRICT = 0, RRT_LIVE = 1, RRT_DROP = 2 }; /* MissingPolicy of source.h. */

typedef struct rrt_fetch_options {
  int32_t producer; /* 0: rollout. */
  int32_t missing;
  int32_t wait; /* Not 0: wait for rows that are not committed yet. */
  /* One per sequence of the micro-batch. NULL: sample and num_tokens as the plan describes them. */
  const rrt_sequence* sequences;
  size_t count;
} rrt_fetch_options;

/* What a source reports about a sample. */
typedef struct rrt_record {
  int32_t sequence;    /* Index of the sequence in the micro-batch, or in the inspection. */
  rr_text sample;      /* The sample id that the caller gave. */
  rr_sample_rows said; /* Its `rows` and `ids` are empty. */
} rrt_record;

typedef struct rrt_records { /* A result. */
  const rrt_record* data;    /* For a fetch: one per sequence that the rank reads. */
  size_t count;
  int64_t fallback_sequences;
  int64_t replayed_rows, unrecorded_rows, pad_rows; /* 0 if no target was passed. */
} rrt_records;

/* The destination of rows: an index buffer of the plan (buffer_bytes) and one state per local row. The states are those
 * of rrt_plan_row_map, updated with what the fetch found; 2 also marks a last token that takes filler
 * (last_row_filler). Both buffers are fully overwritten. */
typedef struct rrt_target {
  void* indices;
  size_t indices_size;
  uint8_t* states;
  size_t states_size;
} rrt_target;

/* Makes a fetch of a plan's slices, for rrt_fetch_read or rrt_source_fetch. The plan must outlive it. */
RRT_API rr_error* rrt_fetch_new(const rrt_plan* plan, const rrt_fetch_options* options, rrt_fetch** fetch);
/* Reads the rows from the service. `call` and its timeout work as for rr_run_read. FAILED_PRECONDITION names a sample
 * that cannot be replayed (with RRT_STRICT), or, with every policy and with the field content_id, a sample whose
 * content is not the one that the ranks agreed on. INVALID_ARGUMENT (GEOMETRY_MISMATCH) if the plan's geometry is not
 * the run's. After UNAVAILABLE or DEADLINE_EXCEEDED, either call this function again, which reads everything again, or
 * call rrt_fetch_give_up. If `call` has a queue, do not use the fetch until the call has ended. */
RRT_API rr_error* rrt_fetch_read(rrt_fetch* fetch, rr_run* run, const rr_call* call);
/* Performs several fetches, one after the other, in one call: each as rrt_fetch_new, rrt_fetch_read and
 * rrt_fetch_result together, with two differences. Rows are written to the target as soon as they arrive, so after an
 * error the content of the target is undefined. Without RRT_STRICT, a sample that does not arrive in time falls back.
 * The timeout is for all fetches together. If `call` has a queue, plans, targets and `fetches` must live until the
 * call has ended. */
typedef struct rrt_row_fetch {
  const rrt_plan* plan;
  rrt_fetch_options options;
  rrt_target target;
  const rrt_records* records; /* Output, set if all fetches succeed. */
} rrt_row_fetch;
RRT_API rr_error* rrt_fetch_rows(rr_run* run, rrt_row_fetch* fetches, size_t count, const rr_call* call);
/* Ends a fetch without the rows that have not arrived: samples that are not complete get the status NOT_READY with the
 * message `why`, and fall back. */
RRT_API rr_error* rrt_fetch_give_up(rrt_fetch* fetch, rr_text why);

/* Returns the records of a fetch that has ended, and writes its rows to target unless that is NULL. FAILED_PRECONDITION
 * if the fetch has not ended. */
RRT_API rr_error* rrt_fetch_result(const rrt_fetch* fetch, const rrt_target* target, const rrt_records** records);

/* Finds the status of samples before their rows are fetched, at the cost of reading one row of one layer per sample.
 * Returns one record per sequence of `options`; `missing`, and `live` of the sequences, are ignored. A sample that is
 * not sealed is NOT_READY: call again to wait for the seal. The call works like rrt_fetch_read, except that a timeout
 * is not an error: samples without an answer are then NOT_READY. */
RRT_API rr_error* rrt_inspect(rr_run* run, const rrt_fetch_options* options, const rr_call* call,
                              const rrt_records** records);

/* A step cache keeps the slices of one training step, so that each slice is read only once
 * (trainer_plugin/fetch/step_cache.h). Thread-safe. Use one cache per source, because the key of a slice is
 * layers, sample and rows, but not the source. Samples must not change within a step. Attach a new fetch to the
 * cache, then:
 *   while (rrt_step_cache_next(fetch, …, &reads), reads) { read the fetch as one without a cache }
 * After this loop the fetch has ended. The cache may be freed before its fetches. */
typedef struct rrt_step_cache_counts {
  int64_t hits;   /* Slices found in the cache, or already being read by another fetch. */
  int64_t misses; /* Slices that had to be read. Prefetches count neither hits nor misses. */
  int64_t bytes;  /* Bytes held now. */
  int64_t bytes_read;
} rrt_step_cache_counts;
RRT_API rr_error* rrt_step_cache_new(int64_t max_bytes, rrt_step_cache** cache);
/* `ahead` is 0 if the rows are needed now, 1 (a prefetch) if later in this step. A prefetch only fills the cache: its
 * own result has no rows. It never waits for rows that are not committed, whatever its options say, and never fails
 * because of a sample: slices that it cannot read at once are read when they are needed. */
RRT_API rr_error* rrt_step_cache_attach(const rrt_step_cache* cache, rrt_fetch* fetch, int32_t ahead);
/* Detaches the fetch from the cache: slices that it was to read but has not read may now be read by other fetches. The
 * fetch keeps its result. Freeing a fetch also detaches it. */
RRT_API rr_error* rrt_step_cache_detach(rrt_fetch* fetch);
/* Sets `reads` to 1 if the caller must now read the fetch, to 0 if the fetch has ended. DEADLINE_EXCEEDED if the fetch
 * has waited timeout_ms for slices that another fetch reads or, as a prefetch, for room in the cache; rrt_fetch_give_up
 * then ends it with the slices that were read. CANCELLED after rrt_step_cache_stop. FAILED_PRECONDITION if the previous
 * read has neither ended nor been given up. */
RRT_API rr_error* rrt_step_cache_next(rrt_fetch* fetch, int64_t timeout_ms, int32_t* reads);
/* Begins the next step: evicts all slices. */
RRT_API rr_error* rrt_step_cache_end_step(rrt_step_cache* cache);
/* Makes all waits in this cache, now and later, end with CANCELLED. */
RRT_API rr_error* rrt_step_cache_stop(rrt_step_cache* cache);
RRT_API rr_error* rrt_step_cache_counters(const rrt_step_cache* cache, rrt_step_cache_counts* counts);

/* Opens a source that needs no service: a directory that holds an exported run (proto/FORMAT.md, "Exported runs").
 * FAILED_PRECONDITION if the directory has no finished export, DATA_LOSS if the directory's index is damaged,
 * ALREADY_EXISTS for two samples with one handle. May be shared between threads. `described` is JSON: {"run",
 * "producer", "geometry": {…}, "samples": [id, …]}. */
RRT_API rr_error* rrt_directory_source_open(rr_text path, rrt_source** source, const rr_bytes** described);
/* Makes a source for arrays that the caller already has in host memory. `geometry` is JSON as in the description of a
 * plan. */
RRT_API rr_error* rrt_local_source_new(rr_text geometry, rrt_source** source);
/* Adds rows 0 … num_tokens - 2 of a sample; the tensor holds only the recorded ones. If num_tokens is absent, it is the
 * number of rows plus one. tokens: token ids from position 0 on, at least one per row; or NULL with token_count 0. A
 * sample that already has this id is replaced. INVALID_ARGUMENT naming sample, field, row and layer; ALREADY_EXISTS if
 * another sample has the same handle. */
RRT_API rr_error* rrt_local_source_add(rrt_source* source, rr_text sample, rr_integer num_tokens, rr_ranges unrecorded,
                                       const rr_tensor* tensor, const uint32_t* tokens, size_t token_count);
/* For R2 (replay of the trainer's own choice) without the service: adds the rows that this rank itself recorded for one
 * sequence of the plan's micro-batch, from an index buffer of the plan. The plan must have all layers of the source's
 * geometry. The sample's name and num_tokens are those in the plan's description. Rows that this rank does not hold are
 * unrecorded. The sample has no content_id, because ranks hold different parts of it. */
RRT_API rr_error* rrt_local_source_record(rrt_source* source, const rrt_plan* plan, int32_t sequence,
                                          const uint32_t* tokens, size_t token_count, const void* indices,
                                          size_t indices_size);
/* Removes a sample. Returns 1 if it existed, else 0. */
RRT_API int32_t rrt_local_source_remove(rrt_source* source, rr_text sample);
RRT_API rr_error* rrt_source_fetch(const rrt_source* source, rrt_fetch* fetch);
/* Like rrt_inspect. */
RRT_API rr_error* rrt_source_inspect(const rrt_source* source, const rrt_fetch_options* options,
                                     const rrt_records** records);

/* Prepares the rows of a fetch for a device: one block of bytes, which the caller copies to the device and the device
 * realigns (rrt_cuda_realign). The block begins with a packed realign plan; the staged rows follow, in the compact form
 * in which they arrived. All checks are made here, so that the kernel cannot fail. The fetch must outlive this object.
 * Immutable; may be shared between threads. */
typedef struct rrt_staged_shape {
  int64_t bytes;          /* Size of the block in bytes. */
  int64_t staging_offset; /* Byte offset of the staged rows in the block, a multiple of 256. */
  int64_t states_offset;  /* Byte offset of the row states in it, one byte per local row. */
  int64_t units;          /* Work units in the packed plan, which give the size of the launch. */
  int64_t replayed_rows, unrecorded_rows, pad_rows;
} rrt_staged_shape;
RRT_API rr_error* rrt_staged_new(const rrt_fetch* fetch, rrt_staged** staged, rrt_staged_shape* shape);
/* Writes the block to memory (for example pinned memory) whose address is a multiple of 16. `size` is the size of that
 * memory, at least that of the block. */
RRT_API rr_error* rrt_staged_write(const rrt_staged* staged, void* block, size_t size);

/* Router replay: Megatron-Core's topk_routing_with_score_function with its top-k replaced by given ids. dtype: the type
 * of logits, probabilities and gradients. */
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
/* Counters of router calls. Every call adds to them. */
typedef struct rrt_router_counters {
  int64_t replayed_rows, live_rows, pad_rows, clamped_ids;
} rrt_router_counters;
/* logits, probs [rows][E]; indices (ids to replay) and chosen (ids that were used) [rows][K] compact ids; states
 * [rows]; routing_map [rows][E] of 0 and 1; expert_bias [E] is used only when a row routes live with sigmoid or
 * sqrtsoftplus. expert_bias and chosen may be NULL. Every array must be aligned to the size of its elements. */
RRT_API rr_error* rrt_router_forward(const rrt_router* router, int64_t rows, const void* logits, const void* indices,
                                     const uint8_t* states, const float* expert_bias, void* probs, uint8_t* routing_map,
                                     void* chosen, rrt_router_counters* counters);
RRT_API rr_error* rrt_router_backward(const rrt_router* router, int64_t rows, const void* logits, const void* chosen,
                                      const void* grad_probs, void* grad_logits, rrt_router_counters* counters);

/* Lets all ranks of a model replica agree on what to do with the samples of a step. Does no I/O.
 * routing_replay/trainer/agreement.h explains what is compared and which errors there are. `json` says what this rank
 * has seen:
 *   {"policy": "strict" | "live" | "drop", "geometry_fingerprint": 0, "source_failed": false, "samples":
 *    [{"sample" (or "handle"), "status": "OK", "num_tokens", "content_id", "oldest_weight_version",
 *      "newest_weight_version"}, …]}
 * `status`: as in the records of a fetch; UNSPECIFIED is invalid. Invalid JSON is an error of the first push, not of
 * this function, because the other ranks must learn of it, too. Then, as long as there are words, reduce them to their
 * maxima over all ranks and push the result. A push after the last round is FAILED_PRECONDITION. */
RRT_API rr_error* rrt_agreement_new(int32_t rank, rr_text json, rrt_agreement** agreement);
/* Returns the number of words of this round. The words stay valid until the next push. */
RRT_API size_t rrt_agreement_words(const rrt_agreement* agreement, const int64_t** words);
RRT_API rr_error* rrt_agreement_push(rrt_agreement* agreement, const int64_t* reduced, size_t count);
/* {"samples": [{"action": "replay" | "live" | "drop", "status", "missing_on", "num_tokens",
 *  "content_id", "oldest_weight_version", "newest_weight_version"}, …], "counts": {"OK": 2, …}, "replayed": 2,
 *  "fallen_back": 0}; unknown fields are absent. FAILED_PRECONDITION if rounds are left, or if one failed. */
RRT_API rr_error* rrt_agreement_decision(const rrt_agreement* agreement, const rr_bytes** json);

/* For R2: merges what the ranks recorded of one micro-batch into whole rows of its sequences. `plans` has one plan,
 * without pieces, for each chunk of each rank; together they must have all layers of the model's geometry. `indices`
 * are their index buffers, of `sizes` bytes. FAILED_PRECONDITION naming a sample, row and layer whose ids are in no
 * index buffer, or differ between two. */
typedef struct rrt_merged_sequence {
  int64_t rows;
  const void* planes; /* One array per MoE layer: ids [rows][K] as in an index buffer. */
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
  size_t sequences;        /* Number of sequences in the plan's micro-batch, or of all its pieces if it has any. */
  const int64_t* rows;     /* Rows in the record of each sequence; 0 leaves the sequence out. */
  const int32_t* recorded; /* Records [rows][all MoE layers][K], one sequence after the other; -1: unknown. */
  size_t recorded_count;
  const int32_t* seen; /* The live choice, [local rows][layers of the plan][K]. */
  size_t seen_count;
} rrt_route_ids;
/* Judges whether the recorded experts belong to the rows and layers where they would be replayed, by comparing them
 * with the live choice of the routers. A mere drift of the weights hardly ever counts as misaligned. The result is
 * JSON:
 *   {"misaligned": true, "kept": 0.04, "chance": 0.06, "explained_kept": 0.97, "sequence": 1, "layer": 17,
 *    "explanations": [{"of": "rows", "mistakes": ["partition_contiguous"], "matched": 10, "compared": 10,
 *                      "exact": true, "what": "…"}, {"of": "layers", …}]}
 * kept, chance, explained_kept: see routing_replay/trainer/diagnose.h. explanations: the known mistakes that explain
 * the live choice best, for rows and for layers. sequence, layer: where the record fits worst; null if not compared. */
RRT_API rr_error* rrt_judge_alignment(const rrt_plan* plan, const rrt_route_ids* ids, const rr_bytes** verdict);

#ifdef __cplusplus
}
#endif

#endif /* ROUTING_REPLAY_TRAINER_CAPI_H_ */
