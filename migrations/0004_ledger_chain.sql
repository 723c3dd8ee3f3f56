-- The ledger's chain: every change of an order and of sold, append-only, each entry's hash over the one before.
-- The format is that of flashgate-shared, chain.rs.

ALTER TABLE sales ADD COLUMN salt bytea NOT NULL DEFAULT uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid());
COMMENT ON COLUMN sales.salt IS 'Hides buyers in the chain: their tags are hashes of it and of their ids.';

CREATE TABLE ledger_entries (
    sale       text     NOT NULL,
    shard      smallint NOT NULL,
    seq        bigint   NOT NULL,
    at_ms      bigint   NOT NULL,
    kind       text     NOT NULL,
    claim_id   uuid,
    buyer      text,
    quantity   bigint   NOT NULL,
    units      bigint   NOT NULL,
    sold       bigint   NOT NULL,
    total      bigint   NOT NULL,
    detail     text,
    hash       bytea    NOT NULL,
    written_by text     NOT NULL,
    CONSTRAINT ledger_entries_pkey PRIMARY KEY (sale, shard, seq),
    CONSTRAINT ledger_entries_stock_fkey FOREIGN KEY (sale, shard) REFERENCES stock (sale, shard),
    CONSTRAINT ledger_entries_kind_is_known CHECK (
        kind IN ('created', 'adopted', 'reserved', 'lost', 'paid', 'expired', 'rebuilt')),
    CONSTRAINT ledger_entries_hash_is_sha_256 CHECK (octet_length(hash) = 32),
    CONSTRAINT ledger_entries_never_oversold CHECK (sold BETWEEN 0 AND total)
);
COMMENT ON TABLE ledger_entries IS 'What became of every claim, in order. Rows are only ever added.';
COMMENT ON COLUMN ledger_entries.sale IS 'The sale.';
COMMENT ON COLUMN ledger_entries.shard IS 'The part of its stock.';
COMMENT ON COLUMN ledger_entries.seq IS 'Its place in the chain, from 1.';
COMMENT ON COLUMN ledger_entries.at_ms IS 'When the stock was locked for it.';
COMMENT ON COLUMN ledger_entries.kind IS 'What happened.';
COMMENT ON COLUMN ledger_entries.claim_id IS 'To which claim.';
COMMENT ON COLUMN ledger_entries.buyer IS 'Of whom: a hash of the sale''s salt and the buyer''s id.';
COMMENT ON COLUMN ledger_entries.quantity IS 'Units of the claim.';
COMMENT ON COLUMN ledger_entries.units IS 'By how much sold changed.';
COMMENT ON COLUMN ledger_entries.sold IS 'Units of live orders in the shard afterwards.';
COMMENT ON COLUMN ledger_entries.total IS 'Units of the shard.';
COMMENT ON COLUMN ledger_entries.detail IS 'Why a claim was lost; the epoch of a rebuild.';
COMMENT ON COLUMN ledger_entries.hash IS 'SHA-256 over the hash before and this entry.';
COMMENT ON COLUMN ledger_entries.written_by IS 'The name of the transaction.';

CREATE TRIGGER ledger_entries_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_entries
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

ALTER TABLE stock ADD COLUMN chain_seq bigint NOT NULL DEFAULT 0;
ALTER TABLE stock ADD COLUMN chain_head bytea NOT NULL DEFAULT decode(repeat('00', 32), 'hex');
ALTER TABLE stock ADD CONSTRAINT stock_chain_head_is_sha_256 CHECK (octet_length(chain_head) = 32);
COMMENT ON COLUMN stock.chain_seq IS 'The last entry of the chain.';
COMMENT ON COLUMN stock.chain_head IS 'Its hash; zeros before the first.';

-- Sales of before this migration: their chains begin here.
INSERT INTO ledger_entries (sale, shard, seq, at_ms, kind, quantity, units, sold, total, hash, written_by)
SELECT sale, shard, 1, at_ms, 'adopted', 0, sold, sold, total,
       sha256(decode(repeat('00', 32), 'hex') || convert_to(
           concat_ws(E'\n', 'flashgate-ledger-1', sale, shard, 1, at_ms, 'adopted', '-', '-', 0, sold, sold, total, '-', ''),
           'UTF8')),
       'migration'
FROM stock, (SELECT unix_now_ms() AS at_ms) now;
UPDATE stock SET chain_seq = 1, chain_head = (
    SELECT hash FROM ledger_entries e WHERE e.sale = stock.sale AND e.shard = stock.shard AND e.seq = 1);
