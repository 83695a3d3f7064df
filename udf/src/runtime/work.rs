//! How much a model computes, as a function of what a batch is.

/// Floating point operations of a batch: two for each product of two numbers that is added up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Work {
    row: f64,
    token: f64,
    /// For each pair of a row's tokens, as attention has them.
    pair: f64,
}

impl Work {
    /// As much for each row, and for each of its tokens.
    pub(super) fn per(row: f64, token: f64) -> Self {
        Self { row, token, pair: 0.0 }
    }

    /// What three rows of different lengths, each by itself, say of all.
    pub(super) fn through([first, second, third]: [(f64, f64); 3]) -> Self {
        let slope = |(x, y): (f64, f64), (to_x, to_y): (f64, f64)| (to_y - y) / (to_x - x);
        let pair = (slope(first, third) - slope(first, second)) / (third.0 - second.0);
        let token = slope(first, second) - pair * (first.0 + second.0);
        let row = first.1 - token * first.0 - pair * first.0 * first.0;
        Self { row, token, pair }
    }

    /// Of a batch of so many rows and, padding included, tokens.
    pub(super) fn of(&self, rows: usize, padded: usize) -> f64 {
        let (rows, tokens) = (rows as f64, padded as f64);
        let pairs = if rows > 0.0 { tokens * tokens / rows } else { 0.0 };
        (self.row * rows + self.token * tokens + self.pair * pairs).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_lengths_say_what_batches_take() {
        let taken = |length: f64| 7.0 + 5.0 * length + 3.0 * length * length;
        let lengths = [4.0, 8.0, 20.0];
        let work = Work::through(lengths.map(|length| (length, taken(length))));
        // Ten rows of 12 tokens.
        assert!((work.of(10, 120) - 10.0 * taken(12.0)).abs() < 1e-6);
        assert_eq!(work.of(0, 0), 0.0);
        assert_eq!(Work::per(2.0, 3.0).of(4, 10), 38.0);
    }
}
