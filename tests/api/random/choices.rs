//! Where a random query comes from: a row of numbers, each of which decides something.

/// Where the numbers end, everything is the simplest there is. So a query shrinks with its numbers:
/// fewer of them are a shorter query, smaller ones a simpler one.
#[derive(Debug)]
pub(in crate::api) struct Choices<'a>(std::slice::Iter<'a, u16>);

impl<'a> Choices<'a> {
    pub(in crate::api) fn new(numbers: &'a [u16]) -> Self {
        Self(numbers.iter())
    }

    /// A number below the limit.
    pub(in crate::api) fn below(&mut self, limit: usize) -> usize {
        self.0.next().map_or(0, |number| (usize::from(*number) * limit) >> 16)
    }

    /// One of these, the simplest of which comes first.
    pub(in crate::api) fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    /// Once in so many times.
    pub(in crate::api) fn rarely(&mut self, times: usize) -> bool {
        self.below(times) + 1 == times && times > 1
    }

    /// One of these, each as often as its weight says.
    pub(in crate::api) fn weighted<T: Clone>(&mut self, of: &[(usize, T)]) -> T {
        let mut at = self.below(of.iter().map(|(weight, _)| weight).sum());
        let mut items = of.iter();
        loop {
            let (weight, item) = items.next().unwrap();
            match at.checked_sub(*weight) {
                Some(rest) => at = rest,
                None => return item.clone(),
            }
        }
    }
}
