//! What a commit says of the rows of a new file, by which readers leave files out.

use std::str::FromStr;

use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::{Result, ScalarValue, Statistics};
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use object_store::{ObjectMeta, ObjectStore};
use serde_json::{Map, Number, Value, json};

/// Of how many columns something is said, as is usual (`delta.dataSkippingNumIndexedCols`).
const COLUMNS_MAX: usize = 32;

/// More digits are not told apart as floating-point numbers, as which readers may take them.
const EXACT_DIGITS: u8 = 15;

/// The statistics of a Parquet file with these columns, from its footer, as the protocol has them.
///
/// # Errors
/// If the file cannot be read.
pub(crate) async fn stats_of(
    store: &dyn ObjectStore,
    file: &ObjectMeta,
    columns: &SchemaRef,
) -> Result<String> {
    let statistics = DFParquetMetadata::new(store, file).fetch_statistics(columns).await?;
    Ok(in_json(&statistics, columns).to_string())
}

fn in_json(statistics: &Statistics, columns: &SchemaRef) -> Value {
    let (mut min, mut max, mut nulls) = (Map::new(), Map::new(), Map::new());
    let known = columns.fields().iter().zip(&statistics.column_statistics).take(COLUMNS_MAX);
    for (field, column) in known {
        if field.data_type().is_nested() {
            continue;
        }
        if let Some(count) = column.null_count.get_value() {
            nulls.insert(field.name().clone(), json!(count));
        }
        let bounds = [&column.min_value, &column.max_value]
            .map(|value| value.get_value().and_then(value_of));
        if let [Some(least), Some(most)] = bounds {
            min.insert(field.name().clone(), least);
            max.insert(field.name().clone(), most);
        }
    }
    json!({
        "numRecords": statistics.num_rows.get_value().copied().unwrap_or_default(),
        "minValues": min,
        "maxValues": max,
        "nullCount": nulls,
    })
}

/// A bound. None of types that have none in the log.
fn value_of(value: &ScalarValue) -> Option<Value> {
    if value.is_null() {
        return None;
    }
    let text = |value: &ScalarValue| match value.cast_to(&DataType::Utf8) {
        Ok(ScalarValue::Utf8(text)) => text,
        _ => None,
    };
    match value.data_type() {
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => {
            match value.cast_to(&DataType::Int64) {
                Ok(ScalarValue::Int64(Some(number))) => Some(json!(number)),
                _ => None,
            }
        }
        DataType::Float32 | DataType::Float64 => match value.cast_to(&DataType::Float64) {
            Ok(ScalarValue::Float64(Some(number))) => Number::from_f64(number).map(Value::Number),
            _ => None,
        },
        DataType::Decimal128(digits, _) if digits <= EXACT_DIGITS => {
            Number::from_str(&text(value)?).ok().map(Value::Number)
        }
        DataType::Utf8 | DataType::Date32 | DataType::Timestamp(..) => {
            text(value).map(Value::String)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::{Field, Schema};
    use datafusion::common::ColumnStatistics;
    use datafusion::common::stats::Precision;

    use super::*;

    #[test]
    fn bounds_are_written_as_the_protocol_has_them() {
        let utc = || Some("UTC".into());
        let cases = [
            (ScalarValue::Int16(Some(-3)), json!(-3)),
            (ScalarValue::Float32(Some(0.5)), json!(0.5)),
            (ScalarValue::from("ä"), json!("ä")),
            (ScalarValue::Date32(Some(1)), json!("1970-01-02")),
            (
                ScalarValue::TimestampMicrosecond(Some(1_500), utc()),
                json!("1970-01-01T00:00:00.001500Z"),
            ),
            (ScalarValue::Decimal128(Some(-125), 10, 2), json!(-1.25)),
        ];
        for (value, expected) in cases {
            assert_eq!(value_of(&value), Some(expected), "{value}");
        }
        let without = [
            ScalarValue::Boolean(Some(true)),
            ScalarValue::Float64(Some(f64::NAN)),
            ScalarValue::Decimal128(Some(1), 38, 2),
            ScalarValue::Int32(None),
        ];
        assert!(without.iter().all(|value| value_of(value).is_none()));
    }

    #[test]
    fn a_column_has_both_bounds_or_none() {
        let columns = Arc::new(Schema::new(vec![Field::new("n", DataType::Int32, true)]));
        let column = ColumnStatistics::new_unknown()
            .with_null_count(Precision::Exact(2))
            .with_min_value(Precision::Exact(ScalarValue::Int32(Some(1))));
        let statistics = Statistics {
            num_rows: Precision::Exact(3),
            total_byte_size: Precision::Absent,
            column_statistics: vec![column],
        };
        let expected =
            json!({"numRecords": 3, "minValues": {}, "maxValues": {}, "nullCount": {"n": 2}});
        assert_eq!(in_json(&statistics, &columns), expected);
    }
}
