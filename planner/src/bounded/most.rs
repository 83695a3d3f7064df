//! What functions may make of a row at the most.

use std::sync::{Arc, OnceLock};

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Date32Type, IntervalMonthDayNano, IntervalMonthDayNanoType, TimeUnit,
    TimestampNanosecondType,
};
use datafusion::common::Result;
use datafusion::logical_expr::ColumnarValue;
use forebay_engine::weight;

use super::operator;

pub(super) type Most = fn(&Row<'_>) -> u64;

/// Bytes, or more, that a function adds to those of its arguments, by its name. Those are here which
/// make more of a row than a few times the bytes of one argument.
const FUNCTIONS: &[(&str, Most)] = &[
    (operator::NAME, nothing),
    ("array_append", nothing),
    ("array_concat", nothing),
    ("array_prepend", nothing),
    ("array_repeat", |row| (row.bytes(0) + ELEMENT).saturating_mul(row.number(1))),
    ("array_replace", nothing),
    ("array_replace_all", |row| row.count(0).saturating_mul(row.bytes(2))),
    ("array_replace_n", |row| row.count(0).saturating_mul(row.bytes(2))),
    ("array_resize", |row| (row.bytes(2) + ELEMENT).saturating_mul(row.number(1))),
    ("array_to_string", |row| row.leaves(0).saturating_mul(row.bytes(1) + row.bytes(2) + NUMBER)),
    ("array_union", nothing),
    ("arrays_zip", nothing),
    ("concat", nothing),
    ("concat_ws", |row| row.bytes(0).saturating_mul(row.columns.len() as u64)),
    ("generate_series", series),
    ("lpad", |row| row.number(1).saturating_mul(CHARACTER)),
    ("make_array", nothing),
    ("overlay", nothing),
    ("range", series),
    ("regexp_replace", |row| {
        // An empty pattern is found everywhere; each group that is named may be all of the text.
        let found = if row.bytes(3) > 0 { row.bytes(0) + 1 } else { 1 };
        let groups = row.text(2).matches(['$', '\\']).count() as u64;
        (found.saturating_mul(row.bytes(2))).saturating_add(groups.saturating_mul(row.bytes(0)))
    }),
    ("repeat", |row| row.bytes(0).saturating_mul(row.number(1))),
    ("replace", |row| {
        let found = row.text(0).matches(row.text(1)).count() as u64;
        found.saturating_mul(row.bytes(2))
    }),
    ("rpad", |row| row.number(1).saturating_mul(CHARACTER)),
];

/// The longest of UTF-8.
const CHARACTER: u64 = 4;
/// Of a list, if it is a number or a reference.
const ELEMENT: u64 = 16;
/// As text.
const NUMBER: u64 = 40;

/// What a function may add to its arguments, if it may be much.
pub(super) fn of(name: &str) -> Option<Most> {
    FUNCTIONS.iter().find(|(known, _)| *known == name).map(|(_, most)| *most)
}

fn nothing(_: &Row<'_>) -> u64 {
    0
}

/// `range(stop)`, `range(start, stop)`, `range(start, stop, step)`: of numbers, dates or times.
fn series(row: &Row<'_>) -> u64 {
    let number = |at| i128::from(row.signed(at));
    let elements = match row.columns {
        [start, _, _] if start.array.data_type().is_temporal() => temporal(row),
        [_] => span(0, number(0), 1),
        [_, _] => span(number(0), number(1), 1),
        _ => span(number(0), number(1), number(2)),
    };
    elements.saturating_mul(size_of::<i64>() as u64)
}

const DAY: i128 = 24 * 60 * 60 * 1_000_000_000;

fn temporal(row: &Row<'_>) -> u64 {
    let Some(step) = row.columns.get(2).and_then(|column| column.interval(row.at)) else {
        return 0;
    };
    let IntervalMonthDayNano { months, days, nanoseconds } = step;
    let is_forward = months >= 0 && days >= 0 && nanoseconds >= 0;
    if !is_forward && (months > 0 || days > 0 || nanoseconds > 0) {
        // Forward and back again: it may never arrive.
        return u64::MAX;
    }
    // The shortest month, and the day of a clock that is put forward.
    let shortest =
        i128::from(months) * 28 * DAY + i128::from(days) * DAY / 24 * 23 + i128::from(nanoseconds);
    span(row.columns[0].nanoseconds(row.at), row.columns[1].nanoseconds(row.at), shortest)
}

/// How many steps are between two ends, at the most.
fn span(start: i128, stop: i128, step: i128) -> u64 {
    let steps = (stop - start).unsigned_abs() / step.unsigned_abs().max(1);
    if (stop >= start) == (step >= 0) {
        u64::try_from(steps).unwrap_or(u64::MAX).saturating_add(1)
    } else {
        0
    }
}

/// One argument, for all rows.
pub(super) struct Column {
    array: ArrayRef,
    is_constant: bool,
    /// As whole numbers, if they are asked for.
    numbers: OnceLock<Option<Int64Array>>,
    nanoseconds: OnceLock<Option<ArrayRef>>,
}

impl Column {
    pub(super) fn of(argument: &ColumnarValue) -> Result<Self> {
        let is_constant = matches!(argument, ColumnarValue::Scalar(_));
        let array = argument.to_array(1)?;
        Ok(Self { array, is_constant, numbers: OnceLock::new(), nanoseconds: OnceLock::new() })
    }

    fn at(&self, row: usize) -> usize {
        if self.is_constant { 0 } else { row }
    }

    fn number(&self, row: usize) -> Option<i64> {
        let numbers = self.numbers.get_or_init(|| {
            let numbers = cast(&self.array, &DataType::Int64).ok()?;
            numbers.as_primitive_opt().cloned()
        });
        let numbers = numbers.as_ref()?;
        let at = self.at(row);
        (!numbers.is_null(at)).then(|| numbers.value(at))
    }

    fn interval(&self, row: usize) -> Option<IntervalMonthDayNano> {
        let intervals = self.array.as_primitive_opt::<IntervalMonthDayNanoType>()?;
        let at = self.at(row);
        (!intervals.is_null(at)).then(|| intervals.value(at))
    }

    /// Since the beginning of 1970.
    fn nanoseconds(&self, row: usize) -> i128 {
        let at = self.at(row);
        let times = self.nanoseconds.get_or_init(|| {
            let wanted = match self.array.data_type() {
                DataType::Date32 | DataType::Date64 => DataType::Date32,
                _ => DataType::Timestamp(TimeUnit::Nanosecond, None),
            };
            cast(&self.array, &wanted).ok()
        });
        let Some(times) = times.as_ref().filter(|times| !times.is_null(at)) else { return 0 };
        match times.as_primitive_opt::<Date32Type>() {
            Some(days) => i128::from(days.value(at)) * DAY,
            None => i128::from(times.as_primitive::<TimestampNanosecondType>().value(at)),
        }
    }
}

/// The arguments of one row.
pub(super) struct Row<'a> {
    pub(super) columns: &'a [Column],
    pub(super) at: usize,
}

impl<'a> Row<'a> {
    /// What a function may take for this row: its arguments, of which constants are often written out
    /// for each row, and what it makes of them.
    pub(super) fn most(&self, added: Most) -> u64 {
        let arguments = (0..self.columns.len()).map(|at| self.bytes(at));
        arguments.fold(added(self), u64::saturating_add)
    }

    /// What an argument weighs; nothing if there is no such argument.
    fn bytes(&self, argument: usize) -> u64 {
        let Some(column) = self.columns.get(argument) else { return 0 };
        let at = column.at(self.at);
        let bytes = match column.array.data_type() {
            DataType::Utf8 => column.array.as_string::<i32>().value_length(at) as usize,
            data_type => match data_type.primitive_width() {
                Some(width) => width,
                None => weight::array_bytes(&column.array.slice(at, 1)),
            },
        };
        bytes as u64
    }

    fn text(&self, argument: usize) -> &'a str {
        let Some(column) = self.columns.get(argument) else { return "" };
        let at = column.at(self.at);
        match column.array.data_type() {
            DataType::Utf8 => column.array.as_string::<i32>().value(at),
            DataType::LargeUtf8 => column.array.as_string::<i64>().value(at),
            DataType::Utf8View => column.array.as_string_view().value(at),
            _ => "",
        }
    }

    fn signed(&self, argument: usize) -> i64 {
        self.columns.get(argument).and_then(|column| column.number(self.at)).unwrap_or(0)
    }

    /// A size: none below nothing.
    fn number(&self, argument: usize) -> u64 {
        u64::try_from(self.signed(argument)).unwrap_or(0)
    }

    /// Elements of a list.
    fn count(&self, argument: usize) -> u64 {
        self.elements(argument).map_or(0, |values| values.len() as u64)
    }

    /// Values at the bottom of lists of lists.
    fn leaves(&self, argument: usize) -> u64 {
        self.elements(argument).map_or(0, |values| leaves(&values))
    }

    fn elements(&self, argument: usize) -> Option<ArrayRef> {
        let column = self.columns.get(argument)?;
        elements(&column.array.slice(column.at(self.at), 1))
    }
}

/// The elements of all lists of an array.
fn elements(lists: &ArrayRef) -> Option<ArrayRef> {
    Some(match lists.data_type() {
        DataType::List(_) => {
            let lists = lists.as_list::<i32>();
            let (first, last) = (lists.offsets()[0], lists.offsets()[lists.len()]);
            lists.values().slice(first as usize, (last - first) as usize)
        }
        DataType::LargeList(_) => {
            let lists = lists.as_list::<i64>();
            let (first, last) = (lists.offsets()[0], lists.offsets()[lists.len()]);
            lists.values().slice(first as usize, (last - first) as usize)
        }
        DataType::FixedSizeList(..) => Arc::clone(lists.as_fixed_size_list().values()),
        _ => return None,
    })
}

fn leaves(values: &ArrayRef) -> u64 {
    elements(values).map_or(values.len() as u64, |elements| leaves(&elements))
}
