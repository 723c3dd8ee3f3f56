#!lua
-- Gives units back to one bucket, once: only while the buyer's receipt is held with this very hold
-- (design §8). A repeat changes nothing.
--
-- KEYS[1] stock  KEYS[2] buyers  KEYS[3] epoch      (see claim.lua)
--
-- ARGV[1] epoch of the release row  [2] buyer  [3] hold  [4] units to give back, 0 or more
-- ARGV[5] the receipt's new state: r (released) or v (void)
--
-- Returns
--   0 RETURNED    the units are on offer again, the receipt has its new state
--   1 NO_CHANGE   the receipt is not held with this hold: nothing to give back
--   2 KEEP        this gate is of an older epoch or not loaded: try again later
--   3 SUPERSEDED  this gate is newer than the row: its rebuild has counted the units already
local epoch = tonumber(redis.call('GET', KEYS[3]) or '-1')
local row_epoch = tonumber(ARGV[1])
if epoch < row_epoch then
  return 2
elseif epoch > row_epoch then
  return 3
end
local receipt = redis.call('HGET', KEYS[2], ARGV[2])
if not receipt then
  return 1
end
local state, claim, hold, rest = string.match(receipt, '^(%a) (%S+) (%S+) (.+)$')
if state ~= 'h' or hold ~= ARGV[3] then
  return 1
end
local units = tonumber(ARGV[4])
if units > 0 then
  redis.call('INCRBY', KEYS[1], ARGV[4])
end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[5] .. ' ' .. claim .. ' ' .. hold .. ' ' .. rest)
return 0
