//! Groups and their aggregates.

use super::writer::{KEYS, Scope, Writer};

impl Writer<'_> {
    /// By so many keys, or one more.
    pub(super) fn groups(&mut self, keys: usize) -> String {
        let (from, scope) = self.from();
        let filter = self.filter(&scope);
        let keys = keys + usize::from(keys > 0 && self.choices.rarely(3));
        let by: Vec<String> = (0..keys).map(|_| self.key(&scope, 2)).collect();
        let group = match by.is_empty() {
            true => String::new(),
            false => format!(" GROUP BY {}", by.join(", ")),
        };
        let scope = self.grouped(&scope, by);
        let having = match self.choices.rarely(3) {
            true => format!(" HAVING {}", self.condition(&scope, 2)),
            false => String::new(),
        };
        let [id, grp] = [(); 2].map(|()| self.key(&scope, 2));
        let value = self.value(&scope, 2);
        format!(
            "SELECT {id} AS id, {grp} AS grp, {value} AS val FROM {from}{filter}{group}{having}"
        )
    }

    /// What can be named above groups.
    fn grouped(&mut self, scope: &Scope, by: Vec<String>) -> Scope {
        let values = (0..=self.choices.below(2)).map(|_| self.aggregate(scope)).collect();
        Scope { keys: [by, vec!["(count(*) % 12)".to_owned()]].concat(), values }
    }

    fn aggregate(&mut self, scope: &Scope) -> String {
        let value = self.value(scope, 2);
        let call = match self.choices.below(8) {
            0 => "count(*)".to_owned(),
            1 => format!("max({value})"),
            2 => format!("min({value})"),
            3 => format!("count({value})"),
            4 => format!("count(DISTINCT {value})"),
            5 => format!("sum({})", self.key(scope, 2)),
            6 => format!("first_value({value} ORDER BY {})", self.total_order(scope)),
            _ => format!("sum(DISTINCT {})", self.key(scope, 2)),
        };
        match self.choices.rarely(4) {
            true => format!("{call} FILTER (WHERE {})", self.condition(scope, 2)),
            false => call,
        }
    }

    pub(super) fn grouping_sets(&mut self) -> String {
        let (from, scope) = self.from();
        let filter = self.filter(&scope);
        // DataFusion wants each key once. What is one key of the reference may be two of the query, as a call is
        // written in several ways.
        let [a, b] = [self.key(&scope, 2), format!("nullif({}, {KEYS})", self.key(&scope, 2))];
        let sets = match self.choices.below(4) {
            0 => format!("ROLLUP ({a}, {b})"),
            1 => format!("CUBE ({a}, {b})"),
            2 => format!("GROUPING SETS (({a}), ({b}), ())"),
            _ => format!("GROUPING SETS (({a}, {b}), ({a}))"),
        };
        let aggregate = self.aggregate(&scope);
        format!(
            "SELECT {a} AS id, {b} AS grp, {aggregate} AS val FROM {from}{filter} GROUP BY {sets}"
        )
    }
}
