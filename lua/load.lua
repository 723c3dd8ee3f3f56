#!lua
-- Loads one bucket in steps, for the first time or by a rebuild (design §9). From `begin` to
-- `finish` the bucket has no epoch, so that no claim passes; the epoch is written last. The outbox
-- is left alone: its entries carry their own epoch and are settled by it.
--
-- KEYS[1] stock  KEYS[2] buyers  KEYS[3] epoch  KEYS[4] loading (the epoch being loaded)
-- KEYS[5] server: which life of which server it is loaded in, see look.lua
--
-- ARGV[1] step: begin | receipts | finish  [2] the new epoch
-- ARGV[3...] receipts: buyer, receipt, buyer, receipt ...; finish: [3] stock [4] number of buyers
--             with a receipt
--
-- Returns
--   {0}             OK
--   {1, epoch}      REFUSED: the bucket is, or is being loaded, at this or a newer epoch
--   {2, buyers}     INCOMPLETE: not all receipts are there, so the bucket stays closed. A step that
--                   timed out at its caller may arrive late and meet the steps of the next try.
local mine = tonumber(ARGV[2])
local epoch = tonumber(redis.call('GET', KEYS[3]) or '-1')
local loading = tonumber(redis.call('GET', KEYS[4]) or '-1')
if epoch >= mine then
  return {1, epoch}
end
if ARGV[1] == 'begin' then
  if loading > mine then
    return {1, loading}
  end
  redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[5])
  redis.call('SET', KEYS[4], ARGV[2])
  return {0}
end
if loading ~= mine then
  return {1, loading}
end
if ARGV[1] == 'receipts' then
  for i = 3, #ARGV, 2 do
    redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
  end
  return {0}
end
local buyers = redis.call('HLEN', KEYS[2])
if buyers ~= tonumber(ARGV[4]) then
  return {2, buyers}
end
redis.call('SET', KEYS[1], ARGV[3])
redis.call('SET', KEYS[5], string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') .. ' '
  .. string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)'))
redis.call('DEL', KEYS[4])
redis.call('SET', KEYS[3], ARGV[2])
return {0}
