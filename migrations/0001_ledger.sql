-- The ledger: sales, stock, orders, payments, refunds, and what goes back to the gate.
-- Times are Unix milliseconds by this database's clock. A merged migration never changes.

CREATE FUNCTION unix_now_ms() RETURNS bigint
    LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;
COMMENT ON FUNCTION unix_now_ms() IS 'The wall clock in Unix milliseconds; advances within a transaction.';

CREATE TABLE sales (
    id            text   NOT NULL,
    version       bigint NOT NULL DEFAULT 1,
    state         text   NOT NULL,
    config        jsonb  NOT NULL,
    created_at_ms bigint NOT NULL DEFAULT unix_now_ms(),
    updated_at_ms bigint NOT NULL DEFAULT unix_now_ms(),
    updated_by    text   NOT NULL,
    CONSTRAINT sales_pkey PRIMARY KEY (id),
    CONSTRAINT sales_id_is_a_slug CHECK (id ~ '^[a-z0-9-]{1,64}$'),
    CONSTRAINT sales_version_counts_from_one CHECK (version >= 1),
    CONSTRAINT sales_state_is_known CHECK (state IN ('loading', 'open', 'paused', 'rebuilding', 'closed'))
);
COMMENT ON TABLE sales IS 'What marketing sells, and whether it sells now.';
COMMENT ON COLUMN sales.id IS 'The sale: a slug.';
COMMENT ON COLUMN sales.version IS 'Raised by one with every change of settings or state.';
COMMENT ON COLUMN sales.state IS 'What the operator wants of the sale.';
COMMENT ON COLUMN sales.config IS 'The settings as the API takes them; the version in it is not read.';
COMMENT ON COLUMN sales.created_at_ms IS 'When the row was written.';
COMMENT ON COLUMN sales.updated_at_ms IS 'When the row was changed last.';
COMMENT ON COLUMN sales.updated_by IS 'The name of the transaction that wrote the row last.';

CREATE TABLE stock (
    sale          text     NOT NULL,
    shard         smallint NOT NULL,
    total         bigint   NOT NULL,
    sold          bigint   NOT NULL DEFAULT 0,
    epoch         bigint   NOT NULL DEFAULT 1,
    updated_at_ms bigint   NOT NULL DEFAULT unix_now_ms(),
    updated_by    text     NOT NULL,
    CONSTRAINT stock_pkey PRIMARY KEY (sale, shard),
    CONSTRAINT stock_sale_fkey FOREIGN KEY (sale) REFERENCES sales (id),
    CONSTRAINT stock_shard_counts_from_zero CHECK (shard >= 0),
    CONSTRAINT stock_never_oversold CHECK (sold BETWEEN 0 AND total),
    CONSTRAINT stock_epoch_counts_from_one CHECK (epoch >= 1)
);
COMMENT ON TABLE stock IS
    'Units of a sale. Whoever touches sold, an order''s status or the epoch locks all rows of the sale first, in shard order.';
COMMENT ON COLUMN stock.sale IS 'The sale.';
COMMENT ON COLUMN stock.shard IS 'Which part of the stock, from 0.';
COMMENT ON COLUMN stock.total IS 'Units the sale has in this shard.';
COMMENT ON COLUMN stock.sold IS 'Units of live orders (RESERVED or PAID) that remember this shard.';
COMMENT ON COLUMN stock.epoch IS 'The generation of the sale''s gate; the same in all shards.';
COMMENT ON COLUMN stock.updated_at_ms IS 'When the row was changed last.';
COMMENT ON COLUMN stock.updated_by IS 'The name of the transaction that wrote the row last.';

CREATE TABLE orders (
    claim_id        uuid     NOT NULL,
    sale            text     NOT NULL,
    shard           smallint NOT NULL,
    buyer           text     NOT NULL,
    quantity        integer  NOT NULL,
    status          text     NOT NULL,
    reason          text,
    hold            text,
    amount_minor    bigint   NOT NULL,
    currency        text     NOT NULL,
    reserved_at_ms  bigint,
    pay_by_ms       bigint,
    hold_until_ms   bigint,
    paying_since_ms bigint,
    payment_id      text,
    ended_at_ms     bigint,
    trace_id        text     NOT NULL,
    created_at_ms   bigint   NOT NULL DEFAULT unix_now_ms(),
    updated_at_ms   bigint   NOT NULL DEFAULT unix_now_ms(),
    updated_by      text     NOT NULL,
    CONSTRAINT orders_pkey PRIMARY KEY (claim_id),
    CONSTRAINT orders_stock_fkey FOREIGN KEY (sale, shard) REFERENCES stock (sale, shard),
    CONSTRAINT orders_quantity_is_sane CHECK (quantity BETWEEN 1 AND 100),
    CONSTRAINT orders_status_is_known CHECK (status IN ('RESERVED', 'PAID', 'EXPIRED', 'LOST')),
    CONSTRAINT orders_lost_has_a_reason CHECK (
        CASE WHEN status = 'LOST'
             THEN reason IS NOT NULL AND reason IN ('gate_rebuilt', 'duplicate', 'second_try', 'gate_leaked', 'gate_lost', 'poison')
             ELSE reason IS NULL END),
    CONSTRAINT orders_reserved_has_a_hold CHECK (
        status = 'LOST' OR (hold IS NOT NULL AND reserved_at_ms IS NOT NULL AND pay_by_ms IS NOT NULL AND hold_until_ms IS NOT NULL)),
    CONSTRAINT orders_times_in_order CHECK (reserved_at_ms <= pay_by_ms AND pay_by_ms <= hold_until_ms),
    CONSTRAINT orders_paid_by_a_payment CHECK ((status = 'PAID') = (payment_id IS NOT NULL)),
    CONSTRAINT orders_amount_not_negative CHECK (amount_minor >= 0),
    CONSTRAINT orders_currency_is_iso_4217 CHECK (currency ~ '^[A-Z]{3}$'),
    CONSTRAINT orders_trace_id_is_hex CHECK (trace_id ~ '^[0-9a-f]{32}$')
);
COMMENT ON TABLE orders IS 'Every claim that the ledger has spoken about; refusals are rows too.';
COMMENT ON COLUMN orders.claim_id IS 'UUID v5 over sale, buyer and idempotency key.';
COMMENT ON COLUMN orders.sale IS 'The sale.';
COMMENT ON COLUMN orders.shard IS 'The stock row that the units count in while the order lives.';
COMMENT ON COLUMN orders.buyer IS 'Who claimed: the entry token''s subject.';
COMMENT ON COLUMN orders.quantity IS 'Units.';
COMMENT ON COLUMN orders.status IS 'RESERVED and PAID live; EXPIRED and LOST are ends.';
COMMENT ON COLUMN orders.reason IS 'Why it is LOST.';
COMMENT ON COLUMN orders.hold IS 'The gate''s hold, epoch.bucket.entry; null when the claim was declared lost without its message.';
COMMENT ON COLUMN orders.amount_minor IS 'Price times quantity when the row was written, in minor units.';
COMMENT ON COLUMN orders.currency IS 'ISO 4217.';
COMMENT ON COLUMN orders.reserved_at_ms IS 'When the units were reserved.';
COMMENT ON COLUMN orders.pay_by_ms IS 'The last moment at which a checkout may start.';
COMMENT ON COLUMN orders.hold_until_ms IS 'When the hold ends: pay_by_ms plus the sale''s grace.';
COMMENT ON COLUMN orders.paying_since_ms IS 'When the checkout started that has not failed yet.';
COMMENT ON COLUMN orders.payment_id IS 'The provider''s payment that paid it.';
COMMENT ON COLUMN orders.ended_at_ms IS 'When it was paid or expired.';
COMMENT ON COLUMN orders.trace_id IS 'W3C trace id of the claim.';
COMMENT ON COLUMN orders.created_at_ms IS 'When the row was written.';
COMMENT ON COLUMN orders.updated_at_ms IS 'When the row was changed last.';
COMMENT ON COLUMN orders.updated_by IS 'The name of the transaction that wrote the row last.';

CREATE UNIQUE INDEX orders_one_live_per_buyer ON orders (sale, buyer) WHERE status IN ('RESERVED', 'PAID');
COMMENT ON INDEX orders_one_live_per_buyer IS 'One buyer has at most one live order per sale.';
CREATE INDEX orders_by_buyer ON orders (sale, buyer, created_at_ms);
CREATE INDEX orders_due ON orders (sale, hold_until_ms) WHERE status = 'RESERVED';

CREATE TABLE payments (
    provider_payment_id text   NOT NULL,
    claim_id            uuid   NOT NULL,
    sale                text   NOT NULL,
    amount_minor        bigint NOT NULL,
    currency            text   NOT NULL,
    paid_at_ms          bigint NOT NULL,
    created_at_ms       bigint NOT NULL DEFAULT unix_now_ms(),
    updated_by          text   NOT NULL,
    CONSTRAINT payments_pkey PRIMARY KEY (provider_payment_id),
    CONSTRAINT payments_amount_not_negative CHECK (amount_minor >= 0),
    CONSTRAINT payments_currency_is_iso_4217 CHECK (currency ~ '^[A-Z]{3}$')
);
COMMENT ON TABLE payments IS 'Money that came: one row for each succeeded payment. A row never changes.';
COMMENT ON COLUMN payments.provider_payment_id IS 'The provider''s id: makes a repeated notice harmless.';
COMMENT ON COLUMN payments.claim_id IS 'The claim it was for; no foreign key, because money may come for a claim that is not known.';
COMMENT ON COLUMN payments.sale IS 'The sale named in the notice.';
COMMENT ON COLUMN payments.amount_minor IS 'What was paid, in minor units.';
COMMENT ON COLUMN payments.currency IS 'ISO 4217.';
COMMENT ON COLUMN payments.paid_at_ms IS 'When, by the provider''s clock.';
COMMENT ON COLUMN payments.created_at_ms IS 'When the row was written.';
COMMENT ON COLUMN payments.updated_by IS 'The name of the transaction that wrote the row.';

ALTER TABLE orders ADD CONSTRAINT orders_payment_fkey FOREIGN KEY (payment_id) REFERENCES payments (provider_payment_id);

CREATE TABLE refunds (
    id                 uuid    NOT NULL DEFAULT gen_random_uuid(),
    payment_id         text    NOT NULL,
    claim_id           uuid    NOT NULL,
    sale               text    NOT NULL,
    amount_minor       bigint  NOT NULL,
    currency           text    NOT NULL,
    reason             text    NOT NULL,
    provider_refund_id text,
    attempts           integer NOT NULL DEFAULT 0,
    next_try_at_ms     bigint  NOT NULL DEFAULT unix_now_ms(),
    last_error         text,
    created_at_ms      bigint  NOT NULL DEFAULT unix_now_ms(),
    updated_at_ms      bigint  NOT NULL DEFAULT unix_now_ms(),
    updated_by         text    NOT NULL,
    CONSTRAINT refunds_pkey PRIMARY KEY (id),
    CONSTRAINT refunds_once_per_payment UNIQUE (payment_id),
    CONSTRAINT refunds_payment_fkey FOREIGN KEY (payment_id) REFERENCES payments (provider_payment_id),
    CONSTRAINT refunds_amount_positive CHECK (amount_minor > 0),
    CONSTRAINT refunds_currency_is_iso_4217 CHECK (currency ~ '^[A-Z]{3}$'),
    CONSTRAINT refunds_reason_is_known CHECK (reason IN ('expired', 'lost', 'already_paid', 'mismatch', 'unknown_claim')),
    CONSTRAINT refunds_attempts_not_negative CHECK (attempts >= 0)
);
COMMENT ON TABLE refunds IS 'Outbox of money to give back, written in the transaction that could not use it.';
COMMENT ON COLUMN refunds.id IS 'The idempotency key towards the provider.';
COMMENT ON COLUMN refunds.payment_id IS 'The payment to give back, in full.';
COMMENT ON COLUMN refunds.claim_id IS 'The claim the payment was for.';
COMMENT ON COLUMN refunds.sale IS 'The sale named in the notice.';
COMMENT ON COLUMN refunds.amount_minor IS 'What to give back, in minor units.';
COMMENT ON COLUMN refunds.currency IS 'ISO 4217.';
COMMENT ON COLUMN refunds.reason IS 'Why the money could not be used.';
COMMENT ON COLUMN refunds.provider_refund_id IS 'The provider''s id of the refund; null while it is due.';
COMMENT ON COLUMN refunds.attempts IS 'How often the row was handed to a worker.';
COMMENT ON COLUMN refunds.next_try_at_ms IS 'Hidden from workers until then.';
COMMENT ON COLUMN refunds.last_error IS 'What the last try failed with.';
COMMENT ON COLUMN refunds.created_at_ms IS 'When the row was written.';
COMMENT ON COLUMN refunds.updated_at_ms IS 'When the row was changed last.';
COMMENT ON COLUMN refunds.updated_by IS 'The name of the transaction that wrote the row last.';
CREATE INDEX refunds_due ON refunds (next_try_at_ms) WHERE provider_refund_id IS NULL;
CREATE INDEX refunds_by_claim ON refunds (claim_id);

CREATE TABLE gate_releases (
    id             bigint  GENERATED ALWAYS AS IDENTITY,
    claim_id       uuid    NOT NULL,
    hold           text    NOT NULL,
    sale           text    NOT NULL,
    buyer          text    NOT NULL,
    units          integer NOT NULL,
    mode           text    NOT NULL,
    epoch          bigint  NOT NULL,
    outcome        text,
    attempts       integer NOT NULL DEFAULT 0,
    next_try_at_ms bigint  NOT NULL DEFAULT unix_now_ms(),
    trace_id       text    NOT NULL,
    created_at_ms  bigint  NOT NULL DEFAULT unix_now_ms(),
    updated_at_ms  bigint  NOT NULL DEFAULT unix_now_ms(),
    updated_by     text    NOT NULL,
    CONSTRAINT gate_releases_pkey PRIMARY KEY (id),
    CONSTRAINT gate_releases_once_per_hold UNIQUE (claim_id, hold),
    CONSTRAINT gate_releases_sale_fkey FOREIGN KEY (sale) REFERENCES sales (id),
    CONSTRAINT gate_releases_units_not_negative CHECK (units >= 0),
    CONSTRAINT gate_releases_mode_is_known CHECK (mode IN ('spent', 'void')),
    CONSTRAINT gate_releases_outcome_is_known CHECK (outcome IN ('returned', 'no_change', 'superseded')),
    CONSTRAINT gate_releases_attempts_not_negative CHECK (attempts >= 0)
);
COMMENT ON TABLE gate_releases IS
    'Outbox of units to give back to the gate, written in the transaction that ended or refused the order.';
COMMENT ON COLUMN gate_releases.id IS 'The row.';
COMMENT ON COLUMN gate_releases.claim_id IS 'The claim; with the hold it makes the unit''s way back unique.';
COMMENT ON COLUMN gate_releases.hold IS 'The gate''s hold, epoch.bucket.entry.';
COMMENT ON COLUMN gate_releases.sale IS 'The sale.';
COMMENT ON COLUMN gate_releases.buyer IS 'Whose receipt changes.';
COMMENT ON COLUMN gate_releases.units IS 'Units to return; fewer than the hold had when the gate had leaked.';
COMMENT ON COLUMN gate_releases.mode IS 'spent: the order lived and ended. void: the hold never became an order.';
COMMENT ON COLUMN gate_releases.epoch IS 'The ledger''s epoch, read under the lock, not the hold''s.';
COMMENT ON COLUMN gate_releases.outcome IS 'What the gate answered; null while the release is due.';
COMMENT ON COLUMN gate_releases.attempts IS 'How often the row was handed to a worker.';
COMMENT ON COLUMN gate_releases.next_try_at_ms IS 'Hidden from workers until then.';
COMMENT ON COLUMN gate_releases.trace_id IS 'W3C trace id of the claim.';
COMMENT ON COLUMN gate_releases.created_at_ms IS 'When the row was written.';
COMMENT ON COLUMN gate_releases.updated_at_ms IS 'When the row was changed last.';
COMMENT ON COLUMN gate_releases.updated_by IS 'The name of the transaction that wrote the row last.';
CREATE INDEX gate_releases_due ON gate_releases (next_try_at_ms) WHERE outcome IS NULL;
CREATE INDEX gate_releases_by_sale ON gate_releases (sale) WHERE outcome IS NULL;
