-- Every version of every sale's settings, for looking back and for going back.

CREATE TABLE sale_versions (
    sale       text   NOT NULL,
    version    bigint NOT NULL,
    state      text   NOT NULL,
    config     jsonb  NOT NULL,
    made_at_ms bigint NOT NULL DEFAULT unix_now_ms(),
    made_by    text   NOT NULL,
    CONSTRAINT sale_versions_pkey PRIMARY KEY (sale, version),
    CONSTRAINT sale_versions_sale_fkey FOREIGN KEY (sale) REFERENCES sales (id)
);
COMMENT ON TABLE sale_versions IS 'What each version of a sale said. Rows are only ever added, by a trigger on sales.';
COMMENT ON COLUMN sale_versions.sale IS 'The sale.';
COMMENT ON COLUMN sale_versions.version IS 'The version, as in sales.';
COMMENT ON COLUMN sale_versions.state IS 'What the operator wanted of the sale then.';
COMMENT ON COLUMN sale_versions.config IS 'The settings then.';
COMMENT ON COLUMN sale_versions.made_at_ms IS 'When the version was made.';
COMMENT ON COLUMN sale_versions.made_by IS 'The name of the transaction that made it.';

CREATE FUNCTION keep_sale_version() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO sale_versions (sale, version, state, config, made_by)
    VALUES (NEW.id, NEW.version, NEW.state, NEW.config, NEW.updated_by);
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION keep_sale_version() IS 'Adds the new version of a sale to sale_versions.';

CREATE TRIGGER sales_keep_version AFTER INSERT OR UPDATE ON sales
    FOR EACH ROW EXECUTE FUNCTION keep_sale_version();

CREATE FUNCTION refuse_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION '% of % is not allowed: its rows are only ever added', TG_OP, TG_TABLE_NAME;
END
$$;
COMMENT ON FUNCTION refuse_change() IS 'Keeps a table append-only.';

CREATE TRIGGER sale_versions_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON sale_versions
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- What was there before this migration.
INSERT INTO sale_versions (sale, version, state, config, made_by)
SELECT id, version, state, config, updated_by FROM sales;
