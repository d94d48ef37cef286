--[[
One batch of one partition, applied whole or not at all.

Keys, all with the hash tag {group:topic:partition}, so that a partition lives in one slot:

  key                               type    TTL           owner       meaning
  streameval:{g:t:p}:partition      hash    none          this file   where the partition stands, see below
  streameval:{g:t:p}:user:<id>      hash    user_ttl,     this file   lifetime counters of a user: impressions,
                                            else none                 slates, first_ts, last_ts (ms) and
                                                                      positives:<kind>; a field of 0 is absent
  streameval:{g:t:p}:chunk:<name>   string  1 h until     store.py    a chunk of a checkpoint, never changed;
                                            listed, then  writes,     <name> is new each time
                                            none          this file
                                                          lists and
                                                          unlinks
  streameval:{g:t}:<lease>          string  the lease's   store.py    who holds the lease
  streameval:{g:t}:<lease>:fence    string  none          store.py    the fencing token given out last

Fields of the partition's hash: offset (the next to apply), last_record (offset and checksum of the last
record applied, see record_mark.py), committed_at (ms, when offset last moved on),
commit (the random name of the last commit), cluster_id, topic_id, fingerprint, definition (JSON); with a
checkpoint also checkpoint_offset, header and chunks (names, oldest first, separated by spaces).

KEYS[1] the partition's hash
ARGV     1 start: the stored offset that the batch was read from, "" for none
         2 end: the offset to store           3 now (ms)        4 commit
         5 cluster_id                         6 topic_id        7 fingerprint   8 definition
         9 user TTL (ms), 0 for none
        10 MessagePack: kinds of positives
        11 MessagePack: users, flat: id, impressions, slates, first_ts, last_ts, then positives by kind
        12 header of the checkpoint, "" for none
        13 MessagePack: chunks to keep, the new ones among them   14 MessagePack: the new ones
        15 last_record, "" where the batch has none

Answers {"applied"}; {"missing"} when a new chunk is not there (it is to be written again); or {"fenced", stored offset or "", stored commit}, where the stored commit is this one if
an earlier try went through. Everything is read before anything is written: a key of a wrong type
ends the script with nothing changed, and Redis checks memory and disk before the first write only.
]]

local partition = KEYS[1]
local prefix = string.sub(partition, 1, -#'partition' - 1)

local stored = redis.call('HMGET', partition, 'offset', 'commit', 'fingerprint', 'chunks')
local listed = stored[4] or ''
local function fenced()
  return {'fenced', stored[1] or '', stored[2] or ''}
end
if (stored[1] or '') ~= ARGV[1] then return fenced() end
if stored[3] and stored[3] ~= ARGV[7] then return fenced() end

-- 1. The checkpoint: chunks that are kept must be listed or new, and the new ones there.
local function chunk_key(name)
  return prefix .. 'chunk:' .. name
end

local checkpoint = ARGV[12] ~= ''
local chunks, added, kept = {}, {}, {}
if checkpoint then
  local known = {}
  for name in string.gmatch(listed, '%S+') do known[name] = true end
  chunks, added = cmsgpack.unpack(ARGV[13]), cmsgpack.unpack(ARGV[14])
  for _, name in ipairs(added) do
    if redis.call('EXISTS', chunk_key(name)) == 0 then return {'missing'} end
    known[name] = true
  end
  for _, name in ipairs(chunks) do
    if not known[name] then return fenced() end
    kept[name] = true
  end
end

-- 2. The users: what each hash is to hold, computed before the first write. One flat table holds
-- the arguments of all writes: a table for each user would cost half as much again.
local kinds = cmsgpack.unpack(ARGV[10])
local fields = {'impressions', 'slates', 'first_ts', 'last_ts'}
for _, kind in ipairs(kinds) do fields[#fields + 1] = 'positives:' .. kind end
local unpack, tonumber, call = unpack, tonumber, redis.call
local people = prefix .. 'user:'

local users = cmsgpack.unpack(ARGV[11])
local width = 5 + #kinds
local writes, size, ends = {}, 0, {}
for at = 1, #users, width do
  local key = people .. users[at]
  local old = call('HMGET', key, unpack(fields))
  local start = size
  writes[size + 1], size = key, size + 1
  local value = users[at + 1]
  if value ~= 0 then
    writes[size + 1], writes[size + 2], size = 'impressions', (old[1] or 0) + value, size + 2
  end
  value = users[at + 2]
  if value ~= 0 then
    writes[size + 1], writes[size + 2], size = 'slates', (old[2] or 0) + value, size + 2
  end
  value = users[at + 3]
  if not old[3] or value < tonumber(old[3]) then
    writes[size + 1], writes[size + 2], size = 'first_ts', value, size + 2
  end
  value = users[at + 4]
  if not old[4] or value > tonumber(old[4]) then
    writes[size + 1], writes[size + 2], size = 'last_ts', value, size + 2
  end
  for field = 5, width - 1 do
    value = users[at + field]
    if value ~= 0 then
      writes[size + 1], writes[size + 2], size = fields[field], (old[field] or 0) + value, size + 2
    end
  end
  if size == start + 1 then size = start else ends[#ends + 1] = size end
end

-- 3. From here on only writes.
local start = 1
for number = 1, #ends do
  call('HSET', unpack(writes, start, ends[number]))
  start = ends[number] + 1
end
local ttl = tonumber(ARGV[9])
if ttl > 0 then
  for at = 1, #users, width do call('PEXPIRE', people .. users[at], ttl) end
end
call('HSET', partition, 'offset', ARGV[2], 'commit', ARGV[4])
if ARGV[1] ~= ARGV[2] then call('HSET', partition, 'committed_at', ARGV[3]) end
if ARGV[15] ~= '' then call('HSET', partition, 'last_record', ARGV[15]) end
if not stored[3] then
  call('HSET', partition, 'cluster_id', ARGV[5], 'topic_id', ARGV[6],
    'fingerprint', ARGV[7], 'definition', ARGV[8])
end
if checkpoint then
  for _, name in ipairs(added) do call('PERSIST', chunk_key(name)) end
  call('HSET', partition, 'checkpoint_offset', ARGV[2], 'header', ARGV[12],
    'chunks', table.concat(chunks, ' '))
  for name in string.gmatch(listed, '%S+') do
    if not kept[name] then call('UNLINK', chunk_key(name)) end
  end
end
return {'applied'}
