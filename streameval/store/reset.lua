--[[
Forget the windows of one partition; keep its users' counters and its offset.

KEYS[1] the partition's hash, described in commit.lua
ARGV    1 the key of a chunk, less its name   2 fingerprint   3 definition, both for the next commits
]]

for name in string.gmatch(redis.call('HGET', KEYS[1], 'chunks') or '', '%S+') do
  redis.call('UNLINK', ARGV[1] .. name)
end
redis.call('HDEL', KEYS[1], 'checkpoint_offset', 'header', 'chunks')
if redis.call('HEXISTS', KEYS[1], 'offset') == 1 then
  redis.call('HSET', KEYS[1], 'fingerprint', ARGV[2], 'definition', ARGV[3])
end
return false
