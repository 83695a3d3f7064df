//! Kinds of columns: every type that a query may carry beside a model, and its values.

use std::sync::Arc;

use arrow::array::{ArrayRef, UInt32Array, new_null_array};
use arrow::compute::{concat, take};
use datafusion::arrow::datatypes::DataType;
use datafusion::prelude::SessionContext;
use forebay_testkit::random::mix;

/// What a query may do with the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Can {
    /// Carry them.
    Pass,
    /// Compare and group them, too.
    Key,
    /// And sort them.
    Sort,
}

/// A type and a few values of it, in SQL.
#[derive(Debug)]
pub(super) struct Kind {
    /// The name of its column in every table.
    pub(super) name: &'static str,
    /// What the values below are cast to by `arrow_cast`. Without it they have the type themselves.
    cast: &'static str,
    values: &'static [&'static str],
    pub(super) can: Can,
    /// Other values that can be made of one, as a text with `{}`, and of which kind they are: none
    /// that is here if that is empty.
    pub(super) derived: &'static [(&'static str, &'static str)],
}

const fn kind(
    name: &'static str,
    cast: &'static str,
    values: &'static [&'static str],
    can: Can,
    derived: &'static [(&'static str, &'static str)],
) -> Kind {
    Kind { name, cast, values, can, derived }
}

use Can::{Key, Pass, Sort};

/// What models give, and what they are asked of: so many numbers are keys of the list of results.
pub(super) const NUMBER: &str = "int64";

pub(super) const KINDS: &[Kind] = &[
    kind(NUMBER, "Int64", &["-9", "0", "11"], Sort, &[("{} + 1", ""), ("{} % 7", NUMBER)]),
    kind("boolean", "Boolean", &["true", "false"], Sort, &[("NOT {}", "boolean")]),
    kind("int8", "Int8", &["-3", "0", "7"], Sort, &[("CAST({} AS BIGINT)", NUMBER)]),
    kind("int16", "Int16", &["-11", "0", "2"], Sort, &[("-{}", "")]),
    kind("int32", "Int32", &["-11", "1", "3"], Sort, &[("abs({})", "int32")]),
    kind("uint8", "UInt8", &["0", "11"], Sort, &[("{} + 1", "")]),
    kind("uint16", "UInt16", &["0", "5", "65535"], Sort, &[("{} / 2", "")]),
    kind("uint32", "UInt32", &["1", "4294967295"], Sort, &[]),
    kind("uint64", "UInt64", &["0", "18446744073709551615"], Sort, &[]),
    kind("float16", "Float16", &["1.5", "'NaN'", "-2"], Sort, &[]),
    kind("float32", "Float32", &["-1.5", "'NaN'", "'-0.0'", "'inf'"], Sort, &[("{} * 2", "")]),
    kind("float64", "Float64", &["'NaN'", "'-inf'", "1e300"], Sort, &[("isnan({})", "boolean")]),
    // Which are equal in a comparison, and not as keys of groups.
    kind("zero", "Float64", &["'-0.0'", "'0.0'"], Pass, &[("1 / {}", "float64")]),
    kind("decimal32", "Decimal32(5, 2)", &["'-999.99'", "'0.01'"], Sort, &[]),
    kind("decimal64", "Decimal64(12, 3)", &["'-1.5'", "'123456789.125'"], Sort, &[]),
    kind(
        "decimal128",
        "Decimal128(10, 2)",
        &["'-1.50'", "'0'", "'99999999.99'"],
        Sort,
        &[
            ("{} * {}", ""),
            ("CAST({} AS VARCHAR)", ""),
            ("arrow_cast({}, 'Decimal256(76, 20)')", "decimal256"),
        ],
    ),
    kind(
        "wide",
        "Decimal128(38, 10)",
        &["'9999999999999999999999999999.9999999999'", "'-0.0000000001'"],
        Sort,
        &[("{} > 0", "boolean")],
    ),
    kind(
        "decimal256",
        "Decimal256(76, 20)",
        &["'99999999999999999999999999999999999999999999.5'", "'-2.25'"],
        Sort,
        &[("CAST({} AS VARCHAR)", "")],
    ),
    kind(
        "date32",
        "Date32",
        &["'1969-12-31'", "'2024-02-29'"],
        Sort,
        &[
            ("date_trunc('month', {})", ""),
            ("{} + INTERVAL '1 month'", ""),
            ("arrow_cast({}, 'Date64')", "date64"),
        ],
    ),
    kind("date64", "Date64", &["'1900-01-01'", "'2100-01-01'"], Sort, &[]),
    kind(
        "seconds",
        "Timestamp(Second, None)",
        &["'1969-12-31T23:59:59'", "'2024-03-31T01:30:00'"],
        Sort,
        &[("{} - INTERVAL '1 day'", "")],
    ),
    kind(
        "millis",
        "Timestamp(Millisecond, None)",
        &["'2024-03-31T01:30:00.123'", "'0001-01-01T00:00:00'"],
        Sort,
        &[("date_trunc('hour', {})", "")],
    ),
    kind(
        "micros",
        "Timestamp(Microsecond, None)",
        &["'2024-03-31T01:30:00.123456'", "'1815-06-18'"],
        Sort,
        &[],
    ),
    kind(
        "nanos",
        "Timestamp(Nanosecond, None)",
        &["'2024-03-31T01:30:00.123456789'", "'1700-01-01'"],
        Sort,
        &[("date_part('year', {})", ""), ("arrow_cast({}, 'Timestamp(Second, None)')", "")],
    ),
    kind(
        "utc",
        "Timestamp(Microsecond, Some(\"UTC\"))",
        &["'2024-03-31T01:30:00Z'", "'1969-07-20T20:17:40Z'"],
        Sort,
        &[("arrow_cast({}, 'Timestamp(Nanosecond, Some(\"Europe/Berlin\"))')", "berlin")],
    ),
    kind(
        "berlin",
        "Timestamp(Nanosecond, Some(\"Europe/Berlin\"))",
        // Twice the same hour there.
        &["'2024-10-27T00:30:00Z'", "'2024-10-27T01:30:00Z'"],
        Sort,
        &[("date_trunc('day', {})", ""), ("CAST({} AS VARCHAR)", "")],
    ),
    kind(
        "offset_seconds",
        "Timestamp(Second, Some(\"+05:45\"))",
        &["'2024-01-01T00:00:00+05:45'"],
        Sort,
        &[],
    ),
    kind(
        "offset_millis",
        "Timestamp(Millisecond, Some(\"-09:30\"))",
        &["'1970-01-01T00:00:00Z'", "'1999-12-31T23:59:59.999Z'"],
        Sort,
        &[],
    ),
    kind("time_seconds", "Time32(Second)", &["'00:00:00'", "'23:59:59'"], Sort, &[]),
    kind("time_millis", "Time32(Millisecond)", &["'12:34:56.789'"], Sort, &[]),
    kind("time_micros", "Time64(Microsecond)", &["'12:34:56.789012'", "'00:00:01'"], Sort, &[]),
    kind("time_nanos", "Time64(Nanosecond)", &["'12:34:56.789012345'", "'23:00:00'"], Sort, &[]),
    kind("duration_seconds", "Duration(Second)", &["-1", "86400"], Sort, &[]),
    kind("duration_millis", "Duration(Millisecond)", &["0", "1500"], Sort, &[]),
    kind("duration_micros", "Duration(Microsecond)", &["-1", "7"], Sort, &[]),
    kind("duration_nanos", "Duration(Nanosecond)", &["123456789012", "1"], Sort, &[]),
    kind("months", "Interval(YearMonth)", &["'1 year 2 months'", "'-3 months'"], Sort, &[]),
    kind("days", "Interval(DayTime)", &["'1 day 2 hours'", "'-5 seconds'"], Sort, &[]),
    kind(
        "interval",
        "Interval(MonthDayNano)",
        &["'1 month 2 days 3 nanoseconds'", "'-1 day'"],
        Sort,
        &[],
    ),
    kind(
        "utf8",
        "Utf8",
        &["''", "'a'", "'ß 水'"],
        Sort,
        &[("{} || '!'", ""), ("arrow_cast({}, 'LargeUtf8')", "large_utf8")],
    ),
    kind(
        "large_utf8",
        "LargeUtf8",
        &["'a'", "'a longer text than twelve bytes'"],
        Sort,
        &[("upper({})", "")],
    ),
    kind(
        "utf8_view",
        "Utf8View",
        &["'a'", "''", "'another text than that of twelve bytes'"],
        Sort,
        &[("substr({}, 2)", ""), ("length({})", "")],
    ),
    // What a model gives, of which no model is asked.
    kind("text", "Utf8", &["'a'"], Sort, &[]),
    kind("binary", "Binary", &["X''", "X'00ff'"], Sort, &[("octet_length({})", "")]),
    kind("large_binary", "LargeBinary", &["X'01'", "X'0102'"], Sort, &[]),
    kind("binary_view", "BinaryView", &["X'80'", "X'000102030405060708090a0b0c0d0e0f'"], Sort, &[]),
    kind("fixed_binary", "FixedSizeBinary(3)", &["X'000000'", "X'ff00ff'"], Sort, &[]),
    kind(
        "dictionary",
        "Dictionary(Int32, Utf8)",
        &["'a'", "'b'", "''"],
        Sort,
        &[("CAST({} AS VARCHAR)", ""), ("{} = 'a'", "boolean")],
    ),
    kind(
        "views",
        "Dictionary(UInt16, Utf8View)",
        &["'a'", "'a text that is longer than twelve'"],
        Sort,
        &[],
    ),
    kind("numbers", "Dictionary(Int8, Int64)", &["-5", "6"], Sort, &[]),
    kind(
        "list",
        "List(Int32)",
        &["[]", "[1, NULL, 1]", "[3]"],
        Key,
        &[("{}[1]", "int32"), ("array_length({})", ""), ("array_append({}, 4)", "")],
    ),
    kind(
        "large_list",
        "LargeList(LargeUtf8)",
        &["['a', NULL]", "['b']"],
        Key,
        &[("{}[1]", "large_utf8")],
    ),
    kind(
        "fixed_list",
        "FixedSizeList(2, Float32)",
        &["[1.5, 2]", "[-3, NULL]"],
        Key,
        &[("{}[2]", "float32")],
    ),
    kind("vector", "FixedSizeList(2, Float32)", &["[1.5, 2]", "[-3, 0]"], Key, &[]),
    kind("lists", "", &["[[1], NULL, []]", "[[2, 3]]"], Key, &[("flatten({})", "")]),
    kind(
        "struct",
        "",
        &[
            "named_struct('a', arrow_cast(1, 'Int32'), 'b', 'x')",
            "named_struct('a', arrow_cast(NULL, 'Int32'), 'b', 'y')",
        ],
        Key,
        &[("{}['a']", "int32"), ("{}['b']", "utf8")],
    ),
    kind(
        "nested",
        "",
        &["named_struct('d', arrow_cast('1.5', 'Decimal256(76, 20)'), 't', \
             arrow_cast('2024-10-27T01:30:00Z', 'Timestamp(Nanosecond, Some(\"Europe/Berlin\"))'), \
             'k', arrow_cast('a', 'Dictionary(Int32, Utf8)'), 's', named_struct('n', [1]))"],
        Pass,
        &[
            ("{}['d']", "decimal256"),
            ("{}['t']", "berlin"),
            ("{}['k']", "dictionary"),
            ("{}['s']['n']", ""),
        ],
    ),
    kind(
        "structs",
        "",
        &["[named_struct('a', 1, 'b', 'x'), NULL]", "[named_struct('a', 2, 'b', 'y')]"],
        Pass,
        &[("{}[1]['b']", "utf8")],
    ),
    kind(
        "map",
        "",
        &["map(['k', 'l'], [1, NULL])", "map(['m'], [2])"],
        Pass,
        &[("map_keys({})", ""), ("{}['k']", "")],
    ),
    kind("hollow", "Decimal128(20, 4)", &[], Sort, &[]),
    kind("null", "Null", &[], Pass, &[]),
];

/// The place of a kind of this name.
pub(super) fn named(name: &str) -> Option<usize> {
    KINDS.iter().position(|kind| kind.name == name)
}

/// All texts that a column of texts can have, but for what a model gives.
pub(super) const TEXTS: [&str; 8] = [
    "",
    "a",
    "b",
    "x",
    "y",
    "ß 水",
    "a longer text than twelve bytes",
    "another text than that of twelve bytes",
];

/// Lists that can be unnested, and the kinds of their items, if there is one.
pub(super) const LISTS: [(&str, &str); 4] =
    [("list", "int32"), ("large_list", "large_utf8"), ("fixed_list", "float32"), ("lists", "")];

impl Kind {
    /// How many values it has beside NULL.
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    /// A value in SQL; behind the last one NULL.
    pub(super) fn literal(&self, at: usize) -> String {
        let value = self.values.get(at);
        match (self.cast, value) {
            ("", Some(value)) => (*value).to_owned(),
            ("", None) => format!("CASE WHEN false THEN {} END", self.values[0]),
            ("Null", _) => "NULL".to_owned(),
            (cast, value) => format!("arrow_cast({}, '{cast}')", value.unwrap_or(&"NULL")),
        }
    }

    /// The values as an array, of which the last one is NULL.
    pub(super) async fn pool(&self, plain: &SessionContext) -> ArrayRef {
        let mut parts: Vec<ArrayRef> = vec![];
        for at in 0..=self.len() {
            let sql = format!("SELECT {} AS value", self.literal(at));
            let rows = async { plain.sql(&sql).await?.collect().await }.await;
            let rows = rows.unwrap_or_else(|error| panic!("{}: {sql}: {error}", self.name));
            parts.push(Arc::clone(rows[0].column(0)));
        }
        let kinds: Vec<&DataType> = parts.iter().map(|part| part.data_type()).collect();
        assert!(kinds.iter().all(|kind| kind == &kinds[0]), "{}: {kinds:?}", self.name);
        let null = new_null_array(kinds[0], 1);
        parts.pop();
        parts.push(null);
        concat(&parts.iter().map(AsRef::as_ref).collect::<Vec<_>>()).unwrap()
    }
}

/// Rows of a kind: of a table's rows from one on.
pub(super) fn column(kind: usize, pool: &ArrayRef, rows: std::ops::Range<usize>) -> ArrayRef {
    let values = pool.len() as u64;
    let at = |row: usize| (mix(((kind as u64) << 32) | row as u64) % values) as u32;
    take(pool, &UInt32Array::from_iter_values(rows.map(at)), None).unwrap()
}
