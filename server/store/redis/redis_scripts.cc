#include "server/store/redis/redis_scripts.h"

#include "absl/strings/str_cat.h"

namespace routing_replay::redis_scripts {
namespace {

// Versions are microseconds of the server's clock, but always more than the one before: so a later life of a sample has
// higher ones than those before it. They stay below 2^53, which Lua's numbers hold exactly.
constexpr absl::string_view kCommit = R"(
local at = redis.call('HMGET', KEYS[1], 'v', 'by')
if at[2] == ARGV[2] then return {1, at[1]} end
if (at[1] or '0') ~= ARGV[1] then return {0, at[1] or '0'} end
if not at[1] then
  local other = redis.call('HGET', KEYS[2], 'id')
  if other and other ~= ARGV[3] then return {2, other} end
end
local chunks = tonumber(ARGV[9])
for i = 3, #KEYS do
  if chunks > 0 then
    redis.call('SET', KEYS[i], ARGV[7 + i], 'PX', ARGV[8])
  elseif redis.call('EXISTS', KEYS[i]) == 0 then
    return {3, '0'}
  end
end
local time = redis.call('TIME')
local now = math.max(time[1] * 1000000 + time[2], (tonumber(at[1]) or 0) + 1)
local version = string.format('%.0f', now)
local gone = 10 + chunks
local first = gone + 1 + tonumber(ARGV[gone])
for i = gone + 1, first - 1 do redis.call('HDEL', KEYS[1], ARGV[i]) end
for i = first, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('HSET', KEYS[1], 'v', version, 'by', ARGV[2], 'u', ARGV[4])
if not at[1] then redis.call('HSET', KEYS[1], 'b', version, 'id', ARGV[3]) end
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('SPUBLISH', ARGV[6], ARGV[7])
return {1, version}
)";

constexpr absl::string_view kTouch = R"(
if redis.call('HGET', KEYS[1], 'b') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'u', ARGV[2])
if ARGV[4] ~= '' then redis.call('HSET', KEYS[1], 'x', ARGV[4]) end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
)";

constexpr absl::string_view kRemove = R"(
local at = redis.call('HMGET', KEYS[1], 'v', 'u')
if not at[1] then return 4 end
if at[1] ~= ARGV[1] or (ARGV[2] ~= '' and at[2] ~= ARGV[2]) then return 0 end
redis.call('UNLINK', KEYS[1])
redis.call('SPUBLISH', ARGV[3], ARGV[4])
return 1
)";

constexpr absl::string_view kOpenRun = R"(
local at = redis.call('HMGET', KEYS[1], 'record', 'life')
if at[1] and at[2] ~= ARGV[2] then return {0, at[1], at[2]} end
redis.call('HSET', KEYS[1], 'record', ARGV[1], 'life', ARGV[2])
return {1, ARGV[1], ARGV[2]}
)";

constexpr absl::string_view kDropRun = R"(
if redis.call('HGET', KEYS[1], 'life') ~= ARGV[1] then return 0 end
redis.call('UNLINK', KEYS[1])
redis.call('SPUBLISH', ARGV[2], ARGV[3])
return 1
)";

// What an entry adds to the counts is taken back before it is replaced, so that they are always the entries' sum.
constexpr absl::string_view kEntryFunctions = R"(
local function split(entry)
  local v, rows, sealed, bytes, group = string.match(entry, '^(%S+) (%S+) (%S+) (%S+) (%S+)$')
  return {v = tonumber(v), rows = tonumber(rows), sealed = tonumber(sealed), bytes = tonumber(bytes), group = group}
end
local function add(field, number)
  if number ~= 0 then redis.call('HINCRBY', KEYS[4], field, string.format('%.0f', number)) end
end
local function count(entry, sign)
  if entry.v == 0 then return end
  add('samples', sign)
  add('sealed', sign * entry.sealed)
  add('rows', sign * entry.rows)
  add('bytes', sign * entry.bytes)
end
local function keep(milliseconds)
  for i = 1, 4 do redis.call('PEXPIRE', KEYS[i], milliseconds) end
end
local old = redis.call('HGET', KEYS[2], ARGV[1])
)";

constexpr absl::string_view kMarkEntry = R"(
if old then
  old = string.gsub(old, '%S+$', '?')
else
  old = '0 0 0 0 ?'
  redis.call('ZADD', KEYS[1], 0, ARGV[1])
  redis.call('ZADD', KEYS[3], ARGV[2], ARGV[1])
end
redis.call('HSET', KEYS[2], ARGV[1], old)
keep(ARGV[3])
return 1
)";

constexpr absl::string_view kPutEntry = R"(
local entry = table.concat({ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]}, ' ')
if old then
  local before = split(old)
  if before.v > tonumber(ARGV[4]) then return 0 end
  count(before, -1)
end
count(split(entry), 1)
redis.call('HSET', KEYS[2], ARGV[1], entry)
redis.call('ZADD', KEYS[1], 0, ARGV[1])
redis.call('ZADD', KEYS[3], ARGV[2], ARGV[1])
keep(ARGV[3])
return 1
)";

constexpr absl::string_view kDropEntry = R"(
if not old then return 0 end
local before = split(old)
if before.v > tonumber(ARGV[2]) then return 0 end
count(before, -1)
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
return 1
)";

// What notes the use and the end of samples goes on when memory is full: only so it becomes free again.
constexpr absl::string_view kWithoutRoom = "#!lua flags=allow-oom\n";

RedisScript Make(absl::string_view source) { return RedisScript(std::string(source)); }
RedisScript MakeEntry(absl::string_view source) { return RedisScript(absl::StrCat(kEntryFunctions, source)); }
RedisScript MakeWithoutRoom(absl::string_view source, absl::string_view functions = "") {
  return RedisScript(absl::StrCat(kWithoutRoom, functions, source));
}

}  // namespace

const RedisScript& Commit() {
  static const RedisScript script = Make(kCommit);
  return script;
}

const RedisScript& Touch() {
  static const RedisScript script = MakeWithoutRoom(kTouch);
  return script;
}

const RedisScript& Remove() {
  static const RedisScript script = MakeWithoutRoom(kRemove);
  return script;
}

const RedisScript& OpenRun() {
  static const RedisScript script = Make(kOpenRun);
  return script;
}

const RedisScript& DropRun() {
  static const RedisScript script = MakeWithoutRoom(kDropRun);
  return script;
}

const RedisScript& MarkEntry() {
  static const RedisScript script = MakeEntry(kMarkEntry);
  return script;
}

const RedisScript& PutEntry() {
  static const RedisScript script = MakeWithoutRoom(kPutEntry, kEntryFunctions);
  return script;
}

const RedisScript& DropEntry() {
  static const RedisScript script = MakeWithoutRoom(kDropEntry, kEntryFunctions);
  return script;
}

}  // namespace routing_replay::redis_scripts
