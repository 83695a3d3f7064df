//! Values of this process that are expensive to make: made once, and kept while somebody uses them
//! or nobody wants their room.

use std::collections::HashMap;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OnceCell;

use crate::error::EngineError;

/// Values that are made once per key, while everyone else who asks waits for the first.
pub(super) struct Once<K, V: ?Sized> {
    cells: Mutex<HashMap<K, Arc<OnceCell<Arc<V>>>>>,
}

impl<K, V: ?Sized> Default for Once<K, V> {
    fn default() -> Self {
        Self { cells: Mutex::new(HashMap::new()) }
    }
}

impl<K: Eq + Hash, V: ?Sized> Once<K, V> {
    /// Puts another value in the place of one that there is.
    #[cfg(test)]
    pub(super) fn replace_any(&self, value: Arc<V>) {
        let cell = Arc::new(OnceCell::new_with(Some(value)));
        *self.cells.lock().values_mut().next().unwrap() = cell;
    }

    /// The value of `key`. A failure is not remembered: the next caller tries again. Callers box
    /// `make`, which is large (it may download) and would be copied into every future around it.
    pub(super) async fn get(
        &self,
        key: K,
        make: Pin<Box<impl Future<Output = Result<Arc<V>, EngineError>>>>,
    ) -> Result<Arc<V>, EngineError> {
        let cell = Arc::clone(self.cells.lock().entry(key).or_default());
        cell.get_or_try_init(|| make).await.map(Arc::clone)
    }

    /// Forgets a value that nobody uses; whether it did.
    pub(super) fn remove_idle(&self, key: &K) -> bool {
        let mut cells = self.cells.lock();
        let is_idle = cells.get(key).is_some_and(|cell| {
            Arc::strong_count(cell) == 1
                && cell.get().is_some_and(|value| Arc::strong_count(value) == 1)
        });
        is_idle && cells.remove(key).is_some()
    }

    /// Whether there is a value, or somebody makes it.
    pub(super) fn has(&self, key: &K) -> bool {
        self.cells.lock().get(key).is_some_and(is_made_or_wanted)
    }

    pub(super) fn clear_idle(&self) -> usize {
        let mut cells = self.cells.lock();
        let made = |cells: &HashMap<K, Arc<OnceCell<Arc<V>>>>| {
            cells.values().filter(|cell| cell.initialized()).count()
        };
        let before = made(&cells);
        cells.retain(|_, cell| {
            let in_use = cell.get().is_some_and(|value| Arc::strong_count(value) > 1);
            in_use || Arc::strong_count(cell) > 1
        });
        before - made(&cells)
    }

    pub(super) fn len(&self) -> usize {
        self.cells.lock().values().filter(|cell| cell.initialized()).count()
    }
}

/// A cell is left empty where making its value failed or was given up.
fn is_made_or_wanted<V: ?Sized>(cell: &Arc<OnceCell<Arc<V>>>) -> bool {
    cell.initialized() || Arc::strong_count(cell) > 1
}
