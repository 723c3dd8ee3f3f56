-- What reconciling mended: by whose wish, what was found, and what was done.

CREATE TABLE repairs (
    id         bigint  GENERATED ALWAYS AS IDENTITY,
    sale       text    NOT NULL,
    kind       text    NOT NULL,
    claim_id   uuid,
    units      bigint  NOT NULL,
    cause      text    NOT NULL,
    repair     text    NOT NULL,
    wished_by  text    NOT NULL,
    made_at_ms bigint  NOT NULL DEFAULT unix_now_ms(),
    updated_by text    NOT NULL,
    CONSTRAINT repairs_pkey PRIMARY KEY (id),
    CONSTRAINT repairs_sale_fkey FOREIGN KEY (sale) REFERENCES sales (id),
    CONSTRAINT repairs_wished_by_is_known CHECK (wished_by IN ('operator', 'schedule'))
);
COMMENT ON TABLE repairs IS 'Drifts that were mended. Rows are only ever added.';
COMMENT ON COLUMN repairs.id IS 'The row.';
COMMENT ON COLUMN repairs.sale IS 'The sale.';
COMMENT ON COLUMN repairs.kind IS 'What had drifted.';
COMMENT ON COLUMN repairs.claim_id IS 'Of which claim, if it is about one.';
COMMENT ON COLUMN repairs.units IS 'By how many units.';
COMMENT ON COLUMN repairs.cause IS 'What was found.';
COMMENT ON COLUMN repairs.repair IS 'What was done.';
COMMENT ON COLUMN repairs.wished_by IS 'An operator, or the role that reconciles by itself.';
COMMENT ON COLUMN repairs.made_at_ms IS 'When.';
COMMENT ON COLUMN repairs.updated_by IS 'The name of the transaction that wrote the row.';
CREATE INDEX repairs_by_sale ON repairs (sale, id);
CREATE TRIGGER repairs_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON repairs
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
