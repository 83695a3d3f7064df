//! A tournament tree of losers: which of several inputs comes first, and who is next when that one goes on.
//!
//! D. E. Knuth, The Art of Computer Programming, volume 3, section 5.4.1. Each node knows who lost there, so only the
//! path from the input that goes on to the root is played again.
//!
//! ```text
//!            first
//!              1                 nodes, with their losers
//!          2       3
//!         0 1     2 3            inputs
//! ```

/// Where an input stands: what its row compares by first, a smaller number before a greater one.
#[derive(Clone, Copy, Debug)]
struct Player {
    prefix: u128,
    input: usize,
}

/// The players, all but the first of them at the node where they lost.
#[derive(Debug)]
pub(super) struct LoserTree {
    first: Player,
    /// Of node `n` at `n`; at 0 is nobody's.
    losers: Vec<Player>,
}

impl LoserTree {
    /// Of inputs with these prefixes, one at least. Of two with the same, `is_before` says whether the first one named is
    /// the one before: it is a total order of inputs, none equal.
    pub(super) fn new(prefixes: &[u128], is_before: impl Fn(usize, usize) -> bool) -> Self {
        let leaf = |(input, prefix): (usize, &u128)| Player { prefix: *prefix, input };
        let leaves: Vec<Player> = prefixes.iter().enumerate().map(leaf).collect();
        let nodes = leaves.len();
        // Who comes out of a node, as far as it is played: of leaves behind the nodes, themselves.
        let mut winners = [leaves.clone(), leaves].concat();
        let mut losers = winners[..nodes].to_vec();
        for node in (1..nodes).rev() {
            let (left, right) = (winners[2 * node], winners[2 * node + 1]);
            let (winner, loser) =
                if wins(left, right, &is_before) { (left, right) } else { (right, left) };
            (winners[node], losers[node]) = (winner, loser);
        }
        let first = winners[if nodes == 1 { 0 } else { 1 }];
        Self { first, losers }
    }

    /// The input whose row comes first.
    pub(super) fn first(&self) -> usize {
        self.first.input
    }

    /// That input has gone on to a row with this prefix.
    pub(super) fn advance(&mut self, prefix: u128, is_before: impl Fn(usize, usize) -> bool) {
        let mut player = Player { prefix, input: self.first.input };
        let mut node = usize::midpoint(self.losers.len(), player.input);
        while node > 0 {
            let loser = self.losers[node];
            // No processor foresees who wins: both are written, which needs no branch.
            let goes_on = wins(loser, player, &is_before);
            self.losers[node] = if goes_on { player } else { loser };
            player = if goes_on { loser } else { player };
            node /= 2;
        }
        self.first = player;
    }
}

fn wins(a: Player, b: Player, is_before: impl Fn(usize, usize) -> bool) -> bool {
    if a.prefix == b.prefix { is_before(a.input, b.input) } else { a.prefix < b.prefix }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Numbers of several inputs with a prefix of their tens: beside the least of all that are left, each time.
        #[test]
        fn it_gives_the_least_of_all_inputs_in_their_order(
            mut inputs in prop::collection::vec(prop::collection::vec(0..60_u8, 0..30), 1..70)
        ) {
            for numbers in &mut inputs {
                numbers.sort_unstable_by(|a, b| b.cmp(a));
            }
            let prefix = |inputs: &[Vec<u8>], at: usize| {
                inputs[at].last().map_or(u128::MAX, |number| u128::from(number / 10))
            };
            // An input that has ended is behind all.
            let key = |inputs: &[Vec<u8>], at: usize| {
                (inputs[at].last().copied().unwrap_or(u8::MAX), at)
            };
            let all = 0..inputs.len();
            let prefixes: Vec<_> = all.clone().map(|at| prefix(&inputs, at)).collect();
            let mut tree = LoserTree::new(&prefixes, |a, b| key(&inputs, a) < key(&inputs, b));
            for _ in 0..inputs.iter().map(Vec::len).sum() {
                let least = all.clone().min_by_key(|at| key(&inputs, *at)).unwrap();
                prop_assert_eq!(tree.first(), least);
                inputs[least].pop();
                let next = prefix(&inputs, least);
                tree.advance(next, |a, b| key(&inputs, a) < key(&inputs, b));
            }
            prop_assert!(inputs[tree.first()].is_empty());
        }
    }
}
