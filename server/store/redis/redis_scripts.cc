#include "server/store/redis/redis_scripts.h"

#include "absl/strings/str_cat.h"

namespace routing_replay::server::redis_scripts {
namespace {

// Versions are microseconds of the server's clock, but always more than the one before: so a later life of a sample has
// higher ones than those before it. They stay below 2^53, which Lua's numbers hold exactly.
// While a script runs, nothing else does, and each command that it calls takes about a microsecond, as ten functions do
// that it defines: most appends find the index's entry as they expect it, and define none.
constexpr absl::string_view kCommit = R"(
local call = redis.call
local at = call('HMGET', KEYS[1], 'v', 'by', 't')
if at[2] == ARGV[2] then return {1, at[1]} end
if at[3] == ARGV[2] then return {5, at[1]} end
if (at[1] or '0') ~= ARGV[1] then return {0, at[1] or '0'} end
local chunks = 1 + tonumber(ARGV[8])
local replaced = chunks + tonumber(ARGV[9])
local rest = replaced + 1
if not at[1] then
  local other = call('HGET', KEYS[rest], 'id')
  if other and other ~= ARGV[3] then return {2, other} end
  rest = rest + 1
  if ARGV[13] ~= '0' and index().left(rest, ARGV[3], ARGV[4]) ~= ARGV[12] then return {0, '0'} end
end
for i = 2, chunks do
  if call('PEXPIRE', KEYS[i], ARGV[11]) == 0 then return {3, '0'} end
end
local time = call('TIME')
local now = math.max(time[1] * 1000000 + time[2], tonumber(at[1] or ARGV[12]) + 1)
local version = string.format('%d', now)
local gone = 14 + tonumber(ARGV[13])
local first = gone + 1 + tonumber(ARGV[gone])
for i = gone + 1, first - 1 do call('HDEL', KEYS[1], ARGV[i]) end
local n = #ARGV
ARGV[n + 1], ARGV[n + 2], ARGV[n + 3], ARGV[n + 4] = 'v', version, 'by', ARGV[2]
if not at[1] then ARGV[n + 5], ARGV[n + 6], ARGV[n + 7], ARGV[n + 8] = 'b', version, 'id', ARGV[3] end
for i = first, #ARGV, 200 do call('HSET', KEYS[1], unpack(ARGV, i, math.min(i + 199, #ARGV))) end
if ARGV[5] ~= '' then
  call('HSET', KEYS[1], 'u', ARGV[4])
  call('PEXPIRE', KEYS[1], ARGV[5])
end
for i = chunks + 1, replaced do call('PEXPIRE', KEYS[i], ARGV[10]) end
if gone > 14 then
  local entries, counts, sample = KEYS[rest + 1], KEYS[rest + 3], ARGV[3]
  if not at[1] or call('HGET', entries, sample) ~= at[1] .. ' ' .. ARGV[19] then
    index().put(rest, 14, sample, version, true)
  else
    call('HSET', entries, sample, version .. ' ' .. ARGV[17] .. ' ' .. ARGV[18])
    if ARGV[20] ~= '0' then call('HINCRBY', counts, 'sealed', ARGV[20]) end
    if ARGV[21] ~= '0' then call('HINCRBY', counts, 'rows', ARGV[21]) end
    if ARGV[22] ~= '0' then call('HINCRBY', counts, 'bytes', ARGV[22]) end
    if ARGV[16] == '1' then index().note(rest, 14, sample) end
  end
end
redis.pcall('SPUBLISH', ARGV[6], ARGV[7])
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
local chunks = 2
if ARGV[5] ~= '' then
  drop(2, ARGV[5], at[1])
  chunks = 6
end
for i = chunks, #KEYS do redis.call('PEXPIRE', KEYS[i], ARGV[6]) end
redis.pcall('SPUBLISH', ARGV[3], ARGV[4])
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
redis.pcall('SPUBLISH', ARGV[2], ARGV[3])
return 1
)";

// What an entry adds to the counts is taken back before it is replaced, so that they are always the entries' sum.
// `k`: where in KEYS the four keys of the index begin, and `a` where in ARGV what put() and note() take.
constexpr absl::string_view kEntryFunctions = R"(
local function split(entry)
  local v, rows, sealed, bytes = string.match(entry, '^(%d+) (%d+) (%d+) (%d+) ')
  return {v = tonumber(v), rows = tonumber(rows), sealed = tonumber(sealed), bytes = tonumber(bytes)}
end
local function add(k, field, number)
  if number ~= 0 then redis.call('HINCRBY', KEYS[k + 3], field, string.format('%d', number)) end
end
local function count(k, before, after)
  local function samples(entry) return entry.v == 0 and 0 or 1 end
  add(k, 'samples', samples(after) - samples(before))
  add(k, 'sealed', after.sealed - before.sealed)
  add(k, 'rows', after.rows - before.rows)
  add(k, 'bytes', after.bytes - before.bytes)
end
local nothing = {v = 0, rows = 0, sealed = 0, bytes = 0}
local function keep(k, milliseconds)
  for i = k, k + 3 do redis.call('PEXPIRE', KEYS[i], milliseconds) end
end
local function note(k, a, sample)
  redis.call('ZADD', KEYS[k], 0, sample)
  redis.call('ZADD', KEYS[k + 2], ARGV[a], sample)
  keep(k, ARGV[a + 1])
end
local function ended(entry) return string.sub(entry, -2) == ' -' end
local function put(k, a, sample, version, with_sample)
  local old = redis.call('HGET', KEYS[k + 1], sample)
  local before = old and split(old) or nothing
  if before.v > tonumber(version) then return 0 end
  if not old or before.v < tonumber(version) or not ended(old) then
    local group = (old or with_sample) and ARGV[a + 4] or '?'
    local entry = version .. ' ' .. ARGV[a + 3] .. ' ' .. group
    count(k, before, split(entry))
    redis.call('HSET', KEYS[k + 1], sample, entry)
  end
  if not old or ARGV[a + 2] == '1' then note(k, a, sample) end
  return 1
end
local function drop(k, sample, version)
  local old = redis.call('HGET', KEYS[k + 1], sample)
  if not old then return 0 end
  local before = split(old)
  if before.v > tonumber(version) then return 0 end
  count(k, before, nothing)
  redis.call('HDEL', KEYS[k + 1], sample)
  redis.call('ZREM', KEYS[k], sample)
  redis.call('ZREM', KEYS[k + 2], sample)
  return 1
end
local function left(k, sample, now)
  local entry = redis.call('HGET', KEYS[k + 1], sample)
  if not entry or not string.find(entry, '^[1-9]%d* %d+ %d+ %d+ %d+ %-?%d+$') then return '0' end
  local due = redis.call('ZSCORE', KEYS[k + 2], sample)
  if not due or tonumber(due) <= tonumber(now) then return '0' end
  return string.match(entry, '^%d+'), entry
end
)";

constexpr absl::string_view kMarkEntry = R"(
if ARGV[4] ~= '' and left(1, ARGV[1], ARGV[4]) ~= '0' then return 0 end
local old = redis.call('HGET', KEYS[2], ARGV[1])
if old then
  if not ended(old) then old = string.gsub(old, '%S+$', '?') end
else
  old = '0 0 0 0 0 ?'
  note(1, 2, ARGV[1])
end
redis.call('HSET', KEYS[2], ARGV[1], old)
keep(1, ARGV[3])
return 1
)";

constexpr absl::string_view kPutEntry = "return put(1, 3, ARGV[1], ARGV[2], false)";

constexpr absl::string_view kEndEntry = R"(
local old = redis.call('HGET', KEYS[2], ARGV[1])
if not old then return 0 end
local before = split(old)
if before.v > tonumber(ARGV[2]) then return 0 end
local entry = ARGV[2] .. string.match(old, '^%d+( .* )%S+$') .. '-'
count(1, before, split(entry))
redis.call('HSET', KEYS[2], ARGV[1], entry)
return 1
)";

constexpr absl::string_view kLeftEntry = R"(
local version, entry = left(1, ARGV[1], ARGV[2])
return entry or ''
)";

constexpr absl::string_view kDropEntry = "return drop(1, ARGV[1], ARGV[2])";

// What notes the use and the end of samples goes on when memory is full: only so it becomes free again.
constexpr absl::string_view kWithoutRoom = "#!lua flags=allow-oom\n";

RedisScript Make(absl::string_view source) { return RedisScript(std::string(source)); }
RedisScript MakeEntry(absl::string_view source) { return RedisScript(absl::StrCat(kEntryFunctions, source)); }
RedisScript MakeCommit() {
  return RedisScript(absl::StrCat("local function index()\n", kEntryFunctions,
                                  "return {put = put, left = left, note = note}\nend", kCommit));
}
RedisScript MakeWithoutRoom(absl::string_view source, absl::string_view functions = "") {
  return RedisScript(absl::StrCat(kWithoutRoom, functions, source));
}

}  // namespace

const RedisScript& Commit() {
  static const RedisScript script = MakeCommit();
  return script;
}

const RedisScript& Touch() {
  static const RedisScript script = MakeWithoutRoom(kTouch);
  return script;
}

const RedisScript& Remove() {
  static const RedisScript script = MakeWithoutRoom(kRemove, kEntryFunctions);
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

const RedisScript& EndEntry() {
  static const RedisScript script = MakeWithoutRoom(kEndEntry, kEntryFunctions);
  return script;
}

const RedisScript& LeftEntry() {
  static const RedisScript script = MakeWithoutRoom(kLeftEntry, kEntryFunctions);
  return script;
}

const RedisScript& DropEntry() {
  static const RedisScript script = MakeWithoutRoom(kDropEntry, kEntryFunctions);
  return script;
}

}  // namespace routing_replay::server::redis_scripts
