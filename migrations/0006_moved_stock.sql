-- Free stock may go from one row of a sale to another, where no single row holds what somebody bought.

ALTER TABLE ledger_entries DROP CONSTRAINT ledger_entries_kind_is_known;
ALTER TABLE ledger_entries ADD CONSTRAINT ledger_entries_kind_is_known CHECK (
    kind IN ('created', 'adopted', 'reserved', 'lost', 'paid', 'expired', 'rebuilt', 'moved'));
COMMENT ON COLUMN ledger_entries.total IS 'Units of the shard afterwards.';
COMMENT ON COLUMN ledger_entries.detail IS 'Why a claim was lost; the epoch of a rebuild; the other shard of a move.';
