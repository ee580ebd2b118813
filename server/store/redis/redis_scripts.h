// The scripts of the Redis store: each step that must happen wholly or not at all. Sent again, with nothing in between,
// they leave what they left the first time, and answer as they did then. Where others came in between, each script says
// what it does. A message that cannot be sent (the user may have no right to the channel) is left out: the step stands.
#ifndef SERVER_STORE_REDIS_REDIS_SCRIPTS_H_
#define SERVER_STORE_REDIS_REDIS_SCRIPTS_H_

#include "server/store/redis/client/redis_script.h"

namespace routing_replay::server::redis_scripts {

// What the scripts answer first.
enum Answer : int64_t {
  kChanged = 0,    // The sample is not what the caller took it for.
  kDone = 1,       // And the version that it has now.
  kCollision = 2,  // Another sample has the handle; and its id.
  kNoChunks = 3,   // A chunk of a new block is not there (any more).
  kNoSample = 4,
  kMade = 5,  // A change that is not to be made twice was made before, and the sample has changed since; its version.
};

// The one step by which a sample changes: compare its version, see that the new chunks are there, then write.
// KEYS: manifest, the new chunks, the chunks that nobody shows any more then, if the sample is a new one the other
// producer's manifest, and the index where its entry is put in the same step (four keys).
// ARGV: version expected ("0": there is no such sample), a token of this change, sample id, now (ms), time to live
// (ms; empty: this use is not to be noted, so close is it to the last one), channel, message, how many chunks are new,
// how many are shown no more, and for how long they still live (ms), time to live of the new chunks (ms), version of
// the entry that a lost sample left ("0": none may be left, or the index is elsewhere), how many words follow for the
// index (none, or those of PutEntry from `due` on, the entry that is most likely there, from its rows on, and what the
// next one has more: sealed, rows, bytes), these, how many fields go, these fields, and pairs of field and value. Gives
// {Answer, version or id}.
//
// Sent again after others have changed the sample it gives kChanged, but kMade if its token is the one in field `t`.
// After a release it makes the sample again, over chunks that it gives their whole time.
const RedisScript& Commit();

// Marks the sample as used. KEYS: manifest. ARGV: its birth, now (ms), time to live (ms), until when its chunks live
// (ms; empty: as before). Nothing happens to a sample of another birth.
const RedisScript& Touch();

// Ends the sample. KEYS: manifest, the index where its entry goes in the same step (four keys), its chunks. ARGV:
// version expected, last use expected (ms; empty: any), channel, message, sample id (empty: the index is elsewhere),
// for how long the chunks still live (ms). Gives kDone, kChanged or kNoSample, which is also what is said the second
// time.
const RedisScript& Remove();

// Makes the run, if there is none. KEYS: run. ARGV: record, life. Gives {1 if made, record, life}.
const RedisScript& OpenRun();
// KEYS: run. ARGV: life, channel, message. Gives 1 if it was there with this life.
const RedisScript& DropRun();

// An entry of the index: "VERSION ROWS SEALED BYTES REVISION GROUP". Version 0: the sample may be about to be made, and
// is not counted. Group "?": ask the sample itself. Group "-": the same, and it is about to end at this version, or
// has. Where an entry has a version and a group and is not due yet, there is a sample, or it was lost. KEYS of all:
// names, entries, due, counts. Notes a sample before it changes in a way that a list looks at. ARGV: sample id, due
// (ms), time to live (ms), now (ms) for a sample that is to be made, or else nothing. Gives 0, and does nothing, if
// such a sample was there and was lost.
const RedisScript& MarkEntry();
// Puts what the sample is at `version`, unless something later is known. ARGV: sample id, version, due (ms), time to
// live (ms), 1 if these two are to be written down although there is an entry, "ROWS SEALED BYTES REVISION", group.
// It comes some time after the sample was seen: where there is no entry any more, or one of a sample that ended at this
// version, it does not make one that says that there is a sample.
const RedisScript& PutEntry();
// Before a sample ends. ARGV: sample id, version. Nothing happens to an entry of a later version.
const RedisScript& EndEntry();
// The entry of a sample that must be there or was lost; empty if there is none. ARGV: sample id, now (ms).
const RedisScript& LeftEntry();
// Takes an entry out, unless something later than `version` is known. ARGV: sample id, version.
const RedisScript& DropEntry();

}  // namespace routing_replay::server::redis_scripts

#endif  // SERVER_STORE_REDIS_REDIS_SCRIPTS_H_
