//! What an instance of the component can reach and take, and how it is made.

use crate::{
    component::{Compiled, TICK_MS},
    config::Limits,
    guest_log::GuestLog,
    key_value::{self, HasKeyValue, KeyValue},
    metrics::Metrics,
    outgoing::Outgoing,
    variables::{HasVariables, Values},
    worker::Life,
};
use std::sync::Arc;
use tokio::sync::watch;
use wasmtime::{ResourceLimiter, Store, StoreLimits, StoreLimitsBuilder, UpdateDeadline, component::ResourceTable};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView, p3::bindings::Service};

/// Core instances, tables and memories within one component instance.
const MAX_CORE_ITEMS: usize = 100;

/// Elements of all tables together.
const MAX_TABLE_ELEMENTS: usize = 100_000;

/// What the component's instance can reach.
pub(crate) struct StoreData {
    wasi: WasiCtx,
    http: WasiHttpCtx,
    table: ResourceTable,
    outgoing: Outgoing,
    variables: Values,
    key_value: Arc<KeyValue>,
    stores_open: usize,
    memory: Memory,
}

impl HasKeyValue for StoreData {
    fn key_value(&mut self) -> key_value::View<'_> {
        key_value::View { store: &self.key_value, table: &mut self.table, open: &mut self.stores_open }
    }
}

impl WasiView for StoreData {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl WasiHttpView for StoreData {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { hooks: &mut self.outgoing, table: &mut self.table, ctx: &mut self.http }
    }
}

impl HasVariables for StoreData {
    fn variables(&mut self) -> &mut Values {
        &mut self.variables
    }
}

/// The limit of an instance's memory, and how much of it is used.
struct Memory {
    limits: StoreLimits,
    life: Arc<Life>,
}

impl ResourceLimiter for Memory {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        let grows = self.limits.memory_growing(current, desired, maximum)?;
        if grows {
            self.life.has_memory(desired);
        }
        Ok(grows)
    }

    fn table_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        self.limits.table_growing(current, desired, maximum)
    }

    fn instances(&self) -> usize {
        self.limits.instances()
    }

    fn tables(&self) -> usize {
        self.limits.tables()
    }

    fn memories(&self) -> usize {
        self.limits.memories()
    }
}

/// Makes the instances of one thread.
#[derive(Clone)]
pub(crate) struct Maker {
    /// The component; a reload puts another one here.
    pub(crate) component: watch::Receiver<Compiled>,
    pub(crate) limits: Limits,
    pub(crate) variables: Values,
    pub(crate) key_value: Arc<KeyValue>,
    pub(crate) outgoing: Outgoing,
    pub(crate) metrics: Arc<Metrics>,
}

impl Maker {
    /// A new instance in a store of its own.
    pub(crate) async fn instantiate(
        &self,
        compiled: &Compiled,
        life: &Arc<Life>,
    ) -> wasmtime::Result<(Store<StoreData>, Service)> {
        let mut store = self.store(compiled, life);
        let service = compiled.service.instantiate_async(&mut store).await?;
        Ok((store, service))
    }

    fn store(&self, compiled: &Compiled, life: &Arc<Life>) -> Store<StoreData> {
        let limits = StoreLimitsBuilder::new()
            .memory_size(self.limits.max_memory_bytes)
            .table_elements(MAX_TABLE_ELEMENTS)
            .instances(MAX_CORE_ITEMS)
            .tables(MAX_CORE_ITEMS)
            .memories(MAX_CORE_ITEMS)
            .build();
        let data = StoreData {
            wasi: WasiCtx::builder().stdout(GuestLog::Stdout).stderr(GuestLog::Stderr).build(),
            http: WasiHttpCtx::new(),
            table: ResourceTable::new(),
            outgoing: self.outgoing.clone(),
            variables: self.variables.clone(),
            key_value: self.key_value.clone(),
            stores_open: 0,
            memory: Memory { limits, life: life.clone() },
        };
        let mut store = Store::new(&compiled.engine, data);
        store.limiter(|data| &mut data.memory);
        let max_ticks = self.limits.max_compute_ms.div_ceil(TICK_MS).max(1);
        let life = life.clone();
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(move |_| {
            let going_on = life.computed_a_tick() < max_ticks;
            Ok(if going_on { UpdateDeadline::Yield(1) } else { UpdateDeadline::Interrupt })
        });
        store
    }
}
