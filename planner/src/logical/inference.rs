//! The logical node: input columns, and the model's outputs behind them.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Column, DFSchema, DFSchemaRef, Result, internal_err, plan_err};
use datafusion::logical_expr::{
    Expr, ExprSchemable, Extension, LogicalPlan, UserDefinedLogicalNodeCore, cast,
};
use forebay_udf::feature::{check_tensor, column_type_name};
use forebay_udf::model::{HIDDEN_PREFIX, ModelDeclaration, type_name};

use super::vector_literal::as_vector;

/// Runs a model over the rows of its input. One row in, one row out: the input's columns, then
/// the model's outputs (NULL where an input is NULL), without the columns that nobody above needs.
#[derive(Clone, Debug)]
pub struct Inference {
    input: Arc<LogicalPlan>,
    model: Arc<ModelDeclaration>,
    args: Vec<Expr>,
    /// Of all output columns, dropped ones included.
    output_names: Vec<String>,
    /// Columns of the input, and outputs, that are not in the schema.
    dropped: HashSet<Column>,
    /// Whether DataFusion's rules may move something from above to below.
    pushdown: Pushdown,
    schema: DFSchemaRef,
}

/// Begins the names of columns that hold a computed input of a model.
pub(crate) const INPUT_PREFIX: &str = "__forebay_input_";

/// What DataFusion's own rules may move below an [`Inference`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pushdown {
    /// Conditions that need no output of the model.
    pub filters: bool,
    /// Limits that stand right above it, since it keeps rows and their order.
    pub limits: bool,
}

impl Default for Pushdown {
    fn default() -> Self {
        Self { filters: true, limits: true }
    }
}

impl Inference {
    /// Checks the arguments against the model's signature and names the outputs: as declared,
    /// behind the model's `output_prefix`, and with a number where a name is taken (`label0`).
    ///
    /// # Errors
    /// Names the model, the input, and the types expected and found.
    pub fn try_new(
        input: LogicalPlan,
        model: Arc<ModelDeclaration>,
        args: Vec<Expr>,
    ) -> Result<Self> {
        let taken: HashSet<String> =
            input.schema().fields().iter().map(|f| f.name().clone()).collect();
        let mut output_names: Vec<String> = vec![];
        for output in model.output_columns() {
            let name = format!("{}{}", model.output_prefix, output.name());
            let free = |name: &String| !taken.contains(name) && !output_names.contains(name);
            let numbered = (0..).map(|n| format!("{name}{n}"));
            let unique = std::iter::once(name.clone()).chain(numbered).find(free);
            output_names.extend(unique);
        }
        Self::try_new_with_names(input, model, args, output_names)
    }

    /// With the outputs' names given.
    ///
    /// # Errors
    /// As [`Self::try_new`].
    pub fn try_new_with_names(
        input: LogicalPlan,
        model: Arc<ModelDeclaration>,
        args: Vec<Expr>,
        output_names: Vec<String>,
    ) -> Result<Self> {
        let is_hidden =
            |name: &str| name.starts_with(HIDDEN_PREFIX) && !name.starts_with(INPUT_PREFIX);
        let hidden = input.schema().fields().iter().find(|f| is_hidden(f.name()));
        if let Some(hidden) = hidden {
            return plan_err!(
                "ml_predict: the input has a column '{}'; names that begin with {HIDDEN_PREFIX} are \
                 Forebay's own, rename it",
                hidden.name()
            );
        }
        let to_field = |arg: &Expr| Ok(arg.to_field(input.schema())?.1);
        let mut args = args;
        if args.len() == model.signature.inputs.len() {
            let inputs = args.into_iter().zip(&model.signature.inputs);
            let as_input = |(arg, wanted): (Expr, &FieldRef)| {
                let given = to_field(&arg)?;
                as_vector(&model, wanted, (arg, given.data_type()))
            };
            args = inputs.map(as_input).collect::<Result<_>>()?;
        }
        let fields = args.iter().map(to_field).collect::<Result<Vec<_>>>()?;
        check_inputs(&model, &fields)?;
        // NULL and parameters have no type of their own.
        let typed = args.into_iter().zip(&fields).zip(&model.signature.inputs);
        let args = typed
            .map(|((arg, given), wanted)| match given.data_type() {
                DataType::Null => cast(arg, wanted.data_type().clone()),
                _ => arg,
            })
            .collect();
        let inference = Self {
            schema: Arc::clone(input.schema()),
            input: Arc::new(input),
            model,
            args,
            output_names,
            dropped: HashSet::new(),
            pushdown: Pushdown::default(),
        };
        inference.with_dropped(HashSet::new())
    }

    /// Without these columns of the input and outputs; all others are in its schema.
    ///
    /// # Errors
    /// If two of the others have one name.
    pub fn with_dropped(mut self, dropped: HashSet<Column>) -> Result<Self> {
        let input = self.input.schema();
        let outputs = self.model.output_columns();
        let outputs = outputs.iter().zip(&self.output_names).map(|(field, name)| {
            (None, Arc::new(Field::new(name, field.data_type().clone(), true)))
        });
        let fields = input.iter().map(|(q, f)| (q.cloned(), Arc::clone(f))).chain(outputs);
        let fields = fields.filter(|(q, f)| !dropped.contains(&Column::new(q.clone(), f.name())));
        let schema = DFSchema::new_with_metadata(fields.collect(), input.metadata().clone())?;
        self.schema = Arc::new(schema);
        self.dropped = dropped;
        Ok(self)
    }

    /// With other permissions for DataFusion's rules.
    #[must_use]
    pub fn with_pushdown(mut self, pushdown: Pushdown) -> Self {
        self.pushdown = pushdown;
        self
    }

    /// Over another input that has the columns of the arguments.
    ///
    /// # Errors
    /// As [`Self::try_new`].
    pub fn with_input(&self, input: LogicalPlan) -> Result<Self> {
        self.with_exprs_and_inputs(self.args.clone(), vec![input])
    }

    /// As [`Self::try_new`], as a plan.
    ///
    /// # Errors
    /// As [`Self::try_new`].
    pub fn plan(
        input: LogicalPlan,
        model: Arc<ModelDeclaration>,
        args: Vec<Expr>,
    ) -> Result<LogicalPlan> {
        Ok(Self::try_new(input, model, args)?.into_plan())
    }

    /// The node of a plan that is one.
    pub fn of(plan: &LogicalPlan) -> Option<&Self> {
        match plan {
            LogicalPlan::Extension(extension) => extension.node.as_any().downcast_ref(),
            _ => None,
        }
    }

    /// This node in a plan.
    pub fn into_plan(self) -> LogicalPlan {
        LogicalPlan::Extension(Extension { node: Arc::new(self) })
    }

    /// The model, options applied.
    pub fn model(&self) -> &Arc<ModelDeclaration> {
        &self.model
    }

    /// What the model is given, in the order of its signature.
    pub fn args(&self) -> &[Expr] {
        &self.args
    }

    /// The names of the output columns, in the order of the model's signature.
    pub fn output_names(&self) -> &[String] {
        &self.output_names
    }

    /// The plan below, whose columns the arguments are over.
    pub fn input(&self) -> &LogicalPlan {
        &self.input
    }

    /// What DataFusion's rules may move below it.
    pub fn pushdown(&self) -> Pushdown {
        self.pushdown
    }

    /// All output columns, dropped ones included.
    pub fn output_columns(&self) -> impl Iterator<Item = Column> {
        self.output_names.iter().map(Column::new_unqualified)
    }

    /// The columns of the input that are not in the schema.
    fn dropped_inputs(&self) -> impl Iterator<Item = &Column> {
        self.dropped.iter().filter(|column| self.input.schema().has_column(column))
    }

    /// The columns of the input, and outputs, that are not in its schema.
    pub fn dropped(&self) -> &HashSet<Column> {
        &self.dropped
    }

    /// The columns of its schema.
    pub fn columns(&self) -> Vec<Column> {
        self.schema.columns()
    }

    /// Whether the expression is over columns of the input only.
    pub fn is_of_input(&self, expr: &Expr) -> bool {
        expr.column_refs().iter().all(|column| self.input.schema().has_column(column))
    }
}

/// The columns that a model is given when the call names none: those with the names of its inputs,
/// or the only column for a model with one input.
pub(crate) fn resolve_columns(model: &ModelDeclaration, schema: &DFSchema) -> Result<Vec<Expr>> {
    let columns: Option<Vec<Expr>> = model
        .signature
        .inputs
        .iter()
        .map(|input| {
            let (qualifier, field) =
                schema.iter().find(|(_, field)| field.name() == input.name())?;
            Some(Expr::from((qualifier, field)))
        })
        .collect();
    if let Some(columns) = columns {
        return Ok(columns);
    }
    match (schema.iter().next(), schema.fields().len(), model.signature.inputs.len()) {
        (Some((qualifier, field)), 1, 1) => Ok(vec![Expr::from((qualifier, field))]),
        _ => plan_err!(
            "ml_predict: say which columns are the inputs of model '{}' {} with DESCRIPTOR(…); the \
             table has {}",
            model.name,
            model.signature,
            schema.field_names().join(", ")
        ),
    }
}

/// Checks the columns given to a model against its signature.
pub(crate) fn check_inputs(model: &ModelDeclaration, given: &[FieldRef]) -> Result<()> {
    let wanted = &model.signature.inputs;
    if wanted.len() != given.len() {
        return plan_err!(
            "ml_predict: model '{}' {} takes {} input column(s), found {}: ({})",
            model.name,
            model.signature,
            wanted.len(),
            given.len(),
            given.iter().map(|f| f.name().as_str()).collect::<Vec<_>>().join(", ")
        );
    }
    for (wanted, given) in wanted.iter().zip(given) {
        check_tensor(given)?;
        if !accepts(wanted.data_type(), given.data_type()) {
            let remedy = match (wanted.data_type(), given.data_type()) {
                (
                    DataType::FixedSizeList(item, length),
                    DataType::List(_) | DataType::LargeList(_),
                ) => {
                    let item = item.data_type();
                    format!(
                        "a list may be of any length; write arrow_cast(…, 'FixedSizeList({length}, {item})')"
                    )
                }
                _ => "cast it or name another column".to_owned(),
            };
            return plan_err!(
                "ml_predict: model '{}' wants {} for input '{}', found {} in '{}'; {remedy}",
                model.name,
                type_name(wanted.data_type()),
                wanted.name(),
                column_type_name(given),
                given.name()
            );
        }
    }
    Ok(())
}

fn accepts(wanted: &DataType, given: &DataType) -> bool {
    match (wanted, given) {
        (_, DataType::Null) => true,
        (DataType::Utf8, given) => given.is_string(),
        (DataType::Binary, given) => given.is_binary(),
        (DataType::FixedSizeList(wanted, n), DataType::FixedSizeList(given, m)) => {
            n == m && wanted.data_type() == given.data_type()
        }
        (wanted, given) => wanted == given,
    }
}

impl UserDefinedLogicalNodeCore for Inference {
    fn name(&self) -> &str {
        "Inference"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        self.args.clone()
    }

    /// Predicates on input columns run first.
    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        if self.pushdown.filters && !self.model.needs_its_rows() {
            self.output_names.iter().cloned().collect()
        } else {
            self.schema.fields().iter().map(|f| f.name().clone()).collect()
        }
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let args: Vec<String> = self.args.iter().map(ToString::to_string).collect();
        let outputs = self.output_columns().filter(|column| !self.dropped.contains(column));
        write!(
            f,
            "Inference: model={}@{}, inputs=[{}], outputs=[{}]",
            self.model.name,
            self.model.version,
            args.join(", "),
            outputs.map(|column| column.name).collect::<Vec<_>>().join(", ")
        )?;
        let mut dropped: Vec<String> = self.dropped_inputs().map(|c| c.flat_name()).collect();
        dropped.sort_unstable();
        if dropped.is_empty() { Ok(()) } else { write!(f, ", dropped=[{}]", dropped.join(", ")) }
    }

    fn with_exprs_and_inputs(&self, args: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let [input] = <[LogicalPlan; 1]>::try_from(inputs)
            .or_else(|inputs| internal_err!("Inference takes one input, found {}", inputs.len()))?;
        let (model, names) = (Arc::clone(&self.model), self.output_names.clone());
        let inference = Self::try_new_with_names(input, model, args, names)?;
        inference.with_pushdown(self.pushdown).with_dropped(self.dropped.clone())
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let schema = self.input.schema();
        let column = |at: &usize| {
            let (qualifier, field) = self.schema.qualified_field(*at);
            schema.maybe_index_of_column(&Column::new(qualifier.cloned(), field.name()))
        };
        let mut needed: Vec<usize> = output_columns.iter().filter_map(column).collect();
        for column in self.args.iter().flat_map(|arg| arg.column_refs()) {
            needed.push(schema.index_of_column(column).ok()?);
        }
        needed.sort_unstable();
        needed.dedup();
        Some(vec![needed])
    }

    fn supports_limit_pushdown(&self) -> bool {
        self.pushdown.limits && !self.model.needs_its_rows()
    }
}

impl PartialEq for Inference {
    fn eq(&self, other: &Self) -> bool {
        self.model == other.model
            && self.args == other.args
            && self.output_names == other.output_names
            && self.dropped == other.dropped
            && self.pushdown == other.pushdown
            && self.input == other.input
    }
}

impl Eq for Inference {}

impl PartialOrd for Inference {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        let key = |node: &Self| (node.model.name.clone(), node.output_names.clone());
        match key(self).cmp(&key(other)) {
            Ordering::Equal if self == other => Some(Ordering::Equal),
            Ordering::Equal => self.input.partial_cmp(&other.input),
            unequal => Some(unequal),
        }
    }
}

impl Hash for Inference {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.model.name.hash(state);
        self.model.content_hash.hash(state);
        self.args.hash(state);
        self.output_names.hash(state);
        self.input.hash(state);
    }
}
