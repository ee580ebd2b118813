// The manifest of a sample: one hash, whose fields are
//
//   v      version: what a change compares, and raises
//   by     token of the change that made this version
//   t      token of the last truncation
//   b      birth: the first version of this sample's life in the store
//   u, x   last use; until when all its chunks live, at least (ms of the store's time)
//   id     sample id
//   head   SampleHead, and wN  WindowRecord N (../records)
#ifndef SERVER_STORE_REDIS_REDIS_MANIFEST_H_
#define SERVER_STORE_REDIS_REDIS_MANIFEST_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/store/redis/client/redis_reply.h"
#include "server/store/redis/redis_block.h"
#include "server/store/sample/sample_content.h"

namespace routing_replay::server {

// Of a sample whose manifest is damaged where the version should be. No change fits it: it goes when its time is up.
inline constexpr int64_t kUnreadableVersion = -1;

// What is beside the content. Version 0: there is no such sample.
struct RedisStamp {
  int64_t version = 0;
  int64_t birth = 0;
  int64_t last_used_ms = 0;
  int64_t kept_until_ms = 0;
  std::string sample;
};

struct RedisManifest {
  RedisStamp stamp;
  std::shared_ptr<const SampleContent> content;

  // Of budget and index: what the sample takes in Redis, about.
  int64_t stored_bytes() const { return content->pieces.charged_bytes() + content->metadata_bytes(); }
};

// The fields of a stamp, in the order that ParseStamp takes.
RedisCommand GetStampCommand(const std::string& manifest_key);
// DATA_LOSS if it is no answer to GetStampCommand.
absl::StatusOr<RedisStamp> ParseStamp(const RedisReply& reply);

// Out of the answer to HGETALL. An empty one gives version 0 and no content. DATA_LOSS if the records are damaged:
// the stamp is right all the same, or where its own fields are damaged, what could be read of it.
struct ParsedManifest {
  RedisStamp stamp;
  absl::StatusOr<std::shared_ptr<const SampleContent>> content;
};
ParsedManifest ParseManifest(RedisReply reply, int32_t block_rows, const RedisHome& home);

std::string WindowField(int64_t window);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_MANIFEST_H_
