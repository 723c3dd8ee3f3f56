-- Rebuilds of a sale's gate: who does it, until when, and what came of it.

ALTER TABLE sales ADD COLUMN state_after text;
ALTER TABLE sales ADD CONSTRAINT sales_rebuilding_has_an_after
    CHECK ((state = 'rebuilding') = (state_after IS NOT NULL) AND state_after IN ('open', 'paused', 'closed'));
COMMENT ON COLUMN sales.state_after IS 'While the gate is rebuilt: the state that the sale has afterwards.';

CREATE TABLE gate_rebuilds (
    id             bigint  GENERATED ALWAYS AS IDENTITY,
    sale           text    NOT NULL,
    cause          text    NOT NULL,
    owner          uuid,
    owned_until_ms bigint  NOT NULL DEFAULT 0,
    epoch          bigint,
    on_offer       bigint,
    receipts       bigint,
    superseded     bigint,
    began_at_ms    bigint  NOT NULL DEFAULT unix_now_ms(),
    cut_at_ms      bigint,
    ended_at_ms    bigint,
    updated_by     text    NOT NULL,
    CONSTRAINT gate_rebuilds_pkey PRIMARY KEY (id),
    CONSTRAINT gate_rebuilds_sale_fkey FOREIGN KEY (sale) REFERENCES sales (id),
    CONSTRAINT gate_rebuilds_cause_is_known CHECK (cause IN ('operator', 'not_loaded', 'other_epoch', 'server_changed')),
    CONSTRAINT gate_rebuilds_cut_is_whole CHECK (
        (cut_at_ms IS NULL) = (epoch IS NULL) AND (cut_at_ms IS NULL) = (on_offer IS NULL)
        AND (cut_at_ms IS NULL) = (receipts IS NULL) AND (cut_at_ms IS NULL) = (superseded IS NULL)),
    CONSTRAINT gate_rebuilds_ends_after_its_cut CHECK (ended_at_ms IS NULL OR cut_at_ms IS NOT NULL)
);
COMMENT ON TABLE gate_rebuilds IS 'Each rebuild of a sale''s gate, from its order to the reopening.';
COMMENT ON COLUMN gate_rebuilds.id IS 'The row.';
COMMENT ON COLUMN gate_rebuilds.sale IS 'The sale.';
COMMENT ON COLUMN gate_rebuilds.cause IS 'What was seen: a bucket without an epoch, with another one, or in another life of its server; or an operator''s order.';
COMMENT ON COLUMN gate_rebuilds.owner IS 'The process that does it.';
COMMENT ON COLUMN gate_rebuilds.owned_until_ms IS 'When another process may take over.';
COMMENT ON COLUMN gate_rebuilds.epoch IS 'The epoch of its last cut.';
COMMENT ON COLUMN gate_rebuilds.on_offer IS 'Units that were free at the cut.';
COMMENT ON COLUMN gate_rebuilds.receipts IS 'Buyers whose receipts were written again.';
COMMENT ON COLUMN gate_rebuilds.superseded IS 'Releases that the cut counted.';
COMMENT ON COLUMN gate_rebuilds.began_at_ms IS 'When it was ordered.';
COMMENT ON COLUMN gate_rebuilds.cut_at_ms IS 'When the last cut was made.';
COMMENT ON COLUMN gate_rebuilds.ended_at_ms IS 'When the sale had its state again.';
COMMENT ON COLUMN gate_rebuilds.updated_by IS 'The name of the transaction that wrote the row last.';
CREATE UNIQUE INDEX gate_rebuilds_one_at_a_time ON gate_rebuilds (sale) WHERE ended_at_ms IS NULL;
CREATE INDEX gate_rebuilds_by_sale ON gate_rebuilds (sale, id);
