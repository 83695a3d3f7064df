//! Writes a random query twice, in the same words: once models compute, once what they give is looked
//! up. Its operators stand in any order above tables with columns of any kind.

use super::kinds::{Can, KINDS, NUMBER, named};
use super::models::{Model, Models};
use super::tables::{TABLES, has};
use crate::api::random::choices::Choices;
use crate::api::random::writer::{By, Written};

/// How many operators stand above each other.
const DEPTH: usize = 5;
/// Columns of a table in a query, at the most.
const COLUMNS_MAX: usize = 4;

#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) name: String,
    /// Its kind, if it has one that is known.
    pub(super) kind: Option<usize>,
}

/// A query with the columns `n`, of which a model can be asked, and these.
#[derive(Clone, Debug)]
pub(super) struct Relation {
    pub(super) sql: String,
    pub(super) columns: Vec<Column>,
    /// Those by which rows can be sorted so that only equal ones change places. None: it is not known
    /// of which.
    pub(super) order: Vec<String>,
}

#[derive(Clone, Copy)]
enum Kind {
    Table,
    Predict,
    Filter,
    Project,
    Join,
    Union,
    Groups,
    Top,
    Unnest,
    Window,
}

/// The state of a text that grows. What it writes depends on the choices and on who computes, and
/// the latter changes no choice.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    pub(super) choices: Choices<'a>,
    by: By,
    models: &'a Models,
    names: usize,
    calls: usize,
}

impl Relation {
    /// All columns, as they are named in SELECT.
    pub(super) fn all(&self) -> String {
        let names = self.columns.iter().map(|column| column.name.as_str());
        std::iter::once("n").chain(names).collect::<Vec<_>>().join(", ")
    }

    /// Columns of a kind with which this can be done, of which `n` is the first.
    pub(super) fn that(&self, can: Can) -> Vec<Column> {
        let n = Column { name: "n".to_owned(), kind: named(NUMBER) };
        let can = |column: &&Column| column.kind.is_some_and(|kind| KINDS[kind].can >= can);
        std::iter::once(&n).chain(&self.columns).filter(can).cloned().collect()
    }

    /// The same columns of another query.
    pub(super) fn with(self, sql: String) -> Self {
        Self { sql, ..self }
    }

    /// And one more column.
    pub(super) fn and(mut self, name: String, kind: Option<usize>) -> Self {
        self.columns.push(Column { name, kind });
        self
    }
}

impl<'a> Writer<'a> {
    /// The query that these numbers stand for.
    pub(super) fn write(numbers: &'a [u16], by: By, models: &'a Models) -> Written {
        let mut writer = Self { choices: Choices::new(numbers), by, models, names: 0, calls: 0 };
        let is_ordered = writer.choices.rarely(3);
        let depth = 1 + writer.choices.below(DEPTH);
        let relation = writer.relation(depth, &[]);
        let relation = if writer.calls == 0 { writer.predict(relation) } else { relation };
        let is_ordered = is_ordered && !relation.order.is_empty();
        let order = match is_ordered {
            true => format!(" ORDER BY {}", relation.order.join(", ")),
            false => String::new(),
        };
        let sql = format!("SELECT {} FROM ({}) AS q{order}", relation.all(), relation.sql);
        Written { sql, is_ordered }
    }

    /// A name that nothing else has.
    pub(super) fn name(&mut self, prefix: &str) -> String {
        self.names += 1;
        format!("{prefix}{}", self.names)
    }

    /// With columns of these kinds, if there can be some, and others.
    pub(super) fn relation(&mut self, depth: usize, wanted: &[usize]) -> Relation {
        if depth == 0 {
            return self.table(wanted);
        }
        let kind = self.choices.weighted(&[
            (2, Kind::Table),
            (6, Kind::Predict),
            (3, Kind::Filter),
            (4, Kind::Project),
            (3, Kind::Join),
            (2, Kind::Union),
            (3, Kind::Groups),
            (2, Kind::Top),
            (2, Kind::Unnest),
            (2, Kind::Window),
        ]);
        let depth = depth - 1;
        match kind {
            Kind::Table => self.table(wanted),
            Kind::Join => self.join(depth, wanted),
            Kind::Union => self.union(wanted),
            Kind::Unnest => self.unnest(depth, wanted),
            _ => {
                let input = self.relation(depth, wanted);
                match kind {
                    Kind::Predict => self.predict(input),
                    Kind::Filter => self.filter(input),
                    Kind::Project => self.project(input),
                    Kind::Groups => self.groups(input),
                    Kind::Top => self.top(input),
                    _ => self.window(input),
                }
            }
        }
    }

    fn table(&mut self, wanted: &[usize]) -> Relation {
        let table = self.choices.weighted(&TABLES);
        let more = self.choices.below(COLUMNS_MAX);
        let mut kinds = wanted.to_vec();
        kinds.extend((0..more).map(|_| self.choices.below(KINDS.len())));
        kinds.retain(|kind| has(table, *kind));
        self.columns_of(table, &kinds)
    }

    pub(super) fn columns_of(&mut self, table: &str, kinds: &[usize]) -> Relation {
        let id = self.name("i");
        let mut columns = vec![Column { name: id.clone(), kind: named(NUMBER) }];
        let mut sql = format!("SELECT n, id AS {id}");
        for kind in kinds {
            let name = self.name("x");
            sql.push_str(&format!(", \"{}\" AS {name}", KINDS[*kind].name));
            columns.push(Column { name, kind: Some(*kind) });
        }
        Relation { sql: format!("{sql} FROM {table}"), columns, order: vec![id] }
    }

    /// A model beside all columns, which is asked of one of them or of `n`.
    pub(super) fn predict(&mut self, input: Relation) -> Relation {
        let asked = |column: &Column| Some((column.name.clone(), Models::of(column.kind?)?));
        let asked: Vec<_> = input.columns.iter().filter_map(asked).collect();
        match !asked.is_empty() && self.choices.below(2) == 1 {
            false => self.predict_number(input),
            true => {
                let (column, model) = self.choices.one(&asked);
                self.call(input, model, &column)
            }
        }
    }

    /// A model that is asked of `n`.
    pub(super) fn predict_number(&mut self, input: Relation) -> Relation {
        self.call(input, Models::of_numbers(), "n")
    }

    /// In an expression or, if it can be one, as a table function.
    fn call(&mut self, input: Relation, model: Model, column: &str) -> Relation {
        self.calls += 1;
        let is_function = model.is_asked_of_columns() && self.choices.rarely(2);
        let (name, alias) = (self.name("d"), self.name("q"));
        let (all, sql) = (input.all(), &input.sql);
        let beside = |call| format!("SELECT {all}, {call} AS {name} FROM ({sql}) AS {alias}");
        let sql = match (self.by, is_function) {
            (By::Model, true) => {
                let Model { name: model, output, .. } = model;
                let called = format!("ml_predict(({sql}), MODEL {model}, DESCRIPTOR({column}))");
                format!("SELECT {all}, {output} AS {name} FROM {called}")
            }
            (By::Model, false) => beside(model.call(column)),
            (By::Lookup, _) => beside(self.models.lookup(model, column)),
        };
        input.with(sql).and(name, named(model.gives))
    }

    fn filter(&mut self, input: Relation) -> Relation {
        let condition = self.condition(&input.that(Can::Pass));
        let (all, alias) = (input.all(), self.name("q"));
        let sql = format!("SELECT {all} FROM ({}) AS {alias} WHERE {condition}", input.sql);
        input.with(sql)
    }

    /// Of columns of any kind and literals of the same.
    pub(super) fn condition(&mut self, columns: &[Column]) -> String {
        let column = self.choices.one(columns);
        let kind = &KINDS[column.kind.unwrap()];
        let not = self.choices.one(&["", "NOT "]);
        if kind.can == Can::Pass || kind.len() == 0 {
            return format!("{} IS {not}NULL", column.name);
        }
        let [one, other] = [(); 2].map(|()| kind.literal(self.choices.below(kind.len())));
        let name = &column.name;
        let condition = match self.choices.below(if kind.can == Can::Sort { 7 } else { 5 }) {
            0 => format!("{name} = {one}"),
            1 => format!("{name} IS {not}NULL"),
            2 => format!("{name} <> {one}"),
            3 => format!("{name} IS {not}DISTINCT FROM {one}"),
            4 => format!("{name} {not}IN ({one}, {other})"),
            5 => format!("{name} {} {one}", self.choices.one(&["<", "<=", ">", ">="])),
            _ => format!("{name} {not}BETWEEN {one} AND {other}"),
        };
        match self.choices.below(4) {
            0..=2 => format!("({condition})"),
            _ => {
                let operator = self.choices.one(&["AND", "OR"]);
                format!("(({condition}) {operator} {})", self.condition(columns))
            }
        }
    }

    /// Something that is made of a column.
    fn project(&mut self, input: Relation) -> Relation {
        let column = self.choices.one(&input.that(Can::Pass));
        let kind = column.kind.unwrap();
        let literal = KINDS[kind].literal(self.choices.below(KINDS[kind].len() + 1));
        let of = &column.name;
        let (value, kind) = match self.choices.below(5 + 2 * KINDS[kind].derived.len().min(1)) {
            0 => (format!("coalesce({of}, {literal})"), Some(kind)),
            1 => (format!("CASE WHEN n > 0 THEN {of} ELSE {literal} END"), Some(kind)),
            2 => (literal, Some(kind)),
            3 if KINDS[kind].can >= Can::Key => (format!("nullif({of}, {literal})"), Some(kind)),
            3 | 4 => (format!("CASE WHEN {of} IS NULL THEN 1 ELSE 2 END"), None),
            _ => {
                let (text, kind) = self.choices.one(KINDS[kind].derived);
                (text.replace("{}", of), named(kind))
            }
        };
        let (all, name, alias) = (input.all(), self.name("x"), self.name("q"));
        let sql = format!("SELECT {all}, {value} AS {name} FROM ({}) AS {alias}", input.sql);
        input.with(sql).and(name, kind)
    }
}
