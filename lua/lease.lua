#!lua
-- The admission authority: one token bucket per sale and kind (design §5), as a generic cell rate
-- algorithm (ITU-T I.371). In any T seconds it grants at most rate × (T + burst) + 1 permits.
-- Its clock is this server's own, a recorded exception: the origins' clocks differ.
--
-- KEYS[1] string "at gathered": at the moment `at` (Unix µs) the bucket had gathered refill for so
--         many µs; negative after the clock was set back. Missing: empty now.
--
-- ARGV[1] permits a second, may be a fraction  [2] depth in ms  [3] permits wanted
-- ARGV[4] now in microseconds: given by tests only
--
-- Returns {granted, now in Unix ms, ms until asking again is worth it}
local rate = tonumber(ARGV[1])
local now
if ARGV[4] then
  now = tonumber(ARGV[4])
else
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
if not (rate >= 0.000001) then -- also what is no number
  return {0, math.floor(now / 1000), 250}
end
local interval = 1000000 / math.min(rate, 1000000000)
-- At least one permit deep, or a low rate would admit nobody.
local depth = math.max(tonumber(ARGV[2]) * 1000, interval)
-- Moment and gathered time are kept apart: a double resolves today's Unix time to a quarter of a
-- microsecond only, and a permit that costs less than that would be free.
local at, gathered = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+) (%S+)$')
gathered = at and tonumber(gathered) + (now - tonumber(at)) or 0
gathered = math.min(gathered, depth) -- no more than the depth gathers
gathered = math.max(gathered, -depth) -- a clock that was set back must not close the sale
local granted = math.max(0, math.min(tonumber(ARGV[3]), math.floor(gathered / interval)))
gathered = gathered - granted * interval
-- A key that expires only loses what had gathered.
redis.call('SET', KEYS[1], string.format('%.0f %.17g', now, gathered),
  'PX', string.format('%.0f', 10000 + 2 * interval / 1000))
local next_ms = math.ceil((interval - gathered) / 1000)
return {granted, math.floor(now / 1000), math.max(25, math.min(next_ms, 250))}
