-- Messages that could not be settled at all, for a person to look at.

CREATE TABLE dead_letters (
    id             bigint  GENERATED ALWAYS AS IDENTITY,
    sale           text    NOT NULL,
    body           bytea   NOT NULL,
    why            text    NOT NULL,
    seen_at_ms     bigint  NOT NULL DEFAULT unix_now_ms(),
    replayed_at_ms bigint,
    updated_by     text    NOT NULL,
    CONSTRAINT dead_letters_pkey PRIMARY KEY (id),
    CONSTRAINT dead_letters_sale_fkey FOREIGN KEY (sale) REFERENCES sales (id)
);
COMMENT ON TABLE dead_letters IS 'Messages that the table of design §7 refuses to judge. Nothing is thrown away.';
COMMENT ON COLUMN dead_letters.id IS 'The row.';
COMMENT ON COLUMN dead_letters.sale IS 'The sale whose queue it came from.';
COMMENT ON COLUMN dead_letters.body IS 'The message as it was.';
COMMENT ON COLUMN dead_letters.why IS 'Why it could not be settled.';
COMMENT ON COLUMN dead_letters.seen_at_ms IS 'When it was given up.';
COMMENT ON COLUMN dead_letters.replayed_at_ms IS 'When an operator sent it again, last.';
COMMENT ON COLUMN dead_letters.updated_by IS 'The name of the transaction that wrote the row last.';
CREATE INDEX dead_letters_by_sale ON dead_letters (sale, id);
