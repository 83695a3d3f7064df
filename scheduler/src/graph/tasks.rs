//! All attempts at a stage's units, by their numbers.
//!
//! A number is given once. Whoever goes on in place of another scheduler does not know the last ones that it gave, and
//! [passes over](Tasks::pass_over) as many as these may be: no task has them here.

use std::ops::{Index, IndexMut};

use serde::{Deserialize, Serialize};

use super::unit::Task;

/// Tasks in the order in which they were bound, which is that of their numbers.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tasks {
    list: Vec<Task>,
    gaps: Vec<Gap>,
}

/// From one place in the list on, numbers are greater than places.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Gap {
    place: usize,
    /// By so much; by less before.
    by: usize,
}

impl Tasks {
    /// The number of the next one.
    pub(super) fn next_number(&self) -> u32 {
        (self.list.len() + self.passed_over()) as u32
    }

    /// How many numbers no task has.
    fn passed_over(&self) -> usize {
        self.gaps.last().map_or(0, |gap| gap.by)
    }

    /// Gives so many numbers to nobody.
    pub(super) fn pass_over(&mut self, numbers: u32) {
        let (place, by) = (self.list.len(), self.passed_over() + numbers as usize);
        // Those who did nothing leave no trace.
        self.gaps.pop_if(|gap| gap.place == place);
        self.gaps.push(Gap { place, by });
    }

    /// Appends one, under the next number.
    pub(super) fn push(&mut self, task: Task) {
        self.list.push(task);
    }

    /// Where the one with this number is, if there is one.
    fn place(&self, number: u32) -> Option<usize> {
        let number = number as usize;
        let mut end = self.list.len();
        for gap in self.gaps.iter().rev() {
            if number >= gap.place + gap.by {
                return Some(number - gap.by).filter(|place| *place < end);
            }
            end = gap.place;
        }
        Some(number).filter(|place| *place < end)
    }

    pub(super) fn get(&self, number: u32) -> Option<&Task> {
        self.place(number).map(|place| &self.list[place])
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Task> {
        self.place(number).map(|place| &mut self.list[place])
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The one that was bound first.
    pub(super) fn first(&self) -> Option<&Task> {
        self.list.first()
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Task> {
        self.list.iter()
    }

    /// All of them, with their numbers.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (u32, &Task)> {
        let mut gaps = self.gaps.iter().peekable();
        let mut by = 0;
        self.list.iter().enumerate().map(move |(place, task)| {
            while let Some(gap) = gaps.next_if(|gap| gap.place <= place) {
                by = gap.by;
            }
            ((place + by) as u32, task)
        })
    }
}

impl Index<u32> for Tasks {
    type Output = Task;

    /// Of a task that was bound.
    fn index(&self, number: u32) -> &Task {
        self.get(number).unwrap_or_else(|| unreachable!("task {number} is named and not recorded"))
    }
}

impl IndexMut<u32> for Tasks {
    fn index_mut(&mut self, number: u32) -> &mut Task {
        let found = self.get_mut(number);
        found.unwrap_or_else(|| unreachable!("task {number} is named and not recorded"))
    }
}

#[cfg(test)]
mod tests {
    use forebay_testkit::random::Random;

    use super::*;
    use crate::graph::unit::TaskState;
    use crate::graph::{Millis, WorkerId};
    use crate::resources::Lease;

    fn task(unit: u32) -> Task {
        Task {
            unit,
            attempt: 1,
            worker: WorkerId::new("w"),
            lease: Lease::default(),
            state: TaskState::Running,
            holds_lease: true,
            started: Millis(0),
            ended: None,
            bytes: 0,
            rows: 0,
            expected_left: 0,
            expected_here: 0,
            unread_milli: 0,
            skip: vec![],
            reason: String::new(),
        }
    }

    /// Against a list with a place for each number.
    #[test]
    fn numbers_that_were_passed_over_are_of_no_task_and_all_others_of_theirs() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let mut tasks = Tasks::default();
            let mut plain: Vec<Option<u32>> = vec![];
            for unit in 0..random.below(40) as u32 {
                if random.chance(30) {
                    let numbers = random.below(5) as u32;
                    tasks.pass_over(numbers);
                    plain.extend((0..numbers).map(|_| None));
                }
                assert_eq!(tasks.next_number() as usize, plain.len());
                tasks.push(task(unit));
                plain.push(Some(unit));
            }
            tasks.pass_over(2);
            plain.extend([None; 5]);
            let found: Vec<_> =
                (0..plain.len() as u32).map(|number| Some(tasks.get(number)?.unit)).collect();
            assert_eq!(found, plain, "seed {seed}");
            let numbered = tasks.numbered().map(|(number, task)| (number as usize, task.unit));
            let expected = plain.iter().enumerate();
            let expected = expected.filter_map(|(number, unit)| Some((number, (*unit)?)));
            assert!(numbered.eq(expected), "seed {seed}");
            assert_eq!(tasks.len(), plain.iter().flatten().count());
        }
    }
}
