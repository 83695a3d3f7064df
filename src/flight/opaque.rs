//! Values that the compiler need not look into.

use std::fmt;
use std::ops::Deref;

/// A value of which it is settled that it may be sent and shared.
///
/// Sessions and plans of DataFusion are trees of hundreds of types. Every method of an async trait
/// makes the compiler prove for all of them, again, that what the method holds may be sent; for what
/// is behind a trait object it has been proved once, here. Without it this crate takes three times
/// as long to compile.
pub(super) struct Opaque<T>(Box<dyn Holds<T> + Send + Sync>);

trait Holds<T> {
    fn held(&self) -> &T;
}

impl<T> Holds<T> for T {
    fn held(&self) -> &T {
        self
    }
}

impl<T: Send + Sync + 'static> Opaque<T> {
    pub(super) fn new(value: T) -> Self {
        Self(Box::new(value))
    }
}

impl<T> Deref for Opaque<T> {
    type Target = T;

    fn deref(&self) -> &T {
        (*self.0).held()
    }
}

impl<T: fmt::Debug> fmt::Debug for Opaque<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
