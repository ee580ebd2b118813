// Keys of the database. A run has a column family of its own, so that it goes with all it holds at once:
//
//   default             'r' run                        → RunRecord
//                       "end"                          → how the last process ended; see rocks_last_end.h
//                       "seen"                         → when it began or ended: ms, time of use
//   "run:" + run        'h' producer sample            → SampleHead
//                       'w' producer sample 0 window   → WindowRecord
//                       'u' producer sample            → when it was last used: ms, time of use
//                       'b' block                      → CRCs of the planes, then the block's bytes; a blob
//                       'i' block                      → nothing: which blocks there are, without reading blobs
//
// producer: one byte. window, block, times: 8 bytes, big-endian. Sample ids have no byte 0. The time of use stands
// still while there is no server. Pure; thread-safe.
#ifndef SERVER_STORE_ROCKSDB_ROCKS_KEYS_H_
#define SERVER_STORE_ROCKSDB_ROCKS_KEYS_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "routing_replay/wire/sample_id.h"

namespace routing_replay::server::rocks {

inline constexpr char kRunPrefix = 'r';
inline constexpr char kHeadPrefix = 'h';
inline constexpr char kWindowPrefix = 'w';
inline constexpr char kUsePrefix = 'u';
inline constexpr char kBlockPrefix = 'b';
inline constexpr char kBlockIdPrefix = 'i';
inline constexpr char kEndKey[] = "end";
inline constexpr char kSeenKey[] = "seen";

std::string RunFamily(absl::string_view run);
std::string RunKey(absl::string_view run);
std::string HeadKey(Producer producer, absl::string_view sample);
// The windows of a sample follow one another, ascending.
std::string WindowKey(Producer producer, absl::string_view sample, int64_t window);
std::string UseKey(Producer producer, absl::string_view sample);
std::string BlockKey(uint64_t block);
std::string BlockIdKey(uint64_t block);

// Requires a key made by HeadKey.
Producer ProducerOf(absl::string_view head_key);
absl::string_view SampleOf(absl::string_view head_key);
// Requires a key made by WindowKey.
int64_t WindowOf(absl::string_view window_key);
// Requires a key made by RunKey.
absl::string_view RunOf(absl::string_view run_key);
// Requires a key made by BlockIdKey.
uint64_t BlockOf(absl::string_view block_id_key);

std::string EncodeTime(int64_t ms);
// 0 if it is none.
int64_t DecodeTime(absl::string_view value);

}  // namespace routing_replay::server::rocks

#endif  // SERVER_STORE_ROCKSDB_ROCKS_KEYS_H_
