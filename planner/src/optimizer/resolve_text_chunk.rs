//! `text_chunk(…, 'model')` → the same by the model's tokenizer, pinned: the processes that run it have
//! no catalog.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, LogicalPlan, ScalarUDF, lit};
use datafusion::optimizer::AnalyzerRule;
use forebay_udf::feature::{TEXT_CHUNK, TEXT_CHUNK_BY, TokenizerReference};
use forebay_udf::model::Catalog;

/// See the [module](self).
#[derive(Debug)]
pub struct ResolveTextChunk {
    catalog: Arc<Catalog>,
    functions: Vec<Arc<ScalarUDF>>,
}

impl ResolveTextChunk {
    /// For the models of `catalog`; among `functions` are those that it puts in.
    pub fn new(catalog: Arc<Catalog>, functions: &[Arc<ScalarUDF>]) -> Self {
        let is_meant = |function: &&Arc<ScalarUDF>| function.name().ends_with(TEXT_CHUNK_BY);
        Self { catalog, functions: functions.iter().filter(is_meant).cloned().collect() }
    }

    fn resolve(&self, expr: Expr) -> Result<Transformed<Expr>> {
        let (resolved, call) = match expr {
            Expr::ScalarFunction(call) => match self.resolved(&call) {
                Some(resolved) => (resolved, call),
                None => return Ok(Transformed::no(Expr::ScalarFunction(call))),
            },
            other => return Ok(Transformed::no(other)),
        };
        let name = match &call.args[3] {
            Expr::Literal(value, _) => value.try_as_str().flatten(),
            _ => None,
        };
        let Some(name) = name else {
            return plan_err!(
                "{}: the model is {}, expected the name of a model as a constant text",
                call.func.name(),
                call.args[3]
            );
        };
        let reference = TokenizerReference::of(&self.catalog.get(name)?.declaration)?;
        let mut args = call.args;
        args[3] = lit(reference.to_string());
        Ok(Transformed::yes(Expr::ScalarFunction(ScalarFunction::new_udf(resolved, args))))
    }

    /// What stands for a call with a model.
    fn resolved(&self, call: &ScalarFunction) -> Option<Arc<ScalarUDF>> {
        let prefix = call.func.name().strip_suffix(TEXT_CHUNK)?;
        let name = format!("{prefix}{TEXT_CHUNK_BY}");
        let found = self.functions.iter().find(|function| function.name() == name)?;
        (call.args.len() == 4).then(|| Arc::clone(found))
    }
}

impl AnalyzerRule for ResolveTextChunk {
    fn name(&self) -> &str {
        "resolve_text_chunk"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|plan| {
            let names = NamePreserver::new(&plan);
            plan.map_expressions(|expr| {
                let name = names.save(&expr);
                let resolved = expr.transform_up(|expr| self.resolve(expr))?;
                Ok(if resolved.transformed {
                    resolved.update_data(|expr| name.restore(expr))
                } else {
                    resolved
                })
            })?
            .map_data(LogicalPlan::recompute_schema)
        })
        .data()
    }
}
