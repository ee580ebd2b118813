// The scripts of the Redis store: each step that must happen wholly or not at all. Sent again they leave what they left
// the first time, and answer so that the caller knows.
#ifndef SERVER_STORE_REDIS_REDIS_SCRIPTS_H_
#define SERVER_STORE_REDIS_REDIS_SCRIPTS_H_

#include "server/store/redis/client/redis_script.h"

namespace routing_replay::redis_scripts {

// What the scripts answer first.
enum Answer : int64_t {
  kChanged = 0,    // The sample is not what the caller took it for.
  kDone = 1,       // And the version that it has now.
  kCollision = 2,  // Another sample has the handle; and its id.
  kNoChunks = 3,   // A chunk of a new block is not there (any more).
  kNoSample = 4,
};

// The one step by which a sample changes: compare its version, see that the new chunks are there, then write.
// KEYS: manifest, the new chunks, the chunks that nobody shows any more then, if the sample is a new one the other
// producer's manifest, and the index where its entry is put in the same step (four keys).
// ARGV: version expected ("0": there is no such sample), a token of this change, sample id, now (ms), time to live
// (ms), channel, message, how many chunks are new, how many are shown no more, and for how long they still live (ms),
// how many words follow for the index (none, or those of PutEntry from `due` on), these, how many fields go, these
// fields, and pairs of field and value. Gives {Answer, version or id}.
const RedisScript& Commit();

// Marks the sample as used. KEYS: manifest. ARGV: its birth, now (ms), time to live (ms), until when its chunks live
// (ms; empty: as before). Nothing happens to a sample of another birth.
const RedisScript& Touch();

// Ends the sample. KEYS: manifest. ARGV: version expected, last use expected (ms; empty: any), channel, message. Gives
// kDone, kChanged or kNoSample, which is also what is said the second time.
const RedisScript& Remove();

// Makes the run, if there is none. KEYS: run. ARGV: record, life. Gives {1 if made, record, life}.
const RedisScript& OpenRun();
// KEYS: run. ARGV: life, channel, message. Gives 1 if it was there with this life.
const RedisScript& DropRun();

// An entry of the index: "VERSION ROWS SEALED BYTES GROUP". Version 0: the sample may be about to be made, and is not
// counted. Group "?": ask the sample itself.
// KEYS of all: names, entries, due, counts.
// Notes a sample before it changes in a way that a list looks at. ARGV: sample id, due (ms), time to live (ms).
const RedisScript& MarkEntry();
// Puts what the sample is at `version`, unless something later is known. ARGV: sample id, version, due (ms), time to
// live (ms), 1 if these two are to be written down although there is an entry, rows, sealed, bytes, group.
const RedisScript& PutEntry();
// Takes an entry out, unless something later than `version` is known. ARGV: sample id, version.
const RedisScript& DropEntry();

}  // namespace routing_replay::redis_scripts

#endif  // SERVER_STORE_REDIS_REDIS_SCRIPTS_H_
