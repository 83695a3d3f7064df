//! `ml_predict(…)` in FROM, and `information_schema.models`.
//!
//! DataFusion's own path for table functions takes scalar arguments only; a [`RelationPlanner`]
//! sees the syntax and can plan tables.

use std::sync::Arc;

use datafusion::common::{DFSchema, Result, plan_err};
use datafusion::functions_nested::expr_fn::make_array;
use datafusion::logical_expr::planner::{
    PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning,
};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::sqlparser::ast::{
    Expr as SqlExpr, FunctionArg, FunctionArguments, ObjectName, TableAlias, TableFactor,
};
use forebay_udf::model::{Catalog, ModelDeclaration};

use super::arguments::{Arguments, FirstArgument, input_query};
use super::models_table;
use super::normalize::ML_PREDICT;
use crate::logical::inference::{Inference, resolve_columns};
use crate::sql::scalar;

/// Plans the table factors that DataFusion does not know.
#[derive(Debug)]
pub struct ForebayRelations {
    catalog: Arc<Catalog>,
}

impl ForebayRelations {
    /// For the models of `catalog`.
    pub fn new(catalog: Arc<Catalog>) -> Self {
        Self { catalog }
    }

    /// `ml_predict(TABLE t, MODEL m, DESCRIPTOR(c), MAP {…})`
    fn plan_table_form(
        &self,
        args: Vec<FunctionArg>,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<LogicalPlan> {
        let mut args = Arguments::try_new(args, FirstArgument::Input)?;
        let subquery = input_query(args.input.take())?;
        let input = context.plan(TableFactor::Derived {
            lateral: false,
            subquery,
            alias: None,
            sample: None,
        })?;
        let model = self.model(&args)?;
        if !args.values.is_empty() {
            return plan_err!(
                "ml_predict: name the model's input columns with DESCRIPTOR({}), not as further arguments",
                args.values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            );
        }
        let columns = match args.descriptor {
            Some(columns) => columns
                .into_iter()
                .map(|column| context.sql_to_expr(column, input.schema()))
                .collect::<Result<Vec<_>>>()?,
            None => resolve_columns(&model, input.schema())?,
        };
        Inference::plan(input, model, columns)
    }

    /// `LATERAL ml_predict(MODEL m, t.c)`: a correlated one-row query over the scalar form, which
    /// the optimizer turns into an inference over the left side.
    fn plan_lateral_form(
        &self,
        args: Vec<FunctionArg>,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<LogicalPlan> {
        let args = Arguments::try_new(args, FirstArgument::Model)?;
        let model = self.model(&args)?;
        let values: Vec<SqlExpr> =
            args.values.into_iter().chain(args.descriptor.into_iter().flatten()).collect();
        let inputs = values
            .into_iter()
            .map(|value| outer_expr(value, context))
            .collect::<Result<Vec<_>>>()?;
        let call = scalar::call(&self.catalog, &model, inputs);
        let outputs = scalar::outputs_of(&call, &model);
        LogicalPlanBuilder::empty(true).project(outputs)?.build()
    }

    fn model(&self, args: &Arguments) -> Result<Arc<ModelDeclaration>> {
        let entry = self.catalog.get(&args.model_name()?)?;
        Ok(Arc::new(entry.declaration.with_call_options(&args.options)?))
    }
}

impl RelationPlanner for ForebayRelations {
    fn plan_relation(
        &self,
        relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<RelationPlanning> {
        let (plan, alias) = match relation {
            TableFactor::Table { name, args: Some(args), alias, .. } if is_ml_predict(&name) => {
                (self.plan_table_form(args.args, context)?, alias)
            }
            TableFactor::Function { lateral: true, name, args, alias, .. }
                if is_ml_predict(&name) =>
            {
                (self.plan_lateral_form(args, context)?, alias)
            }
            TableFactor::TableFunction { expr: SqlExpr::Function(call), alias }
                if is_ml_predict(&call.name) =>
            {
                let FunctionArguments::List(list) = call.args else {
                    return plan_err!("ml_predict: expected a list of arguments");
                };
                (self.plan_table_form(list.args, context)?, alias)
            }
            TableFactor::Table { name, args: None, alias, .. }
                if models_table::is_models_table(&name) =>
            {
                (models_table::scan(&self.catalog)?, alias)
            }
            other => return Ok(RelationPlanning::Original(Box::new(other))),
        };
        Ok(planned(plan, alias))
    }
}

/// An expression over columns of the query around. What `[…]` holds is planned by itself: DataFusion looks
/// for its columns in the innermost query only.
fn outer_expr(value: SqlExpr, context: &mut dyn RelationPlannerContext) -> Result<Expr> {
    match value {
        SqlExpr::Array(list) => {
            let items = list.elem.into_iter().map(|item| outer_expr(item, context));
            Ok(make_array(items.collect::<Result<_>>()?))
        }
        value => context.sql_to_expr(value, &DFSchema::empty()),
    }
}

fn planned(plan: LogicalPlan, alias: Option<TableAlias>) -> RelationPlanning {
    RelationPlanning::Planned(Box::new(PlannedRelation::new(plan, alias)))
}

pub(super) fn is_ml_predict(name: &ObjectName) -> bool {
    name.to_string().eq_ignore_ascii_case(ML_PREDICT)
}
