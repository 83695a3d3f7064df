//! `df.ml_predict(model, columns, options)`: the same node as from SQL.

use std::sync::Arc;

use datafusion::common::{Column, Result, internal_datafusion_err};
use datafusion::logical_expr::Expr;
use datafusion::prelude::DataFrame;
use forebay_udf::model::{Catalog, ModelOptions};

use super::inference::{Inference, resolve_columns};

/// Inference on a DataFrame of a session with Forebay installed.
pub trait DataFrameExt: Sized {
    /// Appends the outputs of `model` over `columns`, which may be empty if they have the names
    /// of the model's inputs. `options` are those of `ml_predict` in SQL.
    ///
    /// # Errors
    /// An unknown model, column or option, or columns of another type than the model wants.
    fn ml_predict(self, model: &str, columns: &[&str], options: &[(&str, &str)]) -> Result<Self>;
}

impl DataFrameExt for DataFrame {
    fn ml_predict(self, model: &str, columns: &[&str], options: &[(&str, &str)]) -> Result<Self> {
        let (state, input) = self.into_parts();
        let catalog = state.config().get_extension::<Catalog>().ok_or_else(|| {
            internal_datafusion_err!("ml_predict: Forebay is not installed in this session")
        })?;
        let options = ModelOptions::try_from_pairs(options.iter().copied())?;
        let model = Arc::new(catalog.get(model)?.declaration.with_options(&options)?);
        let args = if columns.is_empty() {
            resolve_columns(&model, input.schema())?
        } else {
            let column = |name: &&str| {
                let column = Column::from_qualified_name(*name);
                let (qualifier, field) = input.schema().qualified_field_from_column(&column)?;
                Ok(Expr::from((qualifier, field)))
            };
            columns.iter().map(column).collect::<Result<_>>()?
        };
        Ok(Self::new(state, Inference::plan(input, model, args)?))
    }
}
