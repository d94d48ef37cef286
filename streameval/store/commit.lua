--[[
Apply one batch of one partition, whole or not at all.

Keys, all with the hash tag {group:topic:partition}, so that a partition lives in one slot:

  key                               type    TTL           owner       meaning
  streameval:{g:t:p}:partition      hash    none          this file   state of the partition, see below
  streameval:{g:t:p}:user:<id>      hash    user_ttl,     this file   lifetime counters of a user: impressions,
                                            else none                 slates, first_ts, last_ts (ms) and
                                                                      positives:<kind>; a field of 0 is absent.
                                                                      at: the offset up to which they count.
                                                                      first:<key of an experiment>: the arms that
                                                                      the user has been in, each with the first
                                                                      list there, see below
  streameval:{g:t:p}:arms:<key>     hash    none          this file   users of the partition in an experiment, see
                                                                      below
  streameval:{g:t:p}:chunk:<name>   string  1 h until     the store   a chunk of a checkpoint, never changed;
                                            listed, then  writes,     <name> is new each time
                                            none          this file
                                                          lists and
                                                          unlinks
  streameval:{g:t:p}:unpacking      string  1 h           the store   the offset of a large batch that is being
                                                                      unpacked, how many workers began with it, and
                                                                      the name of the last one
  streameval:{g:t}:<lease>          string  the lease's   the store   the holder of the lease
  streameval:{g:t}:<lease>:fence    string  none          the store   the last fencing token
  streameval:{g:t}:report:<name>    hash    1 d or more   the store   what the leader reports, such as the last
                                                                      checks: its fencing token, and JSON

"The store" is redis_store.py. Keys that workers write for each other's pages, and that no counter depends
on, are described in shared_store.py. Fields of the partition's hash: offset (the next to apply), last_record
(offset and checksum of the last record applied, see record_mark.py), committed_at (ms, when offset last
moved on), commit (the random name of the last commit), cluster_id, topic_id, fingerprint, definition
(JSON), begun and done (numbers of commits, equal but for one that was applied in part), and user_ttl (ms, the
last one that was not 0). With a checkpoint also checkpoint_offset, header, chunks (names, oldest first,
separated by spaces) and dropped (the chunks that the next commit unlinks).

A power cut may tear the append-only file within a commit. Redis then loads none of it and leaves it open at the
end of the file. The next load applies the part that is there, before all commits that came after it. Four things
put that right:

1. All writes but to begun and done are absolute, so a later commit that writes a field is right.
2. A user's counters hold every event before `at`, and writes of one user are one command. The counters of a user
   whose `at` is the end of this batch or later have this batch already. Where `at` is within the batch, the batch
   must end there.
3. begun rises first and done last. Where they differ, sums of arms may lack users, and are counted anew from the
   users' first lists (`RedisStateStore.mend`).
4. The first commit of a worker writes the pointer to the checkpoint again, and chunks go one commit later.

The <key> of an experiment is a digest of what its sums depend on, and @offset behind it where they began in
a log that had been read before. Fields of its hash: users:<cluster>:<arm> (users of this cluster who have
been in the arm), only:<arm> (users who have been in this arm and in no other), crossed (users who have
been in several), first:<bucket>:<arm> (sums of the first lists of the users who have not crossed) and span
(the earliest and the latest time that a first list ever had, in ms; first_lists.py has the length of a bucket
for a span).
They count what the fields first:<key> of the users say: a user who is in an arm again, and not earlier,
changes nothing, and neither does the order. So they are exact however often, and in whatever batches, the
log is read.

A first list is an array: the time (ms), and the values of `first_rows` but for the users, in nano-units
where they are shares. A sum has the users in place of the time. The field first:<key> is MessagePack, a map
of arms to first lists; first:<bucket>:<arm> is MessagePack of a sum. All are integers, and exact below 2^53:
up to 9 million users in one bucket, arm and partition.

KEYS[1] the partition's hash
ARGV     1 start: the stored offset that the batch was read from, "" for none
         2 end: the offset to store           3 now (ms)        4 commit
         5 cluster_id                         6 topic_id        7 fingerprint   8 definition
         9 user TTL (ms), 0 for none
        10 MessagePack: the users as columns, see below
        11 header of the checkpoint, "" for none
        12 MessagePack: chunks to keep, the new ones among them   13 MessagePack: the new ones
        14 last_record, "" where the batch has none
        15 offset of the checkpoint that this one goes on from, "" for none
        16 MessagePack: visits of arms as columns, see below; "" for none
        17 1 for the first commit since the partition was loaded, else 0

The columns of the users are parallel arrays with an entry for each user. First come ids, first_ts, and
last_ts as strings. Then, for each counter that changes for one of the users, come its field and its
increments.

The columns of the visits are parallel arrays: keys of experiments, ids of users, arms, the clusters of the
users, and first lists. A visit may repeat, and the users may be others than those above.

Returns {"applied"}; {"missing"} if a new chunk is not there (write it again); {"fenced", stored offset or
"", stored commit}; or {"torn", the offset where the batch must end, "" where the sums of arms must be counted
anew}. The stored commit is this one if an earlier try went through. Everything is
read before anything is written. So a key of a wrong type ends the script with nothing changed, and it is
enough that Redis checks memory and disk before the first write only.
]]

local partition = KEYS[1]
local prefix = string.sub(partition, 1, -#'partition' - 1)

local stored = redis.call('HMGET', partition, 'offset', 'commit', 'fingerprint', 'chunks',
  'checkpoint_offset', 'begun', 'done', 'dropped', 'user_ttl')
local listed = stored[4] or ''
local function fenced()
  return {'fenced', stored[1] or '', stored[2] or ''}
end
if (stored[1] or '') ~= ARGV[1] then return fenced() end
if stored[3] and stored[3] ~= ARGV[7] then return fenced() end
if stored[6] ~= stored[7] then return {'torn', ''} end

-- 1. The checkpoint must go on from the stored one. (Two workers may each add a checkpoint at the stored
-- offset, which does not move then. The second would give up the slates of the first again.) A chunk to
-- keep must be listed or new, and new chunks must be there.
local function chunk_key(name)
  return prefix .. 'chunk:' .. name
end

local checkpoint = ARGV[11] ~= ''
local chunks, added, kept = {}, {}, {}
if checkpoint then
  if (stored[5] or '') ~= ARGV[15] then return fenced() end
  local known = {}
  for name in string.gmatch(listed, '%S+') do known[name] = true end
  chunks, added = cmsgpack.unpack(ARGV[12]), cmsgpack.unpack(ARGV[13])
  for _, name in ipairs(added) do
    if redis.call('EXISTS', chunk_key(name)) == 0 then return {'missing'} end
    known[name] = true
  end
  for _, name in ipairs(chunks) do
    if not known[name] then return fenced() end
    kept[name] = true
  end
end

-- Chunks that this commit unlinks are looked at too: in a cluster a slot that is moving refuses those that have
-- gone, and nothing may be refused after the first write.
local old = {}
for name in string.gmatch(stored[8] or '', '%S+') do old[#old + 1] = chunk_key(name) end
for _, key in ipairs(old) do redis.call('EXISTS', key) end

-- 2. Compute the new values of each user's hash before the first write. Redis spends most of a commit
-- here and in the writes. So a user costs one call to read and one to write, with the fields that change.
-- Results replace their inputs in the columns: no table is made for a user.
local call, unpack, format = redis.call, unpack, string.format
local columns = cmsgpack.unpack(ARGV[10])
local users, firsts, lasts = columns[1], columns[2], columns[3]

-- Users whose same counters change share the fields to read, the columns, and the arguments of HSET.
local shapes, shape_of = {}, {}
local function new_shape(at)
  local shape = {fields = {'last_ts', 'at'}, columns = {}, write = {'', 'last_ts', '', 'at', ''}}
  for index = 4, #columns, 2 do
    local field, column = columns[index], columns[index + 1]
    if column[at] ~= 0 then
      table.insert(shape.fields, field)
      table.insert(shape.columns, column)
      table.insert(shape.write, field)
      table.insert(shape.write, '')
    end
  end
  return shape
end

local people, width = prefix .. 'user:', #columns
local texts = {}  -- by count: most counts are small, and Redis formats numbers slowly
local earlier = {}  -- users whose first_ts is to be written
local begins, ends, torn = tonumber(ARGV[1]) or -1, tonumber(ARGV[2]), nil
local ahead = {}  -- `at` of users who have this batch already
for at = 1, #users do
  local changed, bit = 0, 1
  for index = 5, width, 2 do
    if columns[index][at] ~= 0 then changed = changed + bit end
    bit = bit + bit
  end
  local shape = shapes[changed]
  if not shape then
    shape = new_shape(at)
    shapes[changed] = shape
  end
  local key, first = people .. users[at], firsts[at]
  local old = call('HMGET', key, unpack(shape.fields))
  local known = old[1] and old[1] + 0  -- the stored last_ts, nothing for a new user
  if not known then
    earlier[#earlier + 1] = at
  elseif first < known then  -- else last_ts grows, and first_ts stays: it is not later
    if lasts[at] + 0 < known then lasts[at] = old[1] end
    local begun = call('HGET', key, 'first_ts')
    if not begun or first < begun + 0 then earlier[#earlier + 1] = at end
  end
  local counters = shape.columns
  local reached = old[2] and old[2] + 0
  if reached and reached > begins then
    if reached < ends then torn = math.min(torn or reached, reached) end
    ahead[at] = old[2]
    for number = 1, #counters do counters[number][at] = 0 end
  end
  for number = 1, #counters do
    local count = counters[number][at] + (old[number + 2] or 0)
    local text = texts[count]
    if not text then
      text = format('%d', count)
      texts[count] = text
    end
    counters[number][at] = text
  end
  users[at], shape_of[at] = key, shape
end
if torn then return {'torn', format('%d', torn)} end

-- 3. The same for visits. Of each user in an arm the smallest first list stays. The first list of a user in
-- one arm alone counts.
local visits = ARGV[16] == '' and {{}, {}, {}, {}, {}} or cmsgpack.unpack(ARGV[16])
local experiments, visitors = visits[1], visits[2]
local known_of, risen, lists = {}, {}, {}  -- by experiment: users, increments of counts, first lists
for _, experiment in ipairs(experiments) do
  known_of[experiment] = known_of[experiment] or {}
  risen[experiment] = risen[experiment] or {}
  lists[experiment] = lists[experiment] or {}
end
local joined = {}  -- users whose arms or first lists change: the key, the field, and the first list by arm

local function precedes(one, other)
  for at = 1, #one do
    if one[at] ~= other[at] then return one[at] < other[at] end
  end
  return false
end

local function visit(experiment, user, arm, cluster, first)
  local known = known_of[experiment][user]
  if not known then
    local text = call('HGET', people .. user, 'first:' .. experiment)
    known = {arms = text and cmsgpack.unpack(text) or {}}
    known_of[experiment][user] = known
  end
  local arms = known.arms
  local earlier = arms[arm]
  if earlier and not precedes(first, earlier) then return end
  local alone = next(arms)  -- nothing for a new user
  local crossed = alone and next(arms, alone)
  local changes, rise = lists[experiment], risen[experiment]
  local function count(field, by) rise[field] = (rise[field] or 0) + by end
  if alone and not crossed then changes[#changes + 1] = {alone, arms[alone], -1} end
  if not earlier then
    count('users:' .. cluster .. ':' .. arm, 1)
    if not alone then
      count('only:' .. arm, 1)
    elseif not crossed then
      count('only:' .. alone, -1)
      count('crossed', 1)
    end
  end
  if not alone or (earlier and not crossed) then changes[#changes + 1] = {arm, first, 1} end
  arms[arm] = first
  if not known.joined then
    known.joined = true
    joined[#joined + 1] = {people .. user, 'first:' .. experiment, arms}
  end
end
for number = 1, #visitors do
  visit(experiments[number], visitors[number], visits[3][number], visits[4][number], visits[5][number])
end
for _, write in ipairs(joined) do write[3] = cmsgpack.pack(write[3]) end
for experiment, rise in pairs(risen) do
  for field, by in pairs(rise) do
    rise[field] = format('%d', by + (call('HGET', prefix .. 'arms:' .. experiment, field) or 0))
  end
end

-- The sums of first lists, by bucket and arm. `first_lists.py` has the same length of a bucket.
local function bucket_of(time, length) return (time - time % length) / length end
local function length_of(span)
  local length = 60000
  while bucket_of(span[2], length) - bucket_of(span[1], length) >= 128 do length = 2 * length end
  return length
end
local function add(sum, values, sign, users)
  sum[1] = sum[1] + sign * users
  for at = 2, #values do sum[at] = (sum[at] or 0) + sign * values[at] end
end
local gone = {}  -- by experiment: fields of buckets that are no more
for experiment, changes in pairs(lists) do
  local key, rise, sums = prefix .. 'arms:' .. experiment, risen[experiment], {}
  local text = call('HGET', key, 'span')
  local span, length = {}, nil
  if text then
    for time in string.gmatch(text, '%d+') do span[#span + 1] = time + 0 end
    length = length_of(span)
  end
  for _, change in ipairs(changes) do
    local time = change[2][1]
    span = {math.min(time, span[1] or time), math.max(time, span[2] or time)}
  end
  gone[experiment] = {}
  if #changes > 0 then
    rise.span = format('%d %d', span[1], span[2])
    local before = length
    length = length_of(span)
    local function field_of(bucket, arm) return format('first:%d:', bucket) .. arm end
    if before and before ~= length then
      local fields = call('HGETALL', key)
      for at = 1, #fields, 2 do
        local bucket, arm = string.match(fields[at], '^first:(%d+):(.*)$')
        if bucket then
          local field = field_of(bucket_of(bucket * before, length), arm)
          sums[field] = sums[field] or {0}
          local sum = cmsgpack.unpack(fields[at + 1])
          add(sums[field], sum, 1, sum[1])
          table.insert(gone[experiment], fields[at])
        end
      end
      before = nil
    end
    for _, change in ipairs(changes) do
      local arm, first, sign = unpack(change)
      local field = field_of(bucket_of(first[1], length), arm)
      if not sums[field] then
        local stored_sum = before and call('HGET', key, field)
        sums[field] = stored_sum and cmsgpack.unpack(stored_sum) or {0}
      end
      add(sums[field], first, sign, 1)
    end
    for field, sum in pairs(sums) do
      if sum[1] == 0 then  -- whoever came here first has crossed, or came earlier
        table.insert(gone[experiment], field)
      else
        rise[field] = cmsgpack.pack(sum)
      end
    end
  end
end

-- 4. From here on the script only writes. A user without `at` has no counters yet, so first_ts comes before.
local pointer = ARGV[17] == '1' and redis.call('HMGET', partition, 'header', 'last_record')
call('HINCRBY', partition, 'begun', 1)
for _, at in ipairs(earlier) do call('HSET', users[at], 'first_ts', format('%d', firsts[at])) end
for at = 1, #users do
  local counters, write = shape_of[at].columns, shape_of[at].write
  write[1], write[3], write[5] = users[at], lasts[at], ahead[at] or ARGV[2]
  for number = 1, #counters do write[2 * number + 5] = counters[number][at] end
  call('HSET', unpack(write))
end
for _, write in ipairs(joined) do call('HSET', unpack(write)) end
for experiment, rise in pairs(risen) do
  local key = prefix .. 'arms:' .. experiment
  for _, field in ipairs(gone[experiment]) do call('HDEL', key, field) end
  for field, text in pairs(rise) do call('HSET', key, field, text) end
end
local ttl = tonumber(ARGV[9])
if ttl > 0 then
  for at = 1, #users do call('PEXPIRE', users[at], ttl) end
  -- The counters may be gone since the slate: the arms must not stay alone.
  for _, write in ipairs(joined) do call('PEXPIRE', write[1], ttl) end
  if stored[9] ~= ARGV[9] then call('HSET', partition, 'user_ttl', ARGV[9]) end
elseif stored[9] then
  -- They had a time to live once, which would end one day, however often they come.
  for at = 1, #users do call('PERSIST', users[at]) end
  for _, write in ipairs(joined) do call('PERSIST', write[1]) end
end
for _, key in ipairs(old) do call('UNLINK', key) end
if pointer then
  call('HSET', partition, 'checkpoint_offset', stored[5] or '', 'header', pointer[1] or '', 'chunks', listed,
    'last_record', pointer[2] or '')
end
call('HSET', partition, 'offset', ARGV[2], 'commit', ARGV[4], 'dropped', '')
if ARGV[1] ~= ARGV[2] then call('HSET', partition, 'committed_at', ARGV[3]) end
if ARGV[14] ~= '' then call('HSET', partition, 'last_record', ARGV[14]) end
if not stored[3] then
  call('HSET', partition, 'cluster_id', ARGV[5], 'topic_id', ARGV[6],
    'fingerprint', ARGV[7], 'definition', ARGV[8])
end
if checkpoint then
  local dropped = {}
  for name in string.gmatch(listed, '%S+') do
    if not kept[name] then dropped[#dropped + 1] = name end
  end
  for _, name in ipairs(added) do call('PERSIST', chunk_key(name)) end
  call('HSET', partition, 'checkpoint_offset', ARGV[2], 'header', ARGV[11],
    'chunks', table.concat(chunks, ' '), 'dropped', table.concat(dropped, ' '))
end
call('HINCRBY', partition, 'done', 1)
return {'applied'}
