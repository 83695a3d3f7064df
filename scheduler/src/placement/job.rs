//! A job as a round of placement sees it.

use crate::graph::JobGraph;

use super::Admission;
use super::budget::PaperBudget;

/// A job that wants to run.
#[derive(Debug)]
pub struct Job<'a> {
    /// What tells it from the others, in this round and those before.
    pub id: &'a str,
    /// Its graph, in which what is placed is bound.
    pub graph: &'a mut JobGraph,
    /// Its part of the cluster, relative to the weights of the others.
    pub weight: u32,
    /// How its producers are held back.
    pub admission: Admission,
    /// What the paper's policy remembers of it.
    pub paper: &'a mut PaperBudget,
}
