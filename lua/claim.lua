#!lua
-- Claims units in one bucket of a sale: the decision, the buyer's receipt and the outbox entry in
-- one step (design §6). Time is an argument.
--
-- KEYS[1] stock   integer: units in this bucket
-- KEYS[2] buyers  hash: buyer -> receipt "state claim_id hold quantity claimed_at_ms",
--                 state h (held), r (released) or v (void)
-- KEYS[3] claims  stream: the outbox, fields e c b q t r
-- KEYS[4] epoch   integer: the generation of this gate
--
-- ARGV[1] epoch  [2] claim id  [3] buyer  [4] quantity  [5] most units a buyer may claim
-- ARGV[6] "1" when a buyer whose order ended may claim again  [7] now in Unix ms  [8] bucket index
-- ARGV[9] trace id
--
-- Returns
--   {0, entry id, units left}  OK: the hold is (epoch, bucket, entry id)
--   {1, receipt}               REPLAY: this claim has a receipt, whatever its state
--   {2, receipt}               ALREADY: another claim of this buyer is held
--   {3, receipt}               ALREADY_HAD: another claim ended, and there is no second try
--   {4, units left}            EMPTY: fewer are left than asked for
--   {5, epoch or ""}           NOT_LOADED: this gate is of another epoch, or of none
--   {6}                        BAD_QUANTITY: not an integer from 1 to the limit
local epoch = redis.call('GET', KEYS[4])
if epoch ~= ARGV[1] then
  return {5, epoch or ''}
end
-- By its spelling: what Lua reads as a number ("0x1", "1e0") is no integer to DECRBY.
local quantity = string.find(ARGV[4], '^[1-9]%d*$') and tonumber(ARGV[4])
if not quantity or quantity > tonumber(ARGV[5]) then
  return {6}
end
local receipt = redis.call('HGET', KEYS[2], ARGV[3])
if receipt then
  if string.sub(receipt, 3, 38) == ARGV[2] then
    return {1, receipt}
  end
  local state = string.byte(receipt)
  if state == 104 then -- h
    return {2, receipt}
  elseif state == 114 and ARGV[6] ~= '1' then -- r
    return {3, receipt}
  end
end
local stock = tonumber(redis.call('GET', KEYS[1]) or '0')
if stock < quantity then
  return {4, stock}
end
local left = redis.call('DECRBY', KEYS[1], ARGV[4])
local entry = redis.call('XADD', KEYS[3], '*',
  'e', ARGV[1], 'c', ARGV[2], 'b', ARGV[3], 'q', ARGV[4], 't', ARGV[7], 'r', ARGV[9])
redis.call('HSET', KEYS[2], ARGV[3],
  'h ' .. ARGV[2] .. ' ' .. ARGV[1] .. '.' .. ARGV[8] .. '.' .. entry .. ' ' .. ARGV[4] .. ' ' .. ARGV[7])
return {0, entry, left}
