//! The columns of rows that are staged.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::common::{Result, ScalarValue};
use datafusion::physical_expr::expressions::{CastExpr, Column, Literal};
use datafusion::physical_plan::PhysicalExpr;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};

use super::Plan;
use super::refusals::refused;

/// The columns of rows, and those of the files that they are staged in.
///
/// In files they have names of their own, as rows may have one twice; and there is one, if rows have none. Texts
/// that are numbers in a dictionary are texts: an Arrow file has one dictionary for all of its batches.
#[derive(Debug)]
pub(super) struct Columns {
    rows: SchemaRef,
    files: SchemaRef,
}

impl Columns {
    /// Of rows with these columns.
    ///
    /// # Errors
    /// If they cannot be staged.
    pub(super) fn of(rows: SchemaRef) -> Result<Self> {
        let staged = |(at, field): (usize, &FieldRef)| {
            let kind = match field.data_type() {
                DataType::Dictionary(_, value) => value.as_ref().clone(),
                kind => kind.clone(),
            };
            if has_dictionary(&kind) {
                return Err(refused(
                    &format!("column '{}' has dictionaries in its values", field.name()),
                    "cast it to the type of what is in them",
                ));
            }
            Ok(field.as_ref().clone().with_name(name(at)).with_data_type(kind))
        };
        let mut fields: Vec<Field> =
            rows.fields().iter().enumerate().map(staged).collect::<Result<_>>()?;
        if fields.is_empty() {
            fields.push(Field::new(name(0), DataType::Boolean, false));
        }
        let files = Arc::new(Schema::new_with_metadata(fields, rows.metadata().clone()));
        Ok(Self { rows, files })
    }

    /// The columns of the files.
    pub(super) fn files(&self) -> &SchemaRef {
        &self.files
    }

    /// In words that differ if they do.
    pub(super) fn identity(&self) -> String {
        let all = self.rows.fields().iter().map(|row| format!("{} ", row.name()));
        let all = all.chain([String::new()]).zip(self.files.fields());
        let columns = all.map(|(name, field)| format!("{name}{}", field.data_type()));
        columns.collect::<Vec<_>>().join(", ")
    }

    /// Rows as they are staged.
    pub(super) fn to_files(&self, rows: Plan) -> Result<Plan> {
        if self.rows.fields().is_empty() {
            let constant = Literal::new(ScalarValue::Boolean(Some(true)));
            return projected(rows, vec![ProjectionExpr::new(Arc::new(constant), name(0))]);
        }
        between(rows, &self.rows, &self.files)
    }

    /// Staged rows as they were.
    pub(super) fn to_rows(&self, staged: Plan) -> Result<Plan> {
        between(staged, &self.files, &self.rows)
    }
}

fn name(at: usize) -> String {
    format!("c{at}")
}

/// The columns of one schema as those of another one, which may be the first of it.
fn between(plan: Plan, from: &Schema, to: &Schema) -> Result<Plan> {
    let column = |(at, (from, to)): (usize, (&FieldRef, &FieldRef))| {
        let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(from.name(), at));
        let expr: Arc<dyn PhysicalExpr> = match from.data_type() == to.data_type() {
            true => column,
            false => Arc::new(CastExpr::new_with_target_field(column, Arc::clone(to), None)),
        };
        ProjectionExpr::new(expr, to.name().clone())
    };
    let columns = from.fields().iter().zip(to.fields()).enumerate().map(column);
    projected(plan, columns.collect())
}

fn projected(plan: Plan, columns: Vec<ProjectionExpr>) -> Result<Plan> {
    Ok(Arc::new(ProjectionExec::try_new(columns, plan)?))
}

fn has_dictionary(kind: &DataType) -> bool {
    let of = |field: &FieldRef| has_dictionary(field.data_type());
    match kind {
        DataType::Dictionary(..) => true,
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => of(item),
        DataType::RunEndEncoded(_, values) => of(values),
        DataType::Struct(fields) => fields.iter().any(of),
        DataType::Union(fields, _) => fields.iter().any(|(_, field)| of(field)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, ArrayRef, AsArray, DictionaryArray, Int64Array, RecordBatch};
    use arrow::datatypes::Int8Type;
    use datafusion::datasource::memory::MemorySourceConfig;
    use datafusion::physical_plan::collect;
    use datafusion::prelude::SessionContext;

    use super::*;

    async fn there_and_back(batch: RecordBatch) -> (Schema, Vec<RecordBatch>) {
        let columns = Columns::of(batch.schema()).unwrap();
        let schema = batch.schema();
        let rows = MemorySourceConfig::try_new_exec(&[vec![batch]], schema, None).unwrap();
        let staged = columns.to_files(rows).unwrap();
        assert_eq!(staged.schema().fields(), columns.files().fields());
        let rows = columns.to_rows(staged).unwrap();
        let schema = rows.schema().as_ref().clone();
        (schema, collect(rows, SessionContext::new().task_ctx()).await.unwrap())
    }

    #[tokio::test]
    async fn rows_come_back_with_names_that_they_have_twice_and_dictionaries() {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        let texts: DictionaryArray<Int8Type> = vec!["a", "b"].into_iter().collect();
        let field = |name: &str, kind: &DataType| Field::new(name, kind.clone(), true);
        let tensor = field("v", &DataType::Int64)
            .with_metadata([("shape".to_owned(), "1".to_owned())].into());
        let schema =
            Schema::new(vec![field("v", &DataType::Int64), tensor, field("t", texts.data_type())]);
        let columns = vec![Arc::clone(&numbers), numbers, Arc::new(texts)];
        let batch = RecordBatch::try_new(Arc::new(schema.clone()), columns).unwrap();
        let (found, rows) = there_and_back(batch.clone()).await;
        assert_eq!(found, schema);
        assert_eq!(rows, [batch]);
        assert_eq!(rows[0].column(2).as_dictionary::<Int8Type>().len(), 2);
    }

    #[tokio::test]
    async fn rows_without_columns_are_as_many() {
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(3));
        let schema = Arc::new(Schema::empty());
        let batch = RecordBatch::try_new_with_options(schema, vec![], &options).unwrap();
        let (schema, rows) = there_and_back(batch).await;
        assert!(schema.fields().is_empty());
        assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), 3);
    }

    #[test]
    fn columns_of_one_type_are_told_apart() {
        let identity = |names: &[&str]| {
            let fields = names.iter().map(|name| Field::new(*name, DataType::Int64, true));
            let schema = Schema::new(fields.collect::<Vec<_>>());
            Columns::of(Arc::new(schema)).unwrap().identity()
        };
        assert_eq!(identity(&["a", "b"]), "a Int64, b Int64");
        assert_ne!(identity(&["a", "b"]), identity(&["b", "a"]));
        assert_eq!(identity(&[]), "Boolean");
    }

    #[test]
    fn dictionaries_in_lists_are_refused() {
        let dictionary = DataType::Dictionary(DataType::Int8.into(), DataType::Utf8.into());
        let list = DataType::new_list(dictionary, true);
        let schema = Schema::new(vec![Field::new("tags", list, true)]);
        let error = Columns::of(Arc::new(schema)).unwrap_err().to_string();
        assert!(error.contains("'tags'") && error.contains("cast it"), "{error}");
    }
}
