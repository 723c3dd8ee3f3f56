//! Spin's key-value store for the component (`spin:key-value` 3, as spin-sdk 7 imports it): one store, with
//! the label `default`, shared by all instances, on disk where the operator names a file.
//!
//! It is for a few small documents, not for data: keys, values and their number are limited. A failing
//! disk is the component's to hear of; it never ends an instance.

use anyhow::Context;
use redb::{
    Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition, backends::InMemoryBackend,
};
use std::{fmt::Display, path::Path, sync::Arc};
use wasmtime::component::{Accessor, HasData, Linker, Resource, ResourceTable};

#[allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "generated"
)]
mod generated {
    wasmtime::component::bindgen!({
        path: "wit/key-value",
        world: "provided-store",
        with: { "spin:key-value/key-value.store": super::OpenStore },
    });
}

use generated::spin::key_value::key_value::{self, Error, Host, HostStore, HostStoreWithStore};

/// The only store there is.
const LABEL: &str = "default";
/// Longest key, in bytes.
const KEY_BYTES: usize = 256;
/// Largest value, in bytes.
const VALUE_BYTES: usize = 64 << 10;
/// Most keys.
const KEYS_MAX: u64 = 10_000;
/// Stores that an instance may have open at once.
const OPEN_MAX: usize = 1_024;

const TABLE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new(LABEL);

/// The store's data, the same for all instances.
pub(crate) struct KeyValue(Database);

/// A handle of the component's on the store.
#[derive(Debug)]
pub struct OpenStore(());

impl KeyValue {
    /// Opens or makes the file; without one the store lives as long as the process.
    ///
    /// # Errors
    /// The file cannot be opened, or is none of a store's.
    pub(crate) fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        let database = match path {
            Some(path) => Database::create(path).with_context(|| format!("key-value store {}", path.display()))?,
            None => Database::builder().create_with_backend(InMemoryBackend::new())?,
        };
        // So that reading finds a table.
        let begin = database.begin_write()?;
        begin.open_table(TABLE)?;
        begin.commit()?;
        Ok(Self(database))
    }

    fn get(&self, key: &str) -> Result<Option<Vec<u8>>, redb::Error> {
        let table = self.0.begin_read()?.open_table(TABLE)?;
        Ok(table.get(key)?.map(|value| value.value().to_vec()))
    }

    fn set(&self, key: &str, value: &[u8]) -> Result<Result<(), Error>, redb::Error> {
        let write = self.0.begin_write()?;
        {
            let mut table = write.open_table(TABLE)?;
            if table.get(key)?.is_none() && table.len()? >= KEYS_MAX {
                return Ok(Err(Error::Other(format!("the store has {KEYS_MAX} keys, and no room for more"))));
            }
            table.insert(key, value)?;
        }
        write.commit()?;
        Ok(Ok(()))
    }

    fn delete(&self, key: &str) -> Result<(), redb::Error> {
        let write = self.0.begin_write()?;
        write.open_table(TABLE)?.remove(key)?;
        write.commit()?;
        Ok(())
    }
}

/// Store data that has the key-value store.
pub(crate) trait HasKeyValue {
    /// The store, and the component's handles.
    fn key_value(&mut self) -> View<'_>;
}

/// What a call of the component's needs.
pub(crate) struct View<'a> {
    pub(crate) store: &'a Arc<KeyValue>,
    pub(crate) table: &'a mut ResourceTable,
    /// Handles that are open.
    pub(crate) open: &'a mut usize,
}

struct Stores;

impl HasData for Stores {
    type Data<'a> = View<'a>;
}

impl Host for View<'_> {}

impl HostStore for View<'_> {
    fn drop(&mut self, handle: Resource<OpenStore>) -> wasmtime::Result<()> {
        self.table.delete(handle)?;
        *self.open = self.open.saturating_sub(1);
        Ok(())
    }
}

impl<T> HostStoreWithStore<T> for Stores {
    async fn open(accessor: &Accessor<T, Self>, label: String) -> Result<Resource<OpenStore>, Error> {
        if label != LABEL {
            return Err(Error::NoSuchStore);
        }
        accessor.with(|mut access| {
            let view = access.get();
            if *view.open >= OPEN_MAX {
                return Err(Error::StoreTableFull);
            }
            let handle = view.table.push(OpenStore(())).map_err(|_| Error::StoreTableFull)?;
            *view.open += 1;
            Ok(handle)
        })
    }

    async fn get(accessor: &Accessor<T, Self>, _: Resource<OpenStore>, key: String) -> Result<Option<Vec<u8>>, Error> {
        on_disk(accessor, move |store| store.get(&key)).await
    }

    async fn set(
        accessor: &Accessor<T, Self>,
        _: Resource<OpenStore>,
        key: String,
        value: Vec<u8>,
    ) -> Result<(), Error> {
        if key.len() > KEY_BYTES {
            return Err(Error::Other(format!("a key has at most {KEY_BYTES} bytes")));
        }
        if value.len() > VALUE_BYTES {
            return Err(Error::Other(format!("a value has at most {VALUE_BYTES} bytes")));
        }
        on_disk(accessor, move |store| store.set(&key, &value)).await?
    }

    async fn delete(accessor: &Accessor<T, Self>, _: Resource<OpenStore>, key: String) -> Result<(), Error> {
        on_disk(accessor, move |store| store.delete(&key)).await
    }

    async fn exists(accessor: &Accessor<T, Self>, _: Resource<OpenStore>, key: String) -> Result<bool, Error> {
        on_disk(accessor, move |store| Ok(store.get(&key)?.is_some())).await
    }
}

/// The disk may be slow: another thread waits for it.
async fn on_disk<T, R: Send + 'static>(
    accessor: &Accessor<T, Stores>,
    work: impl FnOnce(&KeyValue) -> Result<R, redb::Error> + Send + 'static,
) -> Result<R, Error> {
    let failed = |e: &dyn Display| {
        tracing::error!(error = %e, "the key-value store failed");
        Error::Other("the store failed".to_owned())
    };
    let store = accessor.with(|mut access| access.get().store.clone());
    match tokio::task::spawn_blocking(move || work(&store)).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(e)) => Err(failed(&e)),
        Err(e) => Err(failed(&e)),
    }
}

pub(crate) fn add_to_linker<T: HasKeyValue + Send + 'static>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    key_value::add_to_linker::<_, Stores>(linker, T::key_value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_there_after_the_store_was_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.redb");
        let store = KeyValue::open(Some(&path)).unwrap();
        store.set("a", b"1").unwrap().unwrap();
        store.set("a", b"2").unwrap().unwrap();
        store.set("b", b"3").unwrap().unwrap();
        store.delete("b").unwrap();
        drop(store);
        let store = KeyValue::open(Some(&path)).unwrap();
        assert_eq!(store.get("a").unwrap().as_deref(), Some(&b"2"[..]));
        assert_eq!(store.get("b").unwrap(), None);
        drop(store);
        std::fs::write(&path, "something else").unwrap();
        assert!(KeyValue::open(Some(&path)).is_err());
    }

    #[test]
    fn the_number_of_keys_is_limited() {
        let store = KeyValue::open(None).unwrap();
        let write = store.0.begin_write().unwrap();
        {
            let mut table = write.open_table(TABLE).unwrap();
            for n in 0..KEYS_MAX {
                table.insert(n.to_string().as_str(), &b"x"[..]).unwrap();
            }
        }
        write.commit().unwrap();
        assert!(matches!(store.set("one more", b"x").unwrap(), Err(Error::Other(_))));
        store.set("7", b"y").unwrap().unwrap();
        assert_eq!(store.get("7").unwrap().as_deref(), Some(&b"y"[..]));
    }
}
