//! What has several inputs, or changes which rows there are.

use super::kinds::{Can, KINDS, LISTS, NUMBER, named};
use super::tables::{TABLES, has};
use super::writer::{Column, Relation, Writer};

impl Writer<'_> {
    /// By columns of one kind.
    pub(super) fn join(&mut self, depth: usize, wanted: &[usize]) -> Relation {
        // By dictionaries of numbers, hash joins of DataFusion's may fail: `Unsupported type for ArrayMap`.
        let is_key = |kind: &usize| KINDS[*kind].can >= Can::Key && KINDS[*kind].name != "numbers";
        let keys = (0..KINDS.len()).filter(is_key).collect::<Vec<_>>();
        let kind = self.choices.one(&keys);
        let left = self.relation(depth, &[wanted, &[kind]].concat());
        let right_depth = depth.min(self.choices.below(2));
        let right = self.relation(right_depth, &[kind]);
        let [a, b] = [(); 2].map(|()| self.name("q"));
        let of_kind = |relation: &Relation| {
            let of_kind = |column: &&Column| column.kind == Some(kind);
            relation.columns.iter().rfind(of_kind).map(|column| column.name.clone())
        };
        // In brackets: sqlparser takes an AND behind the second for a part of it.
        let operator = self.choices.weighted(&[(3, "="), (1, "IS NOT DISTINCT FROM")]);
        let condition = match (of_kind(&left), of_kind(&right)) {
            (Some(left), Some(right)) => format!("({a}.{left} {operator} {b}.{right})"),
            _ => format!("({a}.n {operator} {b}.n)"),
        };
        let join = self.choices.weighted(&[
            (4, "JOIN"),
            (3, "LEFT JOIN"),
            (2, "RIGHT JOIN"),
            (2, "FULL JOIN"),
            (1, "LEFT SEMI JOIN"),
            (1, "LEFT ANTI JOIN"),
        ]);
        let filter = match self.choices.rarely(4) {
            // Both sides have an `n`.
            true => format!(" AND {}", self.condition(&right.that(Can::Pass)[1..])),
            false => String::new(),
        };
        let (left_sql, right_sql) = (&left.sql, &right.sql);
        let from =
            format!("({left_sql}) AS {a} {join} ({right_sql}) AS {b} ON {condition}{filter}");
        let mut joined = left;
        if !join.ends_with("SEMI JOIN") && !join.ends_with("ANTI JOIN") {
            joined.columns.extend(right.columns);
            let is_ordered = !joined.order.is_empty() && !right.order.is_empty();
            joined.order.extend(right.order);
            joined.order.retain(|_| is_ordered);
        }
        let all = joined.all();
        // The other columns have names of their own.
        let all = all.strip_prefix("n").unwrap();
        let sql = format!("SELECT {a}.n AS n{all} FROM {from}");
        joined.with(sql)
    }

    /// Of the same kinds of two tables.
    pub(super) fn union(&mut self, wanted: &[usize]) -> Relation {
        let tables = [(); 2].map(|()| self.choices.weighted(&TABLES));
        let more = 1 + self.choices.below(3);
        let mut kinds = wanted.to_vec();
        kinds.extend((0..more).map(|_| self.choices.below(KINDS.len())));
        kinds.retain(|kind| tables.iter().all(|table| has(table, *kind)));
        let [mut first, mut second] = tables.map(|table| self.columns_of(table, &kinds));
        if self.choices.rarely(2) {
            [first, second] = [first, second].map(|branch| self.predict_number(branch));
        }
        let branch = self.name("i");
        let (all, others) = (first.all(), second.all());
        let [a, b] = [(); 2].map(|()| self.name("q"));
        let sql = format!(
            "SELECT {all}, 1 AS {branch} FROM ({}) AS {a} UNION ALL SELECT {others}, 2 FROM ({}) AS {b}",
            first.sql, second.sql
        );
        first.order.push(branch.clone());
        first.with(sql).and(branch, named(NUMBER))
    }

    pub(super) fn groups(&mut self, input: Relation) -> Relation {
        // But for `n`, which is another one above.
        let keys = input.that(Can::Key).split_off(1);
        let count = 1 + self.choices.below(2);
        let mut by: Vec<Column> = (0..count).map(|_| self.choices.one(&keys)).collect();
        by.dedup_by(|one, other| one.name == other.name);
        let mut columns: Vec<Column> = by.clone();
        let mut sql = "SELECT CAST(count(*) % 12 AS BIGINT) AS n".to_owned();
        by.iter().for_each(|key| sql.push_str(&format!(", {}", key.name)));
        for _ in 0..self.choices.below(4) {
            let (value, kind) = self.aggregate(&input);
            let name = self.name("x");
            sql.push_str(&format!(", {value} AS {name}"));
            columns.push(Column { name, kind });
        }
        let names: Vec<String> = by.iter().map(|key| key.name.clone()).collect();
        let alias = self.name("q");
        let is_sorted = by.iter().all(|key| KINDS[key.kind.unwrap()].can == Can::Sort);
        let group = names.join(", ");
        let sql = format!("{sql} FROM ({}) AS {alias} GROUP BY {group}", input.sql);
        Relation { sql, columns, order: if is_sorted { names } else { vec![] } }
    }

    /// What does not depend on the order of rows.
    fn aggregate(&mut self, input: &Relation) -> (String, Option<usize>) {
        let [any, key, sortable] =
            [Can::Pass, Can::Key, Can::Sort].map(|can| self.choices.one(&input.that(can)));
        let (any_name, order) = (&any.name, input.order.join(", "));
        match self.choices.below(if order.is_empty() { 6 } else { 9 }) {
            0 => ("count(*)".to_owned(), named(NUMBER)),
            1 => (format!("count({any_name})"), named(NUMBER)),
            2 => (format!("max({})", sortable.name), None),
            3 => (format!("min({})", sortable.name), None),
            4 => (format!("count(DISTINCT {})", key.name), named(NUMBER)),
            5 => ("sum(CAST(n AS DECIMAL(20, 3)))".to_owned(), None),
            6 => (format!("array_agg({any_name} ORDER BY {order})"), None),
            7 => (format!("first_value({any_name} ORDER BY {order})"), any.kind),
            _ => (format!("last_value({any_name} ORDER BY {order} DESC)"), any.kind),
        }
    }

    pub(super) fn top(&mut self, input: Relation) -> Relation {
        let mut by = input.order.clone();
        if by.is_empty() {
            return input;
        }
        let first = self.choices.one(&input.that(Can::Sort)).name;
        let direction = self.choices.one(&["", " DESC", " DESC NULLS LAST", " NULLS FIRST"]);
        by.insert(0, first + direction);
        let limit = self.choices.one(&["", " LIMIT 5", " LIMIT 3 OFFSET 2", " LIMIT 1"]);
        let (all, alias, by) = (input.all(), self.name("q"), by.join(", "));
        let sql = format!("SELECT {all} FROM ({}) AS {alias} ORDER BY {by}{limit}", input.sql);
        input.with(sql)
    }

    /// A row for each item of a list.
    pub(super) fn unnest(&mut self, depth: usize, wanted: &[usize]) -> Relation {
        let (list, item) = self.choices.one(&LISTS);
        let list = named(list).unwrap();
        let mut input = self.relation(depth, &[wanted, &[list]].concat());
        let of_kind = |column: &&Column| column.kind == Some(list);
        let column = input.columns.iter().rfind(of_kind).map(|column| column.name.clone());
        let Some(column) = column else { return input };
        let item = named(item);
        let (all, name, alias) = (input.all(), self.name("x"), self.name("q"));
        let sql =
            format!("SELECT {all}, unnest({column}) AS {name} FROM ({}) AS {alias}", input.sql);
        match item.is_some() {
            true if !input.order.is_empty() => input.order.push(name.clone()),
            _ => input.order.clear(),
        }
        input.with(sql).and(name, item)
    }

    pub(super) fn window(&mut self, input: Relation) -> Relation {
        let [any, key] = [Can::Pass, Can::Key].map(|can| self.choices.one(&input.that(can)));
        let (any_name, key, order) = (&any.name, &key.name, input.order.join(", "));
        let (value, kind) = match self.choices.below(if order.is_empty() { 1 } else { 5 }) {
            0 => (format!("count(*) OVER (PARTITION BY {key})"), named(NUMBER)),
            1 => (format!("row_number() OVER (PARTITION BY {key} ORDER BY {order})"), None),
            2 => (format!("lag({any_name}) OVER (ORDER BY {order})"), any.kind),
            3 => (
                format!("first_value({any_name}) OVER (PARTITION BY {key} ORDER BY {order})"),
                any.kind,
            ),
            _ => (format!("count({any_name}) OVER (ORDER BY {order})"), named(NUMBER)),
        };
        let (all, name, alias) = (input.all(), self.name("x"), self.name("q"));
        let sql = format!("SELECT {all}, {value} AS {name} FROM ({}) AS {alias}", input.sql);
        input.with(sql).and(name, kind)
    }
}
