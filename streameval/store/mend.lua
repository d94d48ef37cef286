--[[
Write the sums of arms anew after a commit that was applied in part; `commit.lua` says when.

KEYS[1] the partition's hash
ARGV    1 the number of commits begun   2 MessagePack: by key of an experiment, the fields of its hash
]]

if redis.call('HGET', KEYS[1], 'begun') ~= ARGV[1] then return false end
local prefix = string.sub(KEYS[1], 1, -#'partition' - 1)
for experiment, fields in pairs(cmsgpack.unpack(ARGV[2])) do
  local key = prefix .. 'arms:' .. experiment
  redis.call('DEL', key)
  for field, value in pairs(fields) do
    redis.call('HSET', key, field, type(value) == 'table' and cmsgpack.pack(value) or value)
  end
end
redis.call('HSET', KEYS[1], 'done', ARGV[1])
return true
