//! SELECT, and what it does with rows: all, distinct, the first, groups, windows.

use super::writer::{Scope, Writer};

#[derive(Clone, Copy)]
enum Kind {
    Rows,
    Distinct,
    Top,
    Groups,
    Total,
    GroupingSets,
    Window,
    DistinctOn,
}

impl Writer<'_> {
    pub(super) fn select(&mut self) -> String {
        match self.choices.weighted(&[
            (8, Kind::Rows),
            (1, Kind::Distinct),
            (2, Kind::Top),
            (3, Kind::Groups),
            (1, Kind::Total),
            (1, Kind::GroupingSets),
            (3, Kind::Window),
            (1, Kind::DistinctOn),
        ]) {
            Kind::Rows => self.rows("SELECT"),
            Kind::Distinct => self.rows("SELECT DISTINCT"),
            Kind::Top => self.top(),
            Kind::Groups => self.groups(1),
            Kind::Total => self.groups(0),
            Kind::GroupingSets => self.grouping_sets(),
            Kind::Window => self.window(),
            Kind::DistinctOn => self.distinct_on(),
        }
    }

    fn rows(&mut self, select: &str) -> String {
        let (from, scope) = self.from();
        let filter = self.filter(&scope);
        let [id, grp, val] = self.items(&scope);
        format!("{select} {id} AS id, {grp} AS grp, {val} AS val FROM {from}{filter}")
    }

    fn items(&mut self, scope: &Scope) -> [String; 3] {
        let [id, grp] = [(); 2].map(|()| self.key(scope, 2));
        [id, grp, self.item(scope)]
    }

    /// The first rows of an order that leaves nothing open.
    fn top(&mut self) -> String {
        let (from, scope) = self.from();
        let filter = self.filter(&scope);
        let [id, grp, val] = self.items(&scope);
        let key = self.value(&scope, 2);
        let direction = self.direction();
        let limit = self.limit();
        // By other names than those of columns, which DataFusion confuses here.
        format!(
            "SELECT a AS id, b AS grp, c AS val FROM (SELECT {id} AS a, {grp} AS b, {val} AS c \
             FROM {from}{filter} ORDER BY {key}{direction}, \
             1 NULLS LAST, 2 NULLS LAST, 3 NULLS LAST{limit}) AS s"
        )
    }

    pub(super) fn direction(&mut self) -> &'static str {
        self.choices.one(&[" NULLS LAST", " DESC NULLS FIRST", " DESC NULLS LAST", " NULLS FIRST"])
    }

    pub(super) fn limit(&mut self) -> String {
        let [limit, offset] = [8, 4].map(|most| self.choices.below(most));
        match self.choices.below(4) {
            0 | 1 => format!(" LIMIT {limit}"),
            2 => format!(" LIMIT {limit} OFFSET {offset}"),
            _ => format!(" OFFSET {offset}"),
        }
    }

    /// An order in which only equal rows change places.
    pub(super) fn total_order(&mut self, scope: &Scope) -> String {
        let first = self.value(scope, 2);
        let first = format!("{first}{}", self.direction());
        self.total_order_after(first, "", scope)
    }

    fn total_order_after(&mut self, first: String, column: &str, scope: &Scope) -> String {
        let rest = scope.all().into_iter().filter(|rest| rest != column);
        let rest = rest.map(|column| format!("{column} NULLS LAST"));
        std::iter::once(first).chain(rest).collect::<Vec<_>>().join(", ")
    }

    fn distinct_on(&mut self) -> String {
        let (from, scope) = self.from();
        let filter = self.filter(&scope);
        let on = self.key(&scope, 2);
        let first = format!("{on}{}", self.direction());
        let order = self.total_order_after(first, &on, &scope);
        let [id, grp] = [(); 2].map(|()| self.key(&scope, 2));
        let value = self.value(&scope, 2);
        format!(
            "SELECT DISTINCT ON ({on}) {id} AS id, {grp} AS grp, {value} AS val \
             FROM {from}{filter} ORDER BY {order}"
        )
    }
}
