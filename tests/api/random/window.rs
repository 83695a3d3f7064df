//! Window functions, and QUALIFY.

use super::writer::{Scope, Writer};

impl Writer<'_> {
    pub(super) fn window(&mut self) -> String {
        let (from, scope) = self.from();
        let filter = self.filter(&scope);
        let windows: Vec<String> =
            (0..=self.choices.below(2)).map(|_| self.window_call(&scope)).collect();
        let above = Scope { keys: vec![], values: windows }.and(&scope);
        let [id, grp] = [(); 2].map(|()| self.key(&scope, 2));
        let value = match self.choices.rarely(3) {
            false => above.values[0].clone(),
            true => self.value(&above, 2),
        };
        let qualify = match self.choices.rarely(3) {
            true => {
                let operator = self.choices.one(&["AND", "OR"]);
                let condition = self.condition(&above, 2);
                // DataFusion wants a window function in it.
                format!(" QUALIFY {} % 2 = 0 {operator} {condition}", above.values[0])
            }
            false => String::new(),
        };
        format!("SELECT {id} AS id, {grp} AS grp, {value} AS val FROM {from}{filter}{qualify}")
    }

    fn window_call(&mut self, scope: &Scope) -> String {
        let value = self.value(scope, 2);
        let partition = match self.choices.below(3) {
            0 => String::new(),
            _ => format!("PARTITION BY {} ", self.key(scope, 2)),
        };
        let order = format!("ORDER BY {}", self.total_order(scope));
        let frame = self.choices.one(&[
            "",
            " ROWS BETWEEN 1 PRECEDING AND CURRENT ROW",
            " ROWS BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING",
            " ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
        ]);
        match self.choices.below(9) {
            0 => format!("count(*) OVER ({partition})"),
            1 => format!("max({value}) OVER ({partition})"),
            2 => format!("CAST(row_number() OVER ({partition}{order}) AS BIGINT)"),
            3 => format!("CAST(rank() OVER ({partition}{order}) AS BIGINT)"),
            4 => format!("min({value}) OVER ({partition}{order}{frame})"),
            5 => format!("sum({}) OVER ({partition}{order}{frame})", self.key(scope, 2)),
            6 => format!("lag({value}, 1) OVER ({partition}{order})"),
            7 => format!("first_value({value}) OVER ({partition}{order}{frame})"),
            _ => format!("last_value({value}) OVER ({partition}{order}{frame})"),
        }
    }
}
