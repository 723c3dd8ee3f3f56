//! Spin's variables for the component (`spin:variables` 3, as spin-sdk 7 imports them).

use std::{collections::HashMap, sync::Arc};
use wasmtime::component::{Accessor, HasData, Linker};

#[allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "generated"
)]
mod generated {
    wasmtime::component::bindgen!({ path: "wit/variables", world: "provided" });
}

use generated::spin::variables::variables::{self, Error, Host, HostWithStore};

/// The values, the same for all instances.
pub(crate) type Values = Arc<HashMap<String, String>>;

/// Store data that has variables.
pub(crate) trait HasVariables {
    fn variables(&mut self) -> &mut Values;
}

struct Variables;

impl HasData for Variables {
    type Data<'a> = &'a mut Values;
}

impl Host for &mut Values {}

impl<T> HostWithStore<T> for Variables {
    async fn get(accessor: &Accessor<T, Self>, name: String) -> Result<String, Error> {
        accessor.with(|mut access| access.get().get(&name).cloned()).ok_or(Error::Undefined(name))
    }
}

pub(crate) fn add_to_linker<T: HasVariables + Send + 'static>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    variables::add_to_linker::<_, Variables>(linker, T::variables)
}
