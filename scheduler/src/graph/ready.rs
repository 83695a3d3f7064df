//! What of one stage can be bound now, by the worker that holds the input.
//!
//! Kept up to date by every transition, so that nobody looks through all units to find work.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::ids::{BlockId, EdgeId, Millis, UnitId, WorkerId};

/// One thing to bind. Units come first: they are re-runs, or were there before the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ReadyItem {
    /// A unit whose inputs are all there.
    Unit(u32),
    /// The whole output of a unit, which no unit of this stage has as input.
    Output {
        /// The edge that it comes over.
        edge: EdgeId,
        /// The unit that gave it.
        unit: UnitId,
    },
    /// A sealed block that no unit of this stage has as input.
    Block {
        /// The edge that it comes over.
        edge: EdgeId,
        /// The block.
        block: BlockId,
    },
}

/// The work of one stage that has its inputs.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    by_home: BTreeMap<Option<WorkerId>, BTreeSet<ReadyItem>>,
    homes: BTreeMap<ReadyItem, Option<WorkerId>>,
    /// Units that wait after a failure, by the time when they may run.
    delayed: BTreeSet<(Millis, u32)>,
}

impl Ready {
    pub(super) fn insert(&mut self, item: ReadyItem, home: Option<WorkerId>) {
        self.remove(item);
        self.by_home.entry(home.clone()).or_default().insert(item);
        self.homes.insert(item, home);
    }

    pub(super) fn remove(&mut self, item: ReadyItem) {
        let Some(home) = self.homes.remove(&item) else { return };
        if let Some(items) = self.by_home.get_mut(&home) {
            items.remove(&item);
            if items.is_empty() {
                self.by_home.remove(&home);
            }
        }
    }

    pub(super) fn delay(&mut self, unit: u32, until: Millis) {
        self.remove(ReadyItem::Unit(unit));
        self.delayed.insert((until, unit));
    }

    pub(super) fn undelay(&mut self, unit: u32, until: Millis) {
        self.delayed.remove(&(until, unit));
    }

    /// Takes one unit out whose wait is over.
    pub(super) fn pop_delayed(&mut self, now: Millis) -> Option<u32> {
        let (until, unit) = self.delayed.first().copied()?;
        (until <= now).then(|| {
            self.delayed.pop_first();
            unit
        })
    }

    pub(super) fn next_delayed(&self) -> Option<Millis> {
        self.delayed.first().map(|(until, _)| *until)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn contains(&self, item: ReadyItem) -> bool {
        self.homes.contains_key(&item)
    }

    /// Where something is listed, if it is.
    pub(super) fn home_of(&self, item: ReadyItem) -> Option<&Option<WorkerId>> {
        self.homes.get(&item)
    }

    pub(super) fn is_delayed(&self, unit: u32, until: Millis) -> bool {
        self.delayed.contains(&(until, unit))
    }

    /// How many things could be bound.
    pub fn len(&self) -> usize {
        self.homes.len()
    }

    /// Whether there is nothing to bind.
    pub fn is_empty(&self) -> bool {
        self.homes.is_empty()
    }

    /// The workers that hold inputs, in order, from this one on.
    pub fn homes_from(&self, first: Option<WorkerId>) -> impl Iterator<Item = &WorkerId> {
        self.by_home.range(first..).filter_map(|(home, _)| home.as_ref())
    }

    /// How many workers hold inputs. What lies nowhere, or anywhere, counts as one.
    pub fn homes(&self) -> usize {
        self.by_home.len()
    }

    /// Whether this worker holds inputs.
    pub fn holds(&self, home: &WorkerId) -> bool {
        self.by_home.contains_key(&Some(home.clone()))
    }

    /// What has its input on this worker, in order.
    pub fn at(&self, home: Option<&WorkerId>) -> impl Iterator<Item = ReadyItem> {
        self.by_home.get(&home.cloned()).into_iter().flatten().copied()
    }

    /// All of it, in order.
    pub fn iter(&self) -> impl Iterator<Item = ReadyItem> {
        self.homes.keys().copied()
    }

    /// The first of all.
    pub fn first(&self) -> Option<ReadyItem> {
        self.homes.keys().next().copied()
    }
}
