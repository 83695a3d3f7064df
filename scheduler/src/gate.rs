//! What is let in until a process ends, and waited for then.

use std::sync::Arc;

use tokio::sync::watch;

/// Whatever runs is inside. Once it closes, nothing more comes in.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    /// Whether it is closed; who is inside listens.
    closed: Arc<watch::Sender<bool>>,
}

/// Something inside, until it is dropped.
#[derive(Debug)]
pub struct Inside {
    _listens: watch::Receiver<bool>,
}

impl Gate {
    /// Lets something in, unless the gate is closed.
    pub fn enter(&self) -> Option<Inside> {
        // In this order: whoever closes the gate meanwhile waits for it.
        let inside = Inside { _listens: self.closed.subscribe() };
        (!self.is_closed()).then_some(inside)
    }

    /// Whether nothing more is let in.
    pub fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Whether nothing is inside.
    pub fn is_empty(&self) -> bool {
        self.closed.receiver_count() == 0
    }

    /// Lets nothing more in, and waits until nothing is inside.
    pub async fn drain(&self) {
        self.closed.send_replace(true);
        self.closed.closed().await;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_closed_gate_waits_for_what_is_inside_and_lets_nothing_in() {
        let gate = Gate::default();
        assert!(gate.is_empty() && !gate.is_closed());
        let (first, second) = (gate.enter().unwrap(), gate.clone().enter().unwrap());
        let mut drained = Box::pin(gate.drain());
        assert!((&mut drained).now_or_never().is_none());
        assert!(gate.is_closed() && gate.enter().is_none());
        drop(first);
        assert!((&mut drained).now_or_never().is_none());
        drop(second);
        assert!(drained.now_or_never().is_some() && gate.is_empty());
    }
}
