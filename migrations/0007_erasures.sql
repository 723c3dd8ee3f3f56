-- Erasing what leads to a buyer. The chain stays whole: it knows buyers by tags whose salt goes with them.

CREATE TABLE erasures (
    id           bigint  GENERATED ALWAYS AS IDENTITY,
    sale         text    NOT NULL,
    everybody    boolean NOT NULL,
    buyers       bigint  NOT NULL,
    erased_at_ms bigint  NOT NULL DEFAULT unix_now_ms(),
    updated_by   text    NOT NULL,
    CONSTRAINT erasures_pkey PRIMARY KEY (id),
    CONSTRAINT erasures_sale_fkey FOREIGN KEY (sale) REFERENCES sales (id),
    CONSTRAINT erasures_buyers_not_negative CHECK (buyers >= 0)
);
COMMENT ON TABLE erasures IS 'That personal data was erased, and when; not whose. Rows are only ever added.';
COMMENT ON COLUMN erasures.id IS 'The row.';
COMMENT ON COLUMN erasures.sale IS 'The sale.';
COMMENT ON COLUMN erasures.everybody IS 'All buyers of the sale, or one.';
COMMENT ON COLUMN erasures.buyers IS 'Buyers of whom something was found.';
COMMENT ON COLUMN erasures.erased_at_ms IS 'When.';
COMMENT ON COLUMN erasures.updated_by IS 'The name of the transaction that wrote the row.';
CREATE INDEX erasures_by_sale ON erasures (sale, id);
CREATE TRIGGER erasures_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON erasures
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE INDEX payments_by_sale ON payments (sale);

-- The salt is exchanged without a new version of the settings.
DROP TRIGGER sales_keep_version ON sales;
CREATE TRIGGER sales_keep_version AFTER INSERT OR UPDATE OF version ON sales
    FOR EACH ROW EXECUTE FUNCTION keep_sale_version();
