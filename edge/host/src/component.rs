//! The compiled component, ready to be made into instances, and the clock that interrupts it.

use crate::{instance::StoreData, key_value, variables};
use anyhow::anyhow;
use std::{path::Path, thread, time::Duration};
use wasmtime::{
    Config, Engine,
    component::{Component, Linker},
};
use wasmtime_wasi_http::p3::bindings::ServicePre;

/// Period of the epoch: a computing instance yields to its thread's other work this often.
pub(crate) const TICK_MS: u64 = 10;

/// A compiled component; clones are cheap and share the code.
#[derive(Clone)]
pub struct Compiled {
    pub(crate) engine: Engine,
    pub(crate) service: ServicePre<StoreData>,
}

impl Compiled {
    /// Compiles the component in a file.
    ///
    /// # Errors
    /// There is no such file, it is no component, or it needs what this host does not provide.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        Self::compile(path, true)
    }

    /// The same on one core, while the others serve: for a reload.
    pub(crate) fn load_aside(path: &Path) -> anyhow::Result<Self> {
        Self::compile(path, false)
    }

    fn compile(path: &Path, all_cores: bool) -> anyhow::Result<Self> {
        let failed = |what: &'static str| move |e: wasmtime::Error| anyhow!("{what} {}: {e:#}", path.display());
        let mut config = Config::new();
        config.wasm_component_model_async(true);
        config.epoch_interruption(true);
        config.parallel_compilation(all_cores);
        let engine = Engine::new(&config).map_err(failed("engine for"))?;
        let component = Component::from_file(&engine, path).map_err(failed("component"))?;
        let service = link(&engine, &component).map_err(failed("linking"))?;
        tick(&engine)?;
        Ok(Self { engine, service })
    }
}

fn link(engine: &Engine, component: &Component) -> wasmtime::Result<ServicePre<StoreData>> {
    let mut linker = Linker::<StoreData>::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    wasmtime_wasi::p3::add_to_linker(&mut linker)?;
    wasmtime_wasi_http::p3::add_to_linker(&mut linker)?;
    variables::add_to_linker(&mut linker)?;
    key_value::add_to_linker(&mut linker)?;
    ServicePre::new(linker.instantiate_pre(component)?)
}

/// Moves the epoch on for as long as the engine lives.
fn tick(engine: &Engine) -> std::io::Result<()> {
    let engine = engine.weak();
    thread::Builder::new().name("edge-epoch".to_owned()).spawn(move || {
        while let Some(engine) = engine.upgrade() {
            engine.increment_epoch();
            drop(engine);
            thread::sleep(Duration::from_millis(TICK_MS));
        }
    })?;
    Ok(())
}
