#!lua
-- The admission authority: one token bucket per sale and kind (design §5), as a generic cell rate
-- algorithm (ITU-T I.371). In any T seconds it grants at most rate × (T + burst) + 1 permits.
-- Its clock is this server's own, a recorded exception: the origins' clocks differ.
--
-- KEYS[1] string: the moment, in microseconds, at which the bucket was empty. Missing: empty now.
--
-- ARGV[1] permits a second, may be a fraction  [2] depth in ms  [3] permits wanted
-- ARGV[4] now in microseconds: given by tests only
--
-- Returns {granted, now in Unix ms, ms until asking again is worth it}
local interval = 1000000 / tonumber(ARGV[1])
-- At least one permit deep, or a low rate would admit nobody.
local depth = math.max(tonumber(ARGV[2]) * 1000, interval)
local want = tonumber(ARGV[3])
local now
if ARGV[4] then
  now = tonumber(ARGV[4])
else
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local empty_at = tonumber(redis.call('GET', KEYS[1]) or now)
empty_at = math.max(empty_at, now - depth) -- no more than the depth gathers
empty_at = math.min(empty_at, now + depth) -- a clock that was set back must not close the sale
local granted = math.max(0, math.min(want, math.floor((now - empty_at) / interval)))
empty_at = empty_at + granted * interval
-- A key that expires only loses what had gathered.
redis.call('SET', KEYS[1], string.format('%.3f', empty_at), 'PX', math.ceil(10000 + 2 * interval / 1000))
local next_ms = math.ceil((empty_at + interval - now) / 1000)
return {granted, math.floor(now / 1000), math.max(25, math.min(next_ms, 250))}
